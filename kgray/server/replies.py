"""Shapes of answers: FastAPI checks answers by them, and writes the OpenAPI document from them."""

from __future__ import annotations

import re
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

from kgray import search
from kgray.communities import reading
from kgray.domain import graph
from kgray.memory import answers, ontology_suggest, results
from kgray.memory.remote import VERBS

Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]  # of kgray.domain.times.show
Row = dict[str, Any]


class Reply(BaseModel):
    """An answer; it may have further fields."""

    model_config = ConfigDict(extra="allow")


class AcceptedRow(Reply):
    """A row of an append. sequence: its place in the group's order; null: it was not accepted."""

    id: str
    client_id: str | None
    sequence: int | None


class RefusedRow(Reply):
    """A refused row. line: from 1."""

    file: str
    line: int | None
    field: str | None
    reason: str


class Appended(Reply):
    """The counts of rows, and the first refusals."""

    duplicate: int
    refused: int
    refusals: list[RefusedRow]


class Accepted(Appended):
    """The outcome of an append. committed, failed, pending: with `Prefer: wait`."""

    accepted: list[AcceptedRow]
    duplicates: list[AcceptedRow]
    committed: int = 0
    failed: int = 0
    pending: int = 0
    dry_run: bool = False


class Uploaded(Appended):
    """The outcome of a file or of a backfill."""

    accepted: int


class Retried(Reply):
    """The number of episodes that are retried."""

    accepted: int


class Hit(Reply):
    """A result of a search; docs/searching.md lists the fields of each scope."""

    scope: str
    id: str
    text: str
    score: float
    group: str
    methods: dict[str, int]


class Hits(Reply):
    """Ranked hits. left_out, floor: with `explain`."""

    hits: list[Hit]
    took_ms: float
    left_out: list[Row] = []
    floor: float = 0.0


class Context(Reply):
    """A text for a prompt. citations: the episodes behind each number in it."""

    text: str
    tokens: int
    hits: list[Hit]
    citations: list[Row]


class Answer(Reply):
    """A model's answer with its sources."""

    answer: str
    found: bool
    citations: list[Row]
    sources: list[Row]
    dropped: list[int]
    suggestions: list[str]
    general_knowledge: bool
    keywords: dict[str, list[str]] = {}
    reports: dict[str, int] = {}
    calls: int
    prompt_tokens: int
    completion_tokens: int


class Entity(Reply):
    """An entity. facts: their number; summary: its newest facts; profile: a model's text."""

    id: str
    name: str
    aliases: list[str]
    labels: list[str]
    facts: int = 0
    summary: str = ""
    profile: str = ""


class Fact(Reply):
    """A span of a fact of a history."""

    id: str
    text: str
    source: str | None
    relation: str
    target: str | None
    valid_at: Moment | None
    invalid_at: Moment | None
    created_at: Moment
    expired_at: Moment | None
    statement: str
    ended_by: list[str | int] | None
    episodes: list[Row]


class History(Reply):
    """An entity and the spans of its facts."""

    entity: Entity
    facts: list[Fact]


class Shown(Reply):
    """An item, and all that belongs to it. records: rows of the dump."""

    id: str
    records: list[Row]
    episodes: list[results.LoggedEpisode]
    entities: list[Entity]
    facts: list[graph.FactSpan]
    clients: dict[str, str | None]
    summary: str
    profile: str
    profile_sources: list[graph.EpisodeRef]


class Community(Reply):
    """A community; level 0 is the finest."""

    id: str
    level: int
    name: str
    size: int
    parent: str | None
    stale: bool
    summary: str = ""


class CommunityDetail(Community):
    """A community with its contents. as_of: when its text was accurate; parts: the rows of its children."""

    report: Row
    children: list[str]
    members: list[Row]
    as_of: Moment
    parts: list[Community]


class Overview(Reply):
    """A level's communities and the numbers of facts between them."""

    communities: list[Community]
    links: list[tuple[str, str, int]]
    truncated: bool
    total: dict[str, int]


class RelationSuggestion(Reply):
    """A declaration of relation names, for a person to accept. settings: the lines for the settings."""

    kind: str
    names: list[str]
    value: str | None
    counts: dict[str, int]
    examples: list[str]
    settings: str


class Ledger(Reply):
    """Episodes by state in each group, and the calls and tokens of models."""

    groups: dict[str, dict[str, int]]
    model: dict[str, int]


class Status(Ledger):
    """The ledger of a group. ingesting: what stops ingestion, if anything does."""

    ingesting: Row
    embedder: results.StoredVectors


class Board(Ledger):
    """The ledger of all groups that the key reaches, pending work, and the ingesting processes."""

    ingesting: Row
    runtime: Row
    at: Moment


class Groups(Reply):
    """The groups that the key reaches."""

    groups: list[results.GroupSize]


class Schedules(Reply):
    """Schedules of refreshes."""

    schedules: list[Row]


class Previewed(Reply):
    """The rows of the dump that would change, with `op`. total: their number."""

    changes: list[Row]
    total: int


class Requested(Reply):
    """A correction. state: pending or done; further fields as its kind has them."""

    sequence: int
    state: str


class Rights(Reply):
    """The rights of the caller."""

    id: str | None
    groups: list[str]
    scopes: list[str]
    rate: int | None
    expires_at: Moment | None
    can_answer: bool


class Key(Reply):
    """A key without its secret."""

    id: str
    groups: list[str]
    scopes: list[str]
    rate: int | None
    created_at: Moment | None
    expires_at: Moment | None
    revoked_at: Moment | None


class Keys(Reply):
    """Keys."""

    keys: list[Key]


class Named(Reply):
    """The id of a key or webhook that was changed."""

    id: str
    revoked: bool = False
    dropped: bool = False


class Webhook(Reply):
    """A receiver of a group's commits. sent: the last delivered commit; secret: shown once."""

    id: str
    url: str
    made_at: Moment
    sent: int
    tries: int
    again_at: Moment | None
    fault: str
    state: str


class NewWebhook(Webhook):
    """A webhook with its secret, which no later answer shows."""

    secret: str


class Webhooks(Reply):
    """The webhooks of a group."""

    webhooks: list[Webhook]


class Deliveries(Webhook):
    """A webhook with its undelivered commits, oldest first; more: there are later ones."""

    waiting: list[Row]
    more: bool


class Audit(Reply):
    """The audit log."""

    entries: list[results.AuditEntry]


class Problem(Reply):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[Row]


# The shapes of results whose JSON form differs from their fields.
_SHAPES: dict[Any, Any] = {
    graph.Hit: Hit,
    search.Context: Context,
    answers.EntityCount: Entity,
    answers.History: History,
    answers.Shown: Shown,
    graph.Community: Community,
    reading.ShownCommunity: CommunityDetail,
    results.Overview: Overview,
    ontology_suggest.RelationSuggestion: RelationSuggestion,
}


@cache
def reply_of(verb: str) -> Any:  # noqa: ANN401 - a type
    """Return the shape of the answer of a method of `VERBS`."""
    _, _, kind, part = VERBS[verb]
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        kind = GenericAlias(list, _SHAPES.get(item, item))
    if not part:
        return _SHAPES.get(kind, kind)
    name = "".join(word.title() for word in re.split(r"[._]", verb))
    fields: dict[str, Any] = {part: (kind, ...)}
    return create_model(f"{name}Reply", __base__=Reply, **fields)
