"""The embedded store: one SQLite file in a data folder, log and graph; begin at `store`."""

from kgray.stores.sqlite.store import CACHE_MB, SqliteStore, open_sqlite

__all__ = ["CACHE_MB", "SqliteStore", "open_sqlite"]
