"""Stated truth: the facts that follow from the statements, with true identities, by the timeline alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kgray.domain import times
from kgray.domain.records import Value, canonical
from kgray.domain.times import Instant
from kgray.timeline import Claim, timeline
from tests.world.schema import RELATIONS
from tests.world.telling import ToldFact, WorldEpisode, end_of, start_of
from tests.world.things import WorldEntity

TrueKey = tuple[str, str, str | Value]  # subject, relation, object: true identities
EpisodeReading = tuple[WorldEpisode, tuple[ToldFact, ...]]  # an episode and a reader's facts of it


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueFact:
    """One span of one statement; supported by episodes (client ids)."""

    key: TrueKey
    valid_at: Instant | None
    invalid_at: Instant | None
    episodes: tuple[str, ...]

    def holds_at(self, instant: Instant) -> bool:
        """Tell whether it held at an instant."""
        started = self.valid_at is None or self.valid_at <= instant
        return started and (self.invalid_at is None or instant < self.invalid_at)


@dataclass(slots=True)
class Truth:
    """The statements of a group, in order; sequence numbers serve as record times.

    readings: in order of arrival; an episode's number in it, from 1, is when it became known
    """

    entities: Sequence[WorldEntity]
    readings: list[EpisodeReading] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    keys: dict[str, TrueKey] = field(default_factory=dict)  # canonical key -> key
    names: dict[tuple[int, int], str] = field(default_factory=dict)  # place -> client id
    # Ends that were stated under a separate name ("left"): statement and instant.
    named_ends: set[tuple[TrueKey, Instant]] = field(default_factory=set)

    @classmethod
    def of_readings(cls, entities: Sequence[WorldEntity], readings: Iterable[EpisodeReading]) -> Truth:
        """Return the truth of these readings."""
        truth = cls(entities)
        for reading in readings:
            truth.take(reading)
        return truth

    def take(self, reading: EpisodeReading) -> None:
        """Add the next episode."""
        self.readings.append(reading)
        episode, facts = reading
        at, sequence = episode.draft.reference_time or 0, len(self.readings)
        for ordinal, fact in enumerate(facts):
            key = key_of(fact)
            statement = statement_of(key)
            self.keys[statement] = key
            start, inferred = start_of(fact, at) if fact.kind == "holds" else (None, False)
            end = end_of(fact, at)
            if fact.is_named_end and end is not None:
                self.named_ends.add((key, end))
            self.names[sequence, ordinal] = episode.draft.client_id or ""
            self.claims.append(
                Claim(statement, (at, sequence, ordinal), fact.kind, start, end, inferred, sequence)
            )

    def facts(self, known_at: int | None = None) -> list[TrueFact]:
        """Return the facts, as known after this number of episodes; None = after all."""
        return self._facts(timeline(self.claims, _Slots(self.keys), known_at))

    def _facts(self, spans: dict[str, Any]) -> list[TrueFact]:
        return [
            TrueFact(
                key=self.keys[statement],
                valid_at=span.start,
                invalid_at=span.end,
                episodes=tuple(sorted({self.names[c.said[1:]] for c in span.support})),
            )
            for statement, spans_of_statement in spans.items()
            for span in spans_of_statement
        ]

    def rows(self) -> Iterable[dict[str, Any]]:
        """Yield the gold file: entities, episodes with mentions and reply, facts."""
        for world_entity in self.entities:
            aliases = sorted({surface for _, surface in world_entity.aliases})
            row = {
                "id": world_entity.id,
                "name": world_entity.name,
                "kind": world_entity.kind,
                "aliases": aliases,
            }
            yield {"type": "entity", **row}
        for episode, facts in self.readings:
            yield {
                "type": "episode",
                "id": episode.draft.client_id,
                "group": episode.draft.group,
                "mentions": [
                    {"surface": surface, "entity": entity} for surface, entity, _ in episode.mentions
                ],
                "why": [fact.why for fact in facts],
                "extraction": episode.extraction_reply,
            }
        for fact in self.facts():
            subject, relation, target = fact.key
            yield {
                "type": "fact",
                "subject": subject,
                "relation": relation,
                "object": None if isinstance(target, Value) else target,
                "value": target.as_dict() if isinstance(target, Value) else None,
                "valid_at": times.show(fact.valid_at),
                "invalid_at": times.show(fact.invalid_at),
                "episodes": list(fact.episodes),
            }


def key_of(fact: ToldFact) -> TrueKey:
    """Return the content of a fact, with true identities."""
    target = fact.value if fact.object is None else fact.object
    if target is None:
        raise ValueError(f"a fact without an object: {fact.text!r}")
    return fact.subject, fact.relation, target


def statement_of(key: TrueKey) -> str:
    """Return the key as one text."""
    subject, relation, target = key
    return canonical([subject, relation, target.as_dict() if isinstance(target, Value) else target])


class _Slots:
    """Rivals: the statements of one subject and single-valued relation."""

    def __init__(self, keys: dict[str, TrueKey]) -> None:
        self._keys = keys

    def slot_keys(self, statement: str) -> Sequence[tuple[str, str]]:
        subject, relation, _ = self._keys[statement]
        return [(subject, relation)] if RELATIONS[relation].shape == "single" else []

    def pairs(self, statement: str) -> Sequence[str]:  # noqa: ARG002 - no verdicts in a world
        return ()
