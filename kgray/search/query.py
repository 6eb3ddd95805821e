"""A query: what is asked, how to search for it, and what hits are restricted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Literal

from kgray.errors import InputError
from kgray.ports import SearchScope
from kgray.records import check_group
from kgray.times import Instant, from_datetime

Method = Literal["bm25", "cosine", "sparse", "bfs"]
Fusion = Literal["weighted", "rrf"]
Reranker = Literal["none", "mmr", "episode_mentions", "node_distance", "cross_encoder"]
_BESIDE = 2  # communities among other hits, where the query does not ask for them
METHODS: tuple[Method, ...] = ("bm25", "cosine", "sparse", "bfs")
RERANKERS: tuple[Reranker, ...] = ("none", "mmr", "episode_mentions", "node_distance", "cross_encoder")
SCOPES: tuple[SearchScope, ...] = ("fact", "entity", "episode", "community")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What each signal counts (`ranking` says what the signals are). How they were found: docs/searching.md.

    words, vectors      of their weighted sum, each 0 to 1 or a little more
    sparse              the same of the weights of tokens, where the embedder gives them
    speaker             factor for messages of a speaker who is named
    dates               factor for what was said, began or ended when the question says
    phrase              factor for what has a quoted phrase
    length              for messages: ((1 + their words as a share of the group's mean) / 2) to this power
    linked              factor for facts of an entity that is named
    rows                factor for episodes of triples, whose facts say it better
    neighbours          of the scores of the messages before and after it in its session, one place away, then
                        two: added. An answer shares few words with its question: those before count more
    session             of the session's own score by words: added where another signal says something
    communities         factor for summaries of communities
    steps               of the score of what a graph step starts from: added, for each further step once more
    floor               how well a scope's best row must fit, 0 to 1: else nothing there is about the query
    tail                share of the best score below which no row is found; below 0: all but the farthest are
    """

    words: float = 0.5
    vectors: float = 0.5
    sparse: float = 0.25
    speaker: float = 1.5
    dates: float = 1.5
    phrase: float = 1.5
    length: float = 0.3
    linked: float = 3.0
    rows: float = 0.5
    neighbours: tuple[tuple[float, float], ...] = ((0.42, 0.3), (0.18, 0.1))
    session: float = 0.2
    communities: float = 0.5
    steps: float = 0.35
    floor: float = 0.02
    tail: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to search; a value that prints itself.

    scopes      what is searched where the query does not say
    methods     bm25, cosine and sparse over texts, vectors and weights of tokens (of an embedder that gives
                them); bfs: graph steps from the best hits
    fusion      weighted: one score of all signals, comparable over scopes. rrf: reciprocal rank fusion of the
                methods alone, as the paper has it
    reranker    what orders the fused hits anew
    places      scope -> at most so many hits of it
    once        a fact and the messages that support it have one place together
    Source of rrf, the rerankers and the recipe `paper`: Zep, arXiv 2501.13956, section 3.
    """

    scopes: tuple[SearchScope, ...] = SCOPES
    methods: tuple[Method, ...] = ("bm25", "cosine", "sparse")
    fusion: Fusion = "weighted"
    reranker: Reranker = "none"
    weights: Weights = Weights()
    places: Mapping[SearchScope, int] = field(default_factory=lambda: {"community": _BESIDE})
    once: bool = True


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "hybrid": Recipe(),
        "mix": Recipe(methods=METHODS),  # LightRAG's: texts, vectors and the graph around what they find
        "naive": Recipe(scopes=("episode",)),  # messages alone
        "local": Recipe(scopes=("fact", "entity"), methods=METHODS),  # entities and what is around them
        "lexical": Recipe(methods=("bm25",)),
        "semantic": Recipe(methods=("cosine",)),
        "neighbours": Recipe(methods=("bfs",)),  # what lies around a centre or seeds, nearest first
        "diverse": Recipe(reranker="mmr"),
        "mentions": Recipe(reranker="episode_mentions"),
        "nearby": Recipe(methods=METHODS, reranker="node_distance"),  # by distance from the centre
        "reranked": Recipe(reranker="cross_encoder"),
        "paper": Recipe(
            scopes=("fact", "entity"),
            methods=("bm25", "cosine", "bfs"),
            fusion="rrf",
            places={"fact": 20, "entity": 20},
        ),
    }
)
MAX_LIMIT = 1000
MAX_SEEDS = 64
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
        return self != Filters()


def _instant(moment: Moment | None) -> Instant | None:
    return from_datetime(moment) if isinstance(moment, datetime) else moment


def within(instant: Instant | None, span: Range | None) -> bool:
    """Whether an instant lies in a range; an unknown one lies in none."""
    if span is None:
        return True
    start, end = map(_instant, span)
    return instant is not None and (start is None or start <= instant) and (end is None or instant < end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A question to one group; a value, checked when it is made (InputError).

    text        any text that is not blank; never read as a query language
    as_of       the moment the facts hold at; None = now (R5)
    known_at    None = what the graph knows now; else the caller passes a view as of then
    any_time    True: facts of any span, past, present or future; excludes as_of
    limit       length of the whole list, all scopes together, 1 to 1000
    scopes      () = those of the recipe
    recipe      a name in RECIPES, or a recipe; methods and reranker may be set on their own too
    centre      entity id: distances are measured from it, and graph steps start there
    seeds       ids of entities and episodes (ours or the client's), at most 64: graph steps start
                at these entities and at those that the episodes are about
    """

    text: str
    group: str
    as_of: Instant | None = None
    known_at: Instant | None = None
    any_time: bool = False
    scopes: tuple[SearchScope, ...] = ()
    limit: int = 10
    recipe: str | Recipe = "hybrid"
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
        """The recipe, with what the query sets itself."""
        recipe = self.recipe if isinstance(self.recipe, Recipe) else RECIPES[self.recipe]
        methods, reranker = self.methods or recipe.methods, self.reranker or recipe.reranker
        scopes, places = self.scopes or recipe.scopes, recipe.places
        if "community" in self.scopes:
            places = {scope: most for scope, most in places.items() if scope != "community"}
        elif "community" in scopes:
            # A summary tells of the run's own time; and only the weighted score compares it with other rows.
            scored = recipe.fusion == "weighted" and reranker in {"none", "cross_encoder"}
            if self.as_of is not None or not scored or methods == ("bfs",):
                scopes = tuple(scope for scope in scopes if scope != "community")
        return replace(recipe, scopes=scopes, methods=methods, reranker=reranker, places=places)

    def _check_names(self) -> None:
        given = self.recipe if isinstance(self.recipe, str) else "hybrid"
        for noun, named, names, known in (
            ("scope", "scope", self.scopes, SCOPES),
            ("recipe", "recipe", (given,), tuple(RECIPES)),
            ("method", "methods", self.methods or (), METHODS),
            ("reranker", "reranker", (self.reranker or "none",), RERANKERS),
        ):
            for name in names:
                if name not in known:
                    raise InputError(f"{noun} {name!r} is unknown: use {', '.join(known)}", field=named)

    def _check_start(self) -> None:
        if "community" in self.scopes and (
            self.ways.fusion != "weighted" or self.ways.reranker not in {"none", "cross_encoder"}
        ):
            raise InputError("communities have no score by rank: use another recipe", field="scopes")
        if self.ways.reranker == "node_distance" and self.centre is None:
            raise InputError("reranker node_distance needs a centre: the id of an entity", field="centre")
        if self.ways.methods == ("bfs",) and self.centre is None and not self.seeds:
            raise InputError("graph steps alone have no start: give a centre or seeds", field="centre")
