"""What is asked: the query value and its validation."""

from __future__ import annotations

from dataclasses import dataclass, field

from kgray.errors import InputError, NotBuilt
from kgray.ports import SearchScope
from kgray.records import GROUP_NAME
from kgray.search.recipes import METHODS, RECIPES, RERANKERS, Method, Recipe, Reranker
from kgray.times import Instant

MAX_LIMIT = 1000
MAX_SEEDS = 64
SCOPES: tuple[SearchScope, ...] = ("fact", "entity", "episode")
Range = tuple[Instant | None, Instant | None]  # [from, to); None = open on that side


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a hit must be, beside relevant; () or None = anything.

    A filter leaves alone the scopes it does not name:

    relations   facts: one of these relation names, as the graph shows them (folded, R17)
    labels      entities: bears one of these; facts: an endpoint does
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
        """Refuse ranges that contain nothing."""
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

    text        any text with a sign in it; never read as a query language
    as_of       the moment the facts hold at; None = now (R5)
    known_at    None = what the graph knows now; else the caller hands a view as of then
    any_time    True: facts of any span, held once or still or not yet; excludes as_of
    limit       length of the whole list, all scopes together, 1 to 1000
    recipe      a name in RECIPES: methods and reranker together; each may be set on its own too
    centre      entity id: distances are measured from it, and graph steps start there
    seeds       ids of entities and episodes (ours or the client's), at most 64: graph steps start
                at these entities and at those the episodes speak of
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
        """Check every field; the message names the one to blame."""
        if not self.text.strip():
            raise InputError("the query is empty: say what to search for", field="query")
        if not GROUP_NAME.fullmatch(self.group):
            raise InputError(
                f"group {self.group[:140]!r} is not a name: use 1 to 128 of A-Z a-z 0-9 _ . -", field="group"
            )
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
        """The methods and the reranker in force."""
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
