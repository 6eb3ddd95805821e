"""Puts, drops and patches rows of declared kinds, clears groups, and keeps their counters.

Deleted rows are zeroed (secure_delete); `Database.compact` clears the copies that SQLite made of them (R25).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import apsw

from kgray import kinds, times
from kgray.kinds import Kind, Read, Row
from kgray.rows import computed
from kgray.stores.alike import EVERY_SEQUENCE, FoldedBatch, Transaction
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import Database, KnownGroup, digest, many, read_rows
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
        self._db, self.connection, self._dimensions = db, connection, dimensions
        found = {name: db.group(connection, name) for name in set(groups)}
        self.groups = {n: g or KnownGroup(asked=n) for n, g in found.items() if g is not None or new}

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> list[Row]:
        known = self.groups.get(group)
        if known is None or known.no is None:
            return []
        return list(read_rows(partial(many, self.connection), read, known.no, values))

    def states(
        self, entries: Sequence[tuple[str, int]]
    ) -> Iterator[tuple[Kind, str, int, tuple[int, Instant | None]]]:
        for group, sequence in entries:
            if group in self.groups:
                values = (self.groups[group].no, sequence)
                for ledger, state, ended_at in many(self.connection, sql.STATES, values):
                    yield kinds.BY_NAME[ledger], group, sequence, (state, ended_at)

    def write(self, found: FoldedBatch) -> None:
        for kind, names in found.drops.items():
            self.connection.executemany(sql.DROP[kind], [(self._no(group), *key) for group, key in names])
        for kind, patches in found.patches.items():
            for columns, same in groupby(patches.items(), lambda item: tuple(item[1])):
                bound = [(*new.values(), self._no(group), *key) for (group, key), new in same]
                self.connection.executemany(sql.patch(kind, columns), bound)
        for kind, rows in found.puts.items():
            self.put(kind, [self._no(group) for group, _ in rows], list(rows.values()))
        if found.erases:
            self.connection.execute(sql.COUNT_ERASURE)

    def clear(self, group: KnownGroup, sequence: int) -> None:
        """Delete rows; the group loses its name where nothing but the entry is pending."""
        connection, no = self.connection, group.no
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
            self.connection.execute(sql.SET_HEAD, (*values, self._no(group.asked)))
            if group.appended:
                self.connection.execute(sql.NOTE_WAITING, (times.now(), group.no))

    def settle(self, groups: Sequence[str]) -> None:
        for group in groups:
            self.connection.execute(sql.SETTLE, (self.groups[group].no,))

    def _no(self, name: str) -> int:
        """Return a held group's number; one that is new is numbered now."""
        group = self.groups[name]
        if group.no is None:
            self.connection.execute(sql.NEW_GROUP, (None, digest(name)))
            group.no = int(self.connection.last_insert_rowid())
        return group.no

    def put(self, kind: Kind, numbers: Iterable[int], rows: Sequence[Row]) -> None:
        """Put rows with their computed columns, each of the group with a number."""
        if kind.computed:
            rows = [(*row, *computed(kind, row, self._dimensions)) for row in rows]
        bound = [(no, *row) for no, row in zip(numbers, rows, strict=True)]
        self.connection.executemany(sql.PUT[kind], bound)
