"""The ports: what the engine asks of models (async: they may be behind a network) and of stores.

Arrays: (n, d) means n rows of width d. A store knows the record table (`kgray.kinds`) and no rule of the
domain: accepting, retrying, removing and deriving are done above it. Its calls are short and synchronous.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kgray.errors import Cost, Outrun, Unavailable
from kgray.graph import Entity, Fact
from kgray.kinds import Key, Kind, R, Read, Row
from kgray.kinds import SearchScope as SearchScope
from kgray.records import Episode, Extraction, Place, Spent, canonical
from kgray.row_changes import Patch as Patch
from kgray.row_changes import RowChanges as RowChanges
from kgray.times import Instant

T = TypeVar("T")
Vector = NDArray[np.float32]  # (d,), unit length
Matrix = NDArray[np.float32]  # (n, d), rows of unit length


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One thing that `decide` cannot know by itself; a value, equal by content.

    kind     item                candidates                        answer (`replies` validates it)
    entity   the mention's name  names of entities                 {"duplicate_of": i or None}
    compare  the new sentence    sentences of known statements     {"answers": [word, ...]}, one a candidate

    The words of a comparison:

    same         the item says the same as this candidate; at most one has this word
    contradicts  both cannot be true at one moment
    ends         the item says that this candidate is over: an end, a denial, or an event such as "Alice left
                 Acme" beside "Alice works at Acme"
    independent  anything else

    candidates: by birth, oldest first; an entity that bears the mention's name has that name here, another
    entity the name that it was first given. cards: for entities one text for the mention, then one a candidate
    (name, type, the sentence that introduced it); () for comparisons. Holds only text that can never change
    (R21).
    """

    kind: Literal["entity", "compare"]
    item: str
    candidates: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()

    def brief(self) -> dict[str, Any]:
        """Return the form that a script matches: {"kind", "items"}; items = [item, [candidates]]."""
        return {"kind": self.kind, "items": [self.item, *[list(self.candidates)] * bool(self.candidates)]}


Answer = Mapping[str, Any]  # as in the table of Question


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionRequest:
    """One episode with its previous context (R22), oldest first. No graph state."""

    episode: Episode
    previous: tuple[Episode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRequest:
    """One episode's open questions in one round, or a single one of them (R21)."""

    episode: Episode
    questions: tuple[Question, ...]

    def key(self, judge: str) -> str:
        """Return its key for a judge without prompts, named with its version: 64 hex digits."""
        content = canonical([judge, [asdict(question) for question in self.questions]])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(Spent):
    """Answers in the order of the questions, and what they cost."""

    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """A prompt whose reply is written for a user, or leads to such a reply (points, keywords, follow_up)."""

    task: str
    question: str
    head: str  # of the prompt: instructions
    data: str  # the question and the context, fenced
    room: int  # most tokens of the reply
    max_calls: int | None = None  # of the model; None = any number
    schema: Mapping[str, Any] | None = None  # JSON schema of the reply; None = plain text


class Answerer(Protocol):
    """Answers users' questions."""

    def head(self, task: str) -> str:
        """Return the instructions of a task: the shipped prompt, or the user's own."""

    async def answer(self, request: AnswerRequest, on_text: Callable[[str], None]) -> Cost:
        """Call `on_text` with each piece of the reply; return its cost. Raises as `Extractor.extract` does.

        A reply with a schema is one piece: a JSON object that has the keys which the schema requires.
        """


class Extractor(Protocol):
    """Reads episodes."""

    @property
    def identity(self) -> str:
        """Model, parameters and version; stored with each extraction."""

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return all that the episode says; equal requests need not give the same answer.

        Raises Refused or InvalidAnswer where the episode itself is at fault, Unavailable where the model is.
        """


class Judge(Protocol):
    """Answers the questions of `decide`."""

    identity: str

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key: model, parameters and the bytes of its prompt (R21)."""

    async def judge(self, request: QuestionRequest) -> Judged:
        """Return one validated answer a question. Raises as `Extractor.extract` does."""


class Embedder(Protocol):
    """Texts to unit vectors; equal texts give equal vectors."""

    identity: str  # stored with the data folder, which refuses another
    dimensions: int  # 0 = not known before the first answer

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimensions); (0, dimensions) for no text; a text of no words is still unit length."""


class Embedding(NamedTuple):
    """What an embedder says of a text.

    weights     of its tokens, as `rows.weight_bytes` gives them (b"" = of no words); None: it weighs none.
                How well two texts fit is the sum, over the tokens of both, of the products of their weights
    """

    vector: Vector
    weights: bytes | None = None


Embed = Callable[[Sequence[str]], Awaitable[list[Embedding]]]


@runtime_checkable
class SparseEmbedder(Protocol):
    """An embedder that weighs a text's tokens too: a lexical signal that the model has learnt."""

    async def embed_both(self, texts: Sequence[str]) -> tuple[Matrix, list[bytes]]:
        """Return the vectors as `Embedder.embed` does, and from the same pass the weights of each text."""


