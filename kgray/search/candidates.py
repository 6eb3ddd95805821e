"""What may answer a query: the rows of a view that the first stage ranks, filters pass and graph steps reach.

The first stage ranks records; the view says which of them the graph shows, and as what. Splits, merges,
retractions, `as_of` and filters drop candidates, so more rows are taken than are wanted, and still more while
too few remain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from kgray.graph import Community, Entity, Fact
from kgray.ledger import sequences_of
from kgray.ports import GraphView, SearchScope, Store
from kgray.records import Episode
from kgray.rows import folded
from kgray.search.query import Filters, Query, Recipe, within
from kgray.search.question import Question
from kgray.search.ranking import Scores
from kgray.search.summaries import Profiled, Summaries, texts_of
from kgray.search.vectors import Ints
from kgray.search.walk import HOPS, Walk, known, walk
from kgray.times import Instant

FoundRow = Fact | Entity | Episode | Community


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row with its score, the signals that made it up, and its place in the first stage (`ranking`)."""

    row: FoundRow
    score: float
    signals: Mapping[str, float] = field(default_factory=dict)
    place: int | None = None

    def times(self, **factors: float) -> Candidate:
        """Return it with its score multiplied; a factor of 1 is not told."""
        told = {name: factor for name, factor in factors.items() if factor != 1}
        if not told:
            return self
        return replace(self, score=self.score * math.prod(told.values()), signals={**self.signals, **told})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The first stage of one scope, and which record each of its rows is."""

    scores: Scores
    records: Callable[[Ints], list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """One search: its query, and what it reads from.

    ways      the recipe; question: what the query says
    moment    when facts must hold; None = any time
    ranked    scope -> its first stage
    linked    recorded entities of which the question has a whole name
    told      the texts of communities and entities that are searched
    """

    store: Store
    view: GraphView
    query: Query
    ways: Recipe
    question: Question
    moment: Instant | None
    ranked: Mapping[SearchScope, Ranked]
    linked: Sequence[str] = ()
    told: Summaries | None = None

    def keep(self, rows: Sequence[FoundRow]) -> list[FoundRow]:
        """Return the rows of one scope that pass the query's filters, in their order."""
        filters = self.query.filters
        if not filters.narrows:
            return [*rows]
        kept = [row for row in rows if self._passes(row)]
        facts = [row for row in kept if isinstance(row, Fact)]
        if not facts:
            return kept
        if filters.labels:
            entities = self.view.entities(list(dict.fromkeys(end for fact in facts for end in fact.ends)))
            labelled = {entity.id for entity in entities if self._passes(entity)}
            facts = [fact for fact in facts if labelled.intersection(fact.ends)]
        if filters.sources or filters.speakers:
            ids = sorted({episode for fact in facts for episode in fact.episodes})
            episodes = self.view.episodes(sequences_of(self.store, self.view.group, ids=ids))
            told = {episode.id for episode in episodes if _is_told_by(episode, filters)}
            facts = [fact for fact in facts if told.intersection(fact.episodes)]
        return [*facts]

    def _passes(self, row: FoundRow) -> bool:
        """Whether a row passes what can be seen of it alone."""
        filters = self.query.filters
        if isinstance(row, Entity):
            return not filters.labels or not set(filters.labels).isdisjoint(row.labels)
        if isinstance(row, Community):
            return True
        if isinstance(row, Episode):
            return _is_told_by(row, filters) and within(row.reference_time, filters.said)
        return (
            (not filters.relations or row.relation in filters.relations)
            and within(row.valid_at, filters.valid_at)
            and within(row.invalid_at, filters.invalid_at)
            and within(row.created_at, filters.created_at)
        )


def _is_told_by(episode: Episode, filters: Filters) -> bool:
    """Whether an episode is of one of the sources and said by one of the speakers that are asked for."""
    speakers = {folded(speaker) for speaker in filters.speakers}
    return (not filters.sources or episode.source in filters.sources) and (
        not speakers or folded(episode.speaker or "") in speakers
    )


# --------------------------------------------------------------------------------- from the first stage

MIN_DEPTH = 30
OVER_FETCH = 3
MAX_DEPTH = 10_000
_DEEPER = 8  # each further try goes this much deeper: 30, 240, 1920, 10000


def gather(
    run: SearchRun, scope: SearchScope, wanted: int, scores: Scores | None = None, least: float = 0.0
) -> list[Candidate]:
    """Return the best rows of one scope above the floor, best first; `wanted` at least, if there are so many.

    scores: other ones than the first stage's own, of the same rows; as they are, not boosted.
    least: only rows of this score at least, though they be fewer.
    """
    ranked = run.ranked[scope]
    chosen = scores or ranked.scores
    depth = max(MIN_DEPTH, OVER_FETCH * wanted)
    while True:
        rows = chosen.best(depth, least)
        found = _shown(run, scope, ranked.records(rows))
        best: dict[str, Candidate] = {}
        of = zip(found, chosen.score[rows].tolist(), chosen.of(rows), rows.tolist(), strict=True)
        for shown, score, signals, place in of:
            for each in shown:
                if each.id not in best:
                    best[each.id] = Candidate(row=each, score=score, signals=signals, place=place)
        passing = run.keep([candidate.row for candidate in best.values()])
        kept = [best[row.id] for row in passing]
        if len(kept) >= wanted or len(rows) < depth or depth >= MAX_DEPTH:
            return kept if scores else _boosted(run, scope, kept)
        depth = min(depth * _DEEPER, MAX_DEPTH)


