"""A store that grows by the plain loop's own steps, one episode or several a transaction, with clocks."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from bench.plain_loop import decided_change, extract
from bench.timed import ModelClock, TimedModels
from kgray.domain import times
from kgray.domain.ontology import shipped
from kgray.domain.records import Draft, Episode, Extraction
from kgray.graph.change import EpisodeChange
from kgray.ingest.calls import Direct, EpisodeReading, Parts
from kgray.ingest.outbox import Outbox, commit_change
from kgray.ingest.state import GroupState, ReadEpisode
from kgray.models.prompting.replies import parse_extraction
from kgray.models.rules import RulesJudge
from kgray.ports import Embedder, ExtractionRequest, RowChanges, Store, Vector
from kgray.search import Searcher
from kgray.search.index import Indexes
from kgray.search.loading import read_text_vectors
from kgray.storage.ledger import accept, pending
from tests.world import WorldEpisode

_BATCH = 256
RUNNER = asyncio.Runner()


class ReplyReader:
    """An extractor that answers from the replies it is given, by client id."""

    identity = "generated"

    def __init__(self) -> None:
        """Start with no replies: the owner fills and empties them."""
        self.replies: dict[str, dict[str, Any]] = {}

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return the source of the episode."""
        return parse_extraction(self.replies[request.episode.client_id or ""], request.episode)


@dataclass(slots=True)
class GrowthCosts:
    """Seconds by episode, but wall: by transaction. rows: records, vectors and derived rows."""

    decide: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    embed: list[float] = field(default_factory=list)
    rows: int = 0


class _Collecting(Outbox):
    """An outbox that only collects posted changes; its owner writes them."""

    def __init__(self, store: Store) -> None:
        super().__init__(Direct(store), most=store.batch)
        self.changes: list[RowChanges] = []

    def post(self, change: RowChanges, on_written: Callable[[], None] | None = None) -> None:
        del on_written  # nobody waits for a single change here
        self.changes.append(change)


class GrowingStore:
    """One store and the states of its groups.

    statements  by group, the vectors to compare a search with
    texts       by group, the wordings of its facts, in their order
    together    episodes that fill a transaction
    """

    def __init__(self, store: Store, embedder: Embedder) -> None:
        """Take an empty store that stays locked for writing."""
        self._clock, self._reader, judge = ModelClock(), ReplyReader(), RulesJudge()
        models = TimedModels(self._reader, judge, embedder, self._clock)
        self.store, self.embedder, self.searcher = store, models, Searcher(store, models)
        self.together = store.batch // 2  # episodes a transaction: each posts its extraction and its commit
        self.statements: defaultdict[str, dict[str, Vector]] = defaultdict(dict)
        self.texts: defaultdict[str, list[str]] = defaultdict(list)
        self._states: dict[str, GroupState] = {}
        self._outbox = _Collecting(store)
        self._parts = Parts(
            store=store,
            extractor=self._reader,
            judge=judge,
            embedder=models,
            ontology=shipped(),
        )

    def grow(self, episodes: Iterator[WorldEpisode], count: int, *, gather: int = 1) -> GrowthCosts:
        """Accept and commit the next `count` episodes, `gather` in a transaction; return their costs."""
        costs = GrowthCosts()
        while batch := list(islice(episodes, min(_BATCH, count))):
            count -= len(batch)
            self._reader.replies = {e.draft.client_id or "": e.extraction_reply for e in batch}
            for episode in batch:
                self.texts[episode.draft.group] += (fact.text for fact in episode.said)
            self.commit([episode.draft for episode in batch], costs, gather=gather)
        return costs

    def commit(self, drafts: Sequence[Draft], costs: GrowthCosts, *, gather: int = 1) -> None:
        """Accept drafts of one group and commit them, `gather` a transaction."""
        group = drafts[0].group
        accept(self.store, drafts, now=times.now())
        while entries := pending(self.store, group, _BATCH):
            for start in range(0, len(entries), gather):
                for entry in entries[start : start + gather]:
                    if isinstance(entry, Episode):
                        RUNNER.run(self._decide(entry, costs))
                self._write(costs)

    async def _decide(self, episode: Episode, costs: GrowthCosts) -> None:
        state = self._states.get(episode.group)
        if state is None:
            state = GroupState.load(self.store, episode.group, self.embedder.dimensions)
            self._states[episode.group] = state
        reading = EpisodeReading(self._parts, episode)
        extraction = await extract(self._parts, self._outbox, episode, reading)
        embedded, start = self._clock.models_s, time.process_time()
        change = await decided_change(
            self._parts, ReadEpisode(episode=episode, extraction=extraction), state, self._outbox
        )
        embedding = self._clock.models_s - embedded
        costs.decide.append(time.process_time() - start - embedding)
        costs.embed.append(embedding)
        start = time.process_time()
        recorded_at = max(times.now(), state.last_recorded + 1)
        difference = state.commit(change, recorded_at)
        if difference is None:
            raise RuntimeError("the generated group never folds relation names")
        commit = commit_change(change, difference, recorded_at, state.graph.births)
        costs.commit.append(time.process_time() - start)
        costs.rows += _rows(change) + len(difference.facts) + len(difference.entities)
        self.statements[episode.group].update(
            (id_, statement.vector) for id_, statement in change.statement_vectors
        )
        self._outbox.post(commit)

    def _write(self, costs: GrowthCosts) -> None:
        """Write the posted changes in one transaction; its CPU time is spread over its episodes."""
        changes, self._outbox.changes = self._outbox.changes, []
        episodes = sum(change.recorded_at is not None for change in changes)
        start, wall = time.process_time(), time.perf_counter()
        self.store.apply(changes)
        spent = time.process_time() - start
        costs.wall.append(time.perf_counter() - wall)
        for number in range(len(costs.commit) - episodes, len(costs.commit)):
            costs.commit[number] += spent / episodes

    def recall_at(self, group: str, texts: Sequence[str], limit: int) -> float:
        """Return the share of the true nearest statements that the group's index finds; ties count."""
        statements = self.statements[group]
        limit = min(limit, len(statements))
        matrix = np.asarray(list(statements.values()), np.float32)

        exact = read_text_vectors(self.store, group)
        hits = 0
        with Indexes(self.store, self.embedder.dimensions).open(group) as index:
            vectors = index.pieces.vectors
            names = list(vectors.rows)
            for query in RUNNER.run(self.embedder.embed(texts)):
                scores = matrix @ query
                bound = np.partition(scores, -limit)[-limit] - 1e-6
                true = dict(zip(statements, scores, strict=True))
                best = np.argsort(-vectors.cosines(query, exact), kind="stable")[:limit]
                hits += sum(bool(true[str(names[row])] >= bound) for row in best)
        return hits / (limit * len(texts))


def _rows(change: EpisodeChange) -> int:
    vectors = len(change.name_vectors) + len(change.statement_vectors) + 1
    return len(change.mentions) + len(change.evidence) + vectors + len(change.statement_births)
