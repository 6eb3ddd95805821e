"""Rows of declared kinds put, dropped and patched; a group cleared.

What is erased (R25, R27) goes in two steps. Deleted rows are zeroed (secure_delete) and taken out of the
full-text indexes at once (FTS5's own secure-delete). What is left is what SQLite moved before it was deleted:
copies in pages that were rebalanced, and the write-ahead log. `Database.compact` rewrites the file and cuts
the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import count
from operator import itemgetter
from typing import Any

import apsw
import numpy as np

from kgray import kinds
from kgray.errors import StoreError
from kgray.kinds import KINDS, Key, Kind, Row
from kgray.ports import Patch
from kgray.rows import pack
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import key_of, keys_of, one
from kgray.stores.sqlite.schema import Layout, layout
from kgray.stores.sqlite.vectors import sign_bits
from kgray.stores.words import marked, words

_Numbered = tuple[int, Row, Row]  # a key, a row, the row as bound
_Told = tuple[int, str | None]  # a key, the text that its row is found by


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
                bound = [(no, *row) for row in _bound(_lists(kind), rows)]
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
        values = _bound(_lists(kind, patch.columns), [row[width:] for row in patch.rows])
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
        bound = [(key, no, *row[1:]) for key, row in zip(keys, self._stored(kind, rows), strict=True)]
        self._connection.executemany(how.put, bound)
        if kind.words:
            told = [(key, kind.text(row)) for key, row in zip(keys, rows, strict=True)]
            if new:
                self._index(how.index, told)
            else:
                self._reindex(kind, told)

    def _put_counted(self, kind: Kind, rows: Sequence[Row]) -> None:
        """Insert rows behind those that are there; a row that is there already keeps its key."""
        connection, no, how = self._connection, self._no, sql.OF_KIND[kind]
        (highest,) = one(connection, how.last, keys_of(no))
        order = kind.order or kind.key
        if order[0] == "sequence":  # a place; of other rows equals are found in the order they were put
            rows = sorted(rows, key=_values(kind, order))
        key = (key_of(no, 0) if highest is None else highest) + 1
        numbered = list(zip(count(key), rows, self._stored(kind, rows), strict=False))
        before = connection.total_changes()
        connection.executemany(how.put, [(n, no, *stored) for n, _, stored in numbered])
        if connection.total_changes() - before < len(rows):
            numbered = self._settle(kind, numbered)
        if kind.words:
            self._index(how.index, [(n, kind.text(row)) for n, row, _ in numbered])

    def _settle(self, kind: Kind, numbered: Iterable[_Numbered]) -> list[_Numbered]:
        """Replace the rows that were there already, but first_wins; return those that were not."""
        connection, how, named = self._connection, sql.OF_KIND[kind], _values(kind, kind.key)
        new: list[_Numbered] = []
        stale = False
        for n, row, stored in numbered:
            (there,) = one(connection, how.found, (self._no, *named(row)))
            if there == n:
                new.append((n, row, stored))
            elif not kind.first_wins:
                stale |= bool(kind.vector) and not self._holds_vector(kind, there, row[-1])
                connection.execute(how.replace, (*stored, there))
                if kind.words:
                    self._reindex(kind, [(there, kind.text(row))])
        if stale:
            connection.execute(sql.COUNT_REMOVAL, (self._no,))
        return new

    def _holds_vector(self, kind: Kind, key: int, vector: bytes) -> bool:
        scope = kind.vector
        return scope is not None and bool(
            one(self._connection, sql.VECTORS[scope].vectors, (key, key)) == (key, vector)
        )

    def _reindex(self, kind: Kind, told: Sequence[_Told]) -> None:
        """Index rows that may have been indexed before; one without a text is found no more."""
        how = sql.OF_KIND[kind]
        self._index(how.reindex, told)
        if gone := [(key,) for key, text in told if text is None]:
            self._connection.executemany(how.unindex_key, gone)

    def _index(self, statement: str, told: Iterable[_Told]) -> None:
        no = self._no
        found = [(key, marked(words(text), no)) for key, text in told if text is not None]
        if found:
            self._connection.executemany(statement, found)

    def _stored(self, kind: Kind, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows as bound; the columns of a vector kind end with the vector."""
        if not kind.vector:
            return _bound(_lists(kind), rows)
        wide = {len(row[-1]) for row in rows} - {4 * self._dimensions}
        if wide:
            raise StoreError(
                f"a vector of {wide.pop() // 4} numbers in a store of {self._dimensions} numbers a vector"
            )
        matrix = np.frombuffer(b"".join([row[-1] for row in rows]), "<f4").reshape(len(rows), -1)
        bits = [signs.tobytes() for signs in sign_bits(matrix)]
        return [(*row[:-1], signs, row[-1]) for row, signs in zip(rows, bits, strict=True)]


def _bound(lists: frozenset[int], rows: Sequence[Row]) -> Sequence[Row]:
    """Return values as SQLite takes them: tuples of texts, which stand in the places `lists`, as JSON."""
    if not lists:
        return rows
    return [tuple([pack(v) if n in lists else v for n, v in enumerate(row)]) for row in rows]


@cache
def _lists(kind: Kind, columns: tuple[str, ...] = ()) -> frozenset[int]:
    """Return where tuples of texts stand among some columns, all by default."""
    texts = {column.name for column in kind.columns if column.type == "texts"}
    return frozenset(n for n, name in enumerate(columns or kind.names) if name in texts)


@cache
def _values(kind: Kind, columns: tuple[str, ...]) -> Callable[[Row], tuple[Any, ...]]:
    """Return what takes the values of some columns out of a row."""
    places = [kind.names.index(name) for name in columns]
    if len(places) > 1:
        return itemgetter(*places)
    (place,) = places
    return lambda row: (row[place],)
