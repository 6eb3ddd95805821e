"""Taking input into the log in short transactions, and having what is pending carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kgray import times
from kgray.errors import Locked, NoSpace, Unavailable
from kgray.ingest.runner import Runner
from kgray.intake import Refusal, Submitted
from kgray.memory.reports import Report
from kgray.ports import Acceptance, Store, conflict
from kgray.records import Draft, Operation

Item = Draft | Submitted | Refusal
Stop = Callable[[], bool]
OnStep = Callable[[str, int, str], None]
OnWait = Callable[[str], None]
MAX_ROWS = 500  # drafts of one accepting transaction ...
MAX_CHARACTERS = 4 << 20  # ... and their text: what is held of the input at once
_PAUSE_S = 0.1  # between two looks at what another process has done


def never() -> bool:
    """Never stop."""
    return False


def ignore(group: str, sequence: int, outcome: str) -> None:
    """Take no notice of a step."""


def silent(line: str) -> None:
    """Say nothing."""


@dataclass(slots=True)
class Queued:
    """What a submission put into the order of one group, or found waiting there."""

    sequences: list[int] = field(default_factory=list)  # accepted by it
    last: int = 0  # the last to wait for, duplicates included


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was carried out. stopped: a signal came first, or an outage, which `reason` tells."""

    committed: int = 0
    failed: int = 0
    stopped: bool = False
    reason: str = ""


def why(done: Done) -> str:
    """Return the reason for a message, in brackets; "" where there is none."""
    return f" ({done.reason})" if done.reason else ""


class Intake:
    """Accepts items batch by batch and keeps count."""

    def __init__(self, store: Store, *, replace: bool = False) -> None:
        """`replace`: a taken id with other content is replaced; so is what a text file no longer holds."""
        self.queued: dict[str, Queued] = {}
        self._store = store
        self._replace = replace
        self._batch: list[Submitted] = []
        self._characters = 0
        self._counts = {"accepted": 0, "duplicate": 0, "untimed": 0, "retracted": 0}
        self._refusals: list[Refusal] = []
        # (group, source) of text files -> the files, and the ids that they hold.
        self._whole: dict[tuple[str, str], tuple[set[str], set[str]]] = {}

    def take(self, item: Item) -> None:
        """Take one item; what was taken is durable after `flush`."""
        if isinstance(item, Refusal):
            self._refusals.append(item)
            return
        if isinstance(item, Draft):
            item = Submitted(draft=item, file="", line=None)
        self._batch.append(item)
        self._characters += len(item.draft.text)
        if len(self._batch) >= MAX_ROWS or self._characters >= MAX_CHARACTERS:
            self.flush()

    @property
    def accepted(self) -> int:
        """How many drafts are in the log by now."""
        return self._counts["accepted"]

    def flush(self) -> None:
        """Accept what is held, in one transaction."""
        if not self._batch:
            return
        answers = self._store.accept(
            [item.draft for item in self._batch], now=times.now(), replace=self._replace
        )
        for item, answer in zip(self._batch, answers, strict=True):
            self._note(item, answer)
        self._batch, self._characters = [], 0

    def finish(self, *, complete: bool) -> None:
        """Accept the rest; with `replace`, retract what the text files no longer hold.

        complete: False = the input was not read to its end, so nothing is known to be gone from it.
        """
        self.flush()
        if not (self._replace and complete):
            return
        broken = {refusal.file for refusal in self._refusals}
        for (group, source), (files, held) in sorted(self._whole.items()):
            if files & broken:  # what stands behind the fault was not read, so it is not known to be gone
                continue
            gone = [id_ for id_ in standing_ids(self._store, group, source) if id_ not in held]
            if gone:
                operation = Operation(group=group, kind="retract", episodes=tuple(gone))
                sequence = self._store.request(operation, now=times.now())
                self._queue(group).last = sequence
                self._counts["retracted"] += len(gone)

    def report(self, done: Done) -> Report:
        """Return the counts so far, with what was carried out."""
        return Report(
            **self._counts,
            committed=done.committed,
            failed=done.failed,
            stopped=done.stopped,
            reason=done.reason,
            refusals=tuple(self._refusals),
        )

    def _queue(self, group: str) -> Queued:
        return self.queued.setdefault(group, Queued())

    def _note(self, item: Submitted, answer: Acceptance) -> None:
        if item.whole:
            files, held = self._whole.setdefault((item.draft.group, item.draft.source), (set(), set()))
            files.add(item.file)
            held.add(answer.id)
        if answer.status == "conflict":
            self._refusals.append(Refusal(file=item.file, line=item.line, field="id", reason=answer.reason))
            return
        queue = self._queue(item.draft.group)
        queue.last = max(queue.last, answer.sequence or 0)
        self._counts[answer.status] += 1
        if answer.status == "accepted":
            self._counts["untimed"] += not answer.timed
            if answer.sequence is not None:
                queue.sequences.append(answer.sequence)


def standing_ids(store: Store, group: str, source: str) -> list[str]:
    """Return the ids of a source's live episodes, in any state, in the group's order."""
    found: dict[int, str] = {}
    sequences = store.sequences(group, source=source)
    found |= {episode.sequence: episode.id for episode in store.view(group).episodes(sequences)}
    for failed in store.failures(group):
        if failed.episode.source == source:
            found[failed.episode.sequence] = failed.episode.id
    if set(sequences) - found.keys():
        for waiting in store.pending(group, store.pending_count(group)):
            if not isinstance(waiting, Operation) and waiting.source == source:
                found[waiting.sequence] = waiting.id
    return list(dict.fromkeys(found[sequence] for sequence in sorted(found)))


