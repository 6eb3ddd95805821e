"""Copying a group in from another store, portion by portion, invisible to others until it is complete.

Until then the group's node has a token and no name: only this process's reads find the group, and appending
to it is refused. Rows are put by their keys, so a portion whose outcome is unknown can be put again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from kgray import kinds
from kgray.errors import StaleWriter, StoreError
from kgray.kinds import Kind, Row
from kgray.ports.store import GroupHead
from kgray.stores.alike import Adoption, known, portions
from kgray.stores.batch import FoldedBatch
from kgray.stores.neo4j import fence
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.fence import Held
from kgray.stores.neo4j.groups import LockedGroup
from kgray.stores.neo4j.row_writer import STATE, BatchWriter

T = TypeVar("T")
_PORTION_ROWS = 500


class Neo4jAdoption(Adoption):
    """A group that is being copied in."""

    def __init__(
        self,
        db: Connection,
        held: Held | None,
        group: str,
        head: GroupHead,
        dimensions: int,
        readable: dict[str, str],
    ) -> None:
        """readable: group -> token of a copy that this process may read."""
        self._db, self._held, self._group, self._head = db, held, group, head
        self._dimensions, self._readable = dimensions, readable
        self._token = str(uuid.uuid4())

    def start(self) -> None:
        def work(running: Running) -> bool:
            fence.check(self._db, running, self._held)
            group = grouped.locked(self._db, running, [self._group], make=True)[self._group]
            left = group.adopting is not None
            if not left and group.last:
                raise known(self._group, self._db.where, group)
            group.adopting, group.last, group.last_recorded = self._token, 0, 0
            group.removals += left
            grouped.keep(self._db, running, [group])
            return left

        if self._db.write(work):
            self._clear()

    def take(self, rows: Iterable[tuple[Kind, Row]]) -> None:
        """Write the rows, a portion a transaction; then what needs all of them, and the counters."""
        committed: list[tuple[str, int]] = []  # the group, sequence
        for kind, portion in portions(rows, _PORTION_ROWS):
            found = FoldedBatch()
            for row in portion:
                found.put(self._group, kind, row)
                if kind is kinds.EPISODES and row[STATE] == kinds.COMMITTED:
                    committed.append((self._group, row[0]))
            self._own(partial(_written, found))
        for start in range(0, len(committed), _PORTION_ROWS):
            self._own(partial(_linked, committed[start : start + _PORTION_ROWS]))
        self._own(lambda _, group: _set_head(group, self._head))

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        self._readable[self._group] = self._token
        try:
            yield
        finally:
            del self._readable[self._group]

    def finish(self) -> None:
        def name(_: BatchWriter, group: LockedGroup) -> None:
            group.named, group.adopting = True, None

        self._own(name)

    def undo(self) -> None:
        """Delete what was written, unless another process has taken it over since."""

        def free(_: BatchWriter, group: LockedGroup) -> None:
            group.adopting = None
            group.removals += 1
            _set_head(group, GroupHead())

        with suppress(_TakenOver, StaleWriter):
            self._clear()
            self._own(free)

    def _clear(self) -> None:
        while self._own(lambda writer, _: writer.clear_piece(self._group)):
            pass

    def _own(self, work: Callable[[BatchWriter, LockedGroup], T]) -> T | None:
        """Run a transaction that holds the group, and write its counters.

        None where the answer to a commit was lost that named the group. Raises StoreError
        where another process has taken it over.
        """
        tried = False

        def once(running: Running) -> T | None:
            nonlocal tried
            fence.check(self._db, running, self._held)
            group = grouped.locked(self._db, running, [self._group], make=False).get(self._group)
            if tried and group is not None and group.adopting is None:
                return None
            tried = True
            if group is None or group.adopting != self._token:
                raise _TakenOver(
                    f"another process has taken group {self._group!r} over meanwhile: run it again"
                )
            value = work(BatchWriter(self._db, running, self._dimensions), group)
            grouped.keep(self._db, running, [group])
            fence.renew_late(self._db, running, self._held)
            return value

        return self._db.write(once)


class _TakenOver(StoreError):
    pass


def _written(found: FoldedBatch, writer: BatchWriter, _: LockedGroup) -> None:
    writer.write(found, complete=False)


def _linked(episodes: list[tuple[str, int]], writer: BatchWriter, _: LockedGroup) -> None:
    writer.link(episodes)


def _set_head(group: LockedGroup, head: GroupHead) -> None:
    group.appended = True  # part of what is copied may be pending
    group.last, group.last_recorded = head.last, head.last_recorded
