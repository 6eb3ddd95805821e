"""The interface of stores: keep rows, apply changes under a fence, read.

Synchronous: its calls are short and its one writer is one thread. A store knows the record table
(`kgray.kinds`) and no rule of the domain: accepting, retrying, removing and deriving are done above it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kgray.errors import Outrun, Unavailable
from kgray.graph import Entity, Fact
from kgray.kinds import ACCEPTED, EPISODES, EXTRACTED, Key, Kind, Read, Row
from kgray.records import Episode, Operation, Place
from kgray.times import Instant

T = TypeVar("T")
_MOST_READINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """New values for some columns of existing rows; a row that does not exist is skipped.

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
    recorded_at  its record time, which must be past the group's last; None: nothing is recorded (journal)
    rests_on     the group's last record time when it was decided: whatever else was recorded since, it is
                 refused (Outrun), and so it is where its entry was ended by another. None: not said
    clear        True: first delete the group: rows of log kinds up to `sequence` (the entry's own row stays),
                 all rows of other kinds. If nothing but the entry is pending, the group loses its name. Such
                 a change puts nothing but the entry's row: the others may go after it, in portions
    drops, puts, patches    then rows are dropped, put and patched, in this order. Kinds in any order; keys
                 and rows of a kind are distinct
    erases       what is dropped or replaced must not stay readable: `Store.compact` cleans the files (R25)
    durable      False: a power cut (not a kill) may lose it, because a model can be asked again
    """

    group: str
    sequence: int
    ledger: Kind | None
    states: frozenset[int]
    recorded_at: Instant | None = None
    rests_on: Instant | None = None
    clear: bool = False
    drops: Mapping[Kind, Sequence[Key]] = field(default_factory=dict)
    puts: Mapping[Kind, Sequence[Row]] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()
    erases: bool = False
    durable: bool = True

    @property
    def unsettles(self) -> bool:
        """Whether it is counted in `GroupHead.removals`.

        The commit of an episode is not: it happens once, in the order of sequences (R20), and puts words and
        vectors of its own rows, and of names and statements that it first mentions. A statement that had
        a vector, because its evidence is retracted, gets another: that is counted by the store.
        """
        own = self.ledger is EPISODES and self.states <= _OPEN
        return (
            self.clear
            or any(keys and kind.computed for kind, keys in self.drops.items())
            or any(
                kind.computed and not (own and _all_in(kind, found, self.sequence))
                for kind, found in self.puts.items()
                if found
            )
        )


_OPEN = frozenset({ACCEPTED, EXTRACTED})  # the states of an episode that has not ended


def _all_in(kind: Kind, found: Iterable[Row], sequence: int) -> bool:
    """Whether rows of a kind, if it has sequences, bear this one."""
    if "sequence" not in kind.names:
        return True
    place = kind.names.index("sequence")
    return all(row[place] == sequence for row in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHead:
    """A group's counters. named: the group exists; False: it was removed, or never existed (all 0).

    last            the last sequence that was taken
    last_recorded   the newest record time; 0 = nothing was recorded
    removals        how often rows with words or vectors (`Kind.computed`) went, were replaced, or were put by
                    anything but the commit of their episode. While it stays the same, such rows were only
                    added, each by the commit of a sequence that is greater than all that were committed before
    """

    named: bool = False
    last: int = 0
    last_recorded: Instant = 0
    removals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """The counts of one group: entries by state, what is derived from them, calls and tokens so far.

    held    of those accepted and extracted: all, where the group is held, else 0
    """

    accepted: int = 0
    extracted: int = 0
    committed: int = 0
    failed: int = 0
    entities: int = 0
    facts: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    held: int = 0


class Writer(Protocol):
    """Carries out a run's writes: the store itself, or a writer in another process that holds it."""

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Carry out `Store.apply`; durable on return. One batch at a time: the caller awaits each.

        Waits out transient faults (a writer that restarts, a store out of reach) and resends the same batch.
        """


class Appending(Protocol):
    """One transaction that appends to the logs of its groups, which it locks: see `Store.append`.

    Reads do not see what the transaction itself appends.
    """

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a declared read."""

    def take_sequence(self, group: str) -> int:
        """Take the group's next sequence; the group exists from now on, even if it was new or removed."""

    def take_record_time(self, group: str, now: Instant) -> Instant:
        """Take a record time: the clock, or one microsecond past the group's last (R4)."""

    def put(self, kind: Kind, group: str, row: Row) -> None:
        """Append a row of a log kind, or put one of a kind without words or vectors."""

    def patch(self, group: str, patch: Patch) -> None:
        """Change rows that were in the store before this transaction."""

    def drop(self, kind: Kind, group: str, key: Key) -> None:
        """Drop a row that was in the store before this transaction, of a kind without words or vectors."""


class Store(Protocol):
    """Log and graph of many groups. Every call names its group, which is checked in the query.

    Raises StoreError with one clear line for what is wrong with the data folder; Unavailable where
    a server is out of reach.
    """

    schema_version: int  # of the stored data; data of another version is refused
    dimensions: int  # numbers a vector
    batch: int  # most changes that a run applies together: appends wait until they are written
    remote: bool  # calls wait for a server, so a run makes them in another thread

    # --- the log: any process, short transactions ------------------------------------------

    def append(self, groups: Collection[str], work: Callable[[Appending], T]) -> T:
        """Run `work` in one transaction that locks the logs of these groups; durable on return (R19).

        If the transaction must be repeated, `work` is run again; its last result is returned. A transaction
        whose outcome was lost is never carried out twice.
        """

    def pending_groups(self) -> dict[str, bool]:
        """Return the groups with anything accepted or extracted or requested, sorted; True = some of it is live."""

    def newly_pending(self, mark: Instant) -> tuple[dict[str, bool], Instant]:
        """Return those of `pending_groups` to which something was appended since `mark`, and the next mark.

        mark: what the last call returned; 0: all. What an append took long to commit may be missed: ask for
        all now and then. Takes time in proportion to what it returns, not to the groups that there are.
        """

    def withdrawing(self) -> list[str]:
        """Return the groups with a retraction or removal that was requested and not carried out, sorted."""

    def pending(self, group: str, limit: int, *, after: int = 0) -> list[Episode | Operation]:
        """Return what is next in the group's order behind a sequence, at most `limit`."""

    def pending_sequences(self, group: str, after: int, limit: int) -> list[tuple[int, bool]]:
        """Return what is next behind a sequence, at most `limit`: (sequence, whether it is an episode)."""

    def pending_count(self, group: str | None = None, *, most: int = 1 << 62) -> int:
        """Return how many episodes and operations are not ended, in one group or in all that exist.

        most    more need not be counted: the cost grows with it
        """

    def said_before(self, episode: Episode, limit: int) -> list[Episode]:
        """Return the live episodes of its source with the greatest (reference time, sequence), greatest first.

        Only those with a smaller sequence than `episode` and no later reference time (R22).
        """

    # --- the ingesting process --------------------------------------------------------------

    def writing(
        self,
        *,
        epoch: int | None = None,
        shard: int = 0,
        shards: int | None = None,
        shares_folder: bool = False,
    ) -> AbstractContextManager[int]:
        """Hold a shard, or all, for writing; yields the fencing epoch that `apply` is checked against (R23).

        A group has one owner: `shard_of` maps it to one of as many shards as the store says there are. Each
        shard has an epoch of its own. An embedded store may hold several side by side, each in a context of
        its own; one on a server holds one at a time, or all.

        epoch   None: a new one, so that every older writer of the shard is stale; else that one, which must
                still be its newest: for a restarted writer that continues for the run that it served
        shards  how many there are; the store keeps the number, and changes it only while nobody holds one.
                None: take all that there are, or none
        shares_folder   another store in this process holds the data folder's ingest lock: a store on a server
                        relies on its lease alone. An embedded store always holds its folder's

        Raises Locked, naming the holder's pid, where another process holds the data folder or a shard;
        StoreError where others hold shards of another number; StaleWriter where the epoch is not the newest.
        """

    def apply(self, changes: Sequence[RowChanges]) -> None:
        """Apply changes of any groups, in order: one transaction, whole or not at all, durable on return (R23).

        Checks the epoch first (StaleWriter). A change whose entry is not in one of its states is left out, so a
        batch whose outcome is unknown can be applied again. A batch of which no change is `durable` may be
        lost by a power cut. A group that is too large for one transaction is cleared in several; nothing of
        it is readable from the first one on (R27).

        Raises Outrun where a record time is not past its group's last, or what a change rests on is not: another
        process has recorded something (a retry), so the caller must read the state again. StaleWriter for a
        group of a shard that is not held, StoreError for a sequence that was never taken.
        """

    def adopt(
        self, group: str, head: GroupHead, rows: Iterable[tuple[Kind, Row]], verify: Callable[[], None]
    ) -> None:
        """Copy a group in from another store, in many transactions, inside `writing()`.

        rows    of each kind together, kinds in the order of `kinds.KINDS`, rows in their scan's order

        verify  called at the end, and may read the copy; if it raises, the copy is deleted
        Until then, no other read and no append finds any of the group. What a killed process left behind is
        deleted at the next call. Raises StoreError where the group is there, or was and its sequences are used up.
        """

    def compact(self) -> bool:
        """Clean erased bytes out of the files; False where a reader or a server's files prevent it."""

    # --- reading ----------------------------------------------------------------------------

    def reading(self) -> AbstractContextManager[None]:
        """Hold one snapshot for the reads inside it; nests.

        A server may have no snapshots. Then it raises Outrun at the end of the outermost block where a group
        that was scanned inside was recorded to meanwhile, or (where its runs of communities were scanned) such
        a run was published: see `at_one_moment`.
        """

    def heads(self, groups: Collection[str] | None = None) -> dict[str, GroupHead]:
        """Return the counters of each of these groups, or (None) of all that exist, sorted by name."""

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Yield the rows of a declared read, page by page; none for a group that does not exist.

        values: those that are looked up; of a scan, the place behind which it begins
        """

    def everywhere(self, read: Read, values: Sequence[Any] = ()) -> list[tuple[str, Row]]:
        """Return (group, row) of one of `kinds.EVERYWHERE` in all groups, by group: one query."""

    def facts_at(
        self, group: str, entities: Sequence[str], as_of: Instant | None, limit: int | None
    ) -> list[Fact]:
        """Return the facts that hold at `as_of` (None: at any time) whose source or target is one of these.

        Newest `created_at` first, then by id. The cost grows with `limit`, not with an entity's facts.
        """

    def counts(self, group: str | None = None) -> dict[str, GroupCounts]:
        """Return the ledger by group, sorted: episodes that were not retracted or retried, by state.

        A group that is asked for and does not exist has counts of 0.
        """

    def close(self) -> None:
        """Release files and memory; idempotent."""


def shard_of(group: str, shards: int) -> int:
    """Return the shard that owns a group: the same in every process."""
    return zlib.crc32(group.encode()) % shards


def at_one_moment(store: Store, read: Callable[[], T]) -> T:
    """Return what `read` returns inside `Store.reading`; all its reads see one moment.

    Runs `read` again where the store has no snapshots and was written meanwhile (Outrun). Inside another
    `reading` it runs once, because the outer block has to be repeated.
    Raises Unavailable after 20 tries.
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

        In the order asked, each once, at the first id that gives it; those of one id by (valid_at, id). A
        search passes ranked ids and derives ranks from this order.
        """

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[list[Fact]]:
        """Return for each piece of evidence the facts that hold at `as_of` of the statement that it is about.

        By (valid_at, id); none for a piece that this view does not show.
        """

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        """Return facts whose subject or object is one of these entities, newest `created_at` first, then by id."""

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        """Return the facts with these ids."""

    def entities(self, recorded: Sequence[str]) -> list[Entity]:
        """Return the entities that these recorded ids show as, in the order asked, each once."""
        found = (entity for part in self.entities_of(recorded) for entity in part)
        return list({entity.id: entity for entity in found}.values())

    def entities_of(self, recorded: Sequence[str]) -> list[list[Entity]]:
        """Return for each recorded id the entities that it shows as: several after a split, else one or none."""

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        """Return the committed, live episodes with these sequences, in the order asked."""

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Return episode id -> client id."""
