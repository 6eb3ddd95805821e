"""Parameters and bodies of requests, checked, and shapes of answers: the OpenAPI document is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from kgray.errors import InputError
from kgray.search import Filters, Method, Reranker, Template

_A_MOMENT = "ISO 8601, or epoch seconds"
Group = Annotated[str, Path(description="1 to 128 of A-Z a-z 0-9 _ . -", examples=["team"])]
Identifier = Annotated[str, Path(min_length=1, max_length=1000)]
MomentOf = Annotated[str | None, Query(max_length=64, description=_A_MOMENT)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Nodes = Annotated[int, Query(ge=1, le=2000)]  # of a neighbourhood
Number = Annotated[int, Query(ge=0, le=1 << 62)]
Moment = Annotated[str | float, Field(description=_A_MOMENT, examples=["2026-03-01", "2026-03-01T09:00:00Z"])]
Text = Annotated[str, Field(min_length=1, max_length=10_000)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Names = Annotated[list[Name], Field(max_length=64)]


class Body(BaseModel):
    """A request: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class Appending(Body):
    """The query of an append, as the options of `kgray add`. dry_run: nothing is kept."""

    replace: bool = False
    again: bool = False
    dry_run: bool = False
    on_error: Literal["skip", "stop"] = "skip"


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
    methods: list[Method] | None = None
    reranker: Reranker | None = None
    centre: Name | None = Field(None, description="an entity: its id or name")
    seeds: Names = []
    recent: int | None = Field(None, ge=0, le=64, description="newest episodes as seeds")
    depth: int | None = Field(None, ge=1, le=4, description="graph steps")
    mmr_lambda: float | None = Field(None, ge=0, le=1)
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
    template: Template = "kgray"


class TurnOf(Body):
    """A turn of a conversation."""

    role: Literal["user", "assistant"]
    content: str = Field(max_length=100_000)


