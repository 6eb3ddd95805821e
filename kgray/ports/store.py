"""What the engine asks of a store. Synchronous: its calls are short and its one writer is one thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from kgray.graph import Entity, Fact
from kgray.kept import Kept
from kgray.ports.models import Answer, Vector
from kgray.ports.writes import Acceptance, FailedEpisode, GroupCounts, Write
from kgray.records import Draft, Episode, Extraction, GroupRecords, Operation, Place
from kgray.times import Instant


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

    schema_version: int  # of what it keeps; a newer one is refused
    batch: int  # writes that a run sends together at most: whoever appends waits for their end
    remote: bool  # a write waits for a server: another thread may carry it out meanwhile

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

    def pending(self, group: str, limit: int, *, after: int = 0) -> list[Episode | Operation]:
        """Return what is next in the group's order behind a sequence, at most `limit`."""
        ...

    def pending_sequences(self, group: str, after: int, limit: int) -> list[tuple[int, bool]]:
        """Return what is next behind a sequence, at most `limit`: (sequence, whether it is an episode)."""
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
        """Make what was erased unreadable in the files; False where a reader prevents it now, or the files are a server's."""
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

    def last_recorded_of(self, groups: Collection[str]) -> dict[str, Instant]:
        """Return the newest record time of each of these groups, 0 for an empty one: one question for all."""
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
