"""What a run writes and what a ledger tells: values that pass between the engine and a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kgray.graph import Derived
from kgray.ports.models import Judged, Vector
from kgray.records import (
    Draft,
    Episode,
    Evidence,
    Extraction,
    Mention,
    Operation,
    Place,
    Ruling,
    Verdict,
)
from kgray.times import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What became of one draft.

    status  accepted | duplicate (same id and content: nothing changed) | conflict (same id, other
            content, no `replace`; `reason` names both hashes)
    """

    status: Literal["accepted", "duplicate", "conflict"]
    id: str
    sequence: int | None = None
    reason: str = ""
    timed: bool = True  # False: no reference time was given, and acceptance gave one


def conflict(draft: Draft, stored: str) -> str:
    """Return why a draft whose id is taken by other content is refused; stored: the hash of that content."""
    return (
        f"id {draft.client_id!r} is taken by other content: stored sha256 {stored}, "
        f"submitted sha256 {draft.content_sha256}; use --replace to retract the old one"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an episode failed by its own content (R24)."""

    kind: str  # the class: Refused, InvalidAnswer
    message: str
    raw: str = ""
    attempts: int = 1  # handed in: of this sequence; read: those of the sequences it was retried from too


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedEpisode:
    """A row of `kgray failures`."""

    episode: Episode
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """The ledger of one group (present states), and what it derived; calls and tokens so far."""

    accepted: int = 0
    extracted: int = 0
    committed: int = 0
    failed: int = 0
    entities: int = 0
    facts: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedVector:
    """A vector and what it belongs to.

    name       owner = recorded entity id, text = the surface: one a distinct surface of an entity
    statement  owner = recorded statement id, text = its first wording
    episode    owner = str(sequence), text = "" (the episode has it)
    """

    kind: Literal["name", "statement", "episode"]
    owner: str
    text: str
    vector: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Everything that one sequence of one group changes: one transaction, applied whole or not at all (R23).

    births          (recorded id, place) of entities and statements that this sequence makes
    operation       set where the sequence is a correction; `result` is what its caller reads
    retired         sequences whose records leave derivation from now on (R25, soft)
    erased          sequences whose records are deleted with every trace (R25, hard)
    retired_rulings, retired_verdicts: places that leave derivation from now on with a retracted episode;
                    reads with an earlier `known_at` still see them
    erased_rulings, erased_verdicts: places to delete; blanked: places whose reason is blanked
    rewritten       earlier merges and splits without the names that went with what is erased
    forgotten       True: the whole group goes; only its nameless row stays
    """

    group: str
    sequence: int
    recorded_at: Instant
    births: tuple[tuple[str, Place], ...] = ()
    mentions: tuple[Mention, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    rulings: tuple[Ruling, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    vectors: tuple[NamedVector, ...] = ()
    derived: Derived = field(default_factory=Derived)
    operation: Operation | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    retired: tuple[int, ...] = ()
    erased: tuple[int, ...] = ()
    retired_rulings: tuple[Place, ...] = ()
    retired_verdicts: tuple[Place, ...] = ()
    erased_rulings: tuple[Place, ...] = ()
    erased_verdicts: tuple[Place, ...] = ()
    blanked: tuple[Place, ...] = ()
    gone_births: tuple[str, ...] = ()  # recorded ids that nothing mentions any more
    rewritten: tuple[Operation, ...] = ()
    forgotten: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """An extraction as it arrives: accepted -> extracted. The first one stays; ended episodes stay as they are."""

    group: str
    sequence: int
    extraction: Extraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request's answers as they arrive, and the sequence that uses them (R21). The first answers stay.

    judged: None where they came from the journal: the use alone is noted. Of a sequence that was removed
    meanwhile nothing is kept: it would be a trace of it (R25).
    """

    group: str
    sequence: int
    key: str
    judged: Judged | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An episode ends as failed (R24); the attempts before a retry are added. One that has ended stays as it is."""

    group: str
    sequence: int
    recorded_at: Instant
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """An operation that cannot be done ends; the graph is unchanged, and what it named is not kept."""

    group: str
    sequence: int
    recorded_at: Instant
    reason: str


Write = Extracted | Answered | Failed | Declined | Commit
