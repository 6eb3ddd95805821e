"""The embedded store: one SQLite file in a data folder, log and graph.

store       SqliteStore, `open_sqlite`; copies a group in from another store
folder      creates and checks the file; schema: its tables
database    its two connections, their transactions, declared reads page by page, SQLite's errors as ours
statements  every statement, generated from the record table or written by hand
row_writer  puts, drops and patches rows
cache       model replies, in a file of their own
"""

from __future__ import annotations

from kgray.stores.sqlite.store import CACHE_MB, SqliteStore, open_sqlite

__all__ = ["CACHE_MB", "SqliteStore", "open_sqlite"]