def cut_of(run: SearchRun, wanted: int) -> tuple[float, float]:
    """Return the score of about the last of all scopes that may be among the best, and the first stage's.

    What `gather` leaves out below the second has no score above the first, boosted or not.
    """
    weights = run.ways.weights
    most = OVER_FETCH * wanted
    scores = [ranked.scores.score[ranked.scores.best(most)] for ranked in run.ranked.values()]
    best = np.sort(np.concatenate(scores))[::-1] if scores else ()
    cut = float(best[most - 1]) if len(best) >= most else 0.0
    return cut, cut / (max(1.0, weights.linked) * max(1.0, weights.dates) * max(1.0, weights.rows))


def _shown(run: SearchRun, scope: SearchScope, records: Sequence[Any]) -> list[list[FoundRow]]:
    """Return for each record the rows that the view shows for it; one read."""
    view = run.view
    if scope == "episode":
        episodes = {episode.sequence: episode for episode in view.episodes(records)}
        return [[episodes[number]] if number in episodes else [] for number in records]
    # What was written may be gone since it was loaded (R25).
    told = [id_ for id_ in records if scope == "community" or isinstance(id_, Profiled)]
    listed, profiles = texts_of(run.store, view.group, run.told.run, told) if run.told and told else ([], {})
    if scope == "community":
        there = {one.id: one for one in listed}
        return [[there[id_]] if id_ in there else [] for id_ in records]
    if scope == "entity":
        pairs = zip(records, view.entities_of([*map(str, records)]), strict=True)
        return [[*shown] if id_ in profiles or not isinstance(id_, Profiled) else [] for id_, shown in pairs]
    return [[*shown] for shown in view.facts_of_evidence(records, run.moment)]


def _boosted(run: SearchRun, scope: SearchScope, found: list[Candidate]) -> list[Candidate]:
    """Order by what rows say: facts of who is named, or that began or ended then; triples count less."""
    weights = run.ways.weights
    named = run.view.entities(run.linked) if scope == "fact" and run.linked else []
    linked = {entity.id for entity in named}

    def boosted(candidate: Candidate) -> Candidate:
        row = candidate.row
        if isinstance(row, Episode) and row.kind == "triples":
            return candidate.times(rows=weights.rows)
        if not isinstance(row, Fact):
            return candidate
        clocks = (row.valid_at, row.invalid_at)
        then = any(within(at, span) for at in clocks for span in run.question.spans)
        return candidate.times(
            linked=1.0 if linked.isdisjoint(row.ends) else weights.linked,
            dates=weights.dates if then else 1.0,
        )

    return sorted(map(boosted, found), key=lambda candidate: -candidate.score)


# ------------------------------------------------------------------------------------------- graph steps

_FROM_HITS = 6  # entities of the best hits from which steps start
_FRONT = 8  # entities a later hop starts from; a tenth of the limit where that is more
_FILTERED = 8  # with filters, steps take this many times as many facts, because filters drop some
_CENTRE_HOPS = 3


def steps(
    run: SearchRun, best: Mapping[SearchScope, Sequence[Candidate]]
) -> dict[SearchScope, list[Candidate]]:
    """Walk from the centre, the seeds and the best hits; return what was reached, nearest first.

    What is n steps away scores steps^n of what a walk began with: a hit's score, 1 for a centre or a seed.
    """
    given = dict.fromkeys([*centre_of(run), *known(run.store, run.view, run.query.seeds)], 1.0)
    hits = [c for c in chain.from_iterable(zip_longest(best.get("fact", ()), best.get("entity", ()))) if c]
    from_hits: dict[str, float] = {}
    for hit in hits[:_FROM_HITS]:
        for entity in entities_of(hit.row):
            from_hits.setdefault(entity, hit.score)
    starts = {**dict(list(from_hits.items())[:_FROM_HITS]), **given}
    ordered = [*given, *(entity for entity in starts if entity not in given)]
    limit = run.query.limit * (_FILTERED if run.query.filters.narrows else 1)
    walked = _walk(run, ordered, HOPS, OVER_FETCH * limit)

    def scored(row: FoundRow, distance: int, seed: int) -> Candidate:
        score = starts[ordered[seed]] * run.ways.weights.steps**distance
        return Candidate(row=row, score=score, signals={"steps": float(distance)})

    facts = [scored(fact, *walked.facts_at[fact.id]) for fact in run.keep(walked.facts)]
    nearest = sorted(walked.entities, key=lambda found: (*walked.entities[found], found))
    entities = run.keep(run.view.entities(nearest))
    return {"fact": facts, "entity": [scored(row, *walked.entities[row.id]) for row in entities]}


def from_centre(run: SearchRun) -> Walk:
    """Walk from the centre alone, to measure distances: up to 3 hops."""
    return _walk(run, centre_of(run), _CENTRE_HOPS, None)


def centre_of(run: SearchRun) -> list[str]:
    """Return the shown entity of the query's centre: one or, where this view does not show it, none.

    Raises NotFound where the group has no such entity.
    """
    centre = run.query.centre
    return [] if centre is None else known(run.store, run.view, [centre])


def entities_of(row: FoundRow) -> tuple[str, ...]:
    """Return the entities that a row is about: a fact's ends, an entity itself."""
    if isinstance(row, Fact):
        return row.ends
    return (row.id,) if isinstance(row, Entity) else ()


def _walk(run: SearchRun, seeds: Sequence[str], hops: int, enough: int | None) -> Walk:
    limit = run.query.limit
    room = limit * (_FILTERED if run.query.filters.narrows else 1)
    front = max(_FRONT, limit // 10)
    return walk(run.view, seeds, run.moment, hops=hops, room=room, front=front, enough=enough)
