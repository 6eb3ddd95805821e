"""The embedded store: one SQLite file in a data folder, log and graph; begin at `store`."""

from kgray.stores.sqlite.folder import install
from kgray.stores.sqlite.schema import FILE
from kgray.stores.sqlite.store import CACHE_MB, SqliteStore, open_sqlite

__all__ = ["CACHE_MB", "FILE", "SqliteStore", "install", "open_sqlite"]
