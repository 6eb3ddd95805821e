"""`LocalIngest`: this process carries out pending entries, or waits for another process that does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kgray.domain import times
from kgray.errors import Locked, NoSpace, Unavailable
from kgray.ports import Store
from kgray.ports.ingest import (
    IngestOutcome,
    OnStep,
    OnWait,
    Queued,
    Room,
    Sequences,
    Stop,
    Totals,
    boundless,
    ignore,
    never,
    sum_of,
)
from kgray.storage import ledger
from kgray.storage.ledger import failures, pending_groups
from kgray.system.outages import OUTAGES

if TYPE_CHECKING:
    from kgray.ingest.calls import Parts
    from kgray.ingest.runner import Runner
_PAUSE_S = 0.1  # between two looks at what another process has done
_LOOK_S = 0.02  # between two reads of newly appended entries
_PAGE = 10_000  # sequences read at once


class LocalIngest:
    """Ingests in this process; if another process has locked the folder, waits for its end."""

    def __init__(self, store: Store, parts: Callable[[], Parts]) -> None:
        self._store, self._parts = store, parts

    @cached_property
    def _runner(self) -> Runner:
        """It keeps groups' states from one verb to the next; a process that only reads does without it."""
        from kgray.ingest.calls import Direct
        from kgray.ingest.runner import Runner

        # A run that has a writer leaves it to its caller to hold the store: `carry_out` holds it.
        parts = self._parts()
        return Runner(replace(parts, writer=parts.writer or Direct(self._store)))

    async def carry_out(
        self, queued: Mapping[str, Queued] | None, *, groups: Collection[str] | None = None,
        before: Mapping[str, int] | None = None, more: Stop = never, stop: Stop = never,
        room: Room = boundless, on_step: OnStep = ignore, on_wait: OnWait = ignore,
    ) -> IngestOutcome:  # fmt: skip
        """Carry out all pending entries; see `Ingest`. If the other process ends first, continue here."""
        store, announced = self._store, False
        counted = last_sequences(store) if before is None else before
        wait, ended = Awaited(store, {} if queued is None else queued), Counter[str]()

        def step(group: str, sequence: int, outcome: str) -> None:
            if sequence <= counted.get(group, 0) or wait.has(group, sequence):
                ended[outcome] += 1
            on_step(group, sequence, outcome)

        while True:
            try:
                with store.writing():
                    ended.clear()
                    ended.update(wait.ended())
                    return await self._run(step, ended, groups, more, stop, room)
            except Locked as error:
                if not announced and queued is None:
                    wait = Awaited(store, {name: pending_now(store, name) for name in pending_groups(store)})
                coming = more()  # asked first, as below
                is_waiting = wait.has_pending()
                if stop() or not (is_waiting or coming):
                    return replace(wait.outcome(), stopped=is_waiting or coming)
                if not announced:
                    on_wait(f"waiting: {error}")
                    announced = True
                await asyncio.sleep(_PAUSE_S)
            except NoSpace as error:
                return IngestOutcome(stopped=True, reason=str(error))

    def seats(self) -> int:
        """Return 0: a model's server has its own limit."""
        return 0

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    async def _run(
        self, step: OnStep, ended: Mapping[str, int], groups: Collection[str] | None,
        more: Stop, stop: Stop, room: Room,
    ) -> IngestOutcome:  # fmt: skip
        """Run until nothing is pending. ended: counts by outcome, updated by `step`."""
        reason, totals = "", Totals()
        pending_holds: dict[str, str] = {}
        try:
            while True:
                coming = more()  # asked first: the run below sees all that was queued before a "no"
                try:
                    await self._runner.run(groups=groups, stop=stop, room=room, on_step=step)
                finally:
                    totals = sum_of(totals, self._runner.totals)
                if stop() or not coming:
                    break
                await asyncio.sleep(_LOOK_S)
            pending = pending_groups(self._store)
            waits = [group for group in pending if groups is None or group in groups]
            stopped = stop() and (more() or any(group not in self._runner.holds for group in waits))
            reason = OUTAGES.why() if stopped else ""  # a run that waits is often stopped for that
            pending_holds = {name: hold.reason for name, hold in self._runner.holds.items() if name in waits}
        except (Unavailable, NoSpace) as error:
            stopped, reason = True, str(error)
        outcome: dict[str, Any] = {
            "stopped": stopped,
            "reason": reason,
            "held": pending_holds,
            "totals": totals,
        }
        return IngestOutcome(committed=ended["committed"], failed=ended["failed"], **outcome)


class Awaited:
    """The entries that a run waits for, read from the store, for any process that carries them out."""

    def __init__(self, store: Store, *queues: Mapping[str, Queued]) -> None:
        """queues: by group; they may still grow."""
        self._store, self._queues = store, queues

    def has_pending(self) -> bool:
        """Tell whether an entry has not ended, in a group that is not held until later."""
        if next(self._waiting(), None) is None:
            return False
        clock = times.now()
        paused = {group for group, hold in ledger.held(self._store).items() if hold.again_at > clock}
        return any(group not in paused for group in self._waiting())

    def has(self, group: str, sequence: int) -> bool:
        """Tell whether this run waits for the episode."""
        return any(sequence in queued[group].sequences for queued in self._queues if group in queued)

    def ended(self) -> Counter[str]:
        """Return how many entries were committed and failed."""
        counts = Counter[str]()
        for group, queue in self._each():
            first = _first_pending(self._store, group)
            if ended := queue.sequences.before(first):
                bad = (row.episode.sequence for row in failures(self._store, group))
                failed = sum(n in queue.sequences and (first is None or n < first) for n in bad)
                counts += Counter(committed=ended - failed, failed=failed)
        return counts

    def outcome(self) -> IngestOutcome:
        """Return the ended entries, and the reasons of holds of groups with waiting entries."""
        ended, holds = self.ended(), ledger.held(self._store)
        why = {group: holds[group].reason for group in self._waiting(holds)}
        return IngestOutcome(committed=ended["committed"], failed=ended["failed"], held=why)

    def _each(self) -> Iterator[tuple[str, Queued]]:
        return (pair for queued in self._queues for pair in queued.items())

    def _waiting(self, among: Container[str] | None = None) -> Iterator[str]:
        """Yield the groups (among some) with entries that have not ended."""
        for group, queue in self._each():
            first = None if among is not None and group not in among else _first_pending(self._store, group)
            if first is not None and first <= queue.last:
                yield group


def last_sequences(store: Store) -> dict[str, int]:
    """Return the last sequence of each group with pending entries: the state before a run."""
    heads = store.heads(list(pending_groups(store)))
    return {group: head.last for group, head in heads.items()}


def _first_pending(store: Store, group: str) -> int | None:
    return next((sequence for sequence, _ in store.pending_sequences(group, 0, 1)), None)


def pending_now(
    store: Store, group: str, *, last: int | None = None, excluded: Sequences | None = None
) -> Queued:
    """Return the pending entries of a group, up to sequence `last` (None: all), except `excluded`."""
    queue, last_sequence = Queued(), 0
    # A page at a time and no texts: a backlog may be larger than memory.
    while page := store.pending_sequences(group, last_sequence, _PAGE):
        last_sequence = page[-1][0]
        for sequence, is_episode in page:
            if last is not None and sequence > last:
                return queue
            if excluded is None or sequence not in excluded:
                queue.last = sequence
                if is_episode:
                    queue.sequences.append(sequence)
    return queue
