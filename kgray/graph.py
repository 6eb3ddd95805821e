"""Values derived from the records: entities, facts, and hits of a search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kgray.records import Place, Value
from kgray.times import Instant

Scope = Literal["fact", "entity", "episode", "community"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """An entity as it shows, with merges and splits applied."""

    id: str
    name: str
    aliases: tuple[str, ...] = ()  # every other surface, sorted
    labels: tuple[str, ...] = ()  # sorted; () = no type known
    born: Place = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One statement, true over one span of time (R1, R2): [valid_at, invalid_at).

    valid_at None = always; invalid_at None = still. created_at, expired_at: when this graph
    learned of it, and of its end.
    """

    id: str
    statement: str
    source: str  # entity id
    relation: str
    text: str  # the wording of the evidence that opened it
    created_at: Instant
    target: str | None = None  # entity id; None beside a value
    value: Value | None = None
    valid_at: Instant | None = None
    invalid_at: Instant | None = None
    expired_at: Instant | None = None
    episodes: tuple[str, ...] = ()  # ids of the episodes that support it, sorted
    ended_by: tuple[str, int] | None = None  # (episode id, evidence ordinal)

    @property
    def ends(self) -> tuple[str, ...]:
        """The entities that it connects; one where the object is a value."""
        return (self.source,) if self.target is None else (self.source, self.target)

    def holds_at(self, instant: Instant) -> bool:
        """Whether it held in the world at `instant`."""
        started = self.valid_at is None or self.valid_at <= instant
        return started and (self.invalid_at is None or instant < self.invalid_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One result of a search; methods: the rank (from 1) that each method gave it."""

    scope: Scope
    id: str
    text: str
    score: float
    group: str
    methods: dict[str, int] = field(default_factory=dict)
    client_id: str | None = None  # episodes
    fact: Fact | None = None  # facts
    entity: Entity | None = None  # entities
    source: str | None = None  # facts: the subject's name
    target: str | None = None  # facts: the object's name, or the value's text
    episodes: tuple[tuple[str, str | None], ...] = ()  # facts: (id, client id) of the supporters
    reference_time: Instant | None = None  # episodes
    speaker: str | None = None  # episodes
