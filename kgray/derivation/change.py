"""What an episode adds to a group's records, and what differs in the derived graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kgray.graph import Entity, Fact
from kgray.ports import Vector
from kgray.records import (
    Episode,
    EpisodeHead,
    Evidence,
    GroupRecords,
    Mention,
    Operation,
    Place,
    Ruling,
    Verdict,
)
from kgray.timeline import Span
from kgray.times import Instant

SpanChanges = dict[str, tuple[tuple[Span, ...], tuple[Span, ...]]]  # statement -> spans before, after


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeChange:
    """The records that one episode adds, in order of their ordinals; the record time is given at the commit.

    entity_births, statement_births     (recorded id, place) of what it makes, and of parts of a split that
                        it is the first to record
    name_vectors        of surfaces that are new to their entity, with the mention of each
    statement_vectors   (recorded statement id, vector of its first wording)
    """

    episode: Episode
    entity_births: tuple[tuple[str, Place], ...] = ()
    statement_births: tuple[tuple[str, Place], ...] = ()
    mentions: tuple[Mention, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    rulings: tuple[Ruling, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    name_vectors: tuple[tuple[Mention, Vector], ...] = ()
    statement_vectors: tuple[tuple[str, Vector], ...] = ()
    episode_vector: Vector | None = None

    def head(self, recorded_at: Instant) -> EpisodeHead:
        """Return the episode's place on both clocks, once it is recorded."""
        episode = self.episode
        return EpisodeHead(
            sequence=episode.sequence,
            id=episode.id,
            reference_time=episode.reference_time,
            recorded_at=recorded_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between a group's derived graph before and after: whole rows, sorted by id.

    shown, unshown      added and removed pairs (recorded entity, entity it shows as)
    spoken              (place of evidence, the statement it is about now or None) where that changed
    """

    entities: tuple[Entity, ...] = ()
    gone_entities: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    gone_facts: tuple[str, ...] = ()
    shown: tuple[tuple[str, str], ...] = ()
    unshown: tuple[tuple[str, str], ...] = ()
    spoken: tuple[tuple[Place, str | None], ...] = ()


def with_change(records: GroupRecords, change: EpisodeChange, recorded_at: Instant) -> GroupRecords:
    """Return the records with the change added."""
    return replace(
        records,
        heads=[*records.heads, change.head(recorded_at)],
        mentions=[*records.mentions, *change.mentions],
        evidence=[*records.evidence, *change.evidence],
        rulings=[*records.rulings, *change.rulings],
        verdicts=[*records.verdicts, *change.verdicts],
        recorded={**records.recorded, change.episode.sequence: recorded_at},
        births={**dict((*change.entity_births, *change.statement_births)), **records.births},
        last_recorded=recorded_at,
    )


def with_operation(
    records: GroupRecords, operation: Operation, recorded_at: Instant, births: tuple[tuple[str, Place], ...]
) -> GroupRecords:
    """Return the records with a merge, split or undo added; births: (id, place) of what it makes."""
    return replace(
        records,
        operations=[*records.operations, operation],
        recorded={**records.recorded, operation.sequence: recorded_at},
        births={**records.births, **dict(births)},
        last_recorded=recorded_at,
    )


def fact_changes(
    fact_before: Callable[[Span], Fact], fact_now: Callable[[Span], Fact], changes: SpanChanges
) -> tuple[tuple[Fact, ...], tuple[str, ...]]:
    """Return the facts that differ, and the ids of those that are gone, where these spans change.

    fact_before, fact_now: return the fact of a span, as the graph before and after shows it
    """
    rows: list[Fact] = []
    gone: set[str] = set()
    kept: set[str] = set()
    for earlier, later in changes.values():
        was = {fact.id: fact for fact in map(fact_before, earlier)}
        now = {fact.id: fact for fact in map(fact_now, later)}
        rows += [fact for i, fact in now.items() if was.get(i) != fact]
        kept.update(now)
        gone.update(was)
    return tuple(sorted(rows, key=lambda f: f.id)), tuple(sorted(gone - kept))