def refusals_of(store: Store, items: Iterable[Item]) -> Iterator[Refusal]:
    """Yield what accepting these items would refuse, conflicts with the store and among them included."""
    seen: dict[str, str] = {}  # id -> content hash, of rows with a client id
    for item in items:
        if isinstance(item, Refusal):
            yield item
            continue
        draft, file, line = (
            (item.draft, item.file, item.line) if isinstance(item, Submitted) else (item, "", None)
        )
        if draft.client_id is None:
            continue
        held = seen.get(draft.id) or store.standing(draft.group, [draft.id]).get(draft.id)
        seen[draft.id] = content = draft.content_sha256
        if held is not None and held != content:
            yield Refusal(file=file, line=line, field="id", reason=conflict(draft, held))


def last_sequences(store: Store) -> dict[str, int]:
    """Return the last sequence of each group with anything pending: what was there before a run."""
    return {group: store.next_sequence(group) - 1 for group in store.pending_groups()}


async def carry_out(
    store: Store,
    runner: Runner,
    queued: Mapping[str, Queued] | None,
    *,
    groups: Collection[str] | None = None,
    before: Mapping[str, int] | None = None,
    stop: Stop = never,
    on_step: OnStep = ignore,
    on_wait: OnWait = silent,
) -> Done:
    """Carry out all that is pending; where another process ingests, wait until `queued` is.

    queued   None: all that is pending now. Should the other process end first, this one goes on
    groups   carry out what is pending in these alone
    before   `last_sequences` when the run began. What others append later is carried out too, but it
             is theirs to count: counted are what was there before, and what is queued
    on_wait  told once, in one line, whom this process waits for
    """
    before = last_sequences(store) if before is None else before
    waited: Mapping[str, Queued] | None = None
    while True:
        try:
            with store.writing():
                ended = _done_elsewhere(store, (queued if waited is None else waited) or {})
                count = _Count(before, waited or queued or {}, ended, on_step)
                return await _run(store, runner, count, groups, stop)
        except Locked as error:
            first = waited is None
            if waited is None:
                waited = _all_pending(store) if queued is None else queued
            left = _waiting(store, waited)
            if stop() or not left:
                done = _done_elsewhere(store, waited)
                return Done(committed=done.committed, failed=done.failed, stopped=left)
            if first:
                on_wait(f"waiting: {error}")
            await asyncio.sleep(_PAUSE_S)
        except NoSpace as error:
            return Done(stopped=True, reason=str(error))


class _Count:
    """Counts the steps that are this run's to report, and hands every step on."""

    def __init__(
        self, before: Mapping[str, int], queued: Mapping[str, Queued], ended: Done, on_step: OnStep
    ) -> None:
        self.committed, self.failed = ended.committed, ended.failed
        self._before, self._on_step = before, on_step
        self._own = {group: set(queue.sequences) for group, queue in queued.items()}

    def __call__(self, group: str, sequence: int, outcome: str) -> None:
        if sequence <= self._before.get(group, 0) or sequence in self._own.get(group, ()):
            self.committed += outcome == "committed"
            self.failed += outcome == "failed"
        self._on_step(group, sequence, outcome)


async def _run(
    store: Store, runner: Runner, count: _Count, groups: Collection[str] | None, stop: Stop
) -> Done:
    """Run the loop; an outage or a full disk ends it, and what was accepted is safe."""
    reason = ""
    try:
        await runner.run(groups=groups, stop=stop, on_step=count)
        stopped = stop() and any(groups is None or group in groups for group in store.pending_groups())
    except (Unavailable, NoSpace) as error:
        stopped, reason = True, str(error)
    return Done(committed=count.committed, failed=count.failed, stopped=stopped, reason=reason)


def _first_pending(store: Store, group: str) -> int | None:
    waiting = store.pending(group, 1)
    return waiting[0].sequence if waiting else None


def _waiting(store: Store, queued: Mapping[str, Queued]) -> bool:
    return any(
        (first := _first_pending(store, group)) is not None and first <= queue.last
        for group, queue in queued.items()
    )


def _done_elsewhere(store: Store, queued: Mapping[str, Queued]) -> Done:
    """Return what became of those that another process has ended."""
    committed = failed = 0
    for group, queue in queued.items():
        first = _first_pending(store, group)
        ended = [sequence for sequence in queue.sequences if first is None or sequence < first]
        if ended:
            broken = {row.episode.sequence for row in store.failures(group)}
            failed += sum(sequence in broken for sequence in ended)
            committed += sum(sequence not in broken for sequence in ended)
    return Done(committed=committed, failed=failed)


def _all_pending(store: Store) -> dict[str, Queued]:
    return {group: _queue_of(store, group) for group in store.pending_groups()}


def _queue_of(store: Store, group: str) -> Queued:
    waiting = store.pending(group, store.pending_count(group))
    sequences = [item.sequence for item in waiting if not isinstance(item, Operation)]
    return Queued(sequences, waiting[-1].sequence if waiting else 0)


def queued_at(group: str, sequences: Sequence[int]) -> dict[str, Queued]:
    """Return the queue that waits for these sequences of a group."""
    return {group: Queued(last=max(sequences, default=0))}
