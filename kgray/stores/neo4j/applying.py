"""`Store.apply`: a batch of row changes, in order, in one transaction (R21, R23, R24).

Changes of any entries and groups are merged and written together (row_writer.py). One that
erases, or clears its group, is written by itself, after what came before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from kgray import kinds
from kgray.kinds import Kind
from kgray.ports.store import RowChanges
from kgray.stores import alike
from kgray.stores.neo4j import fence
from kgray.stores.neo4j import groups as grouped
from kgray.stores.neo4j import statements_by_hand as cypher
from kgray.stores.neo4j.connection import Connection, Running, Values
from kgray.stores.neo4j.fence import Held
from kgray.stores.neo4j.groups import LockedGroup
from kgray.stores.neo4j.mapping import group_key, place_of
from kgray.stores.neo4j.row_writer import BatchWriter, FoldedBatch
from kgray.times import Instant

_LEDGERS = (kinds.EPISODES, kinds.OPERATIONS)
_ENDED = {kinds.EPISODES: "ended_at", kinds.OPERATIONS: "recorded_at"}
_Entry = tuple[Kind, str, int]  # ledger, group, sequence


def apply(db: Connection, held: Held | None, changes: Sequence[RowChanges], dimensions: int) -> None:
    """Apply all of them or none; the epoch is checked first. See `ports.Store.apply`.

    Exception: the removal of a group ends a transaction. Its rows are deleted in further ones, and the
    changes after it follow then.
    """
    start = 0
    for at, change in enumerate(changes, 1):
        if change.clear:
            _at_once(db, held, changes[start:at], dimensions)
            grouped.finish(db, change.group)
            start = at
    _at_once(db, held, changes[start:], dimensions)


def _at_once(db: Connection, held: Held | None, changes: Sequence[RowChanges], dimensions: int) -> None:
    """Apply in one transaction; the removal of a group is only begun."""

    def work(running: Running) -> None:
        fence.check(db, running, held, (change.group for change in changes))
        groups = grouped.opened(db, running, (change.group for change in changes), make=False)
        before = {name: group.head for name, group in groups.items()}
        for segment in _segments(changes):
            _Segment(db, running, groups, dimensions).carry_out(segment)
        grouped.keep(db, running, (group for name, group in groups.items() if group.head != before[name]))
        if ended := alike.ended_in(changes):
            db.run(running, cypher.SETTLE, ids=[group_key(group) for group in ended])
        fence.renew_late(db, running, held)

    grouped.cleared_first(db, lambda: db.write(work))


def _segments(changes: Iterable[RowChanges]) -> Iterator[list[RowChanges]]:
    """Divide the changes so that one that erases or clears stands alone."""
    for alone, found in groupby(changes, lambda change: change.erases or change.clear):
        together = list(found)
        yield from [[change] for change in together] if alone else [together]


class _Segment:
    """Changes that are written together; merges them, drops those that do not apply, writes the rest."""

    def __init__(
        self, db: Connection, running: Running, groups: dict[str, LockedGroup], dimensions: int
    ) -> None:
        self._db, self._running, self._groups, self._dimensions = db, running, groups, dimensions
        self._states: dict[_Entry, tuple[int, Instant | None]] = {}

    def carry_out(self, changes: Sequence[RowChanges]) -> None:
        self._read_states(changes)
        collected = FoldedBatch()
        for change in changes:
            self._take(change, collected)
        for name in BatchWriter(self._db, self._running, self._dimensions).write(collected):
            self._groups[name].removals += 1

    def _take(self, change: RowChanges, collected: FoldedBatch) -> None:
        """Collect a change where it still applies."""
        group = self._groups.get(change.group)
        state, ended_at = self._state(change)
        if state is None and (group is None or change.sequence > group.last):
            raise alike.no_sequence(change, 0 if group is None else group.last)
        if not alike.applies(change, state, ended_at) or group is None:
            return  # applied before, or too late
        if change.recorded_at is not None:
            rests_on = group.last_recorded if change.rests_on is None else change.rests_on
            if change.recorded_at <= group.last_recorded or rests_on != group.last_recorded:
                raise alike.outrun(change)
            group.last_recorded = change.recorded_at
        group.removals += change.unsettles
        if change.clear:
            group.named, group.clearing = False, change.sequence
        collected.add(change)
        self._note_states(change)

    def _state(self, change: RowChanges) -> tuple[int | None, Instant | None]:
        ledgers = _LEDGERS if change.ledger is None else (change.ledger,)
        found = (self._states.get((ledger, change.group, change.sequence)) for ledger in ledgers)
        return next((state for state in found if state is not None), (None, None))

    def _read_states(self, changes: Iterable[RowChanges]) -> None:
        asked = sorted({(change.group, change.sequence) for change in changes})
        rows: Iterator[Values] = (
            {"group_id": group, "group_key": group_key(group), "sequence": sequence}
            for group, sequence in asked
        )
        for group, sequence, *states in self._db.run_rows(self._running, cypher.STATES, rows):
            for ledger, (state, ended_at) in zip(_LEDGERS, states, strict=True):
                if state is not None:
                    self._states[ledger, group, sequence] = state, ended_at

    def _note_states(self, change: RowChanges) -> None:
        """Remember the states that entries have once this change is applied."""
        for ledger in _LEDGERS:
            for (sequence,) in change.drops.get(ledger, ()):
                self._states.pop((ledger, change.group, sequence), None)
            state, ended_at = place_of(ledger, "state"), place_of(ledger, _ENDED[ledger])
            for row in change.puts.get(ledger, ()):
                self._states[ledger, change.group, row[0]] = row[state], row[ended_at]
        for patch in change.patches:
            if patch.kind in _LEDGERS and "state" in patch.columns:
                at = 1 + patch.columns.index("state")
                for row in patch.rows:
                    entry = (patch.kind, change.group, row[0])
                    if entry in self._states:
                        self._states[entry] = row[at], self._states[entry][1]
