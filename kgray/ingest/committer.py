"""The only place that changes a group: its state in memory and its rows in the store, step by step, in order.

States in memory are ahead of the store by the writes in the outbox. So a state is read from the store, and a
correction carried out, only after `Outbox.flush`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial

from kgray.domain import times
from kgray.domain.records import Episode, Operation
from kgray.domain.times import Instant
from kgray.errors import ContentError, Garbled, InputError, KgrayError, NotFound, Refused, Unwritable
from kgray.graph.change import Difference, EpisodeChange, compare, with_change
from kgray.graph.group import GroupGraph
from kgray.graph.stored import records_of
from kgray.ingest.calls import THREADS, Direct, OnStage, Parts, at_length, off_the_loop, rows_of
from kgray.ingest.candidates import quantised
from kgray.ingest.correct import EMBEDDER_S, correct, embed_missing
from kgray.ingest.outbox import (
    OnDurable,
    Outbox,
    births_of,
    check_widths,
    commit_change,
    failure_change,
    refusal_change,
)
from kgray.ingest.state import GroupState, Quantised
from kgray.ports import RowChanges, Store
from kgray.ports.ingest import embedded
from kgray.schema import reads, rows
from kgray.schema.record_rows import vector_at
from kgray.storage.ledger import pending_withdrawals
from kgray.storage.transactions import slot_of
from kgray.system.garbage import let_go

_FEW_GROUPS = 50  # up to this many groups, a read of their counters does not delay the loop


async def statement_vectors(
    store: Store, state: GroupState, ids: Sequence[str]
) -> dict[str, Quantised | None]:
    """Return a quantised vector for each id of a statement; the value is None if the store has no vector.

    The state has the vectors that are not stored yet.
    """
    places = {id_: place for id_ in ids if (place := state.vector_places.get(id_)) is not None}
    stored = await rows_of(
        store, reads.VECTORS_AT, state.group, sorted({sequence for sequence, _ in places.values()})
    )
    columns = {row.sequence: row.vectors for row in stored}
    vectors = {
        id_: quantised(rows.as_vector(vector_at(columns[sequence], position, store.dimensions)))
        for id_, (sequence, position) in places.items()
        if sequence in columns
    }
    return {id_: vectors.get(id_) for id_ in ids}


class Committer:
    """The groups' states and all changes to them; every runner commits through a committer.

    Methods that remove things from memory, each for one group or several:

    _drop          the state
    forget         also the state's running load, and the note that all vectors are stored
    forgive        also the fault and the last record time
    forget_stale   `forget` if another process changed the group, and all last record times
    forget_all     `forget` for every group, all last record times, and the writes that were not sent
    leave          `forgive` for groups that other processes take over, and their answers
    """

    def __init__(
        self,
        parts: Parts,
        watch: OnStage | None = None,
        *,
        writes: bool = True,
        expects: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin without a state.

        watch       called with each stage instead of the parts' own
        writes      False: only states are read
        expects     returns whether more commits may follow soon and share a transaction with a write
        """
        self._parts = parts
        self._states: OrderedDict[str, GroupState] = OrderedDict()
        self._sizes: dict[str, int] = {}  # the bytes of each state at its last change
        self._bytes = 0  # their sum: a sum over thousands of states at each load would take the loop's time
        self._loading: dict[str, asyncio.Task[None]] = {}  # reads of states that are current so far
        self._writes = writes
        self._with_vectors: set[str] = set()  # groups whose statements all have a vector
        self._recorded: dict[str, Instant] = {}  # the last record time given, of groups written in this run
        self.outbox = Outbox(
            parts.writer or Direct(parts.store),
            most=parts.store.batch,
            lanes=parts.store.lanes,
            gather_s=parts.store.gather_s,
            expects=expects,
            took=lambda seconds: (watch or parts.watch)("write", seconds, None),
        )

    def forgive(self, group: str) -> None:
        """Forget the fault and the state of a group: the next try reads it from the store."""
        self.outbox.faults.pop(group, None)
        self.forget(group)
        self._recorded.pop(group, None)

    async def state(self, group: str) -> GroupState:
        """Return the group's state; above `state_bytes` the least recently used states are dropped."""
        while True:
            state = self._states.get(group)
            if state is not None:
                self._states.move_to_end(group)
                return state
            if self.outbox.has_unwritten(group):
                await self.outbox.flush()
            else:
                loading = self._loading.get(group)
                if loading is None or loading.done():  # done: it was cancelled before it began
                    loading = self._loading[group] = asyncio.create_task(self._load(group))
                await asyncio.shield(loading)  # others may wait for it, too

    async def _load(self, group: str) -> None:
        store, dimensions = self._parts.store, self._parts.embedder.dimensions
        task = asyncio.current_task()
        try:
            if self._writes and group not in self._with_vectors:  # a removal may not have computed vectors
                await self._embed_missing(group)
                self._with_vectors.add(group)
            state = await at_length(lambda: GroupState.load(store, group, dimensions))
        finally:
            is_current = self._loading.get(group) is task  # no write to the group has made the read obsolete
            if is_current:
                del self._loading[group]
        if is_current:
            self._states[group] = state
            self._keep_within_bound(group)

    async def _embed_missing(self, group: str, removals: Set[int] | None = None) -> None:
        embed = partial(embedded, self._parts.embedder)
        try:
            missing = await embed_missing(self._parts.store, embed, group, removals)
        except (
            Refused
        ) as error:  # the text is of no episode in flight, so none of them may fail because of it
            raise Garbled(f"what a removal has left cannot be embedded: {error}") from error
        for change in missing:
            self.outbox.post(change)
        await self.outbox.flush()

    async def statement_vectors(self, group: str, ids: Sequence[str]) -> dict[str, Quantised | None]:
        """Return the quantised vectors of stored statements, and keep them with the group's state."""
        state = await self.state(group)
        vectors = await statement_vectors(self._parts.store, state, ids)
        if self._states.get(group) is state:  # it was not replaced during the read
            state.statement_vectors.update((id_, v) for id_, v in vectors.items() if v is not None)
            self._measure(group)
        return vectors

    def kept(self, group: str) -> GroupState | None:
        """Return the group's state if it is in memory."""
        return self._states.get(group)

    def size(self) -> int:
        """Return about how many bytes the states take."""
        return self._bytes

    def forget(self, group: str) -> None:
        """Drop a state that may differ from the store; the next use reads the store."""
        self._loading.pop(group, None)
        self._with_vectors.discard(group)
        self._drop(group)

    def forget_all(self) -> None:
        """Drop every state and all posted writes that were not sent."""
        self.outbox.drop()
        for group in [*self._states, *self._loading]:
            self.forget(group)
        self._with_vectors.clear()
        self._recorded.clear()

    async def leave(self, slots: Collection[int]) -> None:
        """Send all posted writes, and forget the groups of these slots: other processes take them over."""
        await self.outbox.flush()
        groups = {*self._states, *self._loading, *self._with_vectors, *self._recorded, *self.outbox.faults}
        groups |= {group for group, _ in self.outbox.answers}
        for group in (group for group in groups if slot_of(group) in slots):
            self.forgive(group)
            self.outbox.forget_answers(group)

    async def forget_stale(self) -> None:
        """Drop the states of groups that other processes changed since the last run."""
        self.outbox.forget_requests()
        self._recorded.clear()
        groups, store = list(self._states), self._parts.store
        heads = await off_the_loop(store, lambda: store.heads(groups), is_large=len(groups) > _FEW_GROUPS)
        for group, head in heads.items():
            state = self._states.get(group)  # None: dropped meanwhile
            if state is not None and state.last_recorded != head.last_recorded:
                self.forget(group)

    async def commit(self, change: EpisodeChange, on_durable: OnDurable | None = None) -> None:
        """Apply a decided change to the state and post it; call `on_durable` when it is durable."""
        group = change.episode.group
        state = await self.state(group)
        rests_on = state.last_recorded

        def rebuilt_difference() -> Difference:
            records = records_of(self._parts.store, group)
            old_graph = GroupGraph.build(records)
            changed = with_change(records, change, recorded_at)
            new_graph = GroupGraph.build(changed)
            difference = compare(old_graph, new_graph, records, changed)
            let_go(*vars(new_graph).values(), *vars(old_graph).values(), records.mentions, records.evidence)
            return difference

        check_widths(change, self._parts.store.dimensions)
        recorded_at = _next_record_time(rests_on)
        births = births_of(change, state.graph.births)
        try:
            difference = state.commit(change, recorded_at)
            if difference is None:  # the state cannot absorb the change: derive the whole group
                await self.outbox.flush()
                difference = await at_length(rebuilt_difference)
                self.forget(group)
        except BaseException:
            self.forget(group)
            raise
        self._recorded[group] = recorded_at
        committed = commit_change(change, difference, recorded_at, births)
        self.outbox.post(replace(committed, rests_on=rests_on), on_durable)
        self._keep_within_bound(group)  # states grow without loads too

    async def fail(self, episode: Episode, error: ContentError, on_durable: OnDurable | None = None) -> None:
        """Move an episode to failed by its own content (R24)."""
        group, rests_on = episode.group, await self._last_recorded(episode.group)
        recorded_at = self._recorded[group] = _next_record_time(rests_on)
        self._loading.pop(group, None)
        if (state := self._states.get(group)) is not None:
            state.last_recorded = recorded_at
        self.outbox.post(replace(failure_change(episode, error, recorded_at), rests_on=rests_on), on_durable)

    async def withdraw(self, group: str) -> list[tuple[int, str]]:
        """Carry out the requested retractions and removals of a group, before its pending entries (R27).

        Return (sequence, outcome) of each. The caller must discard decisions ahead in the group first.
        """
        store = self._parts.store
        requested = await off_the_loop(store, lambda: pending_withdrawals(store, group))
        outcomes = [(operation.sequence, await self.correct(operation)) for operation in requested]
        # The removals are done; the next run will hit the same error.
        with suppress(KgrayError, TimeoutError):
            async with asyncio.timeout(EMBEDDER_S):
                await self._embed_missing(group, {sequence for sequence, _ in outcomes})
        return outcomes

    async def correct(self, operation: Operation) -> str:
        """Carry out a correction; return "done" or "refused". Durable on return: later entries read it."""
        group = operation.group
        await self.outbox.flush()
        self.forget(group)
        recorded_at = await self.record_time(group)
        row_changes = correct(self._parts.store, operation, recorded_at)
        try:
            while (change := await at_length(lambda: next(row_changes, None))) is not None:
                await self._write_durably(change, recorded_at)
        except (NotFound, InputError) as error:
            await self._write_durably(refusal_change(operation, str(error), recorded_at), recorded_at)
            return "refused"
        return "done"

    async def _write_durably(self, change: RowChanges, recorded_at: Instant) -> None:
        """Post row changes and wait until they are durable; raise the error that prevented it."""
        if change.recorded_at is not None:
            change = replace(change, rests_on=await self._last_recorded(change.group))
        self._recorded[change.group] = recorded_at
        durable = asyncio.Event()
        self.outbox.post(change, durable.set)
        await self.outbox.flush()
        if change.group in self.outbox.faults:
            raise self.outbox.faults[change.group][1]
        if not durable.is_set():  # refused, and the runner has cleared the fault by holding the group
            raise Unwritable(f"sequence {change.sequence} of group {change.group!r} was not written")

    async def record_time(self, group: str) -> Instant:
        """Return the next record time of a group: max(clock, last + 1 microsecond) (R4)."""
        return _next_record_time(await self._last_recorded(group))

    async def _last_recorded(self, group: str) -> Instant:
        """Return the last record time that this run knows; its next write for the group rests on it."""
        if (state := self._states.get(group)) is not None:
            return state.last_recorded
        if group not in self._recorded:
            store = self._parts.store
            heads = await off_the_loop(store, lambda: store.heads([group]))
            self._recorded.setdefault(group, heads[group].last_recorded)
        return self._recorded[group]

    def _measure(self, group: str) -> None:
        """Count the bytes of a group's state again."""
        size = self._states[group].size() if group in self._states else 0
        self._bytes += size - self._sizes.pop(group, 0)
        if size:
            self._sizes[group] = size

    def _keep_within_bound(self, group: str) -> None:
        self._measure(group)
        while len(self._states) > 1 and self._bytes > self._parts.state_bytes:
            self._drop(next(iter(self._states)))

    def _drop(self, group: str) -> None:
        self.outbox.requests.pop(group, None)
        state = self._states.pop(group, None)
        self._measure(group)
        if state is not None and state.is_large:
            THREADS.submit(state.clear)  # takes up to seconds, in a thread


def _next_record_time(last: Instant) -> Instant:
    return max(times.now(), last + 1)
