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
Text = str | None
Row = dict[str, Any]
Counts = dict[str, int]


class Reply(BaseModel):
    """An answer; it may have further fields."""

    model_config = ConfigDict(extra="allow")


def shape(name: str, about: str, base: type[BaseModel] = Reply, /, **fields: Any) -> type[BaseModel]:  # noqa: ANN401
    """Return a model. fields: their types, or (type, value) of a field that an answer may lack."""
    pairs: Row = {key: kind if isinstance(kind, tuple) else (kind, ...) for key, kind in fields.items()}
    return create_model(name, __base__=base, __doc__=about, **pairs)


def listing(name: str, part: str, item: Any) -> type[BaseModel]:  # noqa: ANN401 - a type
    """Return the model of an answer with a list."""
    return shape(name, f"The {part}.", **{part: GenericAlias(list, item)})


AcceptedRow = shape(
    "AcceptedRow", "A row of an append. sequence: its place in the group's order; null: it was not accepted.",
    id=str, client_id=Text, sequence=int | None,
)  # fmt: skip
RefusedRow = shape(
    "RefusedRow", "A refused row. line: from 1.", file=str, line=int | None, field=Text, reason=str
)
_COUNTED: Row = {"duplicate": int, "refused": int, "refusals": GenericAlias(list, RefusedRow)}
Accepted = shape(
    "Accepted", "The outcome of an append. committed, failed, pending: with `Prefer: wait`.",
    accepted=GenericAlias(list, AcceptedRow), **_COUNTED, duplicates=GenericAlias(list, AcceptedRow),
    committed=(int, 0), failed=(int, 0), pending=(int, 0), dry_run=(bool, False),
)  # fmt: skip
Uploaded = shape("Uploaded", "The outcome of a file or of a backfill.", accepted=int, **_COUNTED)
Retried = shape("Retried", "The number of episodes that are retried.", accepted=int)
Requested = shape("Requested", "A correction. state: pending or done.", sequence=int, state=str)
Hit = shape(
    "Hit", "A result of a search; docs/searching.md lists the fields of each scope.",
    scope=str, id=str, text=str, score=float, group=str, methods=Counts,
)  # fmt: skip
Hits = shape(
    "Hits", "Ranked hits. left_out, floor: with `explain`.",
    hits=GenericAlias(list, Hit), took_ms=float, left_out=(list[Row], []), floor=(float, 0.0),
)  # fmt: skip
Context = shape(
    "Context", "A text for a prompt. citations: the episodes behind each number in it.",
    text=str, tokens=int, hits=GenericAlias(list, Hit), citations=list[Row],
)  # fmt: skip
Answer = shape(
    "Answer", "A model's answer with its sources.",
    answer=str, found=bool, citations=list[Row], sources=list[Row], dropped=list[int], suggestions=list[str],
    general_knowledge=bool, keywords=(dict[str, list[str]], {}), reports=(Counts, {}), calls=int,
    prompt_tokens=int, completion_tokens=int,
)  # fmt: skip
Entity = shape(
    "Entity", "An entity. facts: their number; summary: its newest facts; profile: a model's text.",
    id=str, name=str, aliases=list[str], labels=list[str], facts=(int, 0), summary=(str, ""),
    profile=(str, ""),
)  # fmt: skip
Fact = shape(
    "Fact", "A span of a fact of a history.",
    id=str, text=str, source=Text, relation=str, target=Text, valid_at=Moment | None,
    invalid_at=Moment | None, created_at=Moment, expired_at=Moment | None, statement=str,
    ended_by=list[str | int] | None, episodes=list[Row],
)  # fmt: skip
History = shape(
    "History", "An entity and the spans of its facts.", entity=Entity, facts=GenericAlias(list, Fact)
)
Shown = shape(
    "Shown", "An item, and all that belongs to it. records: rows of the dump.",
    id=str, records=list[Row], episodes=list[results.LoggedEpisode], entities=GenericAlias(list, Entity),
    facts=list[graph.FactSpan], clients=dict[str, Text], summary=str, profile=str,
    profile_sources=list[graph.EpisodeRef],
)  # fmt: skip
Community = shape(
    "Community", "A community; level 0 is the finest.",
    id=str, level=int, name=str, size=int, parent=Text, stale=bool, summary=(str, ""),
)  # fmt: skip
CommunityDetail = shape(
    "CommunityDetail", "A community. as_of: when its text was accurate; parts: the rows of its children.",
    Community, report=Row, children=list[str], members=list[Row], as_of=Moment,
    parts=GenericAlias(list, Community),
)  # fmt: skip
Overview = shape(
    "Overview", "A level's communities and the numbers of facts between them.",
    communities=GenericAlias(list, Community), links=list[tuple[str, str, int]], truncated=bool, total=Counts,
)  # fmt: skip
RelationSuggestion = shape(
    "RelationSuggestion", "A declaration of relation names, for a person to accept.",
    kind=str, names=list[str], value=Text, counts=Counts, examples=list[str], settings=str,
)  # fmt: skip
Ledger = shape(
    "Ledger",
    "Episodes by state in each group, and the cost of models.",
    groups=dict[str, Counts],
    model=Counts,
)
Status = shape(
    "Status",
    "The ledger of a group; ingesting: its fault.",
    Ledger,
    ingesting=Row,
    embedder=results.StoredVectors,
)
Board = shape(
    "Board", "The ledger of all groups that the key reaches, pending work, and the ingesting processes.",
    Ledger, ingesting=Row, runtime=Row, at=Moment,
)  # fmt: skip
Groups = listing("Groups", "groups", results.GroupSize)
Schedules = listing("Schedules", "schedules", Row)
Audit = listing("Audit", "entries", results.AuditEntry)
Previewed = shape(
    "Previewed", "Rows of the dump with `op`; total: their number.", changes=list[Row], total=int
)
Rights = shape(
    "Rights", "The rights of the caller.",
    id=Text, groups=list[str], scopes=list[str], rate=int | None, expires_at=Moment | None, can_answer=bool,
)  # fmt: skip
Key = shape(
    "Key", "A key without its secret.",
    id=str, groups=list[str], scopes=list[str], rate=int | None, created_at=Moment | None,
    expires_at=Moment | None, revoked_at=Moment | None,
)  # fmt: skip
Keys = listing("Keys", "keys", Key)
Named = shape(
    "Named",
    "The id of a key or webhook that was changed.",
    id=str,
    revoked=(bool, False),
    dropped=(bool, False),
)
Webhook = shape(
    "Webhook", "A receiver of a group's commits. sent: the last delivered commit.",
    id=str, url=str, made_at=Moment, sent=int, tries=int, again_at=Moment | None, fault=str, state=str,
)  # fmt: skip
NewWebhook = shape(
    "NewWebhook", "A webhook with its secret, which no later answer shows.", Webhook, secret=str
)
Webhooks = listing("Webhooks", "webhooks", Webhook)
Deliveries = shape(
    "Deliveries", "A webhook with undelivered commits, oldest first.", Webhook, waiting=list[Row], more=bool
)
Problem = shape(
    "Problem", "An error (RFC 9457).",
    type=str, title=str, status=int, detail=str, code=str, request_id=str, errors=list[Row],
)  # fmt: skip
# The shapes of results whose JSON form differs from their fields.
_SHAPES: dict[Any, Any] = {
    graph.Hit: Hit, search.Context: Context, answers.EntityCount: Entity, answers.History: History,
    answers.Shown: Shown, graph.Community: Community, reading.ShownCommunity: CommunityDetail,
    results.Overview: Overview, ontology_suggest.RelationSuggestion: RelationSuggestion,
}  # fmt: skip


@cache
def reply_of(verb: str) -> Any:  # noqa: ANN401 - a type
    """Return the shape of the answer of a method of `VERBS`."""
    _, _, kind, part = VERBS[verb]
    if get_origin(kind) is not list:
        return _SHAPES.get(kind, kind)
    (item,) = get_args(kind)
    name = "".join(word.title() for word in re.split(r"[._]", verb))
    return listing(f"{name}Reply", part, _SHAPES.get(item, item))
