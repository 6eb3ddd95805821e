"""The tables of `kgray.sqlite3`, generated from the record table (`kgray.schema.kinds`).

A group has a number `no`, the first column of every key and index: every read of rows names its group. The
primary key of a kind's table is (no, key columns). Rows lie in its order, in no second table; long rows
(_LONG) lie in the order of their insertion, and the key is an index.

Never run ANALYZE or PRAGMA optimize on this file: their samples keep texts of removed episodes.
"""

from __future__ import annotations

from typing import Any

from kgray.schema import kinds
from kgray.schema.kinds import Kind
from kgray.storage.transactions import SLOTS

APPLICATION_ID = 0x6B677279  # "kgry", in the header of the file
FILE = "kgray.sqlite3"
MARKER = f"{FILE}.made"  # next to the file: without it, a folder that lost its file would look new
VERSION = 11

# A vector of 1024 float32 and its names need 4.3 KB:
#     page     bytes a vector (measured)
#     4 KB     4,600: about 500 in the leaf (names and sign bits, which scans read), one full overflow page
#     8 KB     8,200: one vector a page
#     16 KB    5,500: three
#     32 KB    4,700: seven, and every small change rewrites 32 KB
PAGE_BYTES = 4096


# Without rowid, a table would hold these rows in its inner pages too, few to a page.
_LONG: set[Kind[Any]] = {
    kinds.EPISODES, kinds.EXTRACTIONS, kinds.ANSWERS, kinds.RECORDS, kinds.ENTITIES, kinds.FACTS,
    kinds.COMMUNITIES,
}  # fmt: skip
_TYPES = {"int": "INTEGER", "bool": "INTEGER", "text": "TEXT", "texts": "TEXT", "bytes": "BLOB"}
# Columns that may be long come last, the longest at the end: a scan of the columns before them reads none of
# their overflow pages.
_LAST = {
    "packed": 1, "search": 2, "names": 3, "vectors": 4, "text": 2, "metadata": 2, "failure_message": 2,
    "failure_raw": 2, "members": 2, "summary": 2,
}  # fmt: skip
# Declared indexes that are more than their columns:
#     episodes.state       covers all columns that counting the ledger reads
#     records.timed        only the few records with declarations or verdicts
#     facts.source/target  newest first: reading a hub's newest facts costs only the rows taken
#     facts.expired_at     only the few expired facts
_INDEXES_BY_HAND = {
    (kinds.EPISODES, "client_id"): "(no, client_id) WHERE client_id IS NOT NULL",
    (kinds.EPISODES, "state"): "(no, state, retired_at)",
    (kinds.RECORDS, "timed"): "(no, timed, sequence) WHERE timed IS NOT NULL",
    (kinds.FACTS, "source"): "(no, source, created_at DESC, id)",
    (kinds.FACTS, "target"): "(no, target, created_at DESC, id) WHERE target IS NOT NULL",
    (kinds.FACTS, "expired_at"): "(no, expired_at, id) WHERE expired_at IS NOT NULL",
}
# Pending entries, in the order of the log. episodes_live shows whether a group has any pending episode that
# is not of a backfill, at a cost that does not depend on the backfill's length.
_PENDING = """
CREATE INDEX episodes_pending ON episodes (no, sequence) WHERE state < 2;
CREATE INDEX episodes_live ON episodes (no) WHERE state < 2 AND bulk = 0;
CREATE INDEX operations_asked ON operations (no, kind) WHERE state = 0;
"""
# groups.name is NULL for a removed group: its digest, last sequence and last record time stay.
# groups.waiting is the time of the last append while any entry is pending; else 0.
# shards.epoch is the epoch of a shard's newest run; token differs between locks with the same epoch.
# slots.target is the target shard of a slot's current move (`kgray.storage.transactions`).
_META = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE groups (
    no INTEGER PRIMARY KEY, name TEXT UNIQUE, digest BLOB NOT NULL UNIQUE, slot INTEGER NOT NULL,
    last INTEGER NOT NULL DEFAULT 0, last_recorded INTEGER NOT NULL DEFAULT 0,
    removals INTEGER NOT NULL DEFAULT 0, waiting INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX groups_waiting ON groups (slot, waiting) WHERE waiting > 0;
CREATE TABLE shards (
    shard INTEGER PRIMARY KEY, epoch INTEGER NOT NULL DEFAULT 0, token INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO shards (shard) VALUES (0);
CREATE TABLE slots (
    slot INTEGER PRIMARY KEY, shard INTEGER NOT NULL, epoch INTEGER NOT NULL DEFAULT 0, target INTEGER
) STRICT;
"""
_SLOTS = f"INSERT INTO slots (slot, shard) VALUES {', '.join(f'({slot}, 0)' for slot in range(SLOTS))};\n"  # noqa: S608 - numbers


def indexes(kind: Kind[Any]) -> dict[str, tuple[str, ...]]:
    """Return the indexes that the key does not cover, by their first column, which names them."""
    return {columns[0]: columns for columns in kind.indexes if columns != kind.key[: len(columns)]}


def _table(kind: Kind[Any]) -> str:
    statement = "no INTEGER NOT NULL, "
    for column in sorted(kind.columns, key=lambda column: _LAST.get(column.name, 0)):
        statement += f"{column.name} {_TYPES[column.type]}{'' if column.optional else ' NOT NULL'}, "
    statement += f"PRIMARY KEY (no, {', '.join(kind.key)})"
    rows = "STRICT" if kind in _LONG else "STRICT, WITHOUT ROWID"
    statement = f"CREATE TABLE {kind.name} (\n    {statement}\n) {rows};\n"
    for name, columns in indexes(kind).items():
        over = _INDEXES_BY_HAND.get((kind, name), f"(no, {', '.join(columns)})")
        statement += f"CREATE INDEX {kind.name}_{name} ON {kind.name} {over};\n"
    return statement


# Every table and index of the file.
TABLES = _META + _SLOTS + "".join(map(_table, kinds.KINDS)) + _PENDING
