"""The tables of `kgray.sqlite3`, generated from the record table (`kgray.kinds`).

A group has a number `no`; `key` is no << 40 | n, so the rows of a group are one range of keys and every
read of them names its group. A kind's table has one of four layouts:

    SEQUENCE  key ("sequence",)           rowid = key, n is the sequence; it is no column of its own
    COUNTED   words, a vector, or an      rowid = key, n counts the rows in the order of their insertion;
              order other than the key    unique index on (no, key columns)
    LONG      rows of several 100 bytes   a rowid of SQLite's own; unique index on (no, key columns)
    KEYED     any other                   no rowid: the primary key is (no, key columns)

The insertion of rows that have a place is in the order of their places: a group's commits are in the order of
their sequences (R20), and `RowWriter.put` sorts. So the order of keys is that of such rows.

Never run ANALYZE or PRAGMA optimize on this file: their samples keep words of removed episodes.
"""

from __future__ import annotations

from enum import Enum

from kgray import kinds
from kgray.kinds import Column, Kind

APPLICATION_ID = 0x6B677279  # "kgry", in the header of the file
FILE = "kgray.sqlite3"
MARKER = f"{FILE}.made"  # beside the file: without it, a folder whose file is gone would pass for a new one
VERSION = 4
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
_TYPES = {"int": "INTEGER", "bool": "INTEGER", "text": "TEXT", "texts": "TEXT", "vector": "BLOB"}
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
# groups.removals counts the deletions of its vectors: what a process keeps of them in memory is then stale.
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
    if kind.words or kind.vector or (kind.order and kind.order != kind.key):
        return Layout.COUNTED
    return Layout.LONG if kind in _LONG else Layout.KEYED


def stored_columns(kind: Kind) -> tuple[Column, ...]:
    """Return the columns of a kind that its table has: in the layout SEQUENCE the first is in the key."""
    return kind.columns[1:] if layout(kind) is Layout.SEQUENCE else kind.columns


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
        if column.type == "vector":
            # The signs, one bit a dimension, stand before the vector: a scan of them reads no overflow page.
            columns.append("bits BLOB NOT NULL")
        optional = "" if column.optional else " NOT NULL"
        columns.append(f"{column.name} {_TYPES[column.type]}{optional}")
    if lies is Layout.KEYED:
        columns.append(f"PRIMARY KEY (no, {', '.join(kind.key)})")
    rows = "STRICT, WITHOUT ROWID" if lies is Layout.KEYED else "STRICT"
    made = f"CREATE TABLE {kind.name} (\n    {', '.join(columns)}\n) {rows};\n"
    if lies in (Layout.COUNTED, Layout.LONG):
        made += f"CREATE UNIQUE INDEX {kind.name}_key ON {kind.name} (no, {', '.join(kind.key)});\n"
    made += "".join(_index(kind, columns) for columns in declared_indexes(kind).values())
    return made + (_words(kind) if kind.words else "")


def _index(kind: Kind, columns: tuple[str, ...]) -> str:
    names = [name for name in columns if name in {column.name for column in stored_columns(kind)}]
    over = _INDEXES_BY_HAND.get((kind, columns[0]), f"(no, {', '.join(names)})")
    return f"CREATE INDEX {kind.name}_{columns[0]} ON {kind.name} {over};\n"


def _words(kind: Kind) -> str:
    """Return the full-text table of a kind.

    An ordinary FTS5 table: it keeps the indexed words themselves, so that a row can be deleted without
    knowing how an older version of kgray (or of Unicode) split its text. Fed by words.py only; `ascii` splits
    at the spaces that words.py left and changes nothing else. Deleted entries are taken out of the index at
    once (secure-delete), not marked; see `RowWriter.clear`.
    """
    words = f"{kind.name}_words"
    return (
        f"CREATE VIRTUAL TABLE {words} USING fts5 (words, tokenize = 'ascii');\n"
        f"INSERT INTO {words} ({words}, rank) VALUES ('secure-delete', 1);\n"
        f"CREATE VIRTUAL TABLE {kind.name}_vocabulary USING fts5vocab ('{words}', 'row');\n"
    )
