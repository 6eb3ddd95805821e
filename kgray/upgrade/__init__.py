"""Brings the store of an earlier version to this one, without asking a model; begin at `run`.

stores/earlier.py          the kinds of rows that earlier versions stored, and the port that reads them
stores/*/earlier.py        the two stores: reading, building the new store beside the old one, replacing it
convert, rulings           old rows to values of this version
writing                    values to rows of this version, and what they derive
"""

from kgray.upgrade.run import upgrade

__all__ = ["upgrade"]
