"""Graph steps: what lies around the centre of a query, its seeds and the best hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

from kgray.errors import NotFound
from kgray.graph import Community, Fact
from kgray.ledger import find, sequences_of
from kgray.ports import GraphView, SearchScope
from kgray.records import Place, entity_id
from kgray.search.loading import texts_of
from kgray.search.query import FoundRow
from kgray.search.ranking import OVER_FETCH, Candidate, SearchRun
from kgray.times import Instant

Found = dict[SearchScope, list[Candidate]]
_CENTRE_HOPS = 3  # to measure distances
_FROM_HITS = 6  # entities of the best hits from which steps start
_FROM_REPORTS = 24  # members of the best communities
_FRONT = 8  # entities a later hop starts from; a tenth of the limit where that is more
_FILTERED = 8  # with filters, steps take this many times as many facts, because filters drop some
_ROUNDS = 3  # reads a hop takes at most, see _around
_SHARE = 10  # facts each entity gives where a hop starts from many
RECORDS = 64  # mentions and pieces of evidence of a seed episode that are looked at


class Walk(NamedTuple):
    """What was reached, with (distance, rank of the seed): seeds have distance 0, a fact at one 1."""

    facts: list[tuple[Fact, tuple[int, int]]]  # in that order, then by id
    entities: dict[str, tuple[int, int]]


def steps(run: SearchRun, best: Found) -> Found:
    """Walk from the centre, the seeds and the best hits; return what was reached, nearest first.

    What is n steps away scores steps^n of what a walk began with: a hit's score, 1 for a centre or a seed.
    """
    starts = dict.fromkeys(_known(run, run.query.centre, *run.query.seeds), 1.0)
    starts |= dict.fromkeys(_of_newest(run), 1.0)
    sources = [best.get("fact", ()), best.get("entity", ())]
    if run.ways.start == ("community",):
        sources = [best.get("community", ())]
    hits = [c for c in chain.from_iterable(zip_longest(*sources)) if c]
    from_hits: dict[str, float] = {}
    for hit in hits[:_FROM_HITS]:
        for entity in _entities_of(hit.row):
            from_hits.setdefault(entity, hit.score)
    most = _FROM_HITS if run.ways.start != ("community",) else _FROM_REPORTS
    starts |= {entity: from_hits[entity] for entity in [*from_hits][:most] if entity not in starts}
    walked, began = _from(run, list(starts), run.ways.depth, OVER_FETCH), list(starts.values())

    def scored(row: FoundRow, place: tuple[int, int]) -> Candidate:
        score = began[place[1]] * run.ways.weights.steps ** place[0]
        return Candidate(row=row, score=score, signals={"steps": float(place[0])})

    at = {fact.id: place for fact, place in walked.facts}
    nearest = sorted(walked.entities, key=lambda found: (*walked.entities[found], found))
    reached: Found = {
        "fact": [scored(row, at[row.id]) for row in run.keep([fact for fact, _ in walked.facts])],
        "entity": [scored(row, walked.entities[row.id]) for row in run.keep(run.view.entities(nearest))],
    }
    rest = {scope for scope in run.ways.scopes if run.ways.start and scope not in run.ways.start}
    if "episode" in rest:
        reached["episode"] = _supporting(run, reached["fact"])
    if "community" in rest and run.told is not None:
        reached["community"] = _reports(run, {c.row.id: c.score for c in reached["entity"]})
    return {scope: rows for scope, rows in reached.items() if scope in run.ways.scopes}


def _entities_of(row: FoundRow) -> Sequence[str]:
    if isinstance(row, Community):
        return row.members
    return row.ends if isinstance(row, Fact) else [row.id]


def _of_newest(run: SearchRun) -> list[str]:
    """Return the ends of the facts that the group's newest visible episodes speak of (`Recipe.recent`)."""
    if not run.ways.recent:
        return []
    places = [(sequence, ordinal) for sequence in run.newest for ordinal in range(RECORDS)]
    spoken_of = run.view.facts_of_evidence(places, run.moment)
    return list(dict.fromkeys(end for facts in spoken_of for fact in facts for end in fact.ends))


