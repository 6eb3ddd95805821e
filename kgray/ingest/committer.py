"""The one place where a group changes: state in memory and rows in the store, step by step, in order."""

from __future__ import annotations

from collections import OrderedDict

from kgray import times
from kgray.derivation.absorb import compare
from kgray.derivation.change import Change, Difference, with_change
from kgray.derivation.group import GroupGraph
from kgray.derivation.stored import records_of
from kgray.errors import ContentError, InputError, NotFound
from kgray.ingest import changes
from kgray.ingest.correct import correct
from kgray.ingest.outbox import Direct, OnDurable, Outbox
from kgray.ingest.parts import Parts, Watch
from kgray.ingest.state import GroupState
from kgray.records import Episode, Operation
from kgray.times import Instant

_WEIGHED = 64  # states a commit may weigh: with more groups all are weighed every few commits


class Committer:
    """The groups' states, and what moves them; every runner commits through one of these.

    The states are ahead of the store by what stands in the outbox.
    """

    def __init__(self, parts: Parts, watch: Watch | None = None) -> None:
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

    async def commit(self, change: Change, done: OnDurable | None = None) -> None:
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

    def _refolded(self, state: GroupState, change: Change, recorded_at: Instant) -> Difference:
        records = with_change(records_of(self._parts.store, change.episode.group), change, recorded_at)
        return compare(state.graph, GroupGraph.build(records))

    def _keep_within_bound(self) -> None:
        while len(self._states) > 1 and self.size() > self._parts.state_bytes:
            self._states.popitem(last=False)
