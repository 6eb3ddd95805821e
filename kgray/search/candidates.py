"""A query, and what may answer it: the rows that BM25, cosine and graph steps find and its filters pass.

A store ranks records; the view says which of them the graph shows, and as what. Splits, merges,
retractions, `as_of` and filters drop candidates, so BM25 and cosine ask for more rows than are wanted,
and for still more while too few remain.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import Any, Literal

from kgray import kinds
from kgray.errors import InputError, NotBuilt, NotFound
from kgray.graph import Entity, Fact
from kgray.ledger import find, sequences_of
from kgray.ports import GraphView, SearchScope, Store, Vector
from kgray.records import Episode, Place, check_group, entity_id
from kgray.rows import as_vector, folded
from kgray.times import Instant, from_datetime
from kgray.words import query_words, term

Method = Literal["bm25", "cosine", "bfs"]
Reranker = Literal["rrf", "mmr", "episode_mentions", "node_distance"]
METHODS: tuple[Method, ...] = ("bm25", "cosine", "bfs")
RERANKERS: tuple[Reranker, ...] = ("rrf", "mmr", "episode_mentions", "node_distance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to search. Source: the search and reranker functions of Zep, arXiv 2501.13956, section 3."""

    methods: tuple[Method, ...] = METHODS
    reranker: Reranker = "rrf"


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "hybrid": Recipe(),
        "lexical": Recipe(methods=("bm25",)),
        "semantic": Recipe(methods=("cosine",)),
        "neighbours": Recipe(methods=("bfs",)),  # what lies around a centre or seeds, nearest first
        "diverse": Recipe(reranker="mmr"),
        "mentions": Recipe(reranker="episode_mentions"),
        "nearby": Recipe(reranker="node_distance"),  # hybrid, then by distance from the centre
    }
)