class AskOf(ContextOf):
    """A question to a model that answers from the memory; docs/asking.md explains each field."""

    query: Text = Field(validation_alias="question", examples=["Where does Alice work?"])
    mode: Literal["local", "keywords", "global", "drift"] = "local"
    history: list[TurnOf] = Field(default=[], max_length=1000)
    history_tokens: int = Field(1000, ge=0, le=1_000_000)
    general: bool = False
    form: str = Field("", max_length=300)
    level: int | None = Field(None, ge=0, le=64)
    min_rating: int = Field(0, ge=0, le=10)
    report_tokens: int = Field(50_000, ge=100, le=100_000_000)
    high: Names = []
    low: Names = []
    suggest: int = Field(0, ge=0, le=20)
    max_calls: int | None = Field(None, ge=1, le=10_000)
    max_tokens: int | None = Field(None, ge=1, le=100_000_000)
    stream: bool = Field(default=False, description="as server-sent events")

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Memory.ask` but for the question."""
        given = super().arguments()
        del given["stream"]
        return given


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


class Preview(Body):
    """A change to look at before it is made: exactly one of an episode and the corrections."""

    episode: dict[str, Any] | None = Field(None, description="a row as of an append")
    again: bool = Field(default=False, description="as if the episode had not been retracted")
    retract: list[Name] = Field(default=[], max_length=1000, description="ids of episodes")
    merge: list[Name] = Field(default=[], max_length=2)
    distinct: list[Name] = Field(default=[], max_length=2)
    split: Split | None = None
    undo: int | None = Field(None, ge=1, le=1 << 60)

    def change(self) -> tuple[Any, dict[str, Any]]:
        """Return the kind of the change, and what it is about. Raises InputError."""
        given = self.model_dump(exclude={"again"}, exclude_defaults=True)
        if len(given) != 1:
            raise InputError("say one change: episode, retract, merge, distinct, split or undo")
        ((kind, what),) = given.items()
        if kind in ("merge", "distinct") and len(what) != 2:
            raise InputError(f"{kind} takes two entities", field=kind)
        if kind == "episode":
            return kind, what
        if kind == "retract":
            return kind, {"episodes": tuple(what)}
        if kind == "undo":
            return kind, {"target": what}
        if kind == "split":
            return kind, {"entities": (what["entity"],), "surfaces": tuple(what["surfaces"])}
        return kind, {"entities": tuple(what)}


class Withdrawal(Body):
    """Which episodes: exactly one of the three. ids: ours or the client's."""

    episodes: list[Name] = Field(default=[], max_length=1000)
    source: Name | None = None
    everything: bool = False


class Retry(Body):
    """Which failed episodes; none = all of the group."""

    episodes: list[Name] = Field(default=[], max_length=1000)


class KeyOf(Body):
    """A key to make: as `kgray keys add`."""

    groups: Names = Field(min_length=1, examples=[["team", "project-/*"]])
    scopes: list[Literal["read", "add", "correct", "remove", "admin"]] = Field(min_length=1)
    expires: Moment | None = None
    rate: int | None = Field(None, ge=1, le=1 << 31)


class Since(Body):
    """The number of a commit; none = the last one that was taken."""

    since: int | None = Field(None, ge=0, le=1 << 62)


class WebhookOf(Since):
    """Where the commits of a group are posted to; without since: the later ones."""

    url: Annotated[str, Field(min_length=8, max_length=1000, examples=["https://example.org/kgray"])]


# Shapes for the document: what is answered is made by `as_dict` of its value, and may have more fields.
# "?" = may be null, "~" = may be absent, "[...]" = a list; a name that is no type is another shape.
SHAPES: Mapping[str, str] = {
    "AcceptedRow": "id text, client_id text?, sequence int?",
    "RefusedRow": "file text, line int?, field text?, reason text",
    "Accepted": (
        "accepted [AcceptedRow], duplicate int, refused int, refusals [RefusedRow], committed int~, "
        "failed int~, pending int~"
    ),
    "Hit": "scope text, id text, text text, score number, group text, methods object",
    "Hits": "hits [Hit], took_ms number",
    "Context": "text text, tokens int, hits [Hit], citations [object]",
    "Answer": (
        "answer text, found bool, citations [object], sources [object], dropped [int], suggestions [text], "
        "general_knowledge bool, keywords object~, reports object~, calls int, prompt_tokens int, "
        "completion_tokens int"
    ),
    "Entity": "id text, name text, aliases [text], labels [text], summary text~, profile text~",
    "Entities": "entities [Entity]",
    "Fact": (
        "id text, text text, source text?, relation text, target text?, valid_at text?, invalid_at text?, "
        "created_at text, expired_at text?"
    ),
    "History": "entity Entity, facts [Fact]",
    "Neighbourhood": "entities [Entity], facts [Fact], truncated bool, total object",
    "Problem": "type text, title text, status int, detail text, code text, request_id text, errors [object]",
}
_TYPES = {"text": "string", "int": "integer", "bool": "boolean"}


def schema(shape: str) -> dict[str, Any]:
    """Return the JSON schema of a shape."""
    fields = dict(part.split() for part in SHAPES[shape].split(", "))
    needed = [name for name, kind in fields.items() if not kind.endswith("~")]
    kinds = {name: _schema_of(kind.rstrip("~")) for name, kind in fields.items()}
    return {"type": "object", "properties": kinds, "required": needed}


def _schema_of(kind: str) -> dict[str, Any]:
    if kind.endswith("?"):
        return {"anyOf": [_schema_of(kind[:-1]), {"type": "null"}]}
    if kind.startswith("["):
        return {"type": "array", "items": _schema_of(kind[1:-1])}
    return ref(kind) if kind in SHAPES else {"type": _TYPES.get(kind, kind)}


def ref(shape: str) -> dict[str, Any]:
    """Return the reference to a shape among the document's components."""
    return {"$ref": f"#/components/schemas/{shape}"}