async def embedded(embedder: Embedder, texts: Sequence[str]) -> list[Embedding]:
    """Return what an embedder says of each text, in one pass."""
    if isinstance(embedder, SparseEmbedder):
        return [Embedding(*both) for both in zip(*await embedder.embed_both(texts), strict=True)]
    return [Embedding(vector) for vector in await embedder.embed(texts)]


class Reranker(Protocol):
    """A cross-encoder: reads a query and a text together, and says how well they fit."""

    identity: str

    async def score(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (len(texts),): each in [0, 1], 1 = the text answers the query. Raises Unavailable."""


SummaryTask = Literal["community", "community_report", "profile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest:
    """What a model is to summarise."""

    task: SummaryTask
    head: str  # of the prompt: instructions
    data: str  # what is shown, fenced
    room: int  # most tokens of the reply
    facts: tuple[str, ...] = ()  # ids of those that are shown, by their index there


class Summarizer(Protocol):
    """Names and summarises communities, and says what is known of an entity."""

    identity: str  # model and parameters: part of the key of what it wrote

    def head(self, task: str) -> str:
        """Return the instructions of a task: the shipped prompt, or the user's own."""

    async def write(self, request: SummaryRequest) -> tuple[Mapping[str, Any], Cost]:
        """Return a checked reply and what it cost. Raises as `Extractor.extract` does, with what it cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHead:
    """A group's counters."""

    named: bool = False  # it exists; False: it was removed, or never existed (all 0)
    last: int = 0  # the last sequence that was taken
    last_recorded: Instant = 0  # the newest record time; 0 = nothing was recorded
    # How many changes made an index of the group's words and vectors stale (`RowChanges.unsettles`). While it
    # stays the same, words and vectors were only added, by commits in the order of sequences.
    removals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """The counts of one group: entries by state, what is derived from them, calls and tokens so far."""

    accepted: int = 0
    extracted: int = 0
    committed: int = 0
    failed: int = 0
    entities: int = 0
    facts: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    held: int = 0  # of those accepted and extracted: all, where the group is held


class Writer(Protocol):
    """Carries out a run's writes: the store itself, or a writer in another process that holds it."""

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Carry out `Store.apply`, one batch at a time; waits out transient faults and sends the batch again."""


class Appending(Protocol):
    """One transaction of `Store.append`. Reads do not see what the transaction itself appends."""

    def rows(self, read: Read[R], group: str, values: Sequence[Any] = ()) -> list[R]:
        """Return the rows of a declared read."""

    def take_sequence(self, group: str) -> int:
        """Take the group's next sequence; the group exists from now on, even if it was new or removed."""

    def take_record_time(self, group: str, now: Instant) -> Instant:
        """Take a record time: the clock, or one microsecond past the group's last (R4)."""

    def put(self, kind: Kind[R], group: str, row: R) -> None:
        """Append a row of a log kind, or put one of a kind without words or vectors."""

    def patch(self, group: str, patch: Patch) -> None:
        """Change rows that were in the store before this transaction."""

    def drop(self, kind: Kind[Any], group: str, key: Key) -> None:
        """Drop a row that was in the store before this transaction, of a kind without words or vectors."""


class Store(Protocol):
    """Log and graph of many groups. Every call names its group, which is checked in the query.

    Raises StoreError for what is wrong with the data folder; Unavailable where a server is out of reach.
    """

    schema_version: int  # of the stored data; data of another version is refused
    embedder: str  # identity of the embedder of its vectors
    dimensions: int  # numbers a vector
    batch: int  # most changes that a run applies together: appends wait until they are written
    lanes: int  # how many batches, of different groups, it pays to apply side by side
    gather_s: float  # how long a change waits for others of its run to share a transaction, if more may come
    remote: bool  # calls wait for a server, so a run makes them in another thread

    def append(self, groups: Collection[str], work: Callable[[Appending], T]) -> T:
        """Run `work` in one transaction that locks the logs of these groups; durable on return (R19).

        It may run again; its last result is returned. What it appends is never appended twice.
        """

    # Of what is pending, `shard` asks for the groups of one shard, without slots that are being moved; None: all.

    def newly_pending(self, mark: Instant, shard: int | None = None) -> tuple[dict[str, bool], Instant]:
        """Return the groups with anything pending that were appended to since a mark, sorted; and the next mark.

        True: some of it is live. mark: what the last call returned; 0: all. What an append took long to commit
        may be missed: ask for all now and then. Takes time in proportion to the slots and what it returns.
        """

    def withdrawing(self, shard: int | None = None) -> list[str]:
        """Return the groups with a retraction or removal that was requested and not carried out, sorted."""

    def pending_sequences(self, group: str, after: int, limit: int) -> list[tuple[int, bool]]:
        """Return what is next behind a sequence, in the group's order: (sequence, whether it is an episode)."""

    def pending_count(
        self, group: str | None = None, *, shard: int | None = None, most: int = 1 << 62
    ) -> int:
        """Return how many entries are pending, in one group or in all; more than `most` need not be counted."""

    def said_before(self, episodes: Sequence[Episode], limit: int) -> dict[int, list[int]]:
        """Return what the source of each of these episodes of one group said before it, at most `limit` (R22).

        By the sequence of the episode: the sequences of the live episodes of its source, smaller than its own
        and of no later reference time, with the greatest (reference time, sequence), the greatest first.
        """

    def writing(
        self, *, epoch: int | None = None, shard: int = 0, shards: int | None = None, shared: bool = False
    ) -> AbstractContextManager[int]:
        """Hold the slots of a shard, or all, for writing; yields the fencing epoch of the hold (R23).

        Taking a shard ends every move of its slots that is not complete (`moving`). An embedded store may hold
        several shards side by side, each in a context of its own; one on a server holds one at a time, or all.

        epoch   None: a new one, so that every older writer of the shard is stale; else that one, which must
                still be its newest: for a restarted writer that continues for the run that it served
        shards  how many there are; the store keeps the number, and changes it only while nobody holds one:
                then slot n is of shard n % shards. 0: as many as there are. None: take all of them, or none
        shared  of a store on a server: another store in this process holds the data folder's ingest lock

        Raises Locked, naming the holder's pid, where another process holds the data folder or a shard;
        StoreError where others hold shards of another number, or there is no such shard; StaleWriter where the
        epoch is not the newest.
        """

    def shard_map(self) -> ShardMap:
        """Return how many shards there are, and the shard of each slot."""

    def set_shards(self, shards: int) -> None:
        """Add shards without slots, or drop the last ones (StoreError where these have slots); others go on."""

    def moving(self, slots: Collection[int], shard: int) -> AbstractContextManager[None]:
        """Hand slots over to a shard.

        Inside, nobody who asks for the pending work of a shard finds any of theirs, and their owner may still
        write what it has decided. At the end their epochs are raised, and they are the shard's: what the
        former owner sends from then on changes nothing (StaleWriter), and who holds the shard finds what is
        pending. Left by an error, they stay where they were. Those of a process that was killed inside stay
        marked until they are moved again, or their shard is taken.

        Raises StoreError for a shard that cannot be; StaleWriter at the end, where the shard of a slot was
        taken meanwhile.
        """

    def apply(self, changes: Sequence[RowChanges], *, epoch: int | None = None) -> None:
        """Apply changes of any groups, in order: one transaction, whole or not at all, durable on return (R23).

        It locks the slots of their groups, so several threads may apply changes of different groups side by
        side, as far as `lanes` says that it pays. epoch: of the hold under which they were decided; None: of
        any hold of this store.

        A change whose entry is not in one of its states is left out, so a batch can be applied again. A batch of
        which no change is `durable` may be lost by a power cut. A group that is too large for one transaction
        is cleared in several; nothing of it is readable from the first one on (R27).

        Raises StaleWriter, before all else, where a group's slot is not held, or by another meanwhile; Outrun
        where a record time is not past its group's last, or what a change rests on is not: another process
        has recorded something (a retry), so the caller reads the state again; StoreError for a sequence that
        was never taken.
        """

    def adopt(
        self, group: str, head: GroupHead, rows: Iterable[tuple[Kind[Any], Row]], verify: Callable[[], None]
    ) -> None:
        """Copy a group in from another store, in many transactions, inside `writing()`.

        rows    of each kind together, kinds in the order of `kinds.KINDS`, rows in their scan's order
        verify  called at the end, and may read the copy; if it raises, the copy is deleted
        Until then, no other read and no append finds any of the group. What a killed process left behind is
        deleted at the next call. Raises StoreError where the group is there, or was and its sequences are used up.
        """

    def compact(self) -> bool:
        """Clean erased bytes out of the files; False where a reader or a server's files prevent it."""

    def reading(self, *, still: bool = False) -> AbstractContextManager[None]:
        """Hold one snapshot for the reads inside it; nests.

        A server without snapshots raises Outrun at the end of the outermost block where a group that was scanned
        inside was recorded to meanwhile, or (if its runs of communities were) a run published: `at_one_moment`.
        still: instead, writes to a group wait there from its first scan to the end of the block
        """

    def heads(self, groups: Collection[str] | None = None) -> dict[str, GroupHead]:
        """Return the counters of each of these groups, or (None) of all that exist, sorted by name."""

    def rows(self, read: Read[R], group: str, values: Sequence[Any] = ()) -> Iterator[R]:
        """Yield the rows of a declared read, page by page; none for a group that does not exist.

        values  those that are looked up; of a scan, the place behind which it begins
        """

    def everywhere(self, read: Read[R], values: Sequence[Any] = ()) -> Iterator[tuple[str, R]]:
        """Yield (group, row) of one of `reads.EVERYWHERE`, of all groups by name, in one query.

        values  those that are looked up; a scan has none
        """

    def facts_at(
        self, group: str, entities: Sequence[str], as_of: Instant | None, limit: int | None
    ) -> list[Fact]:
        """Return the facts that hold at `as_of` (None: at any time) whose source or target is one of these.

        Newest `created_at` first, then by id. The cost grows with `limit`, not with an entity's facts.
        """

    def counts(self, group: str | None = None) -> dict[str, GroupCounts]:
        """Return the ledger by group, sorted: episodes that were not retracted or retried, by state.

        A group that is asked for and does not exist has counts of 0. `held` is 0: see `ledger.counts`.
        """

    def close(self) -> None:
        """Release files and memory; idempotent."""


SLOTS = 1024


class ShardMap(NamedTuple):
    """How the slots are divided: the number of shards, and the shard of each slot."""

    shards: int
    owners: Sequence[int]


def slot_of(group: str) -> int:
    """Return the slot that a group lies in: the same in every process. The store says whose it is."""
    return zlib.crc32(group.encode(errors="surrogatepass")) % SLOTS


def at_one_moment(store: Store, read: Callable[[], T]) -> T:
    """Return what `read` returns inside `Store.reading`; all its reads see one moment.

    Run again where a store without snapshots was written meanwhile, the fourth time while its writers wait;
    inside another `reading` once, because the outer block has to be repeated. Raises Unavailable.
    """
    for attempt in range(6):
        with suppress(Outrun), store.reading(still=attempt > 2):
            return read()
    raise Unavailable("a group is written faster than it can be read: run it again")


class GraphView(Protocol):
    """The derived graph of one group, as known at one moment; recorded ids go in, shown rows come out.

    An id that it shows stands for itself (a split may have made it); one that it does not show gives no row.
    as_of None = at any time. Facts of one id or piece of evidence are by (valid_at, id).
    """

    group: str

    def facts_of(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        """Return the facts at `as_of` of the statements that these recorded ids show as: ranked as asked, each once."""

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[list[Fact]]:
        """Return for each piece of evidence the facts that hold at `as_of` of the statement that it is about."""

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        """Return facts whose subject or object is one of these entities, newest `created_at` first, then by id."""

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        """Return the facts with these ids."""

    def entities(self, recorded: Sequence[str]) -> list[Entity]:
        """Return the entities that these recorded ids show as, in the order asked, each once."""
        found = (entity for part in self.entities_of(recorded) for entity in part)
        return list({entity.id: entity for entity in found}.values())

    def entities_named(self, name: str) -> list[Entity]:
        """Return the entities shown with this name or alias (ignoring case and spacing), oldest first."""

    def entities_of(self, recorded: Sequence[str]) -> list[list[Entity]]:
        """Return for each recorded id the entities that it shows as: several after a split, else one or none."""

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        """Return the committed, live episodes with these sequences, in the order asked."""

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Return episode id -> client id."""
