"""Values derived from the records: entities and facts; facts and hits as callers get them, and as JSON.

The names of the JSON fields are a stable interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from kgray.records import Place, Value
from kgray.times import Instant, from_datetime, show

Scope = Literal["fact", "entity", "episode", "community"]
_MEMBERS = 10  # of a community that a hit lists
AS_OF = "as_of"  # in the report of a community: its text says what was known then, not at the run
PROFILE = -1  # the level of a text on one entity alone, in a run of communities


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """An entity as it shows, with merges and splits applied."""

    id: str
    name: str
    aliases: tuple[str, ...] = ()  # every other surface, sorted
    labels: tuple[str, ...] = ()  # sorted; () = no type known
    born: Place = (0, 0)
    summary: str = ""  # its newest facts without a known end, in short (kgray.derivation.summaries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One statement, true over one span of time (R1, R2): [valid_at, invalid_at)."""

    id: str
    statement: str
    source: str  # entity id
    relation: str
    text: str  # the wording of the evidence that opened it
    created_at: Instant  # when this graph learned of it
    target: str | None = None  # entity id; None beside a value
    value: Value | None = None
    valid_at: Instant | None = None  # None = unknown, counts as always
    invalid_at: Instant | None = None  # None = still
    expired_at: Instant | None = None  # when this graph learned of its end
    episodes: tuple[str, ...] = ()  # ids of the episodes that support it, sorted
    event: bool = False  # what took place at valid_at; that it did stays true (R18)
    ended_by: tuple[str, int] | None = None  # (episode id, evidence ordinal)

    @property
    def ends(self) -> tuple[str, ...]:
        """The entities that it connects; one where the object is a value."""
        return (self.source,) if self.target is None else (self.source, self.target)

    def holds_at(self, instant: Instant) -> bool:
        """Whether it held in the world at `instant`."""
        started = self.valid_at is None or self.valid_at <= instant
        return started and (self.invalid_at is None or instant < self.invalid_at)


@dataclass(frozen=True, slots=True)
class Community:
    """Entities that belong together, in one published run; the columns of `kinds.COMMUNITIES`."""

    run: int
    id: str
    level: int  # 0 is the finest; PROFILE: a model's text on one entity, whose id it has
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
    stale: bool = False  # something was learned of its members since its text was made

    @property
    def text(self) -> str:
        """Its name, where it has one, and its summary."""
        return f"{self.name}: {self.summary}" if self.name else self.summary

    def told_at(self, run: datetime) -> datetime:
        """Return when the text was so; run: the last that its run has seen."""
        return datetime.fromisoformat(self.report[AS_OF]) if AS_OF in self.report else run

    def as_dict(self) -> dict[str, Any]:
        """Return the form of a row of `kgray communities list --json`."""
        return {name: getattr(self, name) for name in ("id", "level", "name", "size", "parent", "stale")}


