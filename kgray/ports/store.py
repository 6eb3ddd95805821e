"""What the engine asks of a store: keep rows, apply changes under a fence, read, search.

Synchronous: its calls are short and its one writer is one thread. A store knows the record table
(`kgray.kinds`) and no rule of the domain: who accepts, retries, removes and derives works above it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kgray.errors import Outrun, Unavailable
from kgray.graph import Entity, Fact
from kgray.kinds import Key, Kind, Read, Row, SearchScope
from kgray.ports.models import Vector
from kgray.records import Episode, Operation, Place
from kgray.times import Instant

T = TypeVar("T")
_MOST_READINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """New values for some columns of rows that are there; a row that is not there is left out.

    rows    each the key of a row, then the values of `columns`
    """

    kind: Kind
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """What one entry of a group's log changes, row by row: applied whole or not at all (R23).

    sequence     the entry: an episode or an operation
    ledger       the kind of the entry; None: either
    states       the states of the entry in which this applies. In any other, or once the entry was removed, it
                 has been applied before or came too late, and is left out: so a batch can be sent again
    recorded_at  its record time, which must lie past the group's last; None: nothing is recorded (a journal's row)
    clear        first, the group goes whole: rows of log kinds up to `sequence` (the entry's own row stays),
                 all rows of the others. Once nothing is pending besides the entry the group has no name any more
    drops, puts, patches    then rows go, come, change, in this order. Kinds in any order; keys and rows of a
                 kind are distinct
    erases       what goes, or is replaced, may not stay readable: `Store.compact` then cleans the files (R25)
    durable      False: a power cut (not a kill) may lose it, because a model can be asked again
    """

    group: str
    sequence: int
    ledger: Kind | None
    states: frozenset[int]
    recorded_at: Instant | None = None
    clear: bool = False
    drops: Mapping[Kind, Sequence[Key]] = field(default_factory=dict)
    puts: Mapping[Kind, Sequence[Row]] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()
    erases: bool = False
    durable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHead:
    """A group's counters. named: the group exists; else it was removed, or was never there (all 0).

    last            the last sequence that was taken
    last_recorded   the newest record time; 0 = nothing was recorded
    """

    named: bool = False
    last: int = 0
    last_recorded: Instant = 0


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


class Writer(Protocol):
    """Who carries out a run's writes: the store itself, or one in another process that holds it."""

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Carry out `Store.apply`; durable on return. One batch at a time: the caller awaits each.

        Waits out what passes (a writer that restarts, a store out of reach) and sends the same batch again.
        """
        ...


class Appending(Protocol):
    """One transaction that appends to the logs of its groups, which it holds locked: see `Store.append`.

    Reads see what was there when it began, not what it appends itself.
    """

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a declared read."""
        ...

    def take_sequence(self, group: str) -> int:
        """Take the group's next sequence; a group that was not there, or was removed, exists from now on."""
        ...

    def take_record_time(self, group: str, now: Instant) -> Instant:
        """Take a record time: the clock, or one microsecond past the group's last (R4)."""
        ...

    def put(self, kind: Kind, group: str, row: Row) -> None:
        """Append a row of a log kind."""
        ...

    def patch(self, group: str, patch: Patch) -> None:
        """Change rows that were there."""
        ...


class Store(Protocol):
    """Log and graph of many groups. Every call names its group, which is checked in the query.

    Raises StoreError with one clear line for what is wrong with the data folder; Unavailable where
    a server is out of reach.
    """

    schema_version: int  # of what it keeps; another one is refused
    batch: int  # changes that a run sends together at most: whoever appends waits for their end
    remote: bool  # a write waits for a server: another thread may carry it out meanwhile

    # --- the log: any process, short transactions ------------------------------------------

    def append(self, groups: Collection[str], work: Callable[[Appending], T]) -> T:
        """Run `work` in one transaction that holds the logs of these groups; durable on return (R19).

        `work` may be run again where the transaction must be; what it returned last is returned. A transaction
        whose outcome was lost on the way is never carried out twice.
        """
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

    def pending_count(self, group: str | None = None) -> int:
        """Return how many episodes and operations are not ended, in one group or in all that exist."""
        ...

    def said_before(self, episode: Episode, limit: int) -> list[Episode]:
        """Return the live episodes of its source with the greatest (reference time, sequence), greatest first.

        Among those with a smaller sequence whose reference time is not later (R22).
        """
        ...

    # --- the ingesting process --------------------------------------------------------------

    def writing(self, *, epoch: int | None = None, shard: int = 0) -> AbstractContextManager[int]:
        """Hold the store for writing; yields the fencing epoch that `apply` is checked against (R23).

        epoch   None: a new one, so that every older writer is stale; else that one, which must still be the
                store's newest: a writer that was restarted goes on for the run that it served
        shard   each has an epoch of its own; the embedded store has the one

        Raises Locked, naming the holder's pid, where another process holds the data folder; StaleWriter
        where the epoch is not the newest.
        """
        ...

    def apply(self, changes: Sequence[RowChanges]) -> None:
        """Apply changes of any groups, in order: one transaction, whole or not at all, durable on return (R23).

        Checks the epoch first (StaleWriter). A change whose entry is not in one of its states is left out, so a
        batch whose outcome is not known is sent again. A batch of which no change is `durable` may be lost by a
        power cut. A group that is too large for one transaction is cleared in several; nothing of it is
        readable from the first one on (R27).

        Raises Outrun where a record time is not past its group's last: another process has recorded (a
        retry); read the state anew. StoreError for an entry that was never taken.
        """
        ...

    def adopt(
        self, group: str, head: GroupHead, rows: Iterable[tuple[Kind, Row]], verify: Callable[[], None]
    ) -> None:
        """Take over a group from another store, in many transactions, inside `writing()`.

        rows    of each kind together, kinds in the order of `kinds.KINDS`, rows in their scan's order

        No read and no append finds any of it before all of it is there; `verify`, which may read it, is called
        then, and where it raises, all is taken away again. What a killed process left behind goes at the next
        call. Raises StoreError where the group is there, or was and its sequences are used up.
        """
        ...

    def compact(self) -> bool:
        """Make what was erased unreadable in the files; False where a reader prevents it now, or the files are a server's."""
        ...

    # --- reading ----------------------------------------------------------------------------

    def reading(self) -> AbstractContextManager[None]:
        """Hold one snapshot for the reads inside it; nests.

        A server may have no snapshots. Then it raises Outrun at the end of the outermost block where a group
        that was scanned inside was recorded to meanwhile: see `at_one_moment`.
        """
        ...

    def heads(self, groups: Collection[str] | None = None) -> dict[str, GroupHead]:
        """Return the counters of these groups, each of them, or of all that exist, sorted by name."""
        ...

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Yield the rows of a declared read, page by page; nothing for a group that is not there."""
        ...

    def facts_at(
        self, group: str, entities: Sequence[str], as_of: Instant | None, limit: int | None
    ) -> list[Fact]:
        """Return the facts that hold at `as_of` (None: at any time) whose source or target is one of these.

        Newest `created_at` first, then by id. A statement of its own: a hub with 10,000 facts costs what is
        taken of it.
        """
        ...

    def lexical(self, group: str, scope: SearchScope, query: str, limit: int) -> list[str | Place]:
        """BM25, best first. fact: evidence places; entity: recorded entity ids; episode: (sequence, 0).

        Any text is a query: it is never read as a query language. Retired records are found too,
        because `known_at` may still see them; the view decides what shows.
        """
        ...

    def nearest(
        self, group: str, scope: SearchScope, vector: Vector, limit: int
    ) -> list[tuple[str | int, float]]:
        """Exact cosine in [-1, 1], best first. fact: recorded statement ids; entity: recorded ids; episode: sequences."""
        ...

    def counts(self, group: str | None = None) -> dict[str, GroupCounts]:
        """Return the ledger by group, sorted: episodes that were not retracted or retried, by state.

        A group that is asked for and not there counts nothing.
        """
        ...

    def close(self) -> None:
        """Release files and memory; idempotent."""
        ...


def at_one_moment(store: Store, read: Callable[[], T]) -> T:
    """Return what `read` returns inside `Store.reading`, all of it of one moment.

    Runs `read` again where the store was written meanwhile and has no snapshots (Outrun). Inside another
    `reading` it runs once: the outer block is the one that is read again.
    Raises Unavailable after 20 times.
    """
    for _ in range(_MOST_READINGS):
        with suppress(Outrun), store.reading():
            return read()
    raise Unavailable("a group is written faster than it can be read: run it again")


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
