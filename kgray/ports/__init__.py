"""The ports: interfaces of models (async: they may be behind a network) and of stores.

Arrays: (n, d) means n rows of width d. A store knows the record table (`kgray.schema.kinds`) but no rule of the
domain: accepting, retrying, removing and deriving happen above it. Its calls are short and synchronous.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import Episode, Extraction, Place, Spent, canonical
from kgray.domain.times import Instant
from kgray.errors import Cost, Outrun, Unavailable
from kgray.schema.kinds import Key, Kind, R, Read, Row
from kgray.schema.kinds import SearchScope as SearchScope
from kgray.schema.row_changes import Patch as Patch
from kgray.schema.row_changes import RowChanges as RowChanges

T = TypeVar("T")
Vector = NDArray[np.float32]  # (d,), unit length
Matrix = NDArray[np.float32]  # (n, d), rows of unit length


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question that `decide` cannot answer by itself; a value, equal by content.

    kind     item                candidates                        answer (`replies` validates it)
    entity   the mention's name  names of entities                 {"duplicate_of": i or None}
    compare  the new sentence    sentences of known statements     {"answers": [word, ...]}, a word for each candidate

    The words of a comparison:

    same         the item says the same as this candidate; at most one candidate has this word
    contradicts  both cannot be true at the same moment
    ends         the item says that this candidate is over: an end, a denial, or an event such as "Alice left
                 Acme" against "Alice works at Acme"
    independent  anything else

    candidates: by birth, oldest first; an entity with the mention's name is listed by that name, another
    entity by its first name. cards: for entities a text for the mention, then a text for each candidate
    (name, type, the sentence that introduced it); () for comparisons. All text is immutable (R21).
    """

    kind: Literal["entity", "compare"]
    item: str
    candidates: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()

    def brief(self) -> dict[str, Any]:
        """Return the form for scripts to match: {"kind", "items"}; items = [item, [candidates]]."""
        return {"kind": self.kind, "items": [self.item, *[list(self.candidates)] * bool(self.candidates)]}


Answer = Mapping[str, Any]  # see the table of Question


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionRequest:
    """An episode with its previous context (R22), oldest first. No graph state."""

    episode: Episode
    previous: tuple[Episode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRequest:
    """An episode's open questions in a round, or a single question of them (R21)."""

    episode: Episode
    questions: tuple[Question, ...]

    def key(self, judge: str) -> str:
        """Return the request's key for a judge without prompts (its name and version): 64 hex digits."""
        content = canonical([judge, [asdict(question) for question in self.questions]])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(Spent):
    """Answers in the order of the questions, and their cost."""

    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """A prompt with a reply for a user, or with an intermediate reply (points, keywords, follow_up)."""

    task: str
    question: str
    head: str  # the prompt's instructions
    data: str  # the question and the context, fenced
    room: int  # maximum tokens of the reply
    max_calls: int | None = None  # model calls; None = any number
    schema: Mapping[str, Any] | None = None  # JSON schema of the reply; None = plain text


class Answerer(Protocol):
    """Answers users' questions."""

    def head(self, task: str) -> str:
        """Return the instructions of a task: the shipped prompt, or the user's prompt."""

    async def answer(self, request: AnswerRequest, on_text: Callable[[str], None]) -> Cost:
        """Call `on_text` with each piece of the reply; return its cost. Raises the errors of `extract`.

        A reply with a schema is a single piece: a JSON object with the required keys of the schema.
        """


class Extractor(Protocol):
    """Reads episodes."""

    @property
    def identity(self) -> str:
        """Model, parameters and version; stored with each extraction."""

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return all statements of the episode; equal requests may have different results.

        Raises Refused or InvalidAnswer for a fault of the episode, Unavailable for a fault of the model.
        """


class Judge(Protocol):
    """Answers the questions of `decide`."""

    identity: str

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key: model, parameters and the bytes of its prompt (R21)."""

    async def judge(self, request: QuestionRequest) -> Judged:
        """Return a validated answer to each question. Raises the errors of `Extractor.extract`."""


class Embedder(Protocol):
    """Texts to unit vectors; equal texts give equal vectors."""

    identity: str  # stored in the data folder, which refuses other embedders
    dimensions: int  # 0 = not known before the first answer

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimensions); (0, dimensions) for no text; a text of no words is still unit length."""


class Embedding(NamedTuple):
    """The embedding of a text.

    weights     of its tokens, from `rows.weight_bytes` (b"" = no words); None: the embedder has no weights.
                The similarity of two texts is the sum of the products of weights over their shared tokens
    """

    vector: Vector
    weights: bytes | None = None


Embed = Callable[[Sequence[str]], Awaitable[list[Embedding]]]


@runtime_checkable
class SparseEmbedder(Protocol):
    """An embedder that also weighs a text's tokens: a learnt lexical signal."""

    async def embed_both(self, texts: Sequence[str]) -> tuple[Matrix, list[bytes]]:
        """Return the vectors of `Embedder.embed` and, from the same pass, the weights of each text."""


