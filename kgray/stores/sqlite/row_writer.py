"""Puts, drops and patches rows of declared kinds, and clears groups.

Erasure (R25, R27) has two steps. Deleted rows are zeroed (secure_delete) and removed from the full-text
indexes at once (FTS5's own secure-delete). Copies that SQLite made earlier remain: in pages that were
rebalanced, and in the write-ahead log. So `Database.compact` rewrites the file and truncates the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import itemgetter

import apsw
import numpy as np

from kgray import kinds
from kgray.errors import StoreError
from kgray.kinds import KINDS, Key, Kind, Row
from kgray.ports import Patch
from kgray.rows import pack
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import key_of, keys_of, many, one
from kgray.stores.sqlite.schema import Layout
from kgray.stores.sqlite.vectors import sign_bits
from kgray.words import marked, words


class RowWriter:
    """Changes rows of groups inside a transaction. no: the number of the group that is changed now."""

    def __init__(self, connection: apsw.Connection, dimensions: int, no: int = 0) -> None:
        """Change nothing yet; dimensions: numbers a vector."""
        self._connection, self._dimensions, self.no = connection, dimensions, no
        self._highest: dict[tuple[int, Kind], int] = {}  # keys in use, so that they are looked up once

    def put(self, kind: Kind, rows: Sequence[Row], *, new: bool = False) -> None:
        """Put rows, each with its words and sign bits. new: the caller knows that none of them exists."""
        if not rows:
            return
        match sql.OF_KIND[kind].layout:
            case Layout.SEQUENCE:
                self._put_sequences(kind, rows, new=new)
            case Layout.COUNTED:
                self._put_counted(kind, rows)
            case _:
                no = self.no
                bound = [(no, *row) for row in _bound(_lists(kind), rows)]
                self._connection.executemany(sql.OF_KIND[kind].put, bound)

    def drop(self, kind: Kind, keys: Sequence[Key]) -> None:
        """Drop rows by their keys; keys without a row are ignored."""
        names = [self._name(kind, key) for key in keys]
        gone = self._connection.executemany(sql.OF_KIND[kind].drop, names).fetchall()
        if gone and kind.words:
            self._connection.executemany(sql.WORDS[kind.words].unindex, gone)
        if gone and kind.vector:
            self._connection.execute(sql.COUNT_REMOVAL, (self.no,))

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
        connection, no, entry = self._connection, self.no, key_of(self.no, sequence)
        first, last = keys_of(no)
        for how in sql.WORDS.values():
            connection.execute(how.mark)
            connection.execute(how.clear, (first, last))
            connection.execute(how.at_once)
        for kind in KINDS:
            if kind in {kinds.ANSWERS, kinds.ANSWER_USES}:
                continue
            keyed = sql.OF_KIND[kind].layout in (Layout.SEQUENCE, Layout.COUNTED)
            # What was accepted after the entry stays: nothing of it can be committed yet.
            bounds = (first, entry - 1 if kind.log else last) if keyed else (no,)
            connection.execute(sql.OF_KIND[kind].clear, bounds)
        connection.execute(sql.CLEAR_ANSWERS, (no, sequence))
        connection.execute(sql.CLEAR_USES, (no,))
        connection.execute(sql.COUNT_REMOVAL, (no,))
        pending = many(connection, sql.SEQUENCES_PENDING, (no, first, 2))
        if all(key == entry for key, _ in pending):
            connection.execute(sql.UNNAME_GROUP, (no,))
        connection.execute(sql.COUNT_ERASURE)

    # ------------------------------------------------------------------------------- by layout

    def _name(self, kind: Kind, key: Key) -> Row:
        """Return the values by which statements name a row."""
        return (key_of(self.no, key[0]),) if sql.OF_KIND[kind].layout is Layout.SEQUENCE else (self.no, *key)

    def _put_sequences(self, kind: Kind, rows: Sequence[Row], *, new: bool) -> None:
        connection, no, how = self._connection, self.no, sql.OF_KIND[kind]
        keys = [key_of(no, row[0]) for row in rows]
        if kind.vector:
            last = self._last(kind)
            if min(keys) <= last:  # vectors in a process's memory are extended by greater keys only
                connection.execute(sql.COUNT_REMOVAL, (no,))
            self._highest[no, kind] = max(last, *keys)
        stored = self._stored(kind, rows)
        connection.executemany(how.put, [(n, no, *row[1:]) for n, row in zip(keys, stored, strict=True)])
        self._index(kind, zip(keys, rows, strict=True), new=new)

    def _put_counted(self, kind: Kind, rows: Sequence[Row]) -> None:
        """Insert rows behind those that are there; a row that is there already keeps its key."""
        connection, no, how = self._connection, self.no, sql.OF_KIND[kind]
        if (place := _place(kind)) is not None:
            rows = sorted(rows, key=place)
        first = self._last(kind) + 1
        self._highest[no, kind] = first + len(rows) - 1
        stored = enumerate(self._stored(kind, rows), first)
        put = [key for (key,) in connection.executemany(how.put, [(n, no, *row) for n, row in stored])]
        if kind.first_wins:
            self._index(kind, [(n, rows[n - first]) for n in put], new=True)
            return
        pairs = list(zip(put, rows, strict=False))  # where a row has words, each comes out
        self._index(kind, [(n, row) for n, row in pairs if n >= first], new=True)
        self._index(kind, [(n, row) for n, row in pairs if n < first], new=False)
        if kind.vector and any(n < first for n in put):
            connection.execute(sql.COUNT_REMOVAL, (no,))

    def _last(self, kind: Kind) -> int:
        """Return the last key that rows of the group have, or had in this transaction."""
        last = self._highest.get((self.no, kind))
        if last is None:
            (last,) = one(self._connection, sql.OF_KIND[kind].last, keys_of(self.no))
        return key_of(self.no, 0) if last is None else last

    def _index(self, kind: Kind, found: Iterable[tuple[int, Row]], *, new: bool) -> None:
        """Index rows by their keys; a row without a text is unindexed. new: none was indexed before."""
        if kind.words is None:
            return
        how, no = sql.WORDS[kind.words], self.no
        told = [(key, kind.text(row)) for key, row in found]
        texts = [(key, marked(words(text), no)) for key, text in told if text is not None]
        self._connection.executemany(how.index if new else how.reindex, texts)
        if not new:
            self._connection.executemany(how.unindex, [(key,) for key, text in told if text is None])

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
    """Return rows as SQLite takes them: tuples of texts, at the indexes `lists`, become JSON."""
    if not lists:
        return rows
    return [tuple([pack(v) if n in lists else v for n, v in enumerate(row)]) for row in rows]


@cache
def _lists(kind: Kind, columns: tuple[str, ...] = ()) -> frozenset[int]:
    """Return the indexes of columns that hold tuples of texts, among these columns or (default) all."""
    texts = {column.name for column in kind.columns if column.type == "texts"}
    return frozenset(n for n, name in enumerate(columns or kind.names) if name in texts)


@cache
def _place(kind: Kind) -> Callable[[Row], Row] | None:
    """Return a function from row to place, by which rows are sorted for insertion; None: keep their order."""
    order = kind.order or kind.key
    if order[0] != "sequence":
        return None
    return itemgetter(*(kind.names.index(name) for name in order))