def _supporting(run: SearchRun, facts: Sequence[Candidate]) -> list[Candidate]:
    """Return the episodes that support facts, each with the score of the best of them."""
    scores: dict[str, float] = {}
    for candidate in facts:
        for episode in candidate.row.episodes if isinstance(candidate.row, Fact) else ():
            scores[episode] = max(scores.get(episode, 0.0), candidate.score)
    best = sorted(scores, key=lambda id_: (-scores[id_], id_))[: OVER_FETCH * run.query.limit]
    episodes = run.view.episodes(sequences_of(run.store, run.view.group, ids=best))
    rows = [Candidate(row=row, score=scores[row.id]) for row in run.keep(episodes)]
    return sorted(rows, key=lambda candidate: (-candidate.score, candidate.row.id))


def _reports(run: SearchRun, entities: Mapping[str, float]) -> list[Candidate]:
    """Return the communities of entities, those with most of them first."""
    listed, _ = texts_of(run.store, run.view.group, run.told.run if run.told else 0)
    counts = {one.id: len(entities.keys() & set(one.members)) for one in listed}
    best = max(counts.values(), default=0)
    rows = [Candidate(row=one, score=counts[one.id] / best) for one in listed if counts[one.id]]
    return sorted(rows, key=lambda candidate: (-candidate.score, candidate.row.id))


def distances(run: SearchRun) -> dict[str, int]:
    """Return entity id -> its steps from the centre alone, up to 3."""
    reached = _from(run, _known(run, run.query.centre), _CENTRE_HOPS, None).entities
    return {entity: distance for entity, (distance, _) in reached.items()}


def _from(run: SearchRun, seeds: Sequence[str], hops: int, times: int | None) -> Walk:
    """Walk until there are so many times as many facts as may be shown; None = as far as the hops go."""
    room = run.query.limit * (_FILTERED if run.query.filters.narrows else 1)
    enough, front = None if times is None else times * room, max(_FRONT, run.query.limit // 10)
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

    room    facts a hop takes: an equal share for each entity it starts from, at least 10, newest first
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
    view: GraphView, ids: Sequence[str], as_of: Instant | None, width: int
) -> dict[str, dict[str, Fact]]:
    """Return entity -> its newest facts, at most `width`, in few reads: one serves all.

    Where it is full, hubs may have crowded out others, which are read again: each round serves one at least.
    """
    found: dict[str, dict[str, Fact]] = {entity: {} for entity in ids}
    waiting = list(ids)
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


def _known(run: SearchRun, *ids: str | None) -> list[str]:
    """Return the shown entities that ids of entities or episodes, or names, mean. Raises NotFound."""
    found, view, group = list[str](), run.view, run.view.group
    for identifier in (id_ for id_ in ids if id_ is not None):
        shown = [entity.id for entity in view.entities([identifier])]
        if shown:  # a split entity resolves to several: the part that kept the id is meant
            found += [identifier] if identifier in shown else shown
            continue
        # Retracted rows count: a view as of an earlier moment may show them.
        sequences = sequences_of(run.store, group, ids=(identifier,))
        named = [] if sequences else view.entities_named(identifier)
        found += [entity.id for entity in named]
        if not sequences and not named and not find(run.store, group, identifier):
            raise NotFound(f"group {group} has no entity or episode {identifier!r}")
        for episode in view.episodes(sequences):  # what it made, or has evidence about, whenever that held
            places: list[Place] = [(episode.sequence, ordinal) for ordinal in range(RECORDS)]
            about = view.facts_of_evidence(places, None)
            found += [end for facts in about for fact in facts for end in fact.ends]
            found += [one.id for one in view.entities([entity_id(group, place) for place in places])]
    return list(dict.fromkeys(found))
