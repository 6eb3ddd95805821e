"""The one place where a group changes: state in memory and rows in the store, step by step, in order."""

from __future__ import annotations

from collections import OrderedDict

from kgray import times
from kgray.derivation.absorb import compare
from kgray.derivation.group import GroupGraph
from kgray.errors import ContentError, InputError, NotFound
from kgray.graph import Derived
from kgray.ingest.correct import correct
from kgray.ingest.parts import Parts
from kgray.ingest.state import GroupState, with_change
from kgray.ingest.values import Change
from kgray.ports import Commit, Failure
from kgray.records import Episode, Operation
from kgray.times import Instant


class Committer:
    """The groups' states, and what moves them; every runner commits through one of these."""

    def __init__(self, parts: Parts) -> None:
        """Start with no group in memory."""
        self._parts = parts
        self._states: OrderedDict[str, GroupState] = OrderedDict()

    def state(self, group: str) -> GroupState:
        """Return the group's state; the least recently used ones go where the bound is passed."""
        state = self._states.get(group)
        if state is None:
            state = GroupState.load(self._parts.store, group, self._parts.embedder.dimensions)
            self._states[group] = state
            self._keep_within_bound()
        self._states.move_to_end(group)
        state.fetch_vectors(self._parts.store, self._parts.pipeline.judging)
        return state

    def kept(self, group: str) -> GroupState | None:
        """Return the group's state if it is in memory."""
        return self._states.get(group)

    def forget(self, group: str) -> None:
        """Drop a state that may be ahead of the store: the next use reads the store."""
        self._states.pop(group, None)

    def forget_stale(self) -> None:
        """Forget the groups that others changed: a runner may outlive the lock it ran under."""
        for group, state in list(self._states.items()):
            if state.last_recorded != self._parts.store.last_recorded(group):
                del self._states[group]

    def commit(self, change: Change) -> None:
        """Write a decided change: memory first, then the store; where the store fails, memory is dropped."""
        group = change.episode.group
        recorded_at = self.record_time(group)
        state = self.state(group)
        try:
            derived = state.commit(change, recorded_at)
            if derived is None:
                derived = self._refolded(state, change, recorded_at)
                self.forget(group)
            self._parts.store.apply(commit_of(change, derived, recorded_at))
        except BaseException:
            self.forget(group)
            raise

    def fail(self, episode: Episode, error: ContentError) -> None:
        """Move an episode to failed by its own content (R24)."""
        failure = Failure(kind=type(error).__name__, message=str(error), raw=error.raw)
        self._parts.store.fail(episode.group, episode.sequence, failure, now=times.now())
        state = self._states.get(episode.group)
        if state is not None:
            state.last_recorded = self._parts.store.last_recorded(episode.group)

    async def correct(self, operation: Operation) -> str:
        """Carry out a correction; return done or refused."""
        store = self._parts.store
        self.forget(operation.group)
        try:
            commit = await correct(store, self._parts.embedder, operation, self.record_time(operation.group))
        except (NotFound, InputError) as error:
            store.refuse(operation.group, operation.sequence, str(error), now=times.now())
            return "refused"
        store.apply(commit)
        return "done"

    def record_time(self, group: str) -> Instant:
        """Return the next record time of a group: max(clock, last + 1 microsecond) (R4)."""
        return max(times.now(), self._parts.store.last_recorded(group) + 1)

    def _refolded(self, state: GroupState, change: Change, recorded_at: Instant) -> Derived:
        records = with_change(self._parts.store.records(change.episode.group), change, recorded_at)
        return compare(state.graph, GroupGraph.build(records))

    def _keep_within_bound(self) -> None:
        while (
            len(self._states) > 1 and sum(s.size() for s in self._states.values()) > self._parts.state_bytes
        ):
            self._states.popitem(last=False)


def commit_of(change: Change, derived: Derived, recorded_at: Instant) -> Commit:
    """Return the transaction that writes a change."""
    return Commit(
        group=change.episode.group,
        sequence=change.episode.sequence,
        recorded_at=recorded_at,
        births=(*change.entity_births, *change.statement_births),
        mentions=change.mentions,
        evidence=change.evidence,
        rulings=change.rulings,
        verdicts=change.verdicts,
        vectors=change.vectors,
        derived=derived,
    )
