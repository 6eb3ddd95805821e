"""The embedded store: one SQLite file in a data folder, log and graph; begin at `store`."""

from kgray.storage.sqlite.folder import install
from kgray.storage.sqlite.schema import FILE
from kgray.storage.sqlite.store import CACHE_MB, SqliteStore, open_sqlite

__all__ = ["CACHE_MB", "FILE", "SqliteStore", "install", "open_sqlite"]
