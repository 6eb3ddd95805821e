"""The results of a memory's methods besides hits; `kgray.domain.json_form` makes their JSON objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple

from kgray.domain.graph import Community, EpisodeRef, FactSpan
from kgray.domain.json_form import OPTIONAL, renamed


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSize:
    """The name of a group and the numbers of its episodes, entities and facts."""

    group: str
    episodes: int
    entities: int
    facts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLedger:
    """The numbers of a group's episodes by state. held: accepted and extracted episodes of a held group."""

    accepted: int
    extracted: int
    committed: int
    failed: int
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """The calls of the model so far, and their tokens."""

    calls: int
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The ledger: the episodes of each group by state, and the cost of the model for these groups."""

    groups: Mapping[str, GroupLedger]
    model: ModelCost


class Mark(NamedTuple):
    """A range of a text, [start, end) in characters, that is evidence about a statement."""

    start: int
    end: int
    statement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEpisode:
    """An episode with both clocks."""

    id: str
    client_id: str | None
    sequence: int
    source: str
    kind: str
    speaker: str | None
    text: str
    state: str
    reference_time: datetime  # when it was said
    recorded_at: datetime | None  # when it was committed, or failed; None = it is pending
    marks: tuple[Mark, ...] = ()  # the words that facts were read from, by their start


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Accepted episodes, by sequence. next: the sequence to go on after; None = these are the last."""

    episodes: tuple[LoggedEpisode, ...]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFailure:
    """A failed episode, or the episode of a hold (kind "Held"; id "": a correction), with the reason."""

    __pydantic_config__: ClassVar[dict[str, Any]] = renamed(kind="class")

    id: str
    client_id: str | None
    kind: str  # the error's class: Refused, InvalidAnswer
    message: str
    attempts: int  # of this sequence and of the sequences that it was retried from
    reply: str | None  # the last answer of the model
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyPair:
    """Two entities that may be one. a: born first; score: from 0 to 1, an order and no probability."""

    a: str
    b: str
    names: tuple[str, str]
    why: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NameMatch:
    """An entity with a name that begins with the typed text. matched: that name; facts: their number."""

    id: str
    name: str
    matched: str
    facts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityNode:
    """An entity of a graph. community: its community of the requested level, if any."""

    id: str
    name: str
    aliases: tuple[str, ...]
    labels: tuple[str, ...]
    community: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """Entities, nearest first, and the facts between them.

    truncated   there are more of either; total: how many entities and facts there are
    """

    entities: tuple[EntityNode, ...]
    facts: tuple[FactSpan, ...]
    truncated: bool
    total: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    """A fact whose text, span or ends differ between two moments."""

    before: FactSpan
    after: FactSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedEntity:
    """An entity that appears as another entity now."""

    id: str
    name: str
    into: str
    into_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The differences between two moments; total: the length of each list without the limit."""

    opened: tuple[FactSpan, ...]
    ended: tuple[FactSpan, ...]
    changed: tuple[FactChange, ...]
    entities_new: tuple[EntityNode, ...]
    entities_gone: tuple[EntityNode, ...]
    entities_renamed: tuple[EntityNode, ...]
    merged: tuple[MergedEntity, ...]
    truncated: bool
    total: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """An entry of the log that ended. type: episode, or the kind of a correction, which has no ids."""

    type: str
    sequence: int
    id: str | None = field(default=None, metadata=OPTIONAL)
    client_id: str | None = None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit; its number is its record time in microseconds. opened, ended: ids of facts."""

    commit: int
    at: datetime
    entries: tuple[LogEntry, ...]
    opened: tuple[str, ...]
    ended: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Commits in order. last: the number to go on from; more: there are later commits."""

    commits: tuple[Commit, ...]
    last: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRow:
    """A piece of evidence about a statement. recorded: the statement of its record, before merges."""

    type: Literal["evidence"] = "evidence"
    episode: str
    statement: str
    recorded: str
    valid_from: datetime | None
    valid_to: datetime | None
    ordinal: int
    kind: str
    text: str
    from_precision: str | None
    to_precision: str | None
    inferred: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContradictionVerdict:
    """A decision that two statements exclude each other."""

    a: str
    b: str
    judge: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportingEpisode(LoggedEpisode):
    """An episode behind a fact. role: evidence, end, or around: in the same conversation."""

    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A model's extraction from an episode. dropped: omitted content; reply: the stored extraction."""

    sequence: int
    model: str
    dropped: tuple[str, ...]
    calls: int
    prompt_tokens: int
    completion_tokens: int
    reply: Any  # JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The reasons for a statement. truncated: there is more evidence."""

    statement: str
    facts: tuple[FactSpan, ...]
    evidence: tuple[EvidenceRow, ...]
    verdicts: tuple[ContradictionVerdict, ...]
    messages: tuple[SupportingEpisode, ...]
    models: tuple[ModelReply, ...]
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A level's communities, largest first. links: (community id, community id, facts), most facts first."""

    communities: tuple[Community, ...]
    links: tuple[tuple[str, str, int], ...]
    truncated: bool
    total: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object; its communities have summaries."""
        rows = [community.as_dict() | {"summary": community.summary} for community in self.communities]
        lists = {"communities": rows, "links": [list(link) for link in self.links]}
        return lists | {"truncated": self.truncated, "total": dict(self.total)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A merge, split, distinction or undo that was carried out.

    sequence    `undo` takes it
    entity      of a merge: the id of the merged entity; entities: of a split: the ids of both
    undone      of an undo: the sequence and the kind of the undone correction
    """

    sequence: int
    entity: str | None = field(default=None, metadata=OPTIONAL)
    entities: tuple[str, ...] | None = field(default=None, metadata=OPTIONAL)
    undone: int | None = field(default=None, metadata=OPTIONAL)
    kind: str | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A requested correction or removal. state: pending, done, refused; result: None = it is pending."""

    sequence: int
    kind: str
    state: Literal["pending", "done", "refused"]
    result: Mapping[str, Any] | None  # by kind; of a refused operation the error


@dataclass(frozen=True, slots=True, kw_only=True)
class Rereading:
    """The outcome of episodes that were ingested again after a removal."""

    accepted: int
    committed: int
    failed: int
    stopped: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawalCounts:
    """The counts of a retraction or removal, with the ids that name nothing.

    sequence    None = nothing changed
    context_of  of a removal: the episodes whose previous context had a removed episode
    compacted   of a removal: False = erased bytes may still be in the files
    """

    episodes: int = 0
    statements: int = 0
    facts_closed: int = 0
    facts_reopened: int = 0
    entities: int = 0
    absent: tuple[str, ...] = ()
    sequence: int | None = field(default=None, metadata=OPTIONAL)
    context_of: tuple[EpisodeRef, ...] | None = field(default=None, metadata=OPTIONAL)
    compacted: bool | None = field(default=None, metadata=OPTIONAL)
    reread: Rereading | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVectors:
    """The embedder of a store's vectors.

    fault   the reason, in one line, why the embedder of the settings cannot replace it; None = it can
    """

    name: str | None
    dimensions: int
    fault: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An entry of the audit log. key: the id of the caller's key, or ""; asked: the request, digested."""

    sequence: int
    at: datetime
    key: str
    action: str
    group: str
    asked: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key of the HTTP server, which is not kept, and its id."""

    id: str
    key: str
