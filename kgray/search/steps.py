"""Graph steps: facts and entities around the centre of a query, its seeds and the best hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

from kgray.domain.graph import Community, Fact
from kgray.domain.records import Place, entity_id
from kgray.domain.times import Instant
from kgray.errors import NotFound
from kgray.ports import GraphView, SearchScope
from kgray.search.loading import texts_of
from kgray.search.query import FoundRow
from kgray.search.ranking import OVER_FETCH, Candidate, SearchRun
from kgray.storage.ledger import find, sequences_of

ByScope = dict[SearchScope, list[Candidate]]
_CENTRE_HOPS = 3  # to measure distances
_FROM_HITS = 6  # entities of the best hits from which steps start
_FROM_REPORTS = 24  # members of the best communities
_FRONT = 8  # entities a later hop starts from; a tenth of the limit where that is more
_FILTERED = 8  # factor on the facts of a walk if the query has filters, because they drop some
_ROUNDS = 3  # reads a hop takes at most, see _around
_SHARE = 10  # least number of facts that each start of a hop gives
RECORDS = 64  # mentions and pieces of evidence of a seed episode that are read


class Walk(NamedTuple):
    """The reached facts and entities, with (distance, rank of the seed). A seed's own facts are at 1."""

    facts: list[tuple[Fact, tuple[int, int]]]  # in that order, then by id
    entities: dict[str, tuple[int, int]]


def steps(run: SearchRun, best: ByScope) -> ByScope:
    """Walk from the centre, the seeds and the best hits; return the reached rows, nearest first.

    A row at distance n scores s x steps^n; s is the score of a hit, or 1 for a centre or a seed.
    """
    starts = dict.fromkeys(_resolved(run, run.query.centre, *run.query.seeds), 1.0)
    starts |= dict.fromkeys(_of_newest(run), 1.0)
    sources = [best.get("fact", ()), best.get("entity", ())]
    if run.recipe.start == ("community",):
        sources = [best.get("community", ())]
    hits = [c for c in chain.from_iterable(zip_longest(*sources)) if c]
    from_hits: dict[str, float] = {}
    for hit in hits[:_FROM_HITS]:
        for entity in _entities_of(hit.row):
            from_hits.setdefault(entity, hit.score)
    limit = _FROM_HITS if run.recipe.start != ("community",) else _FROM_REPORTS
    starts |= {entity: from_hits[entity] for entity in [*from_hits][:limit] if entity not in starts}
    walked, began = _from(run, list(starts), run.recipe.depth, OVER_FETCH), list(starts.values())

    def scored(row: FoundRow, place: tuple[int, int]) -> Candidate:
        score = began[place[1]] * run.recipe.weights.steps ** place[0]
        return Candidate(row=row, score=score, signals={"steps": float(place[0])})

    at = {fact.id: place for fact, place in walked.facts}
    nearest = sorted(walked.entities, key=lambda id_: (*walked.entities[id_], id_))
    reached: ByScope = {
        "fact": [scored(row, at[row.id]) for row in run.keep([fact for fact, _ in walked.facts])],
        "entity": [scored(row, walked.entities[row.id]) for row in run.keep(run.view.entities(nearest))],
    }
    # The scopes that the text methods do not search; graph steps alone search none.
    by_text = (run.recipe.start or run.recipe.scopes) if run.recipe.methods != ("bfs",) else ()
    targets = {*run.recipe.scopes} - {*by_text}
    if "episode" in targets:
        reached["episode"] = _supporting(run, reached["fact"])
    if "community" in targets and run.summaries is not None:
        reached["community"] = _reports(run, {c.row.id: c.score for c in reached["entity"]})
    return {scope: rows for scope, rows in reached.items() if scope in run.recipe.scopes}


def _entities_of(row: FoundRow) -> Sequence[str]:
    if isinstance(row, Community):
        return row.members
    return row.ends if isinstance(row, Fact) else [row.id]


def _of_newest(run: SearchRun) -> list[str]:
    """Return the ends of the facts that the group's newest visible episodes support (`Recipe.recent`)."""
    if not run.recipe.recent:
        return []
    places = [(sequence, ordinal) for sequence in run.newest for ordinal in range(RECORDS)]
    supported = run.view.facts_of_evidence(places, run.moment)
    return list(dict.fromkeys(end for facts in supported for fact in facts for end in fact.ends))


def _supporting(run: SearchRun, facts: Sequence[Candidate]) -> list[Candidate]:
    """Return the episodes that support the facts, each with the score of its best fact."""
    scores: dict[str, float] = {}
    for candidate in facts:
        for episode in candidate.row.episodes if isinstance(candidate.row, Fact) else ():
            scores[episode] = max(scores.get(episode, 0.0), candidate.score)
    best = sorted(scores, key=lambda id_: (-scores[id_], id_))[: OVER_FETCH * run.query.limit]
    episodes = run.view.episodes(sequences_of(run.store, run.view.group, ids=best))
    rows = [Candidate(row=row, score=scores[row.id]) for row in run.keep(episodes)]
    return sorted(rows, key=lambda candidate: (-candidate.score, candidate.row.id))


