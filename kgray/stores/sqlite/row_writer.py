"""Puts, drops and patches rows of declared kinds, and clears groups.

Erasure (R25, R27) has two steps. Deleted rows are zeroed (secure_delete). Copies that SQLite made earlier
remain: in pages that were rebalanced, and in the write-ahead log. So `Database.compact` rewrites the file and
truncates the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter

import apsw

from kgray import kinds
from kgray.kinds import KINDS, Key, Kind, Row
from kgray.ports import Patch, RowChanges
from kgray.rows import computed, pack
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import key_of, keys_of, many, one
from kgray.stores.sqlite.schema import Layout, stored_columns


class RowWriter:
    """Changes rows of groups inside a transaction. no: the number of the group that is changed now."""

    def __init__(self, connection: apsw.Connection, dimensions: int, no: int = 0) -> None:
        """Change nothing yet; dimensions: numbers a vector."""
        self._connection, self._dimensions, self.no = connection, dimensions, no
        self._highest: dict[tuple[int, Kind], int] = {}  # keys in use, so that they are looked up once

    def carry_out(self, change: RowChanges) -> None:
        """Clear, drop, put and patch what a change of the group says."""
        if change.clear:
            self.clear(change.sequence)
        elif change.unsettles:
            self._connection.execute(sql.COUNT_REMOVAL, (self.no,))
        for kind, keys in change.drops.items():
            self.drop(kind, keys)
        for kind, rows in change.puts.items():
            self.put(kind, rows)
        for patch in change.patches:
            self.patch(patch)
        if change.erases:
            self._connection.execute(sql.COUNT_ERASURE)

    def put(self, kind: Kind, rows: Sequence[Row]) -> None:
        """Put rows, each with its computed columns."""
        connection, no, how = self._connection, self.no, sql.OF_KIND[kind]
        match how.layout:
            case Layout.SEQUENCE:
                keys = [key_of(no, row[0]) for row in rows]
                stored = zip(keys, self._stored(kind, rows), strict=True)
                connection.executemany(how.put, [(key, no, *row) for key, row in stored])
            case Layout.COUNTED:
                self._put_counted(kind, rows)
            case _:
                connection.executemany(how.put, [(no, *row) for row in self._stored(kind, rows)])

    def drop(self, kind: Kind, keys: Sequence[Key]) -> None:
        """Drop rows by their keys; keys without a row are ignored."""
        self._connection.executemany(sql.OF_KIND[kind].drop, [self._name(kind, key) for key in keys])

    def patch(self, patch: Patch) -> None:
        """Change some columns of rows, on which no computed one depends."""
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

    def _put_counted(self, kind: Kind, rows: Sequence[Row]) -> None:
        """Insert rows behind those that are there; a row that is there already keeps its key."""
        connection, no, how = self._connection, self.no, sql.OF_KIND[kind]
        if (place := _place(kind)) is not None:
            rows = sorted(rows, key=place)
        first = self._last(kind) + 1
        self._highest[no, kind] = first + len(rows) - 1
        stored = enumerate(self._stored(kind, rows), first)
        put: list[Row] = connection.executemany(how.put, [(n, no, *row) for n, row in stored]).fetchall()
        if any(key < first for (key,) in put):
            connection.execute(sql.COUNT_REMOVAL, (no,))

    def _last(self, kind: Kind) -> int:
        """Return the last key that rows of the group have, or had in this transaction."""
        last = self._highest.get((self.no, kind))
        if last is None:
            (last,) = one(self._connection, sql.OF_KIND[kind].last, keys_of(self.no))
        return key_of(self.no, 0) if last is None else last

    def _stored(self, kind: Kind, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows as bound: in the order of `stored_columns`, with the computed ones."""
        if kind.computed:
            rows = [(*row, *computed(kind, row, self._dimensions)) for row in rows]
        rows, arranged = _bound(_lists(kind), rows), _arranged(kind)
        return rows if arranged is None else [arranged(row) for row in rows]


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


@cache
def _arranged(kind: Kind) -> Callable[[Row], Row] | None:
    """Return a function from a row with its computed columns to those of the table; None: as they are."""
    names = (*kind.names, *(column.name for column in kind.computed))
    places = [names.index(column.name) for column in stored_columns(kind)]
    return None if places == list(range(len(names))) else itemgetter(*places)
