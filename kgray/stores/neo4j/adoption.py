"""Copying a group in from another store, portion by portion, invisible to others until it is complete.

Until then the group's node has a token and no name: only this process's reads find the group, and appending
to it is refused. Rows are put by their keys, so a portion whose outcome is unknown can be put again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice

from kgray import kinds
from kgray.errors import StoreError
from kgray.kinds import Kind, Row
from kgray.ports.store import GroupHead
from kgray.stores.neo4j import fence
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j.connection import Connection, Running, Values
from kgray.stores.neo4j.fence import Held
from kgray.stores.neo4j.groups import LockedGroup
from kgray.stores.neo4j.mapping import place_of
from kgray.stores.neo4j.row_writer import BatchWriter, FoldedBatch, PutRow
from kgray.times import Instant

_PORTION_ROWS = 500


class Neo4jAdoption:
    """A group that is being copied in. token: lets this process, and no other, read it meanwhile."""

    def __init__(
        self, db: Connection, held: Held | None, group: str, head: GroupHead, dimensions: int
    ) -> None:
        """Write nothing yet."""
        self._db, self._held, self._group, self._head = db, held, group, head
        self._dimensions = dimensions
        self.token = str(uuid.uuid4())
        self._recorded: dict[int, Instant] = {}  # sequence -> when it ended
        self._committed: dict[int, str] = {}  # sequence -> id of the episode
        self._facts: dict[str, list[str]] = {}  # episode id -> its facts

    def start(self) -> None:
        """Create the group's node without a name; first delete what a killed process left of a copy.

        Raises StoreError where the group exists, or ever did.
        """

        def work(running: Running) -> bool:
            fence.check(self._db, running, self._held)
            group = grouped.locked(self._db, running, [self._group], make=True)[self._group]
            left = group.adopting is not None
            if not left and group.last:
                self._refuse(group)
            group.adopting, group.last, group.last_recorded = self.token, 0, 0
            group.removals += left
            grouped.keep(self._db, running, [group])
            return left

        if self._db.write(work):
            self._clear()

    def take(self, rows: Iterable[tuple[Kind, Row]]) -> None:
        """Write the rows, a portion a transaction."""
        for kind, portion in _portions(rows):
            collected = FoldedBatch()
            for row in portion:
                collected.put(self._group, kind, PutRow(row=row, at=self._noted(kind, row)))
            self._carry_out(lambda writer: writer.write(collected, complete=False))  # noqa: B023

    def end(self) -> None:
        """Write what needs all rows: the properties and edges for Graphiti's readers, and the counters."""
        for episodes in _lists(
            {"group_id": self._group, "sequence": sequence, "edges": sorted(self._facts.get(id_, ()))}
            for sequence, id_ in self._committed.items()
        ):

            def link(writer: BatchWriter) -> None:
                writer.know_facts(episodes)  # noqa: B023
                named = {(self._group, (row["sequence"],)): row for row in episodes}  # noqa: B023
                writer.link(named, {})

            self._carry_out(link)
        self._change(lambda group: _set_head(group, self._head))

    def finish(self) -> None:
        """Give the group its name, which makes it visible to everybody."""

        def name(group: LockedGroup) -> None:
            group.name, group.adopting = self._group, None

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

    def _refuse(self, group: LockedGroup) -> None:
        why = (
            "is there already"
            if group.name is not None
            else f"was there and was removed: its {group.last} sequences are never used again"
        )
        raise StoreError(
            f"group {self._group!r} in {self._db.where} {why}; a copy needs a store that never had it"
        )

    def _clear(self) -> None:
        def piece(running: Running) -> int:
            self._own(running)
            return grouped.clear_rows(
                self._db, running, self._group, grouped.EVERY_SEQUENCE, grouped.ROWS_A_PIECE
            )

        while self._db.write(piece):
            pass

    def _own(self, running: Running) -> LockedGroup:
        """Lock the group. Raises StoreError where another process has taken it over."""
        group = grouped.locked(self._db, running, [self._group], make=False).get(self._group)
        if group is None or group.adopting != self.token:
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

    def _noted(self, kind: Kind, row: Row) -> Instant:
        """Remember what later rows need of this one; return the record time of an entity's first episode."""
        if kind is kinds.EPISODES:
            self._recorded[row[0]] = row[place_of(kind, "ended_at")] or 0
            if row[place_of(kind, "state")] == kinds.COMMITTED:
                self._committed[row[0]] = row[place_of(kind, "id")]
        elif kind is kinds.OPERATIONS:
            self._recorded[row[0]] = row[place_of(kind, "recorded_at")] or 0
        elif kind is kinds.FACTS:
            for episode in row[place_of(kind, "episodes")]:
                self._facts.setdefault(episode, []).append(row[0])
        elif kind is kinds.ENTITIES:
            born = row[place_of(kind, "born_sequence")]
            return self._recorded.get(born, self._head.last_recorded)
        return 0


def _set_head(group: LockedGroup, head: GroupHead) -> None:
    group.last, group.last_recorded = head.last, head.last_recorded


def _portions(rows: Iterable[tuple[Kind, Row]]) -> Iterator[tuple[Kind, list[Row]]]:
    for kind, found in groupby(rows, key=lambda item: item[0]):
        while portion := [row for _, row in islice(found, _PORTION_ROWS)]:
            yield kind, portion


def _lists(values: Iterable[Values]) -> Iterator[list[Values]]:
    rest = iter(values)
    while portion := list(islice(rest, _PORTION_ROWS)):
        yield portion
