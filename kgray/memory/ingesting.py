"""Carrying out what is pending, in this process or through another runtime, and waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from kgray.errors import Locked, NoSpace, Unavailable
from kgray.ingest.parts import Parts
from kgray.ledger import failures
from kgray.ports import Store
from kgray.ports.ingest import (
    IngestOutcome,
    OnStep,
    OnWait,
    Queued,
    Sequences,
    Stop,
    Totals,
    ignore,
    joined,
    never,
    silent,
)

if TYPE_CHECKING:
    from kgray.ingest.runner import Runner

_PAUSE_S = 0.1  # between two looks at what another process has done
_LOOK_S = 0.02  # between two looks for what is appended meanwhile
_PAGE = 10_000  # sequences read at once


def why(done: IngestOutcome) -> str:
    """Return the reason in brackets, for a message; "" where there is none."""
    return f" ({done.reason})" if done.reason else ""


class LocalIngest:
    """Ingests in this process; if another process holds the folder, waits until that one is done."""

    def __init__(self, store: Store, parts: Callable[[], Parts]) -> None:
        """Keep the groups' states from one verb to the next; parts: called when something is ingested."""
        self._store, self._parts = store, parts

    @cached_property
    def _runner(self) -> Runner:
        """The runner. It is imported and made here, so that a process that only reads does without it."""
        from kgray.ingest.committer import Direct
        from kgray.ingest.runner import Runner

        # A run that has a writer leaves it to its caller to hold the store: `carry_out` holds it.
        parts = self._parts()
        return Runner(replace(parts, writer=parts.writer or Direct(self._store)))

    async def carry_out(
        self,
        queued: Mapping[str, Queued] | None,
        *,
        groups: Collection[str] | None = None,
        before: Mapping[str, int] | None = None,
        more: Stop = never,
        stop: Stop = never,
        on_step: OnStep = ignore,
        on_wait: OnWait = silent,
    ) -> IngestOutcome:
        """Carry out all that is pending; see `Ingest`. If the other process ends first, this one goes on."""
        store = self._store
        before = last_sequences(store) if before is None else before
        own: Mapping[str, Queued] = {} if queued is None else queued
        announced = False
        while True:
            try:
                with store.writing():
                    count = Count(before, own, done_elsewhere(store, own), on_step)
                    return await self._run(count, groups, more, stop)
            except Locked as error:
                if not announced and queued is None:
                    own = all_pending(store)
                coming = more()  # asked first, as below
                left = waiting(store, own)
                if stop() or not (left or coming):
                    done = done_elsewhere(store, own)
                    return IngestOutcome(committed=done.committed, failed=done.failed, stopped=left or coming)
                if not announced:
                    on_wait(f"waiting: {error}")
                    announced = True
                await asyncio.sleep(_PAUSE_S)
            except NoSpace as error:
                return IngestOutcome(stopped=True, reason=str(error))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    async def _run(
        self, count: Count, groups: Collection[str] | None, more: Stop, stop: Stop
    ) -> IngestOutcome:
        """Run until nothing is pending; an outage or a full disk ends the run; what was accepted is safe."""
        reason, totals = "", Totals()
        try:
            while True:
                coming = more()  # asked first: the run below sees all that was queued before a "no"
                try:
                    await self._runner.run(groups=groups, stop=stop, on_step=count)
                finally:
                    totals = joined(totals, self._runner.totals)
                if stop() or not coming:
                    break
                await asyncio.sleep(_LOOK_S)
            pending = self._store.pending_groups()
            stopped = stop() and (more() or any(groups is None or group in groups for group in pending))
        except (Unavailable, NoSpace) as error:
            stopped, reason = True, str(error)
        return IngestOutcome(
            committed=count.committed,
            failed=count.failed,
            stopped=stopped,
            reason=reason,
            totals=totals,
        )


class Count:
    """Counts the steps that this run reports, and passes every step on."""

    def __init__(
        self, before: Mapping[str, int], queued: Mapping[str, Queued], ended: IngestOutcome, on_step: OnStep
    ) -> None:
        """Start from what has `ended` already; before, queued: see `Ingest.carry_out`."""
        self.committed, self.failed = ended.committed, ended.failed
        self._before, self._queued, self._on_step = before, queued, on_step

    def __call__(self, group: str, sequence: int, outcome: str) -> None:
        """Count one step."""
        queue = self._queued.get(group)
        if sequence <= self._before.get(group, 0) or (queue is not None and sequence in queue.sequences):
            self.committed += outcome == "committed"
            self.failed += outcome == "failed"
        self._on_step(group, sequence, outcome)


def last_sequences(store: Store) -> dict[str, int]:
    """Return the last sequence of each group with anything pending: what was pending before a run."""
    heads = store.heads(list(store.pending_groups()))
    return {group: head.last for group, head in heads.items()}


def waiting(store: Store, queued: Mapping[str, Queued]) -> bool:
    """Whether anything that is queued has not ended."""
    return any(
        (first := _first_pending(store, group)) is not None and first <= queue.last
        for group, queue in queued.items()
    )


def done_elsewhere(store: Store, queued: Mapping[str, Queued]) -> IngestOutcome:
    """Return how many of the queued entries were committed and failed, whichever process did it."""
    committed = failed = 0
    for group, queue in queued.items():
        first = _first_pending(store, group)
        if ended := queue.sequences.before(first):
            broken = sum(
                row.episode.sequence in queue.sequences and (first is None or row.episode.sequence < first)
                for row in failures(store, group)
            )
            failed += broken
            committed += ended - broken
    return IngestOutcome(committed=committed, failed=failed)


def all_pending(store: Store) -> dict[str, Queued]:
    """Return, by group, a queue of all that is pending now."""
    return {group: pending_now(store, group) for group in store.pending_groups()}


def queued_at(group: str, sequences: Sequence[int]) -> dict[str, Queued]:
    """Return {group: a queue of these sequences}."""
    return {group: Queued(last=max(sequences, default=0))}


def _first_pending(store: Store, group: str) -> int | None:
    found = store.pending_sequences(group, 0, 1)
    return found[0][0] if found else None


def pending_now(
    store: Store, group: str, *, last: int | None = None, without: Sequences | None = None
) -> Queued:
    """Return a queue of what is pending in a group, up to sequence `last` (None: all), except `without`.

    Reads a page at a time and no texts, because a backlog may be larger than memory.
    """
    queue = Queued()
    after = 0
    while page := store.pending_sequences(group, after, _PAGE):
        after = page[-1][0]
        for sequence, is_episode in page:
            if last is not None and sequence > last:
                return queue
            if without is None or sequence not in without:
                queue.last = sequence
                if is_episode:
                    queue.sequences.append(sequence)
    return queue
