"""The plain loop: one episode at a time, extract, decide, ask, commit. The reference for every other runner (R20)."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from kgray import times
from kgray.derivation.absorb import compare
from kgray.derivation.group import GroupGraph
from kgray.derivation.view import View
from kgray.errors import ContentError, InputError, NotFound, Unavailable
from kgray.graph import Derived
from kgray.ingest.correct import correct
from kgray.ingest.decide import decide
from kgray.ingest.extract import extract, read_episode
from kgray.ingest.preview import changes, prospective
from kgray.ingest.state import GroupState, with_change
from kgray.ingest.values import Answers, Change, Questions, Read, Rules
from kgray.ontology import Ontology
from kgray.ports import Commit, Embedder, Extractor, Failure, Judge, Question, QuestionRequest, Store
from kgray.records import Draft, Episode, Operation
from kgray.times import Instant

_T = TypeVar("_T")
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 30.0
_CLAIM = 64  # entries read from the log at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The settings under [pipeline] (cli.md)."""

    extraction: str = "combined"
    resolution: str = "batched"
    judging: str = "relation"
    reflect_rounds: int = 0
    previous_episodes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run works with."""

    store: Store
    extractor: Extractor
    judge: Judge
    embedder: Embedder
    ontology: Ontology
    pipeline: Pipeline = Pipeline()
    state_bytes: int = 1 << 30
    patience_s: float = 600.0


@dataclass(slots=True)
class Totals:
    """What a run ended."""

    committed: int = 0
    failed: int = 0
    operations: int = 0


Stop = Callable[[], bool]
OnStep = Callable[[str, int, str], None]  # group, sequence, committed | failed | done | refused


class Loop:
    """Carries out what is pending, in each group's order, with the groups' states kept in memory."""

    def __init__(self, parts: Parts) -> None:
        """Start with no group in memory."""
        self._parts = parts
        self._rules = Rules(
            ontology=parts.ontology, judge=parts.judge.identity, judging=parts.pipeline.judging
        )
        self._states: OrderedDict[str, GroupState] = OrderedDict()

    async def run(self, *, stop: Stop = lambda: False, on_step: OnStep = lambda *_: None) -> Totals:
        """Carry out everything pending until nothing is, or `stop()` is true; inside `store.writing()`.

        Raises Unavailable where a model stays out of reach beyond its patience; what was accepted is
        safe, and the next run goes on (R24).
        """
        totals = Totals()
        self._drop_stale()
        while not stop() and (groups := self._parts.store.pending_groups()):
            for group in groups:
                while not stop() and (entries := self._parts.store.pending(group, _CLAIM)):
                    for entry in entries:
                        if stop():
                            return totals
                        outcome = await self._step(entry, stop)
                        totals.committed += outcome == "committed"
                        totals.failed += outcome == "failed"
                        totals.operations += outcome in {"done", "refused"}
                        on_step(group, entry.sequence, outcome)
        return totals

    async def preview(self, drafts: Iterable[Draft]) -> AsyncIterator[dict[str, Any]]:
        """Yield what each draft would change in the store as it is, as dump rows with "op"; accepts nothing.

        Each draft is decided against the graph as stored, not against the drafts before it. One that
        is accepted already changes nothing. Raises ContentError for a text that the model refuses.
        """
        store, now = self._parts.store, times.now()
        self._drop_stale()
        views: dict[str, View] = {}
        for draft in drafts:
            if any(kind == "episode" for kind, _ in store.find(draft.group, draft.id)):
                continue
            view = views.get(draft.group)
            if view is None:
                view = views[draft.group] = View(store.records(draft.group), lambda _: [])
            episode = prospective(view.records, draft, now)
            state = self._state(draft.group)
            extraction = await read_episode(
                store, self._parts.extractor, episode, self._parts.pipeline.previous_episodes
            )
            change = await self.settle(Read(episode=episode, extraction=extraction), state, keep=False)
            for row in changes(view, change, self._record_time(draft.group)):
                yield row

    async def _step(self, entry: Episode | Operation, stop: Stop) -> str:
        try:
            if isinstance(entry, Operation):
                return await self._correct(entry)
            return await self._ingest(entry, stop)
        except BaseException:
            # Whatever stopped it, memory may be ahead of the store: the next use reads the store.
            self._states.pop(entry.group, None)
            raise

    async def _ingest(self, episode: Episode, stop: Stop) -> str:
        parts = self._parts
        try:
            read = Read(
                episode=episode,
                extraction=await self._patiently(
                    lambda: extract(parts.store, parts.extractor, episode, parts.pipeline.previous_episodes), stop
                ),
            )
            state = self._state(episode.group)
            change = await self._patiently(lambda: self.settle(read, state), stop)
        except ContentError as error:
            failure = Failure(kind=type(error).__name__, message=str(error), raw=error.raw)
            parts.store.fail(episode.group, episode.sequence, failure, now=times.now())
            return "failed"
        recorded_at = self._record_time(episode.group)
        derived = state.commit(change, recorded_at)
        if derived is None:
            derived = self._refolded(state, change, recorded_at)
            self._states.pop(episode.group)
        parts.store.apply(commit_of(change, derived, recorded_at))
        return "committed"

    async def settle(self, read: Read, state: GroupState, *, keep: bool = True) -> Change:
        """Decide, ask what is open, decide again, until the episode's change is known (R21).

        keep: whether answers go into the journal; a preview leaves no trace.
        """
        parts, answers = self._parts, Answers()
        state.fetch_vectors(parts.store, parts.pipeline.judging)
        while True:
            found = decide(read, state, answers, self._rules)
            if isinstance(found, Change):
                return found
            if found.texts:
                vectors = await parts.embedder.embed(found.texts)
                answers.vectors.update(zip(found.texts, vectors, strict=True))
            for questions in _requests(found, parts.pipeline.resolution):
                await self._ask(QuestionRequest(episode=read.episode, questions=questions), answers, keep)

    async def _ask(self, request: QuestionRequest, answers: Answers, keep: bool) -> None:
        """Have one request answered: from the journal, else by the judge, journaled as it arrives."""
        store, judge = self._parts.store, self._parts.judge
        if not keep:
            answers.said.update(zip(request.questions, (await judge.judge(request)).answers, strict=True))
            return
        group, sequence = request.episode.group, request.episode.sequence
        key = judge.key(request)
        said = store.recall(group, key, sequence)
        if said is None:
            said = store.remember(group, key, sequence, await judge.judge(request))
        answers.said.update(zip(request.questions, said, strict=True))

    async def _correct(self, operation: Operation) -> str:
        store = self._parts.store
        self._states.pop(operation.group, None)
        recorded_at = self._record_time(operation.group)
        try:
            commit = await correct(store, self._parts.embedder, operation, recorded_at)
        except (NotFound, InputError) as error:
            store.refuse(operation.group, operation.sequence, str(error), now=times.now())
            return "refused"
        store.apply(commit)
        return "done"

    def _refolded(self, state: GroupState, change: Change, recorded_at: Instant) -> Derived:
        records = with_change(self._parts.store.records(change.episode.group), change, recorded_at)
        return compare(state.graph, GroupGraph.build(records))

    def _record_time(self, group: str) -> Instant:
        """Return the next record time of a group: max(clock, last + 1 microsecond) (R4)."""
        return max(times.now(), self._parts.store.last_recorded(group) + 1)

    def _drop_stale(self) -> None:
        """Forget the groups that were changed since by others: a Loop may outlive the lock it ran under."""
        for group, state in list(self._states.items()):
            if state.last_recorded != self._parts.store.last_recorded(group):
                del self._states[group]

    def _state(self, group: str) -> GroupState:
        """Return the group's state; the least recently used ones go where the bound is passed."""
        state = self._states.get(group)
        if state is None:
            state = GroupState.load(self._parts.store, group, self._parts.embedder.dimensions)
            self._states[group] = state
            while len(self._states) > 1 and sum(s.size() for s in self._states.values()) > self._parts.state_bytes:
                self._states.popitem(last=False)
        self._states.move_to_end(group)
        return state

    async def _patiently(self, call: Callable[[], Awaitable[_T]], stop: Stop) -> _T:
        """Wait out an outage with growing pauses, up to the patience; content errors pass at once (R24)."""
        deadline = time.monotonic() + self._parts.patience_s
        delay = _FIRST_DELAY_S
        while True:
            try:
                return await call()
            except Unavailable:
                left = deadline - time.monotonic()
                if left <= 0 or stop():
                    raise
                await asyncio.sleep(min(delay, left))
                delay = min(2 * delay, _LONGEST_DELAY_S)


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


def _requests(questions: Questions, resolution: str) -> list[tuple[Question, ...]]:
    """Return the open questions as requests: one, or with `per_node` one for each entity question and one for the rest."""
    if not questions.open:
        return []
    if resolution != "per_node":
        return [tuple(questions.open)]
    nodes = [(q,) for q in questions.open if q.kind == "entity"]
    rest = tuple(q for q in questions.open if q.kind != "entity")
    return [*nodes, rest] if rest else [*nodes]


__all__ = ["Loop", "OnStep", "Parts", "Pipeline", "Totals", "commit_of"]