_NOT_BUILT = {
    ("scope", "community"): "fact, entity or episode",
    ("reranker", "cross_encoder"): "rrf or mmr",
}
MAX_LIMIT = 1000
MAX_SEEDS = 64
SCOPES: tuple[SearchScope, ...] = ("fact", "entity", "episode")
Moment = Instant | datetime
Range = tuple[Moment | None, Moment | None]  # [from, to); None = open on that side


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What hits are restricted to; () or None = no restriction.

    A filter has no effect on scopes that are not listed for it:

    relations   facts: one of these relation names, as the graph shows them (folded, R17)
    labels      entities: has one of these; facts: an endpoint does
    sources     episodes: of one of these; facts: supported by an episode of one of these
    speakers    episodes: said by one of these, ignoring case and spacing; facts: supported by such an episode
    said        episodes: the reference time lies in the range
    valid_at, invalid_at, created_at    facts: the instant lies in the range; an unknown one lies in none

    The bounds of a range are datetimes (without a zone: UTC), or microseconds since 1970.
    """

    relations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    speakers: tuple[str, ...] = ()
    said: Range | None = None
    valid_at: Range | None = None
    invalid_at: Range | None = None
    created_at: Range | None = None

    def __post_init__(self) -> None:
        """Refuse empty ranges."""
        for name in ("said", "valid_at", "invalid_at", "created_at"):
            start, end = map(_instant, getattr(self, name) or (None, None))
            if start is not None and end is not None and start >= end:
                raise InputError(
                    f"the range of {name} is empty: its end must lie after its start", field=name
                )

    @property
    def narrows(self) -> bool:
        """Whether anything is filtered at all."""
        return self != _NO_FILTERS


def _instant(moment: Moment | None) -> Instant | None:
    return from_datetime(moment) if isinstance(moment, datetime) else moment


_NO_FILTERS = Filters()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A question to one group; a value, checked when it is made (InputError, NotBuilt).

    text        any text that is not blank; never read as a query language
    as_of       the moment the facts hold at; None = now (R5)
    known_at    None = what the graph knows now; else the caller passes a view as of then
    any_time    True: facts of any span, past, present or future; excludes as_of
    limit       length of the whole list, all scopes together, 1 to 1000
    recipe      a name in RECIPES: methods and reranker together; each may be set on its own too
    centre      entity id: distances are measured from it, and graph steps start there
    seeds       ids of entities and episodes (ours or the client's), at most 64: graph steps start
                at these entities and at those that the episodes are about
    """

    text: str
    group: str
    as_of: Instant | None = None
    known_at: Instant | None = None
    any_time: bool = False
    scopes: tuple[SearchScope, ...] = SCOPES
    limit: int = 10
    recipe: str = "hybrid"
    methods: tuple[Method, ...] | None = None
    reranker: Reranker | None = None
    centre: str | None = None
    seeds: tuple[str, ...] = ()
    filters: Filters = field(default_factory=Filters)

    def __post_init__(self) -> None:
        """Check every field; the error names the faulty one."""
        if not self.text.strip():
            raise InputError("the query is empty: say what to search for", field="query")
        check_group(self.group)
        if isinstance(self.limit, bool) or not 1 <= self.limit <= MAX_LIMIT:
            raise InputError(f"limit is {self.limit!r}: use 1 to {MAX_LIMIT}", field="limit")
        if self.any_time and self.as_of is not None:
            raise InputError("as_of and any_time exclude each other: give one", field="as_of")
        if len(self.seeds) > MAX_SEEDS:
            raise InputError(f"{len(self.seeds)} seeds: give at most {MAX_SEEDS}", field="seeds")
        self._check_names()
        self._check_start()

    @property
    def ways(self) -> Recipe:
        """The methods and the reranker that are used: those given, else the recipe's."""
        recipe = RECIPES[self.recipe]
        return Recipe(methods=self.methods or recipe.methods, reranker=self.reranker or recipe.reranker)

    def _check_names(self) -> None:
        if not self.scopes:
            raise InputError(f"no scope: use one or more of {', '.join(SCOPES)}", field="scope")
        for noun, named, given, known in (
            ("scope", "scope", self.scopes, SCOPES),
            ("recipe", "recipe", (self.recipe,), sorted(RECIPES)),
            ("method", "methods", self.methods or (), METHODS),
            ("reranker", "reranker", (self.reranker or "rrf",), RERANKERS),
        ):
            for name in given:
                if instead := _NOT_BUILT.get((noun, str(name))):
                    raise NotBuilt(f"{noun} {name} is not built in this version: use {instead}")
                if name not in known:
                    raise InputError(f"{noun} {name!r} is unknown: use {', '.join(known)}", field=named)

    def _check_start(self) -> None:
        if self.ways.reranker == "node_distance" and self.centre is None:
            raise InputError("reranker node_distance needs a centre: the id of an entity", field="centre")
        if self.ways.methods == ("bfs",) and self.centre is None and not self.seeds:
            raise InputError("graph steps alone have no start: give a centre or seeds", field="centre")


# ----------------------------------------------------------------------------------- one search, its filters

FoundRow = Fact | Entity | Episode


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
            return _is_told_by(row, filters) and _within(row.reference_time, filters.said)
        return (
            (not filters.relations or row.relation in filters.relations)
            and _within(row.valid_at, filters.valid_at)
            and _within(row.invalid_at, filters.invalid_at)
            and _within(row.created_at, filters.created_at)
        )


def _is_told_by(episode: Episode, filters: Filters) -> bool:
    """Whether an episode is of one of the sources and said by one of the speakers that are asked for."""
    speakers = {folded(speaker) for speaker in filters.speakers}
    return (not filters.sources or episode.source in filters.sources) and (
        not speakers or folded(episode.speaker or "") in speakers
    )


def _within(instant: Instant | None, span: Range | None) -> bool:
    if span is None:
        return True
    start, end = map(_instant, span)
    return instant is not None and (start is None or start <= instant) and (end is None or instant < end)


# ------------------------------------------------------------------------------------------ BM25 and cosine
OVER_FETCH = 3
MIN_DEPTH = 30  # with RRF, ranks below 30 have hardly any effect on the first 10 hits
MAX_DEPTH = 10_000
_DEEPER = 8  # each further try goes this much deeper: 30, 240, 1920, 10000


