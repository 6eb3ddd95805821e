"""The content of one group, as values of this version, between an earlier store and the new store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from kgray.domain.records import (
    Declaration,
    EpisodeHead,
    Evidence,
    GroupRecords,
    Mention,
    Operation,
    Place,
    Verdict,
)
from kgray.domain.times import Instant
from kgray.errors import Cost
from kgray.graph.names import Fold
from kgray.graph.stored import ORDERED_KINDS
from kgray.ports import GroupHead
from kgray.schema import kinds
from kgray.schema.rows import operation

_T = TypeVar("_T")


class Timed(NamedTuple, Generic[_T]):
    """A declaration or a verdict with its record time, and the record time of its retraction."""

    value: _T
    recorded_at: Instant
    retired_at: Instant | None = None


class NameVector(NamedTuple):
    """The vector (float32) of a surface of an entity, with the place of the first mention of that surface."""

    entity: str
    surface: str
    place: Place
    vector: bytes


class TextVector(NamedTuple):
    """The vector (float32) of a text, and the weights of its tokens where the embedder weighs them."""

    vector: bytes
    weights: bytes | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answers to a request, as JSON, their cost, and the sequences of the episodes that used them."""

    request: str
    cost: Cost
    body: str
    used_by: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class GroupContent:
    """One group; lists are in order of place, and include retracted episodes.

    rows    rows that are stored unchanged, by kind: the log, extractions, communities, access keys ...
    births  recorded entity or statement -> the place that created it
    """

    name: str
    head: GroupHead
    rows: Mapping[str, list[Any]]
    answers: list[Answer] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    births: dict[str, Place] = field(default_factory=dict)
    declarations: list[Timed[Declaration]] = field(default_factory=list)
    verdicts: list[Timed[Verdict]] = field(default_factory=list)
    names: list[NameVector] = field(default_factory=list)
    statements: dict[str, TextVector] = field(default_factory=dict)
    episodes: dict[int, TextVector] = field(default_factory=dict)

    def records(self, known_at: Instant | None = None) -> GroupRecords:
        """Return the live records, now or as known at `known_at` (as `derivation.stored.records_of`)."""

        def stands(recorded_at: Instant, retired_at: Instant | None) -> bool:
            is_recorded = known_at is None or recorded_at <= known_at
            return is_recorded and (retired_at is None or (known_at is not None and retired_at > known_at))

        def standing(timed: Iterable[Timed[_T]]) -> list[_T]:
            return [item.value for item in timed if stands(item.recorded_at, item.retired_at)]

        heads = [
            EpisodeHead(row.sequence, row.id, row.reference_time, row.ended_at)
            for row in self.rows["episodes"]
            if row.state == kinds.COMMITTED and stands(row.ended_at, row.retired_at)
        ]
        live = {head.sequence for head in heads}
        carried_out = [
            row
            for row in self.rows["operations"]
            if row.state == kinds.DONE and row.kind in ORDERED_KINDS and stands(row.recorded_at, None)
        ]
        recorded = {timed.value.sequence: timed.recorded_at for timed in self.declarations}
        recorded.update((timed.value.sequence, timed.recorded_at) for timed in self.verdicts)
        recorded.update((row.sequence, row.recorded_at) for row in carried_out)
        return GroupRecords(
            group=self.name,
            heads=heads,
            mentions=[mention for mention in self.mentions if mention.sequence in live],
            evidence=[item for item in self.evidence if item.sequence in live],
            declarations=standing(self.declarations),
            verdicts=standing(self.verdicts),
            operations=self.corrections(carried_out),
            recorded=recorded,
            births=self.births,
            last_recorded=self.head.last_recorded,
        )

    def corrections(self, rows: Iterable[Any] | None = None) -> list[Operation]:
        """Return the corrections in these rows; None: all corrections that were carried out."""
        if rows is None:
            rows = (r for r in self.rows["operations"] if r.state == kinds.DONE and r.kind in ORDERED_KINDS)
        return [operation(self.name, kinds.OPERATIONS.row(*row)) for row in rows]

    def evidence_of(self) -> dict[str, list[Evidence]]:
        """Return the evidence of each recorded statement, in order of place."""
        by_statement: dict[str, list[Evidence]] = defaultdict(list)
        for item in self.evidence:
            by_statement[item.statement].append(item)
        return by_statement

    def ends(self) -> Callable[[Evidence], tuple[str, str | None]]:
        """Return a function from evidence to the visible ids of its ends; the object is None for a value."""
        mentions = {(mention.sequence, mention.ordinal): mention for mention in self.mentions}
        recorded = {row.sequence: row.recorded_at for row in self.rows["operations"]}
        fold = Fold(self.corrections(), self.births, recorded)

        def visible_id(sequence: int, ordinal: int) -> str:
            mention = mentions[sequence, ordinal]
            return fold.shown(mention.entity, mention.surface, sequence)[0]

        def ends_of(item: Evidence) -> tuple[str, str | None]:
            subject, target = item.subject, item.object
            shown_target = None if target is None else visible_id(item.sequence, target)
            return visible_id(item.sequence, subject), shown_target

        return ends_of