@dataclass(frozen=True, slots=True, kw_only=True)
class FactSpan:
    """A fact as it is shown: one statement over one span, [valid_at, invalid_at), with both clocks (R2)."""

    id: str
    statement: str
    text: str
    source_id: str
    source: str | None  # a name
    relation: str
    target_id: str | None
    target: str | None  # a name; where target_id is None, a value's text
    valid_at: datetime | None  # None = not known
    invalid_at: datetime | None  # None = it still holds
    created_at: datetime  # when this memory learned of it
    expired_at: datetime | None  # when it learned of its end
    episodes: tuple[tuple[str, str | None], ...]  # (id, the client's id) of those that support it
    ended_by: tuple[str, int] | None  # (episode id, ordinal) of the evidence that ended it
    event: bool = False  # it took place at valid_at; that it did stays true

    def as_dict(self) -> dict[str, Any]:
        """Return the keys of a fact hit that only facts have."""
        names = "source_id source relation target_id target valid_at invalid_at event created_at expired_at"
        told = {name: getattr(self, name) for name in names.split()}
        written = {name: _written(at) if isinstance(at, datetime) else at for name, at in told.items()}
        return written | {"episodes": named(self.episodes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMessage:
    """A message that supports a fact."""

    id: str
    client_id: str | None
    speaker: str | None
    text: str
    reference_time: datetime  # when it was said

    def as_dict(self) -> dict[str, Any]:
        """Return the form of JSON."""
        names = ("id", "client_id", "speaker", "text")
        return {name: getattr(self, name) for name in names} | {
            "reference_time": _written(self.reference_time)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One result of a search."""

    scope: Scope
    id: str
    text: str
    score: float
    group: str
    methods: Mapping[str, int] = field(default_factory=dict)  # the rank (from 1) that each method gave it
    signals: Mapping[str, float] = field(default_factory=dict)  # its score's parts (kgray.search.ranking)
    fact: FactSpan | None = None
    entity: Entity | None = None
    participants: tuple[str, ...] = ()  # of a hyper-edge: the names that one sentence connects, three or more
    message: SourceMessage | None = None  # of a fact: the newest message that tells it
    outdated: bool = False  # a message whose facts have all ended at the asked moment
    profile: str = ""  # what is known of the entity, in a context alone
    community: Community | None = None
    besides: tuple[Community, ...] = ()  # others that say the same as the community
    known_at: datetime | None = None  # what the community's run saw
    client_id: str | None = None  # this and the others: of an episode
    reference_time: datetime | None = None  # when it was said
    speaker: str | None = None
    told_in: str | None = None  # its source
    sequence: int | None = None  # its place in the group's order
    kind: str | None = None

    @property
    def told_by(self) -> tuple[tuple[str, str | None], ...]:
        """(id, the client's id) of the episodes that say it; of communities their own ids and names."""
        if self.fact is not None:
            return self.fact.episodes
        if self.community is not None:
            return tuple((one.id, one.name) for one in (self.community, *self.besides))
        return ((self.id, self.client_id),) if self.scope == "episode" else ()

    @property
    def source(self) -> str | None:
        """The name of a fact's subject."""
        return self.fact.source if self.fact else None

    @property
    def target(self) -> str | None:
        """The name of a fact's object, or its value's text."""
        return self.fact.target if self.fact else None

    @property
    def valid_at(self) -> datetime | None:
        """When a fact began to hold; None where that is not known."""
        return self.fact.valid_at if self.fact else None

    @property
    def invalid_at(self) -> datetime | None:
        """When a fact ended; None where it still holds."""
        return self.fact.invalid_at if self.fact else None

    def as_dict(self) -> dict[str, Any]:
        """Return the form in which `kgray search --json` prints it."""
        names = ("scope", "id", "text", "score", "group")
        row: dict[str, Any] = {name: getattr(self, name) for name in names} | {"methods": dict(self.methods)}
        if self.fact is not None:
            row |= self.fact.as_dict() | {"participants": list(self.participants)}
            row["message"] = None if self.message is None else self.message.as_dict()
        elif self.entity is not None:
            row |= {name: list(getattr(self.entity, name)) for name in ("aliases", "labels")}
            row |= {"summary": self.entity.summary}
        elif (one := self.community) is not None:
            row |= {"name": one.name, "summary": one.summary, "level": one.level, "size": one.size}
            row |= {"members": list(one.members[:_MEMBERS]), "rating": one.report.get("rating")}
            row |= {"known_at": _written(self.known_at)}
        elif self.scope == "episode":
            said = _written(self.reference_time)
            row |= {"client_id": self.client_id, "reference_time": said, "speaker": self.speaker}
            row["outdated"] = self.outdated
        return row


def named(episodes: Iterable[tuple[str, str | None]]) -> list[dict[str, str | None]]:
    """Return episodes, as (id, the client's id), in the form of JSON."""
    return [{"id": episode, "client_id": client} for episode, client in episodes]


def _written(moment: datetime | None) -> str | None:
    return None if moment is None else show(from_datetime(moment))