@dataclass(frozen=True, slots=True)
class Gathered:
    """Rows of one scope, best first; more: the store has further candidates."""

    rows: list[FoundRow]
    more: bool = False


def gather(run: SearchRun, scope: SearchScope, method: Method, wanted: int) -> Gathered:
    """Return rows of one scope by BM25 or cosine, at least `wanted` where there are so many.

    Fetches more until `wanted` rows pass, the store has no more, or MAX_DEPTH is reached.
    """
    depth = max(MIN_DEPTH, OVER_FETCH * wanted)
    while True:
        found = _found(run, scope, method, depth)
        kept = run.keep(_shown(run, scope, found))
        more = len(found) >= depth and depth < MAX_DEPTH
        if len(kept) >= wanted or not more:
            return Gathered(kept, more)
        depth = min(depth * _DEEPER, MAX_DEPTH)


_WORDS = {"fact": kinds.EVIDENCE_WORDS, "entity": kinds.NAME_WORDS, "episode": kinds.EPISODE_WORDS}
_VECTORS = {"fact": "statement_vectors", "entity": "name_vectors", "episode": "episode_vectors"}
_OWNERS: Mapping[str, Any] = {"fact": slice(0, 2), "entity": 2, "episode": 0}


def _found(run: SearchRun, scope: SearchScope, method: Method, depth: int) -> Sequence[str | int | Place]:
    read = _WORDS[scope] if method == "bm25" else kinds.ALL[_VECTORS[scope]]
    kept = [row for row in run.store.rows(read, run.query.group) if row[-1]]
    near = (run.vector @ as_vector(row[-1]) for row in kept if run.vector is not None)
    scores = _bm25(run, kept) if method == "bm25" else [*map(float, near)]
    best = sorted(range(len(kept)), key=lambda n: (-scores[n], n))
    found = (kept[n] for n in best if scores[n] or method == "cosine")
    return list(dict.fromkeys(row[_OWNERS[scope] if method == "bm25" else 0] for row in found))[:depth]


def _bm25(run: SearchRun, kept: Sequence[kinds.Row]) -> list[float]:
    texts = [Counter(array("I", row[-1])) for row in kept]
    mean, scores = sum(text.total() for text in texts) / max(1, len(texts)), [0.0] * len(kept)
    for word in map(term, query_words(run.text)):
        bearers = [n for n, text in enumerate(texts) if word in text]
        for n in bearers:
            often = texts[n][word] / (texts[n][word] + 0.3 + 0.9 * texts[n].total() / mean)
            scores[n] += often * math.log(1 + (len(kept) - len(bearers) + 0.5) / (len(bearers) + 0.5))
    return scores


def _shown(run: SearchRun, scope: SearchScope, found: Sequence[str | int | Place]) -> list[FoundRow]:
    """Return the rows that the view shows for these records, in order, each once; one read."""
    ids = [item for item in found if isinstance(item, str)]
    places = [item for item in found if isinstance(item, tuple)]
    if scope == "episode":
        sequences = [item for item in found if isinstance(item, int)]
        return [*run.view.episodes(sequences or [sequence for sequence, _ in places])]
    if scope == "entity":
        return [*run.view.entities(ids)]
    view, moment = run.view, run.moment
    return [*(view.facts_of_evidence(places, moment) if places else view.facts_of(ids, moment))]


# ------------------------------------------------------------------------------------------- graph steps

HOPS = 2
_ROUNDS = 3  # reads a hop takes at most, see _around
_SHARE = 10  # facts each entity gives where a hop starts from many
_FROM_HITS = 6  # entities of the best hits from which steps start
_RECORDS = 64  # mentions and pieces of evidence of a seed episode that are looked at
_FRONT = 8  # entities a later hop starts from; a tenth of the limit where that is more
_FILTERED = 8  # with filters, steps take this many times as many facts, because filters drop some
_CENTRE_HOPS = 3


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
        return run.keep(walked.facts)
    if scope == "entity":
        return run.keep(run.view.entities(walked.nearest_entities()))
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