class Reranker(Protocol):
    """A cross-encoder: reads a query and a text together, and scores their fit."""

    identity: str

    async def score(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (len(texts),): each in [0, 1], 1 = the text answers the query. Raises Unavailable."""


SummaryTask = Literal["community", "community_report", "profile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest:
    """A request for a summary by a model."""

    task: SummaryTask
    head: str  # the prompt's instructions
    data: str  # the input, fenced
    room: int  # maximum tokens of the reply
    facts: tuple[str, ...] = ()  # ids of the facts in the input, by their index there


class Summarizer(Protocol):
    """Names and summarises communities, and writes profiles of entities."""

    identity: str  # model and parameters: part of the key of its texts

    def head(self, task: str) -> str:
        """Return the instructions of a task: the shipped prompt, or the user's prompt."""

    async def write(self, request: SummaryRequest) -> tuple[Mapping[str, Any], Cost]:
        """Return a checked reply and its cost. Raises the errors of `Extractor.extract`, with their cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHead:
    """A group's counters."""

    named: bool = False  # it exists; False: it was removed, or never existed (all 0)
    last: int = 0  # the last used sequence
    last_recorded: Instant = 0  # the newest record time; 0 = nothing was recorded
    # The number of changes that made an index of the group's words and vectors stale (`RowChanges.unsettles`).
    # While it is the same, words and vectors were only added, by commits in the order of sequences.
    removals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """The counts of a group: entries by state, derived entities and facts, calls and tokens so far."""

    accepted: int = 0
    extracted: int = 0
    committed: int = 0
    failed: int = 0
    entities: int = 0
    facts: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    held: int = 0  # accepted and extracted entries of a held group


class Writer(Protocol):
    """Carries out a run's writes: the store itself, or a writer in the process that has the store open."""

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Carry out `Store.apply`, a batch at a time; after a transient fault, wait and send the batch again."""


class Appending(Protocol):
    """A transaction of `Store.append`. Reads do not see rows that the transaction itself appends."""

    def rows(self, read: Read[R], group: str, values: Sequence[Any] = ()) -> list[R]:
        """Return the rows of a declared read."""

    def take_sequence(self, group: str) -> int:
        """Take the group's next sequence; a new or removed group exists from now on."""

    def take_record_time(self, group: str, instant: Instant) -> Instant:
        """Take a record time: the instant, but at least one microsecond after the group's last (R4)."""

    def put(self, kind: Kind[R], group: str, row: R) -> None:
        """Append a row of a log kind, or put a row of a kind without words or vectors."""

    def patch(self, group: str, patch: Patch) -> None:
        """Change rows that were in the store before this transaction."""

    def drop(self, kind: Kind[Any], group: str, key: Key) -> None:
        """Drop a row that was in the store before this transaction, of a kind without words or vectors."""


class Store(Protocol):
    """Log and graph of many groups. Every call names its group, which is checked in the query.

    Raises StoreError for a fault of the data folder; Unavailable if a server cannot be reached.
    """

    schema_version: int  # of the stored data; data of another version is refused
    embedder: str  # identity of the embedder of its vectors
    dimensions: int  # numbers in a vector
    batch: int  # maximum changes that a run applies together: appends wait until they are written
    lanes: int  # useful number of batches, of different groups, applied at the same time
    gather_s: float  # time that a change waits for others of its run to share a transaction, if more may come
    remote: bool  # calls wait for a server, so a run makes them in another thread

    def append(self, groups: Collection[str], work: Callable[[Appending], T]) -> T:
        """Run `work` in a transaction that locks the logs of these groups; durable on return (R19).

        It may run again; its last result is returned. Its rows are never appended twice.
        """

    # For pending work, `shard` selects the groups of a shard, without slots that are being moved; None: all.

    def newly_pending(self, mark: Instant, shard: int | None = None) -> tuple[dict[str, bool], Instant]:
        """Return the groups with pending entries that were appended to since a mark, sorted; and the next mark.

        True: some entries are live. mark: from the last call; 0: all. Entries of an append that took long to
        commit may be missed: request all from time to time. The time grows with the slots and the result.
        """

    def withdrawing(self, shard: int | None = None) -> list[str]:
        """Return the groups with a pending retraction or removal, sorted."""

    def pending_sequences(self, group: str, sequence: int, limit: int) -> list[tuple[int, bool]]:
        """Return the pending entries after a sequence, in order: (sequence, whether it is an episode)."""

    def pending_count(
        self, group: str | None = None, *, shard: int | None = None, most: int = 1 << 62
    ) -> int:
        """Return the number of pending entries, in a group or in all; counting may stop at `most`."""

    def said_before(self, episodes: Sequence[Episode], limit: int) -> dict[int, list[int]]:
        """Return the earlier episodes in the source of each of these episodes of a group, at most `limit` (R22).

        The result maps the sequence of an episode to sequences of live episodes of its source: they have a
        smaller sequence and no later reference time; the greatest (reference time, sequence) come first.
        """

    def writing(
        self, *, epoch: int | None = None, shard: int = 0, shards: int | None = None, shared: bool = False
    ) -> AbstractContextManager[int]:
        """Lock the slots of a shard, or all, for writing; yields the fencing epoch of the lock (R23).

        Locking a shard ends every incomplete move of its slots (`moving`). An embedded store may lock several
        shards at the same time, each in its own context; a store on a server locks a single shard, or all.

        epoch   None: a new epoch, so that every older writer of the shard is stale; else an epoch that must
                still be the newest: for a restarted writer that continues for its run
        shards  the number of shards; the store keeps it, and changes it only while no shard is locked:
                then slot n belongs to shard n % shards. 0: the stored number. None: lock all shards, or none
        shared  on a server: another store in this process holds the data folder's ingest lock

        Raises Locked, with the holder's pid, if another process has locked the data folder or a shard;
        StoreError if other locks are for another number of shards, or the shard does not exist; StaleWriter
        if the epoch is not the newest.
        """

    def shard_map(self) -> ShardMap:
        """Return the number of shards, and the shard of each slot."""

    def set_shards(self, shards: int) -> None:
        """Add shards without slots, or drop the last shards (StoreError if these have slots); others continue."""

    def moving(self, slots: Collection[int], shard: int) -> AbstractContextManager[None]:
        """Move slots to a shard.

        Inside the block, no shard sees their pending work, and their owner may still write its decisions. At
        the end their epochs are raised, and they belong to the shard: later writes of the former owner change
        nothing (StaleWriter), and the holder of the shard sees the pending work. If the block fails, the slots
        do not move. If the process is killed inside, they stay marked until they are moved again, or until
        their shard is locked.

        Raises StoreError for an impossible shard; StaleWriter at the end, if the shard of a slot was locked
        in between.
        """

    def apply(self, changes: Sequence[RowChanges], *, epoch: int | None = None) -> None:
        """Apply changes of any groups, in order, in a transaction: all or none, durable on return (R23).

        It locks the slots of their groups, so several threads may apply changes of different groups at the
        same time; `lanes` is the useful number. epoch: of the lock under which they were decided; None: of any
        lock of this store.

        A change is skipped if its `states` lack the state of its entry, so a batch can be applied again. A power
        cut may lose a batch without a `durable` change. A group that is too large for a transaction is cleared
        in several transactions; after the first, none of its rows is readable (R27).

        Raises StaleWriter, before other errors, if a group's slot is not locked, or is locked by another
        process; Outrun if a record time is not later than its group's last, or the base of a change is stale:
        another process has recorded rows (a retry), so the caller reads the state again; StoreError for a
        sequence that was never taken.
        """

    def adopt(
        self, group: str, head: GroupHead, rows: Iterable[tuple[Kind[Any], Row]], verify: Callable[[], None]
    ) -> None:
        """Copy a group from another store into this store, in many transactions, inside `writing()`.

        rows    grouped by kind, kinds in the order of `kinds.KINDS`, rows in their scan's order
        verify  called at the end, and may read the copy; if it raises, the copy is deleted
        Before the end, no other read or append sees the group. The partial copy of a killed process is deleted
        at the next call. Raises StoreError if the group exists, or existed and its sequences are used up.
        """

    def compact(self) -> bool:
        """Clean erased bytes out of the files; False if a reader or a server's files prevent it."""

    def reading(self, *, still: bool = False) -> AbstractContextManager[None]:
        """Keep a snapshot for the reads inside the block; may be nested.

        A server without snapshots raises Outrun at the end of the outermost block if a scanned group was
        written in between, or (if its community runs were scanned) a run was published: see `at_one_moment`.
        still: instead, writes to a group wait from its first scan to the end of the block
        """

    def heads(self, groups: Collection[str] | None = None) -> dict[str, GroupHead]:
        """Return the counters of each of these groups, or (None) of all existing groups, sorted by name."""

    def rows(self, read: Read[R], group: str, values: Sequence[Any] = ()) -> Iterator[R]:
        """Yield the rows of a declared read, page by page; none for a group that does not exist.

        values  the keys to look up; for a scan, the position after which it begins
        """

    def everywhere(self, read: Read[R], values: Sequence[Any] = ()) -> Iterator[tuple[str, R]]:
        """Yield (group, row) of a read in `reads.EVERYWHERE`, of all groups by name, in a single query.

        values  the keys to look up; a scan has no values
        """

    def facts_at(
        self, group: str, entities: Sequence[str], as_of: Instant | None, limit: int | None
    ) -> list[Fact]:
        """Return the facts at `as_of` (None: at any time) whose source or target is among these entities.

        Newest `created_at` first, then by id. The cost grows with `limit`, not with an entity's facts.
        """

    def counts(self, group: str | None = None) -> dict[str, GroupCounts]:
        """Return the ledger by group, sorted: episodes that were not retracted or retried, by state.

        A named group that does not exist has counts of 0. `held` is 0: see `ledger.counts`.
        """

    def close(self) -> None:
        """Release files and memory; idempotent."""


class GraphView(Protocol):
    """The derived graph of a group, as known at a moment; recorded ids resolve to current rows.

    A current id resolves to itself (a split may have created it); an id that is not current gives no row.
    as_of None = at any time. Facts of an id or a piece of evidence are sorted by (valid_at, id).
    """

    group: str

    def facts_of(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        """Return the facts at `as_of` of the statements of these recorded ids, in their order, each once."""

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[list[Fact]]:
        """Return for each piece of evidence the facts at `as_of` of its statement."""

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        """Return facts whose source or target is among these entities, newest `created_at` first, then by id."""

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        """Return the facts with these ids."""

    def entities(self, recorded: Sequence[str]) -> list[Entity]:
        """Return the current entities of these recorded ids, in their order, each once."""
        entities = (entity for part in self.entities_of(recorded) for entity in part)
        return list({entity.id: entity for entity in entities}.values())

    def entities_named(self, name: str) -> list[Entity]:
        """Return the entities with this name or alias (ignoring case and spacing), oldest first."""

    def entities_of(self, recorded: Sequence[str]) -> list[list[Entity]]:
        """Return for each recorded id its current entities: several after a split, else one or none."""

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        """Return the committed, live episodes with these sequences, in this order."""

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Return episode id -> client id."""


class ShardMap(NamedTuple):
    """The division of the slots: the number of shards, and the shard of each slot."""

    shards: int
    owners: Sequence[int]


def at_one_moment(store: Store, read: Callable[[], T]) -> T:
    """Run `read` inside `Store.reading`, so that all its reads see the same moment; return its result.

    Repeat it if a store without snapshots was written in between, from the fourth time while writers wait;
    inside another `reading` run it once, because the outer block must be repeated. Raises Unavailable.
    """
    for attempt in range(6):
        with suppress(Outrun), store.reading(still=attempt > 2):
            return read()
    raise Unavailable("a group is written faster than it can be read: run it again")
