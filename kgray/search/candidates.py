"""What may answer a query: BM25, cosine and graph steps, each an ordered list of rows that the view shows.

A store ranks records; the view says which of them the graph shows, and as what. Splits, merges,
retractions, `as_of` and filters drop candidates, so BM25 and cosine ask for more rows than are wanted,
and for still more while too few remain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from kgray.errors import NotFound
from kgray.graph import Entity, Fact
from kgray.ledger import find, sequences_of
from kgray.ports import GraphView, SearchScope, Store, Vector
from kgray.records import Episode, Place, entity_id
from kgray.search.plan import Query, keep_entities, keep_episodes, keep_facts
from kgray.times import Instant

FoundRow = Fact | Entity | Episode

OVER_FETCH = 3
MIN_DEPTH = 30  # with RRF, ranks below 30 have hardly any effect on the first 10 hits
MAX_DEPTH = 10_000
_DEEPER = 8  # each further try goes this much deeper: 30, 240, 1920, 10000
# Graph steps:
HOPS = 2
_ROUNDS = 3  # reads a hop takes at most, see _around
_SHARE = 10  # facts each entity gives where a hop starts from many
_FROM_HITS = 6  # entities of the best hits from which steps start
_RECORDS = 64  # mentions and pieces of evidence of a seed episode that are looked at
_FRONT = 8  # entities a later hop starts from; a tenth of the limit where that is more
_FILTERED = 8  # with filters, steps take this many times as many facts, because filters drop some
_CENTRE_HOPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """One search: its query, and what it reads from.

    text    the query as well-formed Unicode
    moment  when facts must hold; None = any time
    vector  of the text; None where no method needs one
    """

    store: Store
    view: GraphView
    query: Query
    text: str
    moment: Instant | None
    vector: Vector | None

    def keep(self, scope: SearchScope, rows: Sequence[FoundRow]) -> list[FoundRow]:
        """Return the rows that pass the query's filters, in their order."""
        filters = self.query.filters
        if scope == "fact":
            facts = [row for row in rows if isinstance(row, Fact)]
            return [*keep_facts(self.store, self.view, facts, filters)] if filters.narrows else [*facts]
        if scope == "entity":
            return [*keep_entities([row for row in rows if isinstance(row, Entity)], filters)]
        episodes = [row for row in rows if isinstance(row, Episode)]
        return [*keep_episodes(episodes, filters, self.query.as_of)]


@dataclass(frozen=True, slots=True)
class Gathered:
    """Rows of one scope, best first; more: the store has further candidates."""

    rows: list[FoundRow]
    more: bool = False


def by_words(run: SearchRun, scope: SearchScope, wanted: int) -> Gathered:
    """Return rows of one scope by BM25, at least `wanted` where there are so many."""
    group = run.query.group

    def fetch(depth: int) -> tuple[int, list[FoundRow]]:
        found = run.store.lexical(group, scope, run.text, depth)
        places = [item for item in found if not isinstance(item, str)]
        return len(found), _shown(run, scope, places, [item for item in found if isinstance(item, str)])

    return _enough(run, scope, wanted, fetch)


def by_meaning(run: SearchRun, scope: SearchScope, wanted: int) -> Gathered:
    """Return rows of one scope by cosine, at least `wanted` where there are so many."""
    group, vector = run.query.group, run.vector
    if vector is None:
        raise ValueError("cosine needs the query's vector")

    def fetch(depth: int) -> tuple[int, list[FoundRow]]:
        found = [owner for owner, _ in run.store.nearest(group, scope, vector, depth)]
        places = [(owner, 0) for owner in found if isinstance(owner, int)]
        return len(found), _shown(run, scope, places, [id_ for id_ in found if isinstance(id_, str)])

    return _enough(run, scope, wanted, fetch)


def _shown(run: SearchRun, scope: SearchScope, places: list[Place], ids: list[str]) -> list[FoundRow]:
    """Return the rows that the view shows for these records, in order, each once; one read."""
    view, moment = run.view, run.moment
    if scope == "episode":
        return [*view.episodes([sequence for sequence, _ in places])]
    if scope == "entity":
        return [*view.entities(ids)]
    return [*(view.facts_of_evidence(places, moment) if places else view.facts_of(ids, moment))]


def _enough(
    run: SearchRun, scope: SearchScope, wanted: int, fetch: Callable[[int], tuple[int, list[FoundRow]]]
) -> Gathered:
    """Fetch more until `wanted` rows pass, the store has no more, or MAX_DEPTH is reached."""
    depth = max(MIN_DEPTH, OVER_FETCH * wanted)
    while True:
        count, rows = fetch(depth)
        kept = run.keep(scope, rows)
        more = count >= depth and depth < MAX_DEPTH
        if len(kept) >= wanted or not more:
            return Gathered(kept, more)
        depth = min(depth * _DEEPER, MAX_DEPTH)


