"""Decided writes: their row changes, their queue until they are durable, their way to the store in batches.

Only this module turns decisions into `RowChanges`.

The writes of a group are sent in the order of their posting, batch after batch. Batches of different groups
may run at the same time, in as many lanes as the store has, if enough writes wait. A write that is posted
while batches run waits for a later batch: the slower the store, the more writes share a transaction. While
the run expects more writes, a batch that is not full waits for them for a short time.

Extractions and answers are posted before the commits that use them, so the store never has a commit without
its journal. A write that is lost with the process was not acknowledged: a later run decides it again (R21).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

from kgray.domain.records import Episode, Operation, Place
from kgray.domain.times import Instant
from kgray.errors import ContentError, Cost, KgrayError, StoreError, is_groups_own
from kgray.graph.change import Difference, EpisodeChange
from kgray.ports import Answer, Embedding, Patch, RowChanges, Writer
from kgray.schema import kinds, rows
from kgray.schema.kinds import AnswerRow, ExtractionRow, Key, Kind, Row
from kgray.schema.record_rows import EntryRecords, Judgements, NameVector, TextVector

_OPEN = frozenset({kinds.ACCEPTED, kinds.EXTRACTED})
PENDING = frozenset({kinds.PENDING})
# Without removed episodes: a stored answer about such an episode would be a trace of it (R25).
_ANY = frozenset({kinds.ACCEPTED, kinds.EXTRACTED, kinds.COMMITTED, kinds.FAILED})


def extraction_change(episode: Episode, extraction: ExtractionRow) -> RowChanges:
    """Return the move from accepted to extracted. The first extraction stays (R21)."""
    moved = patches_of(kinds.EPISODES, ("state",), [(episode.sequence, kinds.EXTRACTED)])
    accepted, puts = frozenset({kinds.ACCEPTED}), {kinds.EXTRACTIONS: (extraction,)}
    return row_changes(episode, accepted, puts=puts, patches=moved, durable=False)


def answer_change(episode: Episode, answers: AnswerRow) -> RowChanges:
    """Return the answers to a request that an episode uses (R21)."""
    return row_changes(episode, _ANY, puts={kinds.ANSWERS: [answers]}, durable=False)


def cost_change(episode: Episode, cost: Cost) -> RowChanges:
    """Return the cost of model calls without a usable reply, as an answer to no request (R24)."""
    key = f"spent {episode.sequence} {uuid4().hex}"
    return answer_change(episode, rows.answers_row(episode.sequence, key, (), *cost))


def failure_change(episode: Episode, error: ContentError, recorded_at: Instant) -> RowChanges:
    """Return the failure of an episode by its own content (R24)."""
    row = rows.failed_row(episode, recorded_at, type(error).__name__, str(error), error.raw)
    return row_changes(episode, _OPEN, recorded_at=recorded_at, puts={kinds.EPISODES: (row,)})


def commit_change(
    change: EpisodeChange, difference: Difference, recorded_at: Instant, births: Mapping[str, Place]
) -> RowChanges:
    """Return the commit of an episode: its records and the rows derived from them (R23).

    births: the birth places of the entities and statements that it names
    """
    episode = change.episode
    names: dict[Key, NameVector] = {}  # of each surface of each entity the first mention
    for mention, vector in change.name_vectors:
        name = (mention.entity, mention.surface)
        place = (mention.sequence, mention.ordinal)
        names.setdefault(name, NameVector(*name, *place, rows.vector_bytes(vector)))
    records = EntryRecords(
        sequence=episode.sequence,
        recorded_at=recorded_at,
        mentions=change.mentions,
        evidence=change.evidence,
        births=births,
        judgements=Judgements(
            [(record, recorded_at) for record in change.declarations],
            [(record, recorded_at) for record in change.verdicts],
        ),
        names=list(names.values()),
        statements={id_: _text_vector(record) for id_, record in change.statement_vectors},
        text=" ".join(filter(None, (episode.speaker, episode.text))),
        vector=None if change.episode_vector is None else _text_vector(change.episode_vector),
    )
    drops, puts = _derived(difference)
    puts |= {kinds.EPISODES: (rows.committed_row(episode, recorded_at),), kinds.RECORDS: (records.row(),)}
    born = {id_ for id_, _ in change.statement_births}
    return row_changes(
        episode,
        _OPEN,
        recorded_at=recorded_at,
        drops=drops,
        puts=puts,
        # A stored statement whose evidence is retracted gets a new vector, from its new first wording.
        unsettles=not born.issuperset(id_ for id_, _ in change.statement_vectors),
    )


def births_of(change: EpisodeChange, stored: Mapping[str, Place]) -> dict[str, Place]:
    """Return the birth places of the recorded entities and statements that an episode names."""
    new = dict((*change.entity_births, *change.statement_births))
    named = {record.entity for record in change.mentions} | {record.statement for record in change.evidence}
    return {id_: stored[id_] if id_ in stored else new[id_] for id_ in named}


def check_widths(change: EpisodeChange, dimensions: int) -> None:
    """Raise StoreError for a vector that the store cannot hold: the embedder changed during a run."""
    vectors = [vector for _, vector in change.name_vectors]
    vectors += [embedding.vector for _, embedding in change.statement_vectors]
    vectors += [] if change.episode_vector is None else [change.episode_vector.vector]
    check_width((len(vector) for vector in vectors), dimensions)


def check_width(widths: Iterable[int], dimensions: int) -> None:
    """Raise StoreError if a width differs from the width of the store."""
    for width in widths:
        if width != dimensions:
            raise StoreError(
                f"a vector of {width} numbers in a store of {dimensions} numbers a vector: nothing was "
                f"changed"
            )


def _text_vector(embedding: Embedding) -> TextVector:
    return TextVector(rows.vector_bytes(embedding.vector), embedding.weights)


def correction_change(
    operation: Operation,
    result: Mapping[str, Any],
    recorded_at: Instant,
    difference: Difference,
    *,
    drops: Mapping[Kind[Any], Sequence[Key]] | None = None,
    puts: Mapping[Kind[Any], Sequence[Row]] | None = None,
    patches: Sequence[Patch] = (),
    erases: bool = False,
) -> RowChanges:
    """Return a correction: its result, the difference in the graph, and further changes of rows."""
    dropped, derived = _derived(difference)
    for kind, keys in (drops or {}).items():
        dropped[kind] = [*dropped.get(kind, ()), *keys]
    ended = rows.operation_row(operation, kinds.DONE, recorded_at, result)
    return row_changes(
        operation,
        PENDING,
        recorded_at=recorded_at,
        drops=dropped,
        puts={**derived, **(puts or {}), kinds.OPERATIONS: (ended,)},
        patches=tuple(patches),
        erases=erases,
        unsettles=bool(puts and puts.get(kinds.RECORDS)) or kinds.RECORDS in dropped,
    )


def refusal_change(operation: Operation, reason: str, recorded_at: Instant) -> RowChanges:
    """Return the refusal of a correction that cannot be carried out, without the names in it (R25)."""
    row = rows.operation_row(operation, kinds.REFUSED, recorded_at, {"error": reason})
    return row_changes(
        operation, PENDING, recorded_at=recorded_at, puts={kinds.OPERATIONS: (row,)}, erases=True
    )


def row_changes(entry: Episode | Operation, states: frozenset[int], **changes: Any) -> RowChanges:  # noqa: ANN401
    """Return a change of rows that belongs to an entry of the log and requires a state of it.

    states  the change is refused if the entry's state is not among them
    """
    ledger = kinds.EPISODES if isinstance(entry, Episode) else kinds.OPERATIONS
    for name in changes.keys() & {"drops", "puts"}:
        changes[name] = {kind: changed for kind, changed in changes[name].items() if changed}
    return RowChanges(group=entry.group, sequence=entry.sequence, ledger=ledger, states=states, **changes)


def _derived(
    difference: Difference,
) -> tuple[dict[Kind[Any], Sequence[Key]], dict[Kind[Any], Sequence[Row]]]:
    drops: dict[Kind[Any], Sequence[Key]] = {
        kinds.FACTS: [(id_,) for id_ in difference.gone_facts],
        kinds.MENTIONS: difference.unmentioned,
        kinds.ENTITIES: [(id_,) for id_ in difference.gone_entities],
        kinds.SHOWN_ENTITIES: difference.unshown,
        kinds.SHOWN_EVIDENCE: difference.unmoved,
    }
    return drops, {
        kinds.ENTITIES: [rows.entity_row(entity) for entity in difference.entities],
        kinds.MENTIONS: difference.mentioned,
        kinds.SHOWN_ENTITIES: difference.shown,
        kinds.SHOWN_EVIDENCE: difference.moved,
        kinds.FACTS: [rows.fact_row(fact) for fact in difference.facts],
    }


def patches_of(kind: Kind[Any], columns: tuple[str, ...], rows_of: Iterable[Row]) -> tuple[Patch, ...]:
    """Return the patch of these rows (key and columns), or () if there is no row."""
    changed_rows = tuple(rows_of)
    return (Patch(kind=kind, columns=columns, rows=changed_rows),) if changed_rows else ()


_ANSWERS = 4096  # the number of requests whose answers stay in memory, the latest
_LONG_S = 2.0  # the maximum time of a batch: appends to its groups wait for it
_MIN_SHARE, _MAX_SHARE = 0.25, 4.0  # bounds of a batch's size, as shares of the size that the store proposes
_PAYS = 0.95  # twice the size pays if each write then takes at most this share of its time
OnDurable = Callable[[], None]


class BatchSize:
    """The size of a batch: larger while that makes each write cheaper, smaller if a batch takes too long."""

    def __init__(self, proposed: int) -> None:
        self.most = self._proposed = proposed
        self._bounds = max(1, round(_MIN_SHARE * proposed)), round(_MAX_SHARE * proposed)
        self._each: dict[int, float] = {}  # size -> seconds a write, of full batches, the latest count most

    @property
    def full(self) -> int:
        """The number of writes that are worth a transaction beside another transaction."""
        return min(self.most, self._proposed)

    def note(self, writes: int, seconds: float) -> None:
        """Note how long a batch took. Only a full batch is compared with batches of other sizes."""
        (smallest, largest), size = self._bounds, self.most
        if writes >= size:
            each = self._each[size] = (self._each.get(size, seconds / size) + seconds / size) / 2
            larger, smaller = self._each.get(2 * size, 0.0), self._each.get(size // 2, float("inf"))
            if seconds <= _LONG_S / 2 and 2 * size <= largest and larger <= _PAYS * each:
                self.most = 2 * size
            elif _PAYS * smaller < each and size // 2 >= smallest:
                self.most = size // 2
        if seconds > _LONG_S:
            self.most = max(smallest, min(self.most, writes // 2))
            self._each.clear()  # the server has become slower: the measurements no longer apply


class _Post(NamedTuple):
    number: int  # in the order of posting
    due: float  # the end of its wait for other writes, on the loop's clock
    change: RowChanges
    on_durable: OnDurable | None


class Outbox:
    """The queue of posted writes, and the batches on their way."""

    def __init__(
        self,
        writer: Writer,
        *,
        most: int,
        lanes: int = 1,
        gather_s: float = 0.0,
        expects: Callable[[], bool] = lambda: False,
        took: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Make an empty outbox.

        most        writes per batch at first
        lanes       batches at once
        gather_s    the maximum wait of a write for others
        expects     returns whether more writes may come while no caller waits for the queued writes
        took        called with the seconds of each batch
        """
        self._writer, self._lanes, self._took = writer, lanes, took
        self._gather_s, self._expects = gather_s, expects
        self._timer: asyncio.TimerHandle | None = None  # sends what has waited for `gather_s`
        self._size = BatchSize(most)
        self._number = 0
        self._waiting: deque[_Post] = deque()
        self._batches: dict[asyncio.Task[None], list[_Post]] = {}
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()  # the last number that each awaits
        self._error: BaseException | None = None  # of a failed batch
        # Ends when all is durable, None before the first write; with the error of a failed batch.
        self.sending: asyncio.Future[None] | None = None
        self.answers: dict[tuple[str, str], tuple[Answer, ...]] = {}
        # Group -> the keys of the requests that its journal answers, if they were read in this run; until
        # then `look_ups` counts the requests that were looked up.
        self.requests: dict[str, set[str]] = {}
        self.look_ups: Counter[str] = Counter()
        self._unwritten: Counter[str] = Counter()  # group -> writes that change its state and are not durable
        # Group -> (episode, or 0 for a correction; error): its writes are refused until the fault is cleared.
        self.faults: dict[str, tuple[int, Exception]] = {}

    def post(self, change: RowChanges, on_durable: OnDurable | None = None) -> None:
        """Queue a change; call `on_durable` when it is durable, and never if the group has a fault."""
        if change.group in self.faults:
            return
        loop = asyncio.get_running_loop()
        self._number += 1
        self._waiting.append(_Post(self._number, loop.time() + self._gather_s, change, on_durable))
        if change.recorded_at is not None:
            self._unwritten[change.group] += 1
        if change.erases:  # an erased episode may have used the group's answers (R25)
            self.forget_answers(change.group)
        if self.sending is None or _went_well(self.sending):
            self.sending = loop.create_future()
        if len(self._batches) < self._lanes:  # soon: writes that are posted at the same time share a batch
            loop.call_soon(self._send)

    def remember(self, group: str, key: str, answers: tuple[Answer, ...]) -> None:
        """Keep the answers of a request that were posted and may not be in the journal yet."""
        self.answers[group, key] = answers
        if group in self.requests:
            self.requests[group].add(key)
        if len(self.answers) > _ANSWERS:
            del self.answers[next(iter(self.answers))]

    def forget_answers(self, group: str) -> None:
        """Forget the answers of a group; the journal has those that are durable."""
        for key in [key for key in self.answers if key[0] == group]:
            del self.answers[key]

    def note_spent(self, episode: Episode, cost: Cost) -> None:
        """Post the cost of model calls without a usable reply: it counts as spent (R24)."""
        if cost.calls:
            self.post(cost_change(episode, cost))

    @contextmanager
    def accounted(self, episode: Episode, report: Callable[[str, Cost], None]) -> Iterator[None]:
        """Note and report the cost of an error, or of a cancelled call, that leaves the block."""
        try:
            yield
        except (KgrayError, asyncio.CancelledError) as error:
            spent = getattr(error, "spent", Cost())
            report(type(error).__name__, spent)
            self.note_spent(episode, spent)
            raise

    @property
    def idle(self) -> bool:
        """Return whether all posted writes are durable."""
        return self.sending is None or _went_well(self.sending)

    def has_unwritten(self, group: str) -> bool:
        """Return whether a write that is not durable yet changes the group's state."""
        return self._unwritten[group] > 0

    def forget_requests(self) -> None:
        """Forget which requests the journals answer: another process may have written there."""
        self.requests.clear()
        self.look_ups.clear()

    async def flush(self) -> None:
        """Wait until all writes posted before this call are durable; raise the error of a failed batch."""
        if self.sending is None or self.idle:
            return
        durable = asyncio.get_running_loop().create_future()
        self._flushes.append((self._number, durable))
        self._send()
        await asyncio.wait((self.sending, durable), return_when=asyncio.FIRST_COMPLETED)
        if not durable.done() and not self.sending.cancelled():
            self.sending.result()

    def drop(self) -> None:
        """Drop the posted writes that were not sent; batches on their way may still arrive."""
        for task in self._batches:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.sending is not None and not self.sending.cancel() and not self.sending.cancelled():
            self.sending.exception()
        self.sending = self._error = None
        for collection in (self._batches, self._waiting, self._flushes, self._unwritten, self.faults):
            collection.clear()
        self.answers.clear()
        self.forget_requests()

    def _send(self) -> None:
        """Begin a batch in each free lane, of groups without a write on its way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # After a failed batch no batch is sent: the store would have it without the writes before it.
        while self._error is None and len(self._batches) < self._lanes and (batch := self._next()):
            task = asyncio.create_task(self._carry(batch))
            self._batches[task] = batch
            task.add_done_callback(self._end_batch)

    def _next(self) -> list[_Post]:
        """Take the next batch; return [] if it is empty or waits for further writes."""
        busy = {post.change.group for batch in self._batches.values() for post in batch}
        batch, passed = list[_Post](), list[_Post]()
        for post in self._waiting:
            (passed if post.change.group in busy else batch).append(post)
            if len(batch) == self._size.most:
                break
        if len(batch) < self._size.full:
            if self._batches:  # two halves side by side cost a server more than one after the other
                return []
            loop = asyncio.get_running_loop()
            if batch and batch[0].due > loop.time() and not self._flushes and self._expects():
                self._timer = loop.call_at(batch[0].due, self._send)
                return []
        for _ in range(len(batch) + len(passed)):
            self._waiting.popleft()
        self._waiting.extendleft(reversed(passed))
        return batch

    async def _carry(self, batch: Sequence[_Post]) -> None:
        """Write a batch; then call `on_durable` of each write that is durable."""
        started = time.monotonic()
        written = [post.change for post in batch]
        refused = await self._write(written)
        seconds = time.monotonic() - started
        self._size.note(len(batch), seconds)
        self._took(seconds)
        self._unwritten -= Counter(change.group for change in written if change.recorded_at is not None)
        for _, _, change, on_durable in batch:
            if on_durable is not None and change.group not in refused:
                on_durable()

    def _end_batch(self, task: asyncio.Task[None]) -> None:
        """Free the lane of a batch, use it, and wake the callers whose writes are durable now."""
        error = None if task.cancelled() else task.exception()
        if self._batches.pop(task, None) is None or self.sending is None or task.cancelled():
            return  # `drop` has forgotten it
        self._error = self._error or error
        self._send()
        if self._error is not None:
            if not self._batches and not self.sending.done():  # the other batches have ended too
                self.sending.set_exception(self._error)
            return
        parts = [*self._batches.values(), self._waiting]
        first = min((part[0].number for part in parts if part), default=None)  # that is not durable
        while self._flushes and (first is None or self._flushes[0][0] < first):
            _, durable = self._flushes.popleft()
            if not durable.done():
                durable.set_result(None)
        if first is None:
            self.sending.set_result(None)

    async def _write(self, written: Sequence[RowChanges]) -> set[str]:
        """Write a batch. If the store refuses it, write each group's part by itself, so that others go on.

        Return the groups without a written part.
        """
        refused: set[str] = set()
        try:
            await self._writer.write(written)
            return refused
        except Exception as error:
            if not is_groups_own(error):
                raise
        for group in dict.fromkeys(change.group for change in written):
            group_changes = [change for change in written if change.group == group]
            try:
                await self._writer.write(group_changes)
            except Exception as error:
                if not is_groups_own(error):
                    raise
                refused.add(group)
                self.faults[group] = (
                    group_changes[0].sequence if group_changes[0].ledger is kinds.EPISODES else 0,
                    error,
                )
                self._waiting = deque(post for post in self._waiting if post.change.group != group)
                del self._unwritten[group]
        return refused


def _went_well(sending: asyncio.Future[None]) -> bool:
    return sending.done() and not sending.cancelled() and sending.exception() is None
