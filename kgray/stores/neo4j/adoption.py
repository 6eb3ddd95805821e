"""Copying a group in from another store, portion by portion, invisible to others until it is complete.

Until then the group's node has a token and no name: only this process's reads find the group, and appending
to it is refused. Rows are put by their keys, so a portion whose outcome is unknown can be put again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from kgray import kinds
from kgray.errors import StoreError
from kgray.kinds import Kind, Row
from kgray.ports.store import GroupHead
from kgray.stores.alike import Adoption, known, portions
from kgray.stores.neo4j import fence
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j.connection import Connection, Running
from kgray.stores.neo4j.fence import Held
from kgray.stores.neo4j.groups import LockedGroup
from kgray.stores.neo4j.mapping import place_of
from kgray.stores.neo4j.row_writer import BatchWriter, FoldedBatch

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
        """Write nothing yet. readable: group -> token of a copy that this process may read."""
        self._db, self._held, self._group, self._head = db, held, group, head
        self._dimensions, self._readable = dimensions, readable
        self._token = str(uuid.uuid4())
        self._committed: list[tuple[str, int]] = []  # the group, sequence

    def start(self) -> None:
        """Create the group's node, with a token and no name."""

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
        state = place_of(kinds.EPISODES, "state")
        for kind, portion in portions(rows, _PORTION_ROWS):
            collected = FoldedBatch()
            for row in portion:
                collected.put(self._group, kind, row)
                if kind is kinds.EPISODES and row[state] == kinds.COMMITTED:
                    self._committed.append((self._group, row[0]))
            self._carry_out(partial(BatchWriter.write, found=collected, complete=False))
        for start in range(0, len(self._committed), _PORTION_ROWS):
            episodes = self._committed[start : start + _PORTION_ROWS]
            self._carry_out(partial(BatchWriter.link, episodes=episodes))
        self._change(lambda group: _set_head(group, self._head))

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Let reads of this process find the group by its token."""
        self._readable[self._group] = self._token
        try:
            yield
        finally:
            del self._readable[self._group]

    def finish(self) -> None:
        """Give the group its name, which makes it visible to everybody."""

        def name(group: LockedGroup) -> None:
            group.named, group.adopting = True, None

        self._change(name)

    def undo(self) -> None:
        """Delete what was written, unless another process has taken it over since."""
        try:
            self._change(lambda _: None)
        except StoreError:
            return
        self._clear()

        def free(group: LockedGroup) -> None:
            group.adopting = None
            group.removals += 1
            _set_head(group, GroupHead())

        self._change(free)

    def _clear(self) -> None:
        def piece(running: Running) -> bool:
            self._own(running)
            return grouped.clear_rows(self._db, running, self._group, grouped.EVERY_SEQUENCE)

        while self._db.write(piece):
            pass

    def _own(self, running: Running) -> LockedGroup:
        """Lock the group. Raises StoreError where another process has taken it over."""
        group = grouped.locked(self._db, running, [self._group], make=False).get(self._group)
        if group is None or group.adopting != self._token:
            raise StoreError(f"another process has taken group {self._group!r} over meanwhile: run it again")
        return group

    def _change(self, change: Callable[[LockedGroup], None]) -> None:
        """Change the group's node once; if a commit's answer was lost, a retry sees the name already set."""
        tried = False

        def work(running: Running) -> None:
            nonlocal tried
            fence.check(self._db, running, self._held)
            found = grouped.locked(self._db, running, [self._group], make=False)[self._group]
            if tried and found.adopting is None:
                return
            tried = True
            group = self._own(running)
            change(group)
            grouped.keep(self._db, running, [group])

        self._db.write(work)

    def _carry_out(self, work: Callable[[BatchWriter], object]) -> None:
        def once(running: Running) -> None:
            fence.check(self._db, running, self._held)
            self._own(running)
            work(BatchWriter(self._db, running, self._dimensions))
            fence.renew_late(self._db, running, self._held)

        self._db.write(once)


def _set_head(group: LockedGroup, head: GroupHead) -> None:
    group.appended = True  # part of what is copied may be pending
    group.last, group.last_recorded = head.last, head.last_recorded
