"""What a run has decided and not yet written: in order, one batch on its way at a time.

A run decides on the state in memory, which is ahead of the store by what stands here; so a group's state
is read from the store, and a correction is carried out, only after `flush`. What arrives while a batch is on
its way goes with the next: the slower the store, the more episodes share a transaction.

Extractions and answers stand before the commits that used them, so a batch never tells of a commit whose
journal is lost. What is lost with the process was not acknowledged: it is asked and decided again (R21).

The one place where a group changes: state in memory and rows in the store, step by step, in order.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kgray import times
from kgray.derivation.absorb import compare
from kgray.derivation.change import Difference, EpisodeChange, with_change
from kgray.derivation.group import GroupGraph
from kgray.derivation.stored import records_of
from kgray.errors import ContentError, InputError, NotFound
from kgray.ingest import changes
from kgray.ingest.correct import correct
from kgray.ingest.parts import OnStage, Parts
from kgray.ingest.state import GroupState
from kgray.ports import Answer, RowChanges, Store, Writer
from kgray.records import Episode, Operation
from kgray.times import Instant

_T = TypeVar("_T")
_ANSWERS = 4096  # the latest, kept for those who ask the same at once
OnDurable = Callable[[], None]


async def off_the_loop(store: Store, call: Callable[[], _T]) -> _T:
    """Return what a call of the store returns; it runs in a thread where it waits for a server.

    600 episodes of 3 facts, Neo4j on the same two cores: 7 a second in the loop, 30 to 36 so.
    """
    return await asyncio.to_thread(call) if store.remote else call()


class Direct:
    """A writer in this process: the store itself, inside `Store.writing()`."""

    def __init__(self, store: Store) -> None:
        """Write to this store."""
        self._store = store

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Have the store apply them."""
        await off_the_loop(self._store, lambda: self._store.apply(changes))


class Outbox:
    """Posted writes, and the one task that sends them while there are any."""

    def __init__(self, writer: Writer, *, most: int, took: Callable[[float], None] = lambda _: None) -> None:
        """most: writes of a batch; took: is told the seconds of each."""
        self._writer, self._most, self._took = writer, most, took
        self._waiting: deque[tuple[RowChanges, OnDurable | None]] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._answers: dict[tuple[str, str], tuple[Answer, ...]] = {}
        self._posted = self._durable = 0  # writes so far
        self._moved: dict[str, int] = {}  # group -> which write moves its state last, of those not durable
        self._batch: asyncio.Future[None] | None = None  # done once the batch on its way is

    def post(self, change: RowChanges, done: OnDurable | None = None) -> None:
        """Take a change; `done` is called when it is durable."""
        self._waiting.append((change, done))
        self._posted += 1
        if change.recorded_at is not None:
            self._moved[change.group] = self._posted
        if change.erases:
            self._forget_answers(change.group)
        # After a batch that failed nothing is sent: it would stand in the store without what came before it.
        if self._sending is None or _went_well(self._sending):
            self._sending = asyncio.create_task(self._send())

    def remember(self, group: str, key: str, answers: tuple[Answer, ...]) -> None:
        """Keep a request's answers, which were posted, for who asks the same next."""
        self._answers[group, key] = answers
        if len(self._answers) > _ANSWERS:
            del self._answers[next(iter(self._answers))]

    def recall(self, group: str, key: str) -> tuple[Answer, ...] | None:
        """Return a request's answers where they arrived of late: the journal may not have them yet."""
        return self._answers.get((group, key))

    @property
    def sending(self) -> asyncio.Task[None] | None:
        """The task that sends; a failed one keeps its error."""
        return self._sending

    @property
    def idle(self) -> bool:
        """Whether all that was posted is durable."""
        return not self._waiting and (self._sending is None or _went_well(self._sending))

    def moves(self, group: str) -> bool:
        """Whether something that is not durable moves the group's state."""
        return group in self._moved

    async def flush(self) -> None:
        """Wait until all that was posted before is durable; raises what kept it from being so.

        Not until nothing is on its way: while others post on and on that moment may never come.
        """
        until = self._posted
        while self._durable < until and self._sending is not None:
            if self._sending.done():
                self._sending.result()
            self._batch = self._batch or asyncio.get_running_loop().create_future()
            await asyncio.wait((self._sending, self._batch), return_when=asyncio.FIRST_COMPLETED)

    def drop(self) -> None:
        """Forget what was posted and not sent; what is on its way may arrive or not."""
        if self._sending is not None:
            self._sending.cancel()
            if self._sending.done() and not self._sending.cancelled():
                self._sending.exception()
        self._sending = None
        self._waiting.clear()
        self._answers.clear()
        self._moved.clear()
        self._durable, self._batch = self._posted, None

    def _forget_answers(self, group: str) -> None:
        """Forget a group's answers: an erased episode may have used them (R25)."""
        for asked in [asked for asked in self._answers if asked[0] == group]:
            del self._answers[asked]

    async def _send(self) -> None:
        await asyncio.sleep(0)  # what is posted in the same moment goes together
        while self._waiting:
            taken = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            since = time.monotonic()
            await self._writer.write([change for change, _ in taken])
            self._took(time.monotonic() - since)
            self._note(change.group for change, _ in taken)
            for _, done in taken:
                if done is not None:
                    done()

    def _note(self, groups: Iterable[str]) -> None:
        """Note that one write of each of these groups, in order, is durable; tell who waits."""
        for group in groups:
            self._durable += 1
            if self._moved.get(group) == self._durable:
                del self._moved[group]
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.set_result(None)