def _reports(run: SearchRun, entities: Mapping[str, float]) -> list[Candidate]:
    """Return the communities of entities; the communities with the most of these entities come first."""
    listed, _ = texts_of(run.store, run.view.group, run.summaries.run if run.summaries else 0)
    counts = {community.id: len(entities.keys() & set(community.members)) for community in listed}
    best = max(counts.values(), default=0)
    rows = [Candidate(row=c, score=counts[c.id] / best) for c in listed if counts[c.id]]
    return sorted(rows, key=lambda candidate: (-candidate.score, candidate.row.id))


def distances(run: SearchRun) -> dict[str, int]:
    """Return entity id -> its distance from the centre, up to 3 steps."""
    reached = _from(run, _resolved(run, run.query.centre), _CENTRE_HOPS, None).entities
    return {entity: distance for entity, (distance, _) in reached.items()}


def _from(run: SearchRun, seeds: Sequence[str], hops: int, times: int | None) -> Walk:
    """Walk up to `hops`, or until there are `times` x the limit facts; None = no bound on facts."""
    room = run.query.limit * (_FILTERED if run.query.filters.narrows else 1)
    enough, front = None if times is None else times * room, max(_FRONT, run.query.limit // 10)
    return walk(run.view, seeds, run.moment, hops=hops, room=room, front=front, enough=enough)


def walk(
    view: GraphView, seeds: Sequence[str], as_of: Instant | None, *, hops: int, room: int, front: int,
    enough: int | None = None,
) -> Walk:  # fmt: skip
    """Step from `seeds` (resolved entity ids, best first, distinct) over the facts that hold at `as_of`.

    room    facts a hop: an equal share for each start, at least 10, newest first
    front   starts of each hop after the first, by (rank of the seed, id)
    enough  facts after which the walk ends, because further facts would rank below them; None = no bound
    It makes at most 3 reads a hop, for any number of entities.
    """
    places = {seed: (0, rank) for rank, seed in enumerate(seeds)}
    facts: dict[str, tuple[Fact, tuple[int, int]]] = {}
    edge = list(places)
    for hop in range(1, hops + 1):
        if not edge or (enough is not None and len(facts) >= enough):
            break
        around = _around(view, edge, as_of, max(_SHARE, room // len(edge)))
        reached: dict[str, tuple[int, int]] = {}
        for entity in edge:
            place = hop, places[entity][1]
            for fact in around[entity].values():
                facts.setdefault(fact.id, (fact, place))
                for end in fact.ends:
                    if end not in places:
                        reached.setdefault(end, place)
        places |= reached
        edge = sorted(reached, key=lambda entity: (reached[entity][1], entity))[:front]
    return Walk(sorted(facts.values(), key=lambda row: (row[1], row[0].id)), places)


def _around(
    view: GraphView, ids: Sequence[str], as_of: Instant | None, width: int
) -> dict[str, dict[str, Fact]]:
    """Return entity -> its newest facts, at most `width`, with one read for all entities.

    If the read reaches its limit, hubs may have crowded out other entities, which are read again; each round
    completes at least one entity.
    """
    facts_of: dict[str, dict[str, Fact]] = {entity: {} for entity in ids}
    waiting = list(ids)
    for _ in range(_ROUNDS):
        limit = width * len(waiting)
        facts = view.facts_at(waiting, as_of, limit)
        for fact in facts:
            for end in fact.ends:
                if end in facts_of and len(facts_of[end]) < width:
                    facts_of[end][fact.id] = fact
        waiting = [entity for entity in waiting if len(facts_of[entity]) < width]
        if len(facts) < limit or not waiting:
            break
    return facts_of


def _resolved(run: SearchRun, *ids: str | None) -> list[str]:
    """Resolve ids of entities or episodes, or names, to ids of visible entities. Raises NotFound."""
    entities, view, group = list[str](), run.view, run.view.group
    for identifier in (id_ for id_ in ids if id_ is not None):
        visible = [entity.id for entity in view.entities([identifier])]
        if visible:  # a split entity resolves to several ids; prefer the part that kept the id
            entities += [identifier] if identifier in visible else visible
            continue
        # Retracted rows count: a view as of an earlier moment may show them.
        sequences = sequences_of(run.store, group, ids=(identifier,))
        named = [] if sequences else view.entities_named(identifier)
        entities += [entity.id for entity in named]
        if not sequences and not named and not find(run.store, group, identifier):
            raise NotFound(f"group {group} has no entity or episode {identifier!r}")
        for episode in view.episodes(sequences):  # entities of its mentions, and of its facts of any time
            places: list[Place] = [(episode.sequence, ordinal) for ordinal in range(RECORDS)]
            about = view.facts_of_evidence(places, None)
            entities += [end for facts in about for fact in facts for end in fact.ends]
            created = view.entities([entity_id(group, place) for place in places])
            entities += [entity.id for entity in created]
    return list(dict.fromkeys(entities))
