"""What a store keeps of a group, row by row: the form in which a group moves from one store to another.

Rows of one kind stand together, kinds in the order of KINDS, rows in the order that each class names. Texts
that every store keeps as JSON (`stores.packing`) stay as they are. Two stores that keep the same group give
the same rows, so `Sum` of one is that of the other.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, TypeVar

from kgray.graph import Entity, Fact
from kgray.records import Episode, Evidence, Mention, OperationKind, Ruling, Verdict
from kgray.times import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptGroup:
    """The first row: the last sequence that was taken, and the newest record time."""

    last: int
    last_recorded: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEpisode:
    """An episode of any state, by sequence. attempts: None where it never failed."""

    episode: Episode
    ended_at: Instant | None
    retired_at: Instant | None
    failure_kind: str | None
    failure_message: str | None
    failure_raw: str | None
    attempts: int | None


OperationState = Literal["pending", "done", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOperation:
    """A correction, by sequence. payload, result: JSON; result None = pending."""

    sequence: int
    kind: OperationKind
    payload: str
    state: OperationState
    recorded_at: Instant | None
    result: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptExtraction:
    """What was said about an episode, by sequence; body: JSON."""

    sequence: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswers:
    """A request's answers, by its key; body: JSON."""

    request: str
    body: str
    calls: int
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptUse:
    """A sequence that used answers, by (sequence, request)."""

    sequence: int
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBirth:
    """A recorded entity or statement and the place that made it, by (place, id)."""

    id: str
    sequence: int
    ordinal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMention:
    """By place."""

    mention: Mention


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEvidence:
    """By place. shown: the derived statement that it speaks of now."""

    evidence: Evidence
    shown: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRuling:
    """By place."""

    ruling: Ruling
    recorded_at: Instant
    retired_at: Instant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptVerdict:
    """By place."""

    verdict: Verdict
    recorded_at: Instant
    retired_at: Instant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptName:
    """A surface of a recorded entity, in the order of insertion. uses: mentions that bear it."""

    entity: str
    surface: str
    uses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptVector:
    """By kind (names, statements, episodes), then in the order of insertion. vector: float32, little-endian.

    owner, text: as of `ports.NamedVector`, text "" but for names.
    """

    kind: Literal["name", "statement", "episode"]
    owner: str
    text: str
    vector: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEntity:
    """Derived; by id."""

    entity: Entity


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptShown:
    """Derived: an entity that a recorded one shows as, by (recorded, shown)."""

    recorded: str
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFact:
    """Derived; by id."""

    fact: Fact


Kept = (
    KeptGroup
    | KeptEpisode
    | KeptOperation
    | KeptExtraction
    | KeptAnswers
    | KeptUse
    | KeptBirth
    | KeptMention
    | KeptEvidence
    | KeptRuling
    | KeptVerdict
    | KeptName
    | KeptVector
    | KeptEntity
    | KeptShown
    | KeptFact
)
# In the order of an export; what people call them.
KINDS: Mapping[type[Any], str] = {
    KeptGroup: "group",
    KeptEpisode: "episodes",
    KeptOperation: "corrections",
    KeptExtraction: "extractions",
    KeptAnswers: "answers",
    KeptUse: "uses of answers",
    KeptBirth: "births",
    KeptMention: "mentions",
    KeptEvidence: "evidence",
    KeptRuling: "rulings",
    KeptVerdict: "verdicts",
    KeptName: "names",
    KeptVector: "vectors",
    KeptEntity: "entities",
    KeptShown: "shown entities",
    KeptFact: "facts",
}
Row = TypeVar("Row")


@dataclass(slots=True)
class Sum:
    """Counts and a hash of rows, taken as they pass."""

    counts: Counter[str] = field(default_factory=Counter)
    hashes: dict[str, str] = field(default_factory=dict)  # kind -> SHA-256 of its rows in their order
    moments: list[Instant] = field(default_factory=list)  # record times of what ended, in the order of rows

    def passing(self, rows: Iterable[Kept]) -> Iterator[Kept]:
        """Yield the rows again, and take note of them."""
        for kind, found in groupby(rows, key=type):
            hashed = hashlib.sha256()
            for row in found:
                # A frozen dataclass of texts, numbers and bytes shows all that it holds, and always alike.
                hashed.update(repr(row).encode("utf-8", "surrogatepass"))
                self.counts[KINDS[kind]] += 1
                self._note(row)
                yield row
            self.hashes[KINDS[kind]] = hashed.hexdigest()

    def differing(self, other: Sum) -> list[str]:
        """Return one line for each kind of rows that is not the same in both."""
        return [
            f"{kind}: {self.counts[kind]} rows, {other.counts[kind]} in the copy"
            + (", of other content" if self.counts[kind] == other.counts[kind] else "")
            for kind in KINDS.values()
            if self.hashes.get(kind) != other.hashes.get(kind)
        ]

    def _note(self, row: Kept) -> None:
        if isinstance(row, KeptEpisode) and row.ended_at is not None:
            self.moments.append(row.ended_at)
        elif isinstance(row, KeptOperation) and row.recorded_at is not None:
            self.moments.append(row.recorded_at)


def portions(rows: Iterable[Kept], most: int) -> Iterator[tuple[type[Any], list[Any]]]:
    """Yield the rows in portions of one kind, in order: the kind, and at most so many rows."""
    for kind, found in groupby(rows, key=type):
        portion: list[Any] = []
        for row in found:
            portion.append(row)
            if len(portion) == most:
                yield kind, portion
                portion = []
        if portion:
            yield kind, portion