def _went_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


_WEIGHED = 64  # states a commit may weigh: with more groups all are weighed every few commits


class Committer:
    """The groups' states, and what moves them; every runner commits through one of these.

    The states are ahead of the store by what stands in the outbox.
    """

    def __init__(self, parts: Parts, watch: OnStage | None = None) -> None:
        """Start with no group in memory; `watch` is told of stages instead of the parts'."""
        self._parts = parts
        told = watch or parts.watch
        self._states: OrderedDict[str, GroupState] = OrderedDict()
        self._commits = 0
        self._recorded: dict[str, Instant] = {}  # the last record time given, of groups written in this run
        self.outbox = Outbox(
            parts.writer or Direct(parts.store),
            most=parts.store.batch,
            took=lambda s: told("write", s, None),
        )

    async def state(self, group: str) -> GroupState:
        """Return the group's state; the least recently used ones go where the bound is passed."""
        while group not in self._states and self.outbox.moves(group):
            await self.outbox.flush()
        state = self._states.get(group)
        if state is None:
            state = GroupState.load(self._parts.store, group, self._parts.embedder.dimensions)
            self._states[group] = state
            self._keep_within_bound()
        self._states.move_to_end(group)
        judging = self._parts.pipeline.judging
        while state.lacks_vectors(judging) and self.outbox.moves(group):
            await self.outbox.flush()  # the vectors of what was posted
        state.fetch_vectors(self._parts.store, judging)
        return state

    def kept(self, group: str) -> GroupState | None:
        """Return the group's state if it is in memory."""
        return self._states.get(group)

    def size(self) -> int:
        """Return about how many bytes the states take."""
        return sum(state.size() for state in self._states.values())

    def forget(self, group: str) -> None:
        """Drop a state that may be ahead of the store: the next use reads the store."""
        self._states.pop(group, None)

    def forget_all(self) -> None:
        """Drop every state and all that was posted: the store is the truth."""
        self.outbox.drop()
        self._states.clear()
        self._recorded.clear()

    def forget_stale(self) -> None:
        """Forget the groups that others changed: a runner may outlive the lock it ran under."""
        self._recorded.clear()
        for group, head in self._parts.store.heads(list(self._states)).items():
            if self._states[group].last_recorded != head.last_recorded:
                del self._states[group]

    async def commit(self, change: EpisodeChange, done: OnDurable | None = None) -> None:
        """Take a decided change into memory and post it; `done` is called when it is durable."""
        group = change.episode.group
        state = await self.state(group)
        recorded_at = self.record_time(group)
        try:
            difference = state.commit(change, recorded_at)
            if difference is None:
                await self.outbox.flush()
                difference = self._refolded(state, change, recorded_at)
                self.forget(group)
        except BaseException:
            self.forget(group)
            raise
        self._recorded[group] = recorded_at
        self.outbox.post(changes.committed(change, difference, recorded_at), done)
        self._commits += 1
        if self._commits % max(1, len(self._states) // _WEIGHED) == 0:
            self._keep_within_bound()  # states grow while all stay in use, and nothing is loaded

    def fail(self, episode: Episode, error: ContentError, done: OnDurable | None = None) -> None:
        """Move an episode to failed by its own content (R24)."""
        self.outbox.post(changes.failed(episode, error, self._next(episode.group)), done)

    async def correct(self, operation: Operation) -> str:
        """Carry out a correction; return done or refused. Durable on return: what comes after reads it."""
        store, group = self._parts.store, operation.group
        await self.outbox.flush()
        self.forget(group)
        recorded_at = self.record_time(group)
        outcome = "done"
        try:
            carried_out = await correct(store, self._parts.embedder, operation, recorded_at)
        except (NotFound, InputError) as error:
            outcome = "refused"
            carried_out = changes.refused(operation, str(error), recorded_at)
        self._recorded[group] = recorded_at
        self.outbox.post(carried_out)
        await self.outbox.flush()
        return outcome

    def record_time(self, group: str) -> Instant:
        """Return the next record time of a group: max(clock, last + 1 microsecond) (R4)."""
        last = self._recorded.get(group)
        if last is None:
            last = self._parts.store.heads([group])[group].last_recorded
        return max(times.now(), last + 1)

    def _next(self, group: str) -> Instant:
        """Take the next record time of a group, in its state too."""
        recorded_at = self._recorded[group] = self.record_time(group)
        state = self._states.get(group)
        if state is not None:
            state.last_recorded = recorded_at
        return recorded_at

    def _refolded(self, state: GroupState, change: EpisodeChange, recorded_at: Instant) -> Difference:
        records = with_change(records_of(self._parts.store, change.episode.group), change, recorded_at)
        return compare(state.graph, GroupGraph.build(records))

    def _keep_within_bound(self) -> None:
        while len(self._states) > 1 and self.size() > self._parts.state_bytes:
            self._states.popitem(last=False)
