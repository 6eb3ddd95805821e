"""Parameters and bodies of requests, with checks."""

from __future__ import annotations

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
    """The query of an append, like the options of `kgray add`. dry_run: nothing is stored."""

    replace: bool = False
    again: bool = False
    dry_run: bool = False
    on_error: Literal["skip", "stop"] = "skip"


class SearchBody(Body):
    """The fields that search and context share; docs/searching.md explains each."""

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
        """Return the arguments of `Memory.search` without the query."""
        fields = self.model_dump(exclude={"query", "explain"})
        filters = {name: tuple(fields.pop(name)) for name in ("relations", "labels", "sources", "speakers")}
        return fields | {"filters": Filters(**filters)}


class Search(SearchBody):
    """A search."""

    limit: int = Field(10, ge=1, le=1000)
    explain: bool = Field(default=False, description="with the signals of each hit, and omitted hits")


class ContextOf(SearchBody):
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
        """Return the arguments of `Memory.ask` without the question."""
        fields = super().arguments()
        del fields["stream"]
        return fields


class Merge(Body):
    """Two entities that are the same, or are not; by name or id."""

    entities: list[Name] = Field(min_length=2, max_length=2, examples=[["Alice", "Alice Nguyen"]])


class Split(Body):
    """An entity, and its names that belong to another entity."""

    entity: Name
    surfaces: Names = Field(min_length=1)


class Undo(Body):
    """The sequence of a merge, split or distinction."""

    sequence: int = Field(ge=1, le=1 << 60)


class Preview(Body):
    """A change to preview: exactly one of an episode and the corrections."""

    episode: dict[str, Any] | None = Field(None, description="a row, as in an append")
    again: bool = Field(default=False, description="as if the episode had not been retracted")
    retract: list[Name] = Field(default=[], max_length=1000, description="ids of episodes")
    merge: list[Name] = Field(default=[], max_length=2)
    distinct: list[Name] = Field(default=[], max_length=2)
    split: Split | None = None
    undo: int | None = Field(None, ge=1, le=1 << 60)

    def change(self) -> tuple[Any, dict[str, Any]]:
        """Return the kind of the change, and its subject. Raises InputError."""
        fields = self.model_dump(exclude={"again"}, exclude_defaults=True)
        if len(fields) != 1:
            raise InputError("say one change: episode, retract, merge, distinct, split or undo")
        ((kind, subject),) = fields.items()
        if kind in ("merge", "distinct") and len(subject) != 2:
            raise InputError(f"{kind} takes two entities", field=kind)
        if kind == "episode":
            return kind, subject
        if kind == "retract":
            return kind, {"episodes": tuple(subject)}
        if kind == "undo":
            return kind, {"target": subject}
        if kind == "split":
            return kind, {"entities": (subject["entity"],), "surfaces": tuple(subject["surfaces"])}
        return kind, {"entities": tuple(subject)}


class Withdrawal(Body):
    """The episodes to take out: exactly one of the three. ids: kgray's or the client's."""

    episodes: list[Name] = Field(default=[], max_length=1000)
    source: Name | None = None
    everything: bool = False


class Retry(Body):
    """The failed episodes to retry; empty = all of the group."""

    episodes: list[Name] = Field(default=[], max_length=1000)


class KeyOf(Body):
    """A key to make, like `kgray keys add`."""

    groups: Names = Field(min_length=1, examples=[["team", "project-/*"]])
    scopes: list[Literal["read", "add", "correct", "remove", "admin"]] = Field(min_length=1)
    expires: Moment | None = None
    rate: int | None = Field(None, ge=1, le=1 << 31)


class Since(Body):
    """The number of a commit; none = the last delivered commit."""

    since: int | None = Field(None, ge=0, le=1 << 62)


class WebhookOf(Since):
    """The receiver of a group's commits; `since` is absent: later commits only."""

    url: Annotated[str, Field(min_length=8, max_length=1000, examples=["https://example.org/kgray"])]
