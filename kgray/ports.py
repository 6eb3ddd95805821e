"""The ports: what the engine asks of models and stores; batch first.

Models are async, because they may live behind a network; the store is synchronous, because its
calls are short and its one writer is one thread. Arrays: (n, d) means n rows of width d.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from kgray.graph import Derived, Entity, Fact
from kgray.kept import Kept
from kgray.records import (
    Draft,
    Episode,
    Evidence,
    Extraction,
    GroupRecords,
    Mention,
    Operation,
    Place,
    Ruling,
    Verdict,
)
from kgray.times import Instant

Vector = NDArray[np.float32]  # (d,), unit length
Matrix = NDArray[np.float32]  # (n, d), rows of unit length

QuestionKind = Literal["entity", "relation", "cardinality", "variant", "verdict"]

# ------------------------------------------------------------------------------------- models


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One thing `decide` cannot know by itself; a value, equal by content.

    kind         item                                       answer (`replies` validates it)
    entity       the mention's name                         {"duplicate_of": i or None}
    relation     "NAME" (the newer), candidates: ("OTHER",) {"same_as" | "inverse_of" | "excludes": True} or {}
    cardinality  "NAME"                                     {"cardinality": "single" | "single_object" | "many" | "depends"}
    variant      the new wording                            {"duplicate_of": i or None}; None = a new variant
    verdict      the new wording                            {"contradicts": [i, ...]}, indexes into candidates

    candidates: what indexes point into, oldest first. cards: for entities one text for the mention,
    then one a candidate (name, type, the sentence that introduced it); for relations and
    cardinality example wordings. Only text that can never change stands here (R21).
    """

    kind: QuestionKind
    item: str
    candidates: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()

    def brief(self) -> dict[str, Any]:
        """Return the form that a script matches: {"kind", "items"}; items = [item, [candidates]]."""
        items: list[Any] = [self.item]
        if self.candidates:
            items.append(list(self.candidates))
        return {"kind": self.kind, "items": items}


