"""The embedded store: one SQLite file in a data folder, log and graph.

store      SqliteStore, `open_sqlite`
folder     the file: made, checked, opened; schema: its tables
database   its two connections and their transactions
log        acceptance, pending, failures; writing: a run's writes; applying: a commit; erasing: removal
reading    records and look-ups; view: the derived graph; vectors, lexical: what search asks
cache      model replies, in a file of their own
"""

from __future__ import annotations

from kgray.stores.sqlite.store import CACHE_MB, SqliteStore, open_sqlite

__all__ = ["CACHE_MB", "SqliteStore", "open_sqlite"]
