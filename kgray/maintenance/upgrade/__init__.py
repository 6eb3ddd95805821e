"""Upgrades the store of an earlier version to this version, without calls of a model; begin at `run`.

storage/earlier.py         the kinds of rows that earlier versions stored, and the port that reads them
storage/*/earlier.py       the two stores: they read the old store, build a new store and replace the old
convert, rulings           old rows to values of this version
writing                    values to recorded and derived rows of this version
"""

from kgray.maintenance.upgrade.run import upgrade

__all__ = ["upgrade"]
