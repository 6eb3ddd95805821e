"""Accepting input into the log in short transactions; carrying out what is pending, and waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal

from kgray import holds, times
from kgray.errors import Locked, NoSpace, Unavailable
from kgray.intake.drafts import Refusal
from kgray.intake.files import Submitted
from kgray.kinds import EXTRACTIONS_AT
from kgray.ledger import Acceptance, Foresight, accept, failures, live_ids, request
from kgray.memory.reports import Report
from kgray.outages import OUTAGES
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
    joined,
    never,
    silent,
)
from kgray.records import Draft, Operation
from kgray.rows import extraction

if TYPE_CHECKING:
    from kgray.ingest.committer import Parts
    from kgray.ingest.runner import Runner

Item = Draft | Submitted | Refusal
OnAnswer = Callable[[Refusal | Literal["accepted", "duplicate", "conflict"]], None]
UNREAD = 10  # lines about what was not understood, in a report
MAX_ROWS = 500  # drafts of one accepting transaction ...
MAX_CHARACTERS = 4 << 20  # ... and their text: bounds how much of the input is in memory at once


class Submission:
    """Accepts items batch by batch and keeps count."""

    def __init__(
        self,
        store: Store,
        *,
        replace: bool = False,
        again: bool = False,
        bulk: bool = False,
        on_answer: OnAnswer | None = None,
    ) -> None:
        """replace, again, bulk: as of `ledger.accept`; `replace` retracts what a text file has no more.

        on_answer   called with the outcome of each row, in order; refusals are then not kept for the report
        """
        self.queued: dict[str, Queued] = {}
        self._store = store
        self._replace, self._again, self._bulk, self._on_answer = replace, again, bulk, on_answer
        self._batch: list[Submitted | Refusal] = []
        self._characters = 0
        # So far, in the log; the names are those of `Report`.
        self.counts = dict.fromkeys(("accepted", "duplicate", "untimed", "retracted", "still_retracted"), 0)
        self._refusals: list[Refusal] = []
        self._broken: set[str] = set()  # files with a refusal
        # (group, source) of text files -> the files, and the ids that they hold.
        self._whole: dict[tuple[str, str], tuple[set[str], set[str]]] = {}

    def take(self, item: Item) -> None:
        """Take one item, which is durable after `flush`; full batches are flushed here."""
        if isinstance(item, Draft):
            item = Submitted(draft=item, file="", line=None)
        self._batch.append(item)
        self._characters += 0 if isinstance(item, Refusal) else len(item.draft.text)
        if len(self._batch) >= MAX_ROWS or self._characters >= MAX_CHARACTERS:
            self.flush()

    @property
    def held(self) -> int:
        """How many items are waiting for `flush`."""
        return len(self._batch)

    def flush(self) -> None:
        """Accept the waiting items, in one transaction."""
        batch, self._batch, self._characters = self._batch, [], 0
        drafts = [item.draft for item in batch if isinstance(item, Submitted)]
        how = {"replace": self._replace, "again": self._again, "bulk": self._bulk}
        answers = iter(accept(self._store, drafts, now=times.now(), **how))
        for item in batch:
            if isinstance(item, Refusal):
                self._refuse(item)
            else:
                self._note(item, next(answers))

    def finish(self, *, complete: bool) -> None:
        """Accept the rest; with `replace`, retract what the text files no longer hold.

        complete: False = the input was not read to its end, so nothing is known to be gone from it.
        """
        self.flush()
        if not (self._replace and complete):
            return
        for (group, source), (files, held) in sorted(self._whole.items()):
            if files & self._broken:  # the rows after the fault were not read, so none is known to be gone
                continue
            whole = Operation(group=group, kind="retract", source=source)
            gone = tuple(id_ for id_ in live_ids(self._store, whole) if id_ not in held)
            if gone:
                operation = Operation(group=group, kind="retract", episodes=gone, replaces=True)
                self.queued.setdefault(group, Queued()).last = request(self._store, operation)
                self.counts["retracted"] += len(gone)

    def report(self, done: IngestOutcome) -> Report:
        """Return the report: the counts so far, and `done`."""
        left_out, told = done.totals.left_out, done.told() | self.counts
        unread = tuple(islice(self._unread(), UNREAD)) if left_out else ()
        return Report(**told, left_out=left_out, unread=unread, refusals=tuple(self._refusals))

    def _unread(self) -> Iterator[str]:
        """Yield a line for each item that was not understood of the accepted episodes, in order."""
        for group, queued in self.queued.items():
            sequences = iter(queued.sequences)
            while batch := list(islice(sequences, MAX_ROWS)):
                for row in self._store.rows(EXTRACTIONS_AT, group, batch):
                    yield from extraction(row).dropped

    def _note(self, item: Submitted, answer: Acceptance) -> None:
        if item.whole and self._replace:
            files, held = self._whole.setdefault((item.draft.group, item.draft.source), (set(), set()))
            files.add(item.file)
            held.add(answer.id)
        if answer.status == "conflict":
            self._refuse(Refusal(file=item.file, line=item.line, field="id", reason=answer.reason))
            return
        queue = self.queued.setdefault(item.draft.group, Queued())
        queue.last = max(queue.last, answer.sequence or 0)
        self.counts[answer.status] += 1
        self.counts["still_retracted"] += answer.retracted
        if answer.status == "accepted":
            self.counts["untimed"] += not answer.timed
            if answer.sequence is not None:
                queue.sequences.append(answer.sequence)
        if self._on_answer is not None:
            self._on_answer(answer.status)

    def _refuse(self, refusal: Refusal) -> None:
        self._broken.add(refusal.file)
        if self._on_answer is None:
            self._refusals.append(refusal)
        else:
            self._on_answer(refusal)


def foreseen(
    store: Store, items: Iterable[Item], *, replace: bool = False, again: bool = False
) -> Iterator[tuple[Submitted, Literal["accepted", "duplicate"]] | Refusal]:
    """Yield what accepting these items would do with each, one after the other; accepts nothing."""
    foresight = Foresight(store, replace=replace, again=again)
    rows = (Submitted(draft=one, file="", line=None) if isinstance(one, Draft) else one for one in items)
    while batch := list(islice(rows, MAX_ROWS)):
        drafts = [row.draft for row in batch if isinstance(row, Submitted)]
        answers = iter(foresight.of(drafts))
        for row in batch:
            if isinstance(row, Refusal):
                yield row
            elif (answer := next(answers)).status == "conflict":
                yield Refusal(file=row.file, line=row.line, field="id", reason=answer.reason)
            else:
                yield row, answer.status


_PAUSE_S = 0.1  # between two looks at what another process has done
_LOOK_S = 0.02  # between two looks for what is appended meanwhile
_PAGE = 10_000  # sequences read at once


def why(done: IngestOutcome) -> str:
    """Return the reason in brackets, for a message; "" where there is none."""
    reason = done.reason or next(iter(done.held.values()), "")
    return f" ({reason})" if reason else ""


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
        room: Room = boundless,
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
                    return await self._run(count, groups, more, stop, room)
            except Locked as error:
                if not announced and queued is None:
                    own = {group: pending_now(store, group) for group in store.pending_groups()}
                coming = more()  # asked first, as below
                left = waiting(store, own)
                if stop() or not (left or coming):
                    done = done_elsewhere(store, own)
                    return replace(done, stopped=left or coming, held=held_of(store, own))
                if not announced:
                    on_wait(f"waiting: {error}")
                    announced = True
                await asyncio.sleep(_PAUSE_S)
            except NoSpace as error:
                return IngestOutcome(stopped=True, reason=str(error))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    async def _run(
        self, count: Count, groups: Collection[str] | None, more: Stop, stop: Stop, room: Room
    ) -> IngestOutcome:
        """Run until nothing is pending; an outage or a full disk ends the run; what was accepted is safe."""
        reason, totals = "", Totals()
        held: dict[str, str] = {}
        try:
            while True:
                coming = more()  # asked first: the run below sees all that was queued before a "no"
                try:
                    await self._runner.run(groups=groups, stop=stop, room=room, on_step=count)
                finally:
                    totals = joined(totals, self._runner.totals)
                if stop() or not coming:
                    break
                await asyncio.sleep(_LOOK_S)
            pending = self._store.pending_groups()
            waits = (group for group in pending if groups is None or group in groups)
            stopped = stop() and (more() or any(group not in self._runner.holds for group in waits))
            reason = OUTAGES.why() if stopped else ""  # a run that waits is often stopped for that
            held = {name: one.reason for name, one in self._runner.holds.items() if name in pending}
            if groups is not None:
                held = {name: why for name, why in held.items() if name in groups}
        except (Unavailable, NoSpace) as error:
            stopped, reason = True, str(error)
        return IngestOutcome(
            committed=count.committed,
            failed=count.failed,
            stopped=stopped,
            reason=reason,
            held=held,
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
    """Whether anything that is queued has not ended, and its group is not held until later."""
    left = (group for group, queue in queued.items() if _waits(store, group, queue))
    if (first := next(left, None)) is None:
        return False
    paused = {group for group, one in holds.held(store).items() if one.again_at > times.now()}
    return any(group not in paused for group in chain((first,), left))


def held_of(store: Store, *queues: Mapping[str, Queued]) -> dict[str, str]:
    """Return why groups are held in which something that is queued waits."""
    held = holds.held(store)
    return {
        group: held[group].reason
        for queued in queues
        for group in queued.keys() & held.keys()
        if _waits(store, group, queued[group])
    }


def _waits(store: Store, group: str, queue: Queued) -> bool:
    first = _first_pending(store, group)
    return first is not None and first <= queue.last


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


def _first_pending(store: Store, group: str) -> int | None:
    return next((sequence for sequence, _ in store.pending_sequences(group, 0, 1)), None)


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
