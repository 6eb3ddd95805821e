"""One transaction that appends to the logs of its groups; see `ports.Store.append`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from kgray.errors import StoreError
from kgray.kinds import Kind, Read, Row
from kgray.ports import Appending, Patch
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import Database, many, one
from kgray.stores.sqlite.reads import read_rows
from kgray.stores.sqlite.row_writer import RowWriter
from kgray.times import Instant


class Append:
    """`ports.Appending` inside a transaction that is open. What it writes is kept back until `finish`."""

    def __init__(
        self, db: Database, connection: apsw.Connection, groups: Collection[str], dimensions: int
    ) -> None:
        """Nothing is read or written yet."""
        self._db, self._connection, self._dimensions = db, connection, dimensions
        self._groups = set(groups)
        self._heads: dict[str, _Head] = {}
        self._puts: dict[tuple[str, Kind], list[Row]] = {}
        self._patches: list[tuple[str, Patch]] = []

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a declared read, as they were when this began."""
        no = self._db.known_group(self._connection, group)
        if no is None:
            return []

        def run(statement: str, bound: Sequence[Any]) -> list[Row]:
            return many(self._connection, statement, bound)

        return list(read_rows(run, read, no, values))

    def take_sequence(self, group: str) -> int:
        """Take the group's next sequence; the group exists from now on."""
        head = self._head(group)
        head.last += 1
        head.named = True
        return head.last

    def take_record_time(self, group: str, now: Instant) -> Instant:
        """Take a record time: the clock, or one microsecond past the group's last (R4)."""
        head = self._head(group)
        head.last_recorded = max(now, head.last_recorded + 1)
        return head.last_recorded

    def put(self, kind: Kind, group: str, row: Row) -> None:
        """Append a row of a log kind."""
        self._puts.setdefault((group, kind), []).append(row)

    def patch(self, group: str, patch: Patch) -> None:
        """Change rows that were there."""
        self._patches.append((group, patch))

    def finish(self) -> None:
        """Write what was put, taken and patched."""
        for group, head in self._heads.items():
            no = self._db.group(self._connection, group)
            values = (group if head.named else None, head.last, head.last_recorded, no)
            self._connection.execute(sql.SET_HEAD, values)
        changed = RowWriter(self._connection, self._dimensions)
        for (group, kind), rows in self._puts.items():
            changed.no = self._db.group(self._connection, group)
            changed.put(kind, rows, new=True)
        for group, patch in self._patches:
            changed.no = self._db.group(self._connection, group)
            changed.patch(patch)

    def _head(self, group: str) -> _Head:
        head = self._heads.get(group)
        if head is None:
            if group not in self._groups:
                raise StoreError(f"this transaction does not hold group {group!r}")
            no = self._db.known_group(self._connection, group)
            name, last, last_recorded = (
                (None, 0, 0) if no is None else one(self._connection, sql.GROUP_HEAD, (no,))
            )
            head = self._heads[group] = _Head(name is not None, last, last_recorded)
        return head


@dataclass(slots=True)
class _Head:
    """The counters of a group as this transaction has moved them."""

    named: bool
    last: int
    last_recorded: Instant


def _is_appending(append: Append) -> Appending:
    """Show the type checker that the class keeps the port's contract."""
    return append
