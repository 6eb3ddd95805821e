"""Bodies of requests, checked, and the shapes of answers: the OpenAPI document is made of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from kgray.search import Filters

Moment = Annotated[
    str | float,
    Field(description="ISO 8601, or epoch seconds", examples=["2026-03-01", "2026-03-01T09:00:00Z"]),
]
Text = Annotated[str, Field(min_length=1, max_length=10_000)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Names = Annotated[list[Name], Field(max_length=64)]


class Body(BaseModel):
    """A request: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False)


class Asked(Body):
    """What search and context share; docs/searching.md explains each."""

    query: Text = Field(examples=["Where does Alice work?"])
    scopes: list[Literal["fact", "entity", "episode", "community"]] = []
    as_of: Moment | None = None
    known_at: Moment | None = None
    said_after: Moment | None = None
    said_before: Moment | None = None
    any_time: bool = False
    recipe: Name = "hybrid"
    methods: list[Literal["bm25", "cosine", "bfs"]] | None = None
    reranker: Literal["none", "mmr", "episode_mentions", "node_distance", "cross_encoder"] | None = None
    centre: Name | None = None
    seeds: Names = []
    relations: Names = []
    labels: Names = []
    sources: Names = []
    speakers: Names = []

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Memory.search` but for the query."""
        given = self.model_dump(exclude={"query", "explain"})
        filters = {name: tuple(given.pop(name)) for name in ("relations", "labels", "sources", "speakers")}
        return given | {"filters": Filters(**filters)}


class Search(Asked):
    """A search."""

    limit: int = Field(10, ge=1, le=1000)
    explain: bool = Field(default=False, description="with the signals of each hit, and what was left out")


class ContextOf(Asked):
    """A context: the text to put into a prompt."""

    tokens: int = Field(1500, ge=64, le=200_000)
    limit: int | None = Field(None, ge=1, le=1000)


class Merge(Body):
    """Two entities that are one, or are not; by name or id."""

    entities: list[Name] = Field(min_length=2, max_length=2, examples=[["Alice", "Alice Nguyen"]])


class Split(Body):
    """An entity, and those of its names that are another's."""

    entity: Name
    surfaces: Names = Field(min_length=1)


class Undo(Body):
    """The sequence of a merge, split or distinction."""

    sequence: int = Field(ge=1, le=1 << 60)


class Withdrawal(Body):
    """Which episodes: exactly one of the three. ids: ours or the client's."""

    episodes: list[Name] = Field(default=[], max_length=1000)
    source: Name | None = None
    everything: bool = False


class Retry(Body):
    """Which failed episodes; none = all of the group."""

    episodes: list[Name] = Field(default=[], max_length=1000)


# ------------------------------------------------------------------------------------- answers
# Shapes for the document alone; what is answered is made by `as_dict` of its value, and may have more fields.


class AcceptedRow(TypedDict):
    """A row that is in the log, durable."""

    id: str
    client_id: str | None
    sequence: int | None


class RefusedRow(TypedDict):
    """A row that was not taken."""

    line: int | None
    field: str | None
    reason: str


class Hit(TypedDict):
    """A fact, an entity or an episode, by its scope."""

    scope: str
    id: str
    text: str
    score: float
    group: str
    methods: dict[str, int]


class Entity(TypedDict):
    """An entity."""

    id: str
    name: str
    aliases: list[str]
    labels: list[str]


class Accepted(TypedDict):
    """What became of the rows of a request. The last three: with `Prefer: wait=N` alone."""

    accepted: list[AcceptedRow]
    duplicate: int
    refused: int
    refusals: list[RefusedRow]
    committed: NotRequired[int]
    failed: NotRequired[int]
    pending: NotRequired[int]


class Hits(TypedDict):
    """Ranked hits."""

    hits: list[Hit]
    took_ms: float


class Context(TypedDict):
    """A text for a prompt, its tokens, its hits, and what its numbers cite."""

    text: str
    tokens: int
    hits: list[Hit]
    citations: list[dict[str, Any]]


class Entities(TypedDict):
    """Entities."""

    entities: list[Entity]


class Fact(TypedDict):
    """A fact with both clocks."""

    id: str
    text: str
    source: str | None
    relation: str
    target: str | None
    valid_at: str | None
    invalid_at: str | None
    created_at: str
    expired_at: str | None


class History(TypedDict):
    """The facts of an entity, ended ones too."""

    entity: Entity
    facts: list[Fact]


class Neighbourhood(TypedDict):
    """Entities and the facts between them."""

    entities: list[Entity]
    facts: list[Fact]
    truncated: bool
    total: dict[str, int]


class Problem(TypedDict):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[dict[str, Any]]
