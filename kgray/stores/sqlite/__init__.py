"""The embedded store: one SQLite file in a data folder, log and graph.

store       SqliteStore, `open_sqlite`: append, apply, adopt
folder      the file: made, checked, opened; schema: its tables; errors: SQLite's, in one line of ours
database    its two connections and their transactions
statements  every statement, made from the record table or by hand
row_writer  rows put, dropped, patched; appending, adoption: those of a log, those of another store
reading     what is pending, declared reads (reads), search (vectors, lexical)
cache       model replies, in a file of their own
"""

from __future__ import annotations

from kgray.stores.sqlite.store import CACHE_MB, SqliteStore, open_sqlite

__all__ = ["CACHE_MB", "SqliteStore", "open_sqlite"]
