"""Values derived from the records: entities and facts; facts and hits for callers and as JSON.

The names of the JSON fields are a stable interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple

from kgray.domain.json_form import OPTIONAL, as_json, moment, renamed
from kgray.domain.records import Place, Value
from kgray.domain.times import Instant

Scope = Literal["fact", "entity", "episode", "community"]
_MEMBERS = 10  # members of a community in a hit
AS_OF = "as_of"  # in the report of a community: its text has the knowledge of then, not of the run
PROFILE = -1  # the level of a text on a single entity, in a run of communities


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A current entity, with merges and splits applied."""

    id: str
    name: str
    aliases: tuple[str, ...] = ()  # every other surface, sorted
    labels: tuple[str, ...] = ()  # sorted; () = no type known
    born: Place = (0, 0)
    summary: str = ""  # its newest facts without a known end, in short (kgray.graph.texts)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        names = {"aliases": list(self.aliases), "labels": list(self.labels)}
        return {"id": self.id, "name": self.name} | names | {"summary": self.summary}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A statement that is true over a span of time (R1, R2): [valid_at, invalid_at)."""

    id: str
    statement: str
    source: str  # entity id
    relation: str
    text: str  # the wording of the evidence that opened it
    created_at: Instant  # when this graph learned of it
    target: str | None = None  # entity id; None if it has a value
    value: Value | None = None
    valid_at: Instant | None = None  # None = unknown, counts as always
    invalid_at: Instant | None = None  # None = still
    expired_at: Instant | None = None  # when this graph learned of its end
    episodes: tuple[str, ...] = ()  # ids of the episodes that support it, sorted
    event: bool = False  # an event at valid_at; it stays true that it happened (R18)
    ended_by: tuple[str, int] | None = None  # (episode id, evidence ordinal)

    @property
    def ends(self) -> tuple[str, ...]:
        """The entities that it connects; a single entity if the object is a value."""
        return (self.source,) if self.target is None else (self.source, self.target)

    def holds_at(self, instant: Instant) -> bool:
        """Tell whether the fact held in the world at `instant`."""
        started = self.valid_at is None or self.valid_at <= instant
        return started and (self.invalid_at is None or instant < self.invalid_at)


@dataclass(frozen=True, slots=True)
class Community:
    """Entities that belong together, in a published run; the columns of `kinds.COMMUNITIES`."""

    run: int
    id: str
    level: int  # 0 is the finest; PROFILE: a model's text on an entity, with the entity's id
    parent: str | None
    size: int
    name: str
    summary: str
    report: Mapping[str, Any]  # a model's, if any: rating, reason, findings {summary, explanation, facts}
    writer: str
    content: str
    members: tuple[str, ...]
    sources: bytes = field(repr=False)
    vector: bytes = field(repr=False)
    stale: bool = False  # its members have newer facts than its text

    @property
    def text(self) -> str:
        """Its name, if any, and its summary."""
        return f"{self.name}: {self.summary}" if self.name else self.summary

    def told_at(self, run: datetime) -> datetime:
        """Return the moment of the text's knowledge; run: the last moment that its run has seen."""
        return datetime.fromisoformat(self.report[AS_OF]) if AS_OF in self.report else run

    def as_dict(self) -> dict[str, Any]:
        """Return the form of a row of `kgray communities list --json`."""
        return {name: getattr(self, name) for name in ("id", "level", "name", "size", "parent", "stale")}


