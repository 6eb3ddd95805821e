"""Puts, drops and patches rows of declared kinds, clears groups, and keeps their counters.

Erasure (R25, R27) has two steps. Deleted rows are zeroed (secure_delete). Copies that SQLite made earlier
remain: in pages that were rebalanced, and in the write-ahead log. So `Database.compact` rewrites the file and
truncates the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Any

import apsw

from kgray import kinds, times
from kgray.kinds import Kind, Read, Row
from kgray.rows import computed, pack
from kgray.stores.batch import EVERY_SEQUENCE, FoldedBatch, Transaction
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import Database, KnownGroup, digest, many, one, read_rows
from kgray.times import Instant


class RowWriter(Transaction[KnownGroup]):
    """An open transaction. new: a group that never was gets its row where something is written to it."""

    def __init__(
        self,
        db: Database,
        connection: apsw.Connection,
        groups: Iterable[str],
        dimensions: int,
        *,
        new: bool = False,
    ) -> None:
        self._db, self._connection, self._dimensions = db, connection, dimensions
        found = {name: db.group(connection, name) for name in set(groups)}
        self.groups = {n: g or KnownGroup(asked=n) for n, g in found.items() if g is not None or new}

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> list[Row]:
        no = self._db.number(self._connection, group)
        return [] if no is None else list(read_rows(partial(many, self._connection), read, no, values))

    def states(
        self, entries: Sequence[tuple[str, int]]
    ) -> Iterator[tuple[Kind, str, int, tuple[int, Instant | None]]]:
        for group, sequence in entries:
            if group in self.groups:
                values = (self.groups[group].no, sequence)
                for ledger, state, ended_at in many(self._connection, sql.STATES, values):
                    yield kinds.BY_NAME[ledger], group, sequence, (state, ended_at)

    def write(self, found: FoldedBatch) -> set[str]:
        for kind, names in found.drops.items():
            self._connection.executemany(sql.DROP[kind], [(self._no(group), *key) for group, key in names])
        for kind, patches in found.patches.items():
            for columns, same in groupby(patches.items(), lambda item: tuple(item[1])):
                names, new = zip(*((name, tuple(values.values())) for name, values in same), strict=True)
                keys = [(self._no(group), *key) for group, key in names]
                bound = [(*v, *k) for v, k in zip(_bound(kind, columns, new), keys, strict=True)]
                self._connection.executemany(sql.patch(kind, columns), bound)
        replaced: set[int] = set()
        for kind, rows in found.puts.items():
            numbers = [self._no(group) for group, _ in rows]
            replaced.update(self._put(kind, numbers, list(rows.values())))
        if found.erases:
            self._connection.execute(sql.COUNT_ERASURE)
        return {group for group, known in self.groups.items() if known.no in replaced}

    def put(self, kind: Kind, no: int, rows: Sequence[Row]) -> None:
        """Put rows of the group with a number, without a look at what is there."""
        self._put(kind, [no] * len(rows), rows)

    def clear(self, group: KnownGroup, sequence: int) -> None:
        """Delete rows; the group loses its name where nothing but the entry is pending."""
        connection, no = self._connection, group.no
        for statement in sql.CLEAR.values():
            connection.execute(statement, {"no": no, "sequence": sequence})
        pending = many(connection, sql.SEQUENCES_PENDING, (no, 0, 2))
        group.named = group.named and any(found != sequence for found, _ in pending)
        connection.execute(sql.COUNT_ERASURE)

    def clear_all(self, no: int) -> None:
        """Delete everything of the group with a number."""
        self.clear(KnownGroup(asked="", no=no), EVERY_SEQUENCE)

    def keep(self, groups: Iterable[KnownGroup]) -> None:
        for group in groups:
            values = (group.asked if group.named else None, group.last, group.last_recorded, group.removals)
            self._connection.execute(sql.SET_HEAD, (*values, self._no(group.asked)))
            if group.appended:
                self._connection.execute(sql.NOTE_WAITING, (times.now(), group.no))

    def settle(self, groups: Sequence[str]) -> None:
        for group in groups:
            self._connection.execute(sql.SETTLE, (self.groups[group].no,))

    def _no(self, name: str) -> int:
        """Return a held group's number; one that is new is numbered now."""
        group = self.groups[name]
        if group.no is None:
            self._connection.execute(sql.NEW_GROUP, (None, digest(name)))
            group.no = int(self._connection.last_insert_rowid())
        return group.no

    def _put(self, kind: Kind, numbers: Sequence[int], rows: Sequence[Row]) -> set[int]:
        """Put rows with their computed columns; return the groups in which a vector took another's place."""
        if kind.computed:
            rows = [(*row, *computed(kind, row, self._dimensions)) for row in rows]
        bound = [(no, *row) for no, row in zip(numbers, _bound(kind, kind.names, rows), strict=True)]
        if kind is not kinds.STATEMENT_VECTORS:
            self._connection.executemany(sql.PUT[kind], bound)
            return set()
        (last,) = one(self._connection, sql.LAST_VECTOR)
        put: list[Any] = self._connection.executemany(sql.PUT[kind], bound).fetchall()
        return {no for no, rowid in put if rowid <= last}


def _bound(kind: Kind, columns: tuple[str, ...], rows: Sequence[Row]) -> Sequence[Row]:
    """Return rows as SQLite takes them: tuples of texts become JSON."""
    lists = _lists(kind, columns)
    if not lists:
        return rows
    return [tuple([pack(v) if n in lists else v for n, v in enumerate(row)]) for row in rows]


@cache
def _lists(kind: Kind, columns: tuple[str, ...]) -> frozenset[int]:
    """Return the indexes of those of these columns that hold tuples of texts."""
    texts = {column.name for column in kind.columns if column.type == "texts"}
    return frozenset(n for n, name in enumerate(columns) if name in texts)