Answer = Mapping[str, Any]  # as in the table of Question


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionRequest:
    """One episode with its previous context (R22), oldest first. No graph state."""

    episode: Episode
    previous: tuple[Episode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRequest:
    """All the open questions of one episode in one round (or of one node): R21. Never of several episodes."""

    episode: Episode
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Answers in the order of the questions, and what they cost."""

    answers: tuple[Answer, ...]
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Extractor(Protocol):
    """Reads episodes."""

    @property
    def identity(self) -> str:
        """Model, parameters and version; stored with each extraction."""
        ...

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return all that the episode says.

        Raises Refused or InvalidAnswer where the episode itself is to blame, Unavailable where the
        model is. A later call with an equal request may be made; it need not give the same answer.
        """
        ...


class Judge(Protocol):
    """Answers what `decide` cannot know."""

    identity: str

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key: model, parameters and the bytes of its prompt (R21)."""
        ...

    async def judge(self, request: QuestionRequest) -> Judged:
        """Return one validated answer a question. Raises as `Extractor.extract` does."""
        ...


class Embedder(Protocol):
    """Texts to unit vectors; equal texts give equal vectors."""

    identity: str  # stored with the data folder, which refuses another
    dimensions: int

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimensions); (0, dimensions) for no text; a text of no words is still unit length."""
        ...


class ResponseCache(Protocol):
    """Accepted replies by what was asked, for backfills; bounded; what it forgets is asked again.

    key: model, parameters and the bytes of the prompt. The group of the asking episode is part of it: two
    groups never share a reply. Each entry notes the episodes whose text it was asked or used with
    (context: previous episodes in the prompt), and goes with the first of them that is removed (R25).
    """

    def recall(self, key: str, asking: Episode, context: Sequence[Episode] = ()) -> str | None:
        """Return the reply that was kept; None where there is none."""
        ...

    def keep(self, key: str, reply: str, asking: Episode, context: Sequence[Episode] = ()) -> None:
        """Keep a reply that was found valid; of an episode that the store does not hold, nothing is kept."""
        ...


# -------------------------------------------------------------------------------------- store


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


class Writer(Protocol):
    """Who carries out a run's writes: the store itself, or one in another process that holds it."""

    async def write(self, writes: Sequence[Write]) -> None:
        """Carry out `Store.write`; durable on return. One batch at a time: the caller awaits each.

        Waits out what passes (a writer that restarts, a store out of reach) and sends the same batch again.
        """
        ...


class GraphView(Protocol):
    """The derived graph of one group, as known at one moment; recorded ids go in, shown rows come out.

    An id that this view shows stands for itself (a split may have made it); ids that it does not show
    give no row. as_of None = at any time.
    """

    group: str

    def facts_of(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        """Return the facts that hold at `as_of`, of the statements that these recorded ids show as.

        In the order asked, each once, at the first id that gives it; those of one id by (valid_at, id):
        a search hands in ranked ids and reads ranks off the answer.
        """
        ...

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[Fact]:
        """Return the facts that hold at `as_of`, of the statements that these pieces of evidence speak of.

        In the order asked, each once, as `facts_of`.
        """
        ...

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        """Return facts whose subject or object is one of these entities, newest `created_at` first, then by id."""
        ...

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        """Return the facts with these ids."""
        ...

    def entities(self, recorded: Sequence[str]) -> list[Entity]:
        """Return the entities that these recorded ids show as, in the order asked, each once."""
        ...

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        """Return the committed, live episodes with these sequences, in the order asked."""
        ...

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Return episode id -> client id."""
        ...


SearchScope = Literal["fact", "entity", "episode"]


class Store(Protocol):
    """Log and graph, two faces of one store. Every call names its group, which is checked in the query.

    Raises StoreError with one clear line for what is wrong with the data folder; Unavailable where
    a server is out of reach.
    """

    # --- the log: any process, short transactions ------------------------------------------

    def accept(
        self, drafts: Sequence[Draft], *, now: Instant, replace: bool = False, bulk: bool = False
    ) -> list[Acceptance]:
        """Append drafts in order, in one transaction; durable on return (R19). Answers in the order given.

        bulk: they go in the backfill lane; what others wait for goes in the live lane.

        With `replace` a draft whose id is taken by other content retracts the old row (an Operation
        of its own, one sequence) and is accepted anew (the next sequence).
        """
        ...

    def standing(self, group: str, ids: Sequence[str]) -> dict[str, str]:
        """Return episode id -> content hash of the live rows with these ids, whatever their state."""
        ...

    def request(self, operation: Operation, *, now: Instant) -> int:
        """Append a correction and return its sequence; the ingesting process carries it out in order."""
        ...

    def result(self, group: str, sequence: int) -> Mapping[str, Any] | None:
        """Return what an operation answered; None while it is pending. {"error": line} where it was refused."""
        ...

    def pending_groups(self) -> dict[str, bool]:
        """Return the groups with anything accepted or extracted or requested, sorted; True = some of it is live."""
        ...

    def pending(self, group: str, limit: int) -> list[Episode | Operation]:
        """Return what is next in the group's order, at most `limit`."""
        ...

    def next_sequence(self, group: str) -> int:
        """Return the sequence that the group would give next; it is not taken."""
        ...

    def pending_count(self, group: str | None = None) -> int:
        """Return how many episodes and operations are not ended."""
        ...

    def previous(self, episode: Episode, limit: int) -> list[Episode]:
        """Return the previous context (R22), oldest first; removed and retracted episodes are left out."""
        ...

    def extraction(self, group: str, sequence: int) -> Extraction | None:
        """Return the stored extraction."""
        ...

    def recall(self, group: str, key: str) -> tuple[Answer, ...] | None:
        """Return the journaled answers of a request (R21)."""
        ...

    def failures(self, group: str | None = None) -> list[FailedEpisode]:
        """Return the failed episodes, by group and sequence."""
        ...

    def retry(self, group: str | None, ids: Sequence[str], *, now: Instant) -> int:
        """Give failed episodes (all, or those with these ids, ours or the client's) new sequences; return how many."""
        ...

    def counts(self, group: str | None = None) -> dict[str, GroupCounts]:
        """Return the ledger by group, sorted."""
        ...

    # --- the ingesting process --------------------------------------------------------------

    def writing(self, *, epoch: int | None = None, shard: int = 0) -> AbstractContextManager[int]:
        """Hold the store for writing; yields the fencing epoch that `write` is checked against (R23).

        epoch   None: a new one, so that every older writer is stale; else that one, which must still be the
                store's newest: a writer that was restarted goes on for the run that it served
        shard   each has an epoch of its own; the embedded store has the one

        Raises Locked, naming the holder's pid, where another process holds the data folder; StaleWriter
        where the epoch is not the newest.
        """
        ...

    def write(self, writes: Sequence[Write]) -> None:
        """Carry out writes of any groups, in order: one transaction, whole or not at all, durable on return (R23).

        Idempotent, each by its (group, sequence) and kind: what has been done already changes nothing, so a
        batch whose outcome is not known is sent again. Checks the epoch first (StaleWriter).
        Where a batch holds only Extracted and Answered, a power cut (not a kill) may lose it.

        Raises Outrun where a commit's record time is not past its group's last: another process has recorded
        (a retry); read the state anew.
        """
        ...

    def compact(self) -> bool:
        """Make what was erased unreadable in the files; False where a reader prevents it now."""
        ...

    def records(self, group: str, known_at: Instant | None = None) -> GroupRecords:
        """Return the group's live records, as of now or as recorded by `known_at`."""
        ...

    def name_vectors(self, group: str) -> Iterator[tuple[str, str, Vector]]:
        """Yield (recorded entity id, surface, vector), in order of insertion."""
        ...

    def statement_vectors(self, group: str, statements: Sequence[str]) -> dict[str, Vector]:
        """Return the vectors of these recorded statements."""
        ...

    # --- reading ----------------------------------------------------------------------------

    def reading(self) -> AbstractContextManager[None]:
        """Hold one snapshot for the reads inside it."""
        ...

    def view(self, group: str) -> GraphView:
        """Return the graph as known now."""
        ...

    def lexical(self, group: str, scope: SearchScope, query: str, limit: int) -> list[str | Place]:
        """BM25, best first. fact: evidence places; entity: recorded entity ids; episode: (sequence, 0).

        Any text is a query: it is never read as a query language. Retired records are found too,
        because `known_at` may still see them; the view decides what shows.
        """
        ...

    def nearest(self, group: str, scope: SearchScope, vector: Vector, limit: int) -> list[tuple[str, float]]:
        """Exact cosine in [-1, 1], best first. fact: recorded statement ids; entity: recorded ids; episode: str(sequence)."""
        ...

    def find(
        self, group: str, identifier: str
    ) -> list[tuple[Literal["episode", "entity", "statement", "fact"], str]]:
        """Return what bears this id (an episode also by its client id); episodes as their sequence."""
        ...

    def entities_named(self, group: str, name: str) -> list[Entity]:
        """Return the shown entities with this name or alias, case and spacing aside, oldest first."""
        ...

    def episode_rows(self, group: str, known_at: Instant | None = None) -> Iterator[Episode]:
        """Yield the episodes of the dump: committed or failed by `known_at`, not retracted or retried by it; by sequence."""
        ...

    def sequences(
        self, group: str, *, ids: Sequence[str] = (), source: str | None = None, everything: bool = False
    ) -> list[int]:
        """Return the sequences of the rows an operation names, retired ones and those of any state included, sorted."""
        ...

    def surfaces(self, group: str, without: Sequence[int]) -> list[str]:
        """Return the surfaces of all stored mentions, retracted ones too, but those of these sequences; oldest first."""
        ...

    def groups(self) -> list[str]:
        """Return the groups that exist, sorted."""
        ...

    def last_recorded(self, group: str) -> Instant:
        """Return the group's newest record time; 0 for an empty group."""
        ...

    # --- moving a group to another store -----------------------------------------------------

    def export(self, group: str) -> Iterator[Kept]:
        """Yield all that is kept of a group, in the order of `kept`; nothing for a group that is not there.

        To be read by who holds the source (`writing`): what others append meanwhile is left out.
        """
        ...

    def adopt(self, group: str, rows: Iterable[Kept], verify: Callable[[], None]) -> None:
        """Take over what another store exported, in many transactions, inside `writing()`.

        No read and no append finds any of it before all of it is there; then `verify` is called, and where
        it raises, all is taken away again. What a killed process left behind is, too, at the next call.
        Raises StoreError where the group is there, or was and its sequences are used up.
        """
        ...

    def close(self) -> None:
        """Release files and memory; idempotent."""
        ...
