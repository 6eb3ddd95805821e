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
from typing import Any, NamedTuple

import numpy as np

from kgray.errors import NotFound
from kgray.graph import Community, Entity, Fact
from kgray.ledger import find, sequences_of
from kgray.ports import GraphView, SearchScope, Store
from kgray.records import Episode, Place, entity_id
from kgray.rows import folded
from kgray.search.index import Ints
from kgray.search.query import Filters, Query, Question, Recipe, within
from kgray.search.ranking import Scores
from kgray.search.texts import Profiled, Summaries, texts_of
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
        score = self.score * math.prod(told.values())
        return replace(self, score=score, signals={**self.signals, **told}) if told else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The first stage of one scope, and which record each of its rows is."""

    scores: Scores
    records: Callable[[Ints], list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """One search: its query, and what it reads from."""

    store: Store
    view: GraphView
    query: Query
    ways: Recipe
    question: Question
    moment: Instant | None  # when facts must hold; None = any time
    ranked: Mapping[SearchScope, Ranked]  # the first stage of each scope
    linked: Sequence[str] = ()  # recorded entities of which the question has a whole name
    told: Summaries | None = None  # the texts of communities and entities that are searched

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
        if isinstance(row, Episode):
            return _is_told_by(row, filters) and within(row.reference_time, filters.said)
        if isinstance(row, Community):
            return True
        ranges = ((name, getattr(filters, name)) for name in ("valid_at", "invalid_at", "created_at"))
        inside = all(within(getattr(row, name), span) for name, span in ranges)
        return inside and (not filters.relations or row.relation in filters.relations)


def _is_told_by(episode: Episode, filters: Filters) -> bool:
    """Whether an episode is of one of the sources and said by one of the speakers that are asked for."""
    said_by = folded(episode.speaker or "") in set(map(folded, filters.speakers)) or not filters.speakers
    return said_by and (not filters.sources or episode.source in filters.sources)


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

_HOPS, _CENTRE_HOPS = 2, 3  # of a search; to measure distances
_FROM_HITS = 6  # entities of the best hits from which steps start
_FRONT = 8  # entities a later hop starts from; a tenth of the limit where that is more
_FILTERED = 8  # with filters, steps take this many times as many facts, because filters drop some
_ROUNDS = 3  # reads a hop takes at most, see _around
_SHARE = 10  # facts each entity gives where a hop starts from many
_RECORDS = 64  # mentions and pieces of evidence of a seed episode that are looked at


class Walk(NamedTuple):
    """What was reached, with (distance, rank of the seed): seeds have distance 0, a fact at one 1."""

    facts: list[tuple[Fact, tuple[int, int]]]  # in that order, then by id
    entities: dict[str, tuple[int, int]]


def steps(
    run: SearchRun, best: Mapping[SearchScope, Sequence[Candidate]]
) -> dict[SearchScope, list[Candidate]]:
    """Walk from the centre, the seeds and the best hits; return what was reached, nearest first.

    What is n steps away scores steps^n of what a walk began with: a hit's score, 1 for a centre or a seed.
    """
    starts = dict.fromkeys([*centre_of(run), *known(run.store, run.view, run.query.seeds)], 1.0)
    hits = [c for c in chain.from_iterable(zip_longest(best.get("fact", ()), best.get("entity", ()))) if c]
    from_hits: dict[str, float] = {}
    for hit in hits[:_FROM_HITS]:
        for entity in entities_of(hit.row):
            from_hits.setdefault(entity, hit.score)
    for entity, score in list(from_hits.items())[:_FROM_HITS]:
        starts.setdefault(entity, score)
    walked = _from(run, list(starts), _HOPS, OVER_FETCH)
    began = list(starts.values())

    def scored(row: FoundRow, place: tuple[int, int]) -> Candidate:
        score = began[place[1]] * run.ways.weights.steps ** place[0]
        return Candidate(row=row, score=score, signals={"steps": float(place[0])})

    at = {fact.id: place for fact, place in walked.facts}
    nearest = sorted(walked.entities, key=lambda found: (*walked.entities[found], found))
    return {
        "fact": [scored(row, at[row.id]) for row in run.keep([fact for fact, _ in walked.facts])],
        "entity": [scored(row, walked.entities[row.id]) for row in run.keep(run.view.entities(nearest))],
    }


def distances(run: SearchRun) -> dict[str, int]:
    """Return entity id -> its steps from the centre alone, up to 3."""
    reached = _from(run, centre_of(run), _CENTRE_HOPS, None).entities
    return {entity: distance for entity, (distance, _) in reached.items()}


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


def _from(run: SearchRun, seeds: Sequence[str], hops: int, times: int | None) -> Walk:
    """Walk until there are so many times as many facts as may be shown; None = as far as the hops go."""
    limit = run.query.limit
    room = limit * (_FILTERED if run.query.filters.narrows else 1)
    enough = None if times is None else times * room
    front = max(_FRONT, limit // 10)
    return walk(run.view, seeds, run.moment, hops=hops, room=room, front=front, enough=enough)


def walk(
    view: GraphView,
    seeds: Sequence[str],
    as_of: Instant | None,
    *,
    hops: int,
    room: int,
    front: int,
    enough: int | None = None,
) -> Walk:
    """Step from `seeds` (shown entity ids, best first, distinct) over the facts that hold at `as_of`.

    room    facts a hop takes: an equal share for each entity it starts from, at least 10, newest
            first, so that a hub costs no more than any other
    front   entities that a hop after the first starts from, by (rank of the seed, id)
    enough  facts after which no further hop is made, as its facts would rank below them; None = no bound

    Reads hops x 3 times at most, whatever the number of entities.
    """
    places = {seed: (0, rank) for rank, seed in enumerate(seeds)}
    found: dict[str, tuple[Fact, tuple[int, int]]] = {}
    edge = list(places)
    for hop in range(1, hops + 1):
        if not edge or (enough is not None and len(found) >= enough):
            break
        around = _around(view, edge, as_of, max(_SHARE, room // len(edge)))
        reached: dict[str, tuple[int, int]] = {}
        for entity in edge:
            place = hop, places[entity][1]
            for fact in around[entity].values():
                found.setdefault(fact.id, (fact, place))
                for end in fact.ends:
                    if end not in places:
                        reached.setdefault(end, place)
        places |= reached
        edge = sorted(reached, key=lambda entity: (reached[entity][1], entity))[:front]
    return Walk(sorted(found.values(), key=lambda row: (row[1], row[0].id)), places)


def _around(
    view: GraphView, entities: Sequence[str], as_of: Instant | None, width: int
) -> dict[str, dict[str, Fact]]:
    """Return entity -> its newest facts, at most `width`, in few reads.

    One read serves all entities. If its answer is full, hubs may have crowded out the others: entities that
    have their share are left out and the others are read again. A full answer holds `width` facts an
    entity, so at least one has its share and every round makes progress.
    """
    found: dict[str, dict[str, Fact]] = {entity: {} for entity in entities}
    waiting = list(entities)
    for _ in range(_ROUNDS):
        limit = width * len(waiting)
        facts = view.facts_at(waiting, as_of, limit)
        for fact in facts:
            for end in fact.ends:
                if end in found and len(found[end]) < width:
                    found[end][fact.id] = fact
        waiting = [entity for entity in waiting if len(found[entity]) < width]
        if len(facts) < limit or not waiting:
            break
    return found


def known(store: Store, view: GraphView, ids: Sequence[str]) -> list[str]:
    """Return the shown entities that ids of entities, or of episodes by what they are about, stand for.

    Raises NotFound for an id that the group has not; none for one that this view does not show.
    """
    found: list[str] = []
    for identifier in ids:
        entities = view.entities([identifier])
        if entities:  # a split entity resolves to several: the part that kept the id is meant
            shown = [entity.id for entity in entities]
            found += [identifier] if identifier in shown else shown
            continue
        # Retracted rows count: a view as of an earlier moment may show them.
        sequences = sequences_of(store, view.group, ids=(identifier,))
        if not sequences and not find(store, view.group, identifier):
            raise NotFound(f"group {view.group} has no entity or episode {identifier!r}")
        for episode in view.episodes(sequences):
            found += _spoken_of(view, episode.sequence)
    return list(dict.fromkeys(found))


def _spoken_of(view: GraphView, sequence: int) -> list[str]:
    """Return the entities that an episode made or has evidence about, whenever that held; two reads."""
    places: list[Place] = [(sequence, ordinal) for ordinal in range(_RECORDS)]
    facts = chain.from_iterable(view.facts_of_evidence(places, None))
    made = view.entities([entity_id(view.group, place) for place in places])
    return [*chain.from_iterable(fact.ends for fact in facts), *(entity.id for entity in made)]
