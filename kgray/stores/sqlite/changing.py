"""Rows of declared kinds put, dropped and patched; a group cleared.

What is erased (R25, R27) goes in two steps. Deleted rows are zeroed (secure_delete) and taken out of the
full-text indexes at once (FTS5's own secure-delete). What is left is what SQLite moved before it was deleted:
copies in pages that were rebalanced, and the write-ahead log. `Database.compact` rewrites the file and cuts
the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

import apsw
import numpy as np

from kgray import kinds
from kgray.errors import StoreError
from kgray.kinds import KINDS, Key, Kind, Row
from kgray.ports.store import Patch
from kgray.rows import pack
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import key_of, keys_of, one
from kgray.stores.sqlite.schema import Layout, layout
from kgray.stores.sqlite.vectors import sign_bits
from kgray.stores.words import marked, words


class Change:
    """Changes of one group's rows inside a transaction."""

    def __init__(self, connection: apsw.Connection, no: int, dimensions: int) -> None:
        """Nothing is changed yet; dimensions: numbers a vector."""
        self._connection, self._no, self._dimensions = connection, no, dimensions

    def put(self, kind: Kind, rows: Sequence[Row], *, new: bool = False) -> None:
        """Put rows, each with its words and sign bits. new: none of them is there, none was indexed."""
        if not rows:
            return
        match layout(kind):
            case Layout.SEQUENCE:
                self._put_sequences(kind, rows, new=new)
            case Layout.COUNTED:
                self._put_counted(kind, rows)
            case _:
                no = self._no
                bound = [(no, *row) for row in _bound(kind.names, rows, kind)]
                self._connection.executemany(sql.OF_KIND[kind].put, bound)

    def drop(self, kind: Kind, keys: Sequence[Key]) -> None:
        """Drop rows by their keys; one that is not there is nothing."""
        how, names = sql.OF_KIND[kind], [self._name(kind, key) for key in keys]
        if how.unindex:
            self._connection.executemany(how.unindex, names)
        before = self._connection.total_changes()
        self._connection.executemany(how.drop, names)
        if kind.vector and self._connection.total_changes() > before:
            self._connection.execute(sql.COUNT_REMOVAL, (self._no,))

    def patch(self, patch: Patch) -> None:
        """Change some columns of rows; none of them is indexed as text, none is a vector."""
        kind, width = patch.kind, len(patch.kind.key)
        values = _bound(patch.columns, [row[width:] for row in patch.rows], kind)
        named = (self._name(kind, row[:width]) for row in patch.rows)
        statement = sql.patch(kind, patch.columns)
        self._connection.executemany(
            statement, [(*new, *name) for new, name in zip(values, named, strict=True)]
        )

    def clear(self, sequence: int) -> None:
        """Delete the group's rows: of log kinds those before an entry, of others all of them.

        The group loses its name where nothing but the entry is pending.
        """
        connection, no, entry = self._connection, self._no, key_of(self._no, sequence)
        first, last = keys_of(no)
        for statement in sql.MARK_DELETIONS:
            connection.execute(statement)
        for kind in KINDS:
            if unindex_all := sql.OF_KIND[kind].unindex_all:
                connection.execute(unindex_all, (first, last))
        for statement in sql.DELETE_AT_ONCE:
            connection.execute(statement)
        for kind in KINDS:
            if kind in {kinds.ANSWERS, kinds.ANSWER_USES}:
                continue
            keyed = layout(kind) in (Layout.SEQUENCE, Layout.COUNTED)
            # What was accepted after the entry stays: nothing of it can be committed yet.
            bounds = (first, entry - 1 if kind.log else last) if keyed else (no,)
            connection.execute(sql.OF_KIND[kind].clear, bounds)
        connection.execute(sql.CLEAR_ANSWERS, (no, sequence))
        connection.execute(sql.CLEAR_USES, (no,))
        connection.execute(sql.COUNT_REMOVAL, (no,))
        if not one(connection, sql.OTHERS_PENDING, (no, entry))[0]:
            connection.execute(sql.UNNAME_GROUP, (no,))
        connection.execute(sql.MARK_ERASED)

    # ------------------------------------------------------------------------------- by layout

    def _name(self, kind: Kind, key: Key) -> Row:
        """Return the values by which statements name a row."""
        return (key_of(self._no, key[0]),) if layout(kind) is Layout.SEQUENCE else (self._no, *key)

    def _put_sequences(self, kind: Kind, rows: Sequence[Row], *, new: bool) -> None:
        no, how = self._no, sql.OF_KIND[kind]
        keys = [key_of(no, row[0]) for row in rows]
        if kind.vector:
            # What a process keeps in memory grows by greater keys alone.
            (highest,) = one(self._connection, how.last, keys_of(no))
            if highest is not None and min(keys) <= highest:
                self._connection.execute(sql.COUNT_REMOVAL, (no,))
        stored = self._stored(kind, [row[1:] for row in rows])
        bound = [(key, no, *row) for key, row in zip(keys, stored, strict=True)]
        self._connection.executemany(how.put, bound)
        if kind.words:
            told = [(key, kind.text(row)) for key, row in zip(keys, rows, strict=True)]
            self._index(how.index if new else how.reindex, told)
            gone = [(key,) for key, text in told if text is None]
            if gone and not new:
                self._connection.executemany(how.unindex, gone)

    def _put_counted(self, kind: Kind, rows: Sequence[Row]) -> None:
        """Insert rows behind those that are there; a row that is there already keeps its key."""
        connection, no, how = self._connection, self._no, sql.OF_KIND[kind]
        (highest,) = one(connection, how.last, keys_of(no))
        rows = sorted(rows, key=_place(kind))
        key = (key_of(no, 0) if highest is None else highest) + 1
        stored = list(enumerate(self._stored(kind, rows), key))
        before = connection.total_changes()
        connection.executemany(how.put, [(n, no, *row) for n, row in stored])
        told = list(enumerate(rows, key)) if kind.words else []
        if connection.total_changes() - before < len(rows):
            there = [self._key_of(kind, row) for row in rows]
            met = [n for n, row in enumerate(stored) if there[n] != row[0]]
            if not kind.first_wins:
                self._replace(kind, [(rows[n], there[n], stored[n][1]) for n in met])
            told = [pair for pair, found in zip(told, there, strict=True) if pair[0] == found] if told else []
        self._index(how.index, [(n, kind.text(row)) for n, row in told])

    def _replace(self, kind: Kind, met: Iterable[tuple[Row, int, Row]]) -> None:
        """Give rows that are there new values; (row, its key, the row as stored)."""
        connection, how = self._connection, sql.OF_KIND[kind]
        changed = False
        for row, key, stored in met:
            if kind.vector:
                if one(connection, sql.VECTORS[kind.vector].vectors, (key, key)) == (key, stored[-1]):
                    continue
                changed = True
            connection.execute(how.replace, (*stored, key))
            if kind.words:
                self._index(how.reindex, [(key, kind.text(row))])
        if changed:
            connection.execute(sql.COUNT_REMOVAL, (self._no,))

    def _key_of(self, kind: Kind, row: Row) -> int:
        (found,) = one(self._connection, sql.OF_KIND[kind].found, (self._no, *kind.key_of(row)))
        return int(found)

    def _index(self, statement: str, told: Iterable[tuple[int, str | None]]) -> None:
        no = self._no
        found = [(key, marked(words(text), no)) for key, text in told if text is not None]
        if found:
            self._connection.executemany(statement, found)

    def _stored(self, kind: Kind, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows as bound; the columns of a vector kind end with the vector."""
        if not kind.vector:
            return _bound(kind.names, rows, kind)
        wide = {len(row[-1]) for row in rows} - {4 * self._dimensions}
        if wide:
            raise StoreError(
                f"a vector of {wide.pop() // 4} numbers in a store of {self._dimensions} numbers a vector"
            )
        matrix = np.frombuffer(b"".join([row[-1] for row in rows]), "<f4").reshape(len(rows), -1)
        bits = [signs.tobytes() for signs in sign_bits(matrix)]
        return [(*row[:-1], signs, row[-1]) for row, signs in zip(rows, bits, strict=True)]


def _bound(columns: Sequence[str], rows: Sequence[Row], kind: Kind) -> Sequence[Row]:
    """Return values as SQLite takes them: tuples of texts as JSON."""
    lists = _texts(kind)
    if lists.isdisjoint(columns):
        return rows
    places = [name in lists for name in columns]
    return [
        tuple([pack(value) if listed else value for value, listed in zip(row, places, strict=True)])
        for row in rows
    ]


@cache
def _texts(kind: Kind) -> frozenset[str]:
    return frozenset(column.name for column in kind.columns if column.type == "texts")


@cache
def _place(kind: Kind) -> Callable[[Row], Any]:
    """Return what sorts rows as a scan gives them."""
    return itemgetter(*(kind.names.index(name) for name in kind.order or kind.key))
