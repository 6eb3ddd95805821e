"""The query, its recipe and its filters, each validated when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from kgray.errors import InputError, NotBuilt
from kgray.graph import Entity, Fact
from kgray.ledger import sequences_of
from kgray.ports import GraphView, SearchScope, Store
from kgray.records import Episode, check_group
from kgray.times import Instant

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


MAX_LIMIT = 1000
MAX_SEEDS = 64
SCOPES: tuple[SearchScope, ...] = ("fact", "entity", "episode")
Range = tuple[Instant | None, Instant | None]  # [from, to); None = open on that side


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What hits are restricted to; () or None = no restriction.

    A filter has no effect on scopes that are not listed for it:

    relations   facts: one of these relation names, as the graph shows them (folded, R17)
    labels      entities: has one of these; facts: an endpoint does
    sources     episodes: of one of these; facts: supported by an episode of one of these
    valid_at, invalid_at, created_at    facts: the instant lies in the range; an unknown one lies in none
    """

    relations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    valid_at: Range | None = None
    invalid_at: Range | None = None
    created_at: Range | None = None

    def __post_init__(self) -> None:
        """Refuse empty ranges."""
        for name in ("valid_at", "invalid_at", "created_at"):
            span: Range | None = getattr(self, name)
            if span is not None and None not in span and span[0] >= span[1]:  # type: ignore[operator]
                raise InputError(
                    f"the range of {name} is empty: its end must lie after its start", field=name
                )

    @property
    def narrows(self) -> bool:
        """Whether anything is filtered at all."""
        return self != _NO_FILTERS


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
        self._check_scopes()
        self._check_ways()

    @property
    def ways(self) -> Recipe:
        """The methods and the reranker that are used: those given, else the recipe's."""
        recipe = RECIPES[self.recipe]
        return Recipe(methods=self.methods or recipe.methods, reranker=self.reranker or recipe.reranker)

    def _check_scopes(self) -> None:
        if not self.scopes:
            raise InputError(f"no scope: use one or more of {', '.join(SCOPES)}", field="scope")
        for scope in self.scopes:
            if str(scope) == "community":
                raise NotBuilt("scope community is not built in this version: use fact, entity or episode")
            if scope not in SCOPES:
                raise InputError(f"scope {scope!r} is unknown: use {', '.join(SCOPES)}", field="scope")

    def _check_ways(self) -> None:
        if self.recipe not in RECIPES:
            raise InputError(
                f"recipe {self.recipe!r} is unknown: use {', '.join(sorted(RECIPES))}", field="recipe"
            )
        for method in self.methods or ():
            if method not in METHODS:
                raise InputError(f"method {method!r} is unknown: use {', '.join(METHODS)}", field="methods")
        if self.reranker is not None and str(self.reranker) == "cross_encoder":
            raise NotBuilt("reranker cross_encoder is not built in this version: use rrf or mmr")
        if self.reranker is not None and self.reranker not in RERANKERS:
            raise InputError(
                f"reranker {self.reranker!r} is unknown: use {', '.join(RERANKERS)}", field="reranker"
            )
        if self.ways.reranker == "node_distance" and self.centre is None:
            raise InputError("reranker node_distance needs a centre: the id of an entity", field="centre")
        if self.ways.methods == ("bfs",) and self.centre is None and not self.seeds:
            raise InputError("graph steps alone have no start: give a centre or seeds", field="centre")


# -------------------------------------------------------------------------------------- applying filters


def keep_facts(store: Store, view: GraphView, facts: Sequence[Fact], filters: Filters) -> list[Fact]:
    """Return the facts that pass, in their order."""
    kept = [fact for fact in facts if _passes(fact, filters)]
    if filters.labels and kept:
        entities = view.entities(list(dict.fromkeys(end for fact in kept for end in fact.ends)))
        labelled = {entity.id for entity in keep_entities(entities, filters)}
        kept = [fact for fact in kept if labelled.intersection(fact.ends)]
    if filters.sources and kept:
        ids = sorted({episode for fact in kept for episode in fact.episodes})
        episodes = view.episodes(sequences_of(store, view.group, ids=ids))
        sourced = {episode.id for episode in episodes if episode.source in filters.sources}
        kept = [fact for fact in kept if sourced.intersection(fact.episodes)]
    return kept


def keep_entities(entities: Sequence[Entity], filters: Filters) -> list[Entity]:
    """Return the entities that pass, in their order."""
    if not filters.labels:
        return list(entities)
    return [entity for entity in entities if not set(filters.labels).isdisjoint(entity.labels)]


def keep_episodes(episodes: Sequence[Episode], filters: Filters, said_by: Instant | None) -> list[Episode]:
    """Return the episodes that pass, in their order. said_by: drop those said later; None = drop none."""
    return [
        episode
        for episode in episodes
        if (not filters.sources or episode.source in filters.sources)
        and (said_by is None or episode.reference_time <= said_by)
    ]


def _passes(fact: Fact, filters: Filters) -> bool:
    return (
        (not filters.relations or fact.relation in filters.relations)
        and _within(fact.valid_at, filters.valid_at)
        and _within(fact.invalid_at, filters.invalid_at)
        and _within(fact.created_at, filters.created_at)
    )


def _within(instant: Instant | None, span: Range | None) -> bool:
    if span is None:
        return True
    start, end = span
    return instant is not None and (start is None or start <= instant) and (end is None or instant < end)