# ------------------------------------------------------------------------------------------- graph steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What was reached.

    facts       by (distance, rank of the seed, id); a fact at a seed has distance 1
    entities    id -> (distance, rank of the seed); seeds have distance 0
    """

    facts: tuple[Fact, ...]
    entities: dict[str, tuple[int, int]]

    def nearest_entities(self) -> list[str]:
        """Return the entities by (distance, rank of the seed, id)."""
        return sorted(self.entities, key=lambda found: (*self.entities[found], found))

    def distance(self, fact: Fact) -> int | None:
        """Return the distance of the fact's nearer end; None where neither was reached."""
        reached = [self.entities[end][0] for end in fact.ends if end in self.entities]
        return min(reached, default=None)


def walk(
    view: GraphView,
    seeds: Sequence[str],
    as_of: Instant | None,
    *,
    hops: int = HOPS,
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
    found: dict[str, tuple[int, int, Fact]] = {}
    edge = list(places)
    for hop in range(1, hops + 1):
        if not edge or (enough is not None and len(found) >= enough):
            break
        around = _around(view, edge, as_of, max(_SHARE, room // len(edge)))
        reached: dict[str, tuple[int, int]] = {}
        for entity in edge:
            seed = places[entity][1]
            for fact in around[entity].values():
                found.setdefault(fact.id, (hop, seed, fact))
                for end in fact.ends:
                    if end not in places:
                        reached.setdefault(end, (hop, seed))
        places |= reached
        edge = sorted(reached, key=lambda entity: (reached[entity][1], entity))[:front]
    ordered = sorted(found.values(), key=lambda row: (row[0], row[1], row[2].id))
    return Walk(facts=tuple(fact for _, _, fact in ordered), entities=places)


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


def steps(run: SearchRun, given: Sequence[str], best: Mapping[SearchScope, Sequence[FoundRow]]) -> Walk:
    """Walk from the given entities, then from those of the best hits of the other methods."""
    ranked = zip_longest(best.get("fact", ()), best.get("entity", ()))
    hits = [_entities_of(row) for row in chain.from_iterable(ranked) if row is not None]
    from_hits = list(dict.fromkeys(chain.from_iterable(hits[:_FROM_HITS])))[:_FROM_HITS]
    limit = run.query.limit * (_FILTERED if run.query.filters.narrows else 1)
    return _walk(run, list(dict.fromkeys([*given, *from_hits])), HOPS, OVER_FETCH * limit)


def from_centre(run: SearchRun, centre: Sequence[str]) -> Walk:
    """Walk from the centre alone, to measure distances: up to 3 hops."""
    return _walk(run, centre, _CENTRE_HOPS, None)


def reached(run: SearchRun, walked: Walk, scope: SearchScope) -> list[FoundRow]:
    """Return the rows of one scope that the walk reached, nearest first; never episodes."""
    if scope == "fact":
        return run.keep(scope, walked.facts)
    if scope == "entity":
        return run.keep(scope, run.view.entities(walked.nearest_entities()))
    return []


def centre_of(run: SearchRun) -> list[str]:
    """Return the shown entity of the query's centre: one or, where this view does not show it, none.

    Raises NotFound where the group has no such entity.
    """
    centre = run.query.centre
    return [] if centre is None else _known(run, [centre])


def seeds_of(run: SearchRun) -> list[str]:
    """Return the shown entities of the query's seeds, in their order; raises NotFound as `centre_of`."""
    return _known(run, run.query.seeds)


def _known(run: SearchRun, ids: Sequence[str]) -> list[str]:
    """Resolve ids of entities and episodes to shown entities."""
    group, view = run.query.group, run.view
    found: list[str] = []
    for identifier in ids:
        entities = view.entities([identifier])
        if entities:  # a split entity resolves to several: the part that kept the id is meant
            shown = [entity.id for entity in entities]
            found += [identifier] if identifier in shown else shown
            continue
        # Retracted rows count: a view as of an earlier moment may show them.
        sequences = sequences_of(run.store, group, ids=(identifier,))
        if not sequences and not find(run.store, group, identifier):
            raise NotFound(f"group {group} has no entity or episode {identifier!r}")
        for episode in view.episodes(sequences):
            found += _spoken_of(run, episode.sequence)
    return list(dict.fromkeys(found))


def _spoken_of(run: SearchRun, sequence: int) -> list[str]:
    """Return the entities that an episode made or has evidence about, whenever that held.

    Ordinals count from 0 and entities' ids are computed from places, so each of both takes one read.
    """
    places: list[Place] = [(sequence, ordinal) for ordinal in range(_RECORDS)]
    facts = run.view.facts_of_evidence(places, None)
    made = run.view.entities([entity_id(run.query.group, place) for place in places])
    return [*chain.from_iterable(fact.ends for fact in facts), *(entity.id for entity in made)]


def _entities_of(row: FoundRow) -> tuple[str, ...]:
    if isinstance(row, Fact):
        return row.ends
    return (row.id,) if isinstance(row, Entity) else ()


def _walk(run: SearchRun, seeds: Sequence[str], hops: int, enough: int | None) -> Walk:
    limit = run.query.limit
    room = limit * (_FILTERED if run.query.filters.narrows else 1)
    front = max(_FRONT, limit // 10)
    return walk(run.view, seeds, run.moment, hops=hops, room=room, front=front, enough=enough)