class EpisodeRef(NamedTuple):
    """An episode's id and the client's id; of a community its id and name (`Hit.told_by`)."""

    id: str
    client_id: str | None

    def as_dict(self) -> dict[str, str | None]:
        """Return the JSON object."""
        return self._asdict()

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:  # noqa: ANN401 - pydantic's own
        """Read and describe the JSON object; pydantic's own form of a named tuple is an array."""
        from pydantic_core import core_schema as core

        kinds = {"id": core.str_schema(), "client_id": core.nullable_schema(core.str_schema())}
        row = core.typed_dict_schema({name: core.typed_dict_field(kind) for name, kind in kinds.items()})
        return core.no_info_after_validator_function(lambda values: cls(**values), row)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactSpan:
    """A fact for callers: a statement over a span, [valid_at, invalid_at), with both clocks (R2).

    inferred    the names of the dates that no message states; None = not looked up, as in a search
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = renamed(
        subject_id="source_id", subject="source", object_id="target_id", object="target"
    )

    id: str
    statement: str
    text: str
    subject_id: str
    subject: str | None  # a name
    relation: str
    object_id: str | None
    object: str | None  # a name; if object_id is None, a value's text
    valid_at: datetime | None  # None = not known
    invalid_at: datetime | None  # None = it still holds
    event: bool = False  # an event at valid_at; it stays true that it happened
    created_at: datetime  # when this memory learned of it
    expired_at: datetime | None  # when it learned of its end
    episodes: tuple[EpisodeRef, ...]  # the episodes that support it
    ended_by: tuple[str, int] | None  # (episode id, ordinal) of the evidence that ended it
    inferred: tuple[str, ...] | None = field(default=None, metadata=OPTIONAL)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object, faster than `as_json`: an answer has up to 20,000 facts."""
        row = {"id": self.id, "statement": self.statement, "text": self.text} | self.as_hit()
        row["ended_by"] = list(self.ended_by) if self.ended_by else None
        return row if self.inferred is None else row | {"inferred": list(self.inferred)}

    def as_hit(self) -> dict[str, Any]:
        """Return the keys that only hits of facts have."""
        return {
            "source_id": self.subject_id,
            "source": self.subject,
            "relation": self.relation,
            "target_id": self.object_id,
            "target": self.object,
            "valid_at": self.valid_at and moment(self.valid_at),
            "invalid_at": self.invalid_at and moment(self.invalid_at),
            "event": self.event,
            "created_at": moment(self.created_at),
            "expired_at": self.expired_at and moment(self.expired_at),
            "episodes": [episode.as_dict() for episode in self.episodes],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMessage:
    """A message that supports a fact."""

    id: str
    client_id: str | None
    speaker: str | None
    text: str
    reference_time: datetime  # when it was said


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A result of a search."""

    scope: Scope
    id: str
    text: str
    score: float
    group: str
    methods: Mapping[str, int] = field(default_factory=dict)  # its rank (from 1) by method
    signals: Mapping[str, float] = field(default_factory=dict)  # its score's parts (kgray.search.ranking)
    fact: FactSpan | None = None
    entity: Entity | None = None
    participants: tuple[str, ...] = ()  # of a hyper-edge: the names that a sentence connects, three or more
    message: SourceMessage | None = None  # of a fact: the newest message that states it
    outdated: bool = False  # a message whose facts have all ended at the requested moment
    profile: str = ""  # the entity's profile, in contexts only
    community: Community | None = None
    besides: tuple[Community, ...] = ()  # other communities with the same content
    known_at: datetime | None = None  # the moment of the community's run
    client_id: str | None = None  # this and the following fields: of an episode
    reference_time: datetime | None = None  # when it was said
    speaker: str | None = None
    source: str | None = None  # the episode's source
    sequence: int | None = None  # its place in the group's order
    kind: str | None = None

    @property
    def told_by(self) -> tuple[EpisodeRef, ...]:
        """The episodes that state it; for communities, their ids and names."""
        if self.fact is not None:
            return self.fact.episodes
        if self.community is not None:
            return tuple(EpisodeRef(item.id, item.name) for item in (self.community, *self.besides))
        return (EpisodeRef(self.id, self.client_id),) if self.scope == "episode" else ()

    @property
    def subject(self) -> str | None:
        """The name of a fact's subject."""
        return self.fact.subject if self.fact else None

    @property
    def object(self) -> str | None:
        """The name of a fact's object, or its value's text."""
        return self.fact.object if self.fact else None

    @property
    def valid_at(self) -> datetime | None:
        """When a fact began to hold; None if it is not known."""
        return self.fact.valid_at if self.fact else None

    @property
    def invalid_at(self) -> datetime | None:
        """When a fact ended; None if it still holds."""
        return self.fact.invalid_at if self.fact else None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object of `kgray search --json`."""
        names = ("scope", "id", "text", "score", "group")
        row: dict[str, Any] = {name: getattr(self, name) for name in names} | {"methods": dict(self.methods)}
        if self.fact is not None:
            row |= self.fact.as_hit() | {"participants": list(self.participants)}
            row["message"] = as_json(self.message)
        elif self.entity is not None:
            row |= {name: list(getattr(self.entity, name)) for name in ("aliases", "labels")}
            row |= {"summary": self.entity.summary}
        elif (community := self.community) is not None:
            row |= {
                "name": community.name,
                "summary": community.summary,
                "level": community.level,
                "size": community.size,
            }
            row |= {"members": list(community.members[:_MEMBERS]), "rating": community.report.get("rating")}
            row |= {"known_at": as_json(self.known_at)}
        elif self.scope == "episode":
            spoken_at = as_json(self.reference_time)
            row |= {"client_id": self.client_id, "reference_time": spoken_at, "speaker": self.speaker}
            row["outdated"] = self.outdated
        return row
