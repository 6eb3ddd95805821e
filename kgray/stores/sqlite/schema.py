"""The tables of `kgray.sqlite3`, generated from the record table (`kgray.kinds`).

A group has a number `no`; `key` is no << 40 | n, so the rows of a group are one range of keys and every
read of them names its group. A kind's table has one of four layouts:

    SEQUENCE  key ("sequence",)           rowid = key, n is the sequence; it is no column of its own
    COUNTED   computed columns, or an     rowid = key, n counts the rows in the order of their insertion;
              order other than the key    unique index on (no, key columns)
    LONG      rows of several 100 bytes   a rowid of SQLite's own; unique index on (no, key columns)
    KEYED     any other                   no rowid: the primary key is (no, key columns)

The insertion of rows that have a place is in the order of their places: a group's commits are in the order of
their sequences (R20), and `RowWriter.put` sorts. So the order of keys is that of such rows.

Never run ANALYZE or PRAGMA optimize on this file: their samples keep texts of removed episodes.
"""

from __future__ import annotations

from enum import Enum

from kgray import kinds
from kgray.kinds import Column, Kind

APPLICATION_ID = 0x6B677279  # "kgry", in the header of the file
FILE = "kgray.sqlite3"
MARKER = f"{FILE}.made"  # beside the file: without it, a folder whose file is gone would pass for a new one
VERSION = 5
SHIFT = 40
MASK = (1 << SHIFT) - 1

# A vector of 1024 float32 and its names need 4.3 KB:
#     page     bytes a vector, measured
#     4 KB     4,600: about 500 in the leaf (names and sign bits, which scans read), one full overflow page
#     8 KB     8,200: one vector a page
#     16 KB    5,500: three
#     32 KB    4,700: seven, and every small change rewrites 32 KB
PAGE_BYTES = 4096


class Layout(Enum):
    """How the rows of a kind are stored; see the module."""

    SEQUENCE, COUNTED, LONG, KEYED = range(4)


# A table without rowid would hold these rows in its inner pages too, few to a page.
_LONG = {kinds.ANSWERS, kinds.FACTS}
_TYPES = {
    "int": "INTEGER", "bool": "INTEGER", "text": "TEXT", "texts": "TEXT", "vector": "BLOB", "bytes": "BLOB",
}  # fmt: skip
# The columns that may be long stand last, so that a scan of the words, signs and what is short reads no
# overflow page of a text or a vector.
_LAST = {
    "words": 1, "signs": 1, "text": 2, "metadata": 2, "failure_message": 2, "failure_raw": 2, "vector": 2,
}  # fmt: skip
# Declared indexes that are more than their columns:
#     episodes.state       holds all that counting the ledger reads
#     evidence.statement   holds all that a search reads of it, in the order of the scan
#     facts.source/target  newest first: a hub's newest facts cost what is taken of them
_INDEXES_BY_HAND = {
    (kinds.EPISODES, "client_id"): "(no, client_id) WHERE client_id IS NOT NULL",
    (kinds.EPISODES, "state"): "(no, state, retired_at)",
    (kinds.EVIDENCE, "statement"): "(no, statement, sequence, ordinal, shown)",
    (kinds.FACTS, "source"): "(no, source, created_at DESC, id)",
    (kinds.FACTS, "target"): "(no, target, created_at DESC, id) WHERE target IS NOT NULL",
}
# What is pending, in the order of the log; live: whether a group has anything pending besides its backfill,
# however long that is.
_PENDING = """
CREATE INDEX episodes_pending ON episodes (no) WHERE state < 2;
CREATE INDEX episodes_live ON episodes (no) WHERE state < 2 AND bulk = 0;
"""
# groups.name is NULL for a removed group: its digest, last sequence and last record time stay.
_META = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE groups (
    no INTEGER PRIMARY KEY, name TEXT UNIQUE, digest BLOB NOT NULL UNIQUE,
    last INTEGER NOT NULL DEFAULT 0, last_recorded INTEGER NOT NULL DEFAULT 0,
    removals INTEGER NOT NULL DEFAULT 0
) STRICT;
"""


def layout(kind: Kind) -> Layout:
    """Return the layout of a kind."""
    if kind.key == ("sequence",):
        return Layout.SEQUENCE
    if kind.computed or (kind.order and kind.order != kind.key):
        return Layout.COUNTED
    return Layout.LONG if kind in _LONG else Layout.KEYED


def stored_columns(kind: Kind) -> tuple[Column, ...]:
    """Return the columns of a kind's table, in its order: in the layout SEQUENCE the first is in the key."""
    columns = kind.columns[1:] if layout(kind) is Layout.SEQUENCE else kind.columns
    if not kind.computed:
        return columns
    return tuple(sorted((*columns, *kind.computed), key=lambda column: _LAST.get(column.name, 0)))


def declared_indexes(kind: Kind) -> dict[str, tuple[str, ...]]:
    """Return the declared indexes that the key does not cover, by their first column, which names them."""
    return {columns[0]: columns for columns in kind.indexes if columns != kind.key[: len(columns)]}


def tables() -> str:
    """Return the statements that make every table and index of the file."""
    return _META + "".join(_table(kind) for kind in kinds.KINDS) + _PENDING


def _table(kind: Kind) -> str:
    lies = layout(kind)
    columns = ["key INTEGER PRIMARY KEY"] if lies in (Layout.SEQUENCE, Layout.COUNTED) else []
    columns.append("no INTEGER NOT NULL")
    for column in stored_columns(kind):
        optional = "" if column.optional else " NOT NULL"
        columns.append(f"{column.name} {_TYPES[column.type]}{optional}")
    if lies is Layout.KEYED:
        columns.append(f"PRIMARY KEY (no, {', '.join(kind.key)})")
    rows = "STRICT, WITHOUT ROWID" if lies is Layout.KEYED else "STRICT"
    made = f"CREATE TABLE {kind.name} (\n    {', '.join(columns)}\n) {rows};\n"
    if lies in (Layout.COUNTED, Layout.LONG):
        made += f"CREATE UNIQUE INDEX {kind.name}_key ON {kind.name} (no, {', '.join(kind.key)});\n"
    return made + "".join(_index(kind, columns) for columns in declared_indexes(kind).values())


def _index(kind: Kind, columns: tuple[str, ...]) -> str:
    names = [name for name in columns if name in {column.name for column in stored_columns(kind)}]
    over = _INDEXES_BY_HAND.get((kind, columns[0]), f"(no, {', '.join(names)})")
    return f"CREATE INDEX {kind.name}_{columns[0]} ON {kind.name} {over};\n"
