"""The common part of both stores: transactions, the right to write, counts, copies into a store, refusals.

A store supplies the abstract methods of a `Transaction`, which decides which changes apply (R21, R23, R24).
It combines consecutive changes, of any entries and groups, into one batch. A change that erases rows, or
clears its group, gets a batch of its own.

A process has the right to write to a slot (R23). Each group lies in one of `SLOTS` slots, chosen by a hash of
its name. The row of a slot names its shard and an epoch. Taking a shard raises the epochs of its slots, and
moving a slot raises its epoch. A write locks the rows of its groups' slots, and compares their epochs with
the epochs that the writer knows. Therefore two writes of different slots do not wait for each other, and a
late write of an earlier owner changes nothing.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby, starmap
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from kgray.domain.times import Instant
from kgray.errors import Outrun, StaleWriter, StoreError, Unwritable
from kgray.ports import Appending, GroupCounts, Patch, RowChanges
from kgray.schema.kinds import EPISODES, OPERATIONS, WITHDRAWN, Key, Kind, Row
from kgray.schema.rows import STATES

SLOTS = 1024
EVERY_SEQUENCE = (1 << 63) - 1
_PORTION_BYTES = 4 << 20  # of texts and vectors in a transaction that copies
_ENDED = {EPISODES: "ended_at", OPERATIONS: "recorded_at"}
RowName = tuple[str, Key]  # group, key
_State = tuple[int, Instant | None]  # state of an entry, and the time of its end
States = dict[tuple[Kind[Any], str, int], _State]  # by ledger, group, sequence


@dataclass(slots=True, kw_only=True)
class Counters:
    """A locked group's counters, as a transaction advances them; see `ports.GroupHead`."""

    asked: str  # the group's name in the request, also if the store has no such group
    named: bool = False  # the store has a readable group of this name; False: removed, or none yet
    last: int = 0
    last_recorded: Instant = 0
    removals: int = 0
    appended: bool = False  # it has new pending entries


_Group = TypeVar("_Group", bound=Counters)


@dataclass(slots=True)
class CombinedBatch:
    """Several changes as one: each row at most once. erases: old bytes must not stay readable (R25)."""

    drops: defaultdict[Kind[Any], dict[RowName, None]] = field(default_factory=lambda: defaultdict(dict))
    puts: defaultdict[Kind[Any], dict[RowName, Row]] = field(default_factory=lambda: defaultdict(dict))
    patches: defaultdict[Kind[Any], dict[RowName, dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    erases: bool = False

    def add(self, change: RowChanges) -> None:
        """Add the drops, puts and patches of a change."""
        self.erases |= change.erases
        for kind, keys in change.drops.items():
            for key in keys:
                self.drop(kind, change.group, tuple(key))
        for kind, rows in change.puts.items():
            for row in rows:
                self.put(kind, change.group, row)
        for patch in change.patches:
            self.patch(change.group, patch)

    def state(self, change: RowChanges, stored: _State | None) -> _State | tuple[None, None]:
        """Return the state of a change's entry after the added changes; stored: before them."""
        ledger, name = change.ledger, (change.group, (change.sequence,))
        if (row := self.puts[ledger].get(name)) is not None:
            entry: Any = row
            return entry.state, getattr(entry, _ENDED[ledger])
        if stored is None or name in self.drops[ledger]:
            return None, None
        patched = self.patches[ledger].get(name, {})
        return patched.get("state", stored[0]), patched.get(_ENDED[ledger], stored[1])

    def drop(self, kind: Kind[Any], group: str, key: Key) -> None:
        self.puts[kind].pop((group, key), None)
        self.patches[kind].pop((group, key), None)
        self.drops[kind][group, key] = None

    def put(self, kind: Kind[Any], group: str, row: Row) -> None:
        name = (group, kind.key_of(row))
        if kind.first_wins:
            self.puts[kind].setdefault(name, row)
            return
        # A replaced row is not dropped first, so that its relationships stay.
        self.drops[kind].pop(name, None)
        self.patches[kind].pop(name, None)
        self.puts[kind][name] = row

    def patch(self, group: str, patch: Patch) -> None:
        """Add a patch; if the batch puts the row, change the row instead."""
        kind, width = patch.kind, len(patch.kind.key)
        for row in patch.rows:
            name, new = (group, row[:width]), dict(zip(patch.columns, row[width:], strict=True))
            put = self.puts[kind].get(name)
            if put is None or kind.first_wins:
                self.patches[kind].setdefault(name, {}).update(new)
            if put is not None:
                self.puts[kind][name] = kind.row(
                    *(new.get(column, value) for column, value in zip(kind.names, put, strict=True))
                )


class Transaction(CombinedBatch, Appending, Generic[_Group]):
    """An open write transaction that has locked its groups.

    For `Store.apply`, `carry_out` combines and writes the changes. For `Store.append`, the transaction is
    itself the batch: the methods of `ports.Appending` add to it, and `finish` writes it.
    """

    def __init__(self, groups: Mapping[str, _Group]) -> None:
        super().__init__()
        self.groups = groups
        self._numbered: dict[str, _Group] = {}

    @abstractmethod
    def states(self, entries: Sequence[tuple[str, int]]) -> States:
        """Return the states of the entries (group, sequence) that exist."""

    @abstractmethod
    def clear(self, group: _Group, sequence: int) -> None:
        """Delete, or begin to delete, all rows of a group, but log rows only before `sequence` (R27)."""

    @abstractmethod
    def write(
        self, batch: CombinedBatch, *, counters: Sequence[_Group] = (), settled: Sequence[str] = ()
    ) -> None:
        """Drop, patch and put rows; then write back the counters of these groups.

        settled: groups with ended entries: at the end, note for each whether any entry is still pending
        """

    def carry_out(self, changes: Sequence[RowChanges], stored: States | None = None) -> None:
        """Write the changes of `Store.apply` that still apply, and the counters of their groups.

        stored: the states of the entries before the changes, if they are read already
        """
        former = {name: replace(group) for name, group in self.groups.items()}
        batch, is_first = CombinedBatch(), True
        for alone, members in groupby(changes, lambda change: change.erases or change.clear):
            together = list(members)
            for segment in [[change] for change in together] if alone else [together]:
                if not is_first:
                    self.write(batch)
                    batch, stored = CombinedBatch(), None
                is_first = False
                if stored is None:
                    stored = self.states(entries_of(segment))
                for change in segment:
                    self._collect(change, batch, stored)
        advanced = [group for name, group in self.groups.items() if group != former[name]]
        ended = {c.group for c in changes if c.recorded_at is not None or c.ledger is not EPISODES}
        self.write(batch, counters=advanced, settled=sorted(ended))

    def _collect(self, change: RowChanges, batch: CombinedBatch, stored: States) -> None:
        """Add a change to the batch if it still applies. Raises Outrun for an outdated graph or time."""
        group = self.groups.get(change.group)
        state, ended_at = batch.state(change, stored.get((change.ledger, change.group, change.sequence)))
        last = 0 if group is None else group.last
        if group is None or (state is None and change.sequence > last):
            why = f"its last is {last}" if last else "it is empty"
            raise Unwritable(f"group {change.group!r} has no such sequence as {change.sequence}: {why}")
        if state not in change.states:
            if change.rests_on is not None and ended_at != change.recorded_at:
                raise _outrun(change)
            return  # applied before, or too late
        if change.recorded_at is not None:
            rests_on = group.last_recorded if change.rests_on is None else change.rests_on
            if change.recorded_at <= group.last_recorded or rests_on != group.last_recorded:
                raise _outrun(change)
            group.last_recorded = change.recorded_at
        group.removals += change.unsettles
        if change.clear:
            self.clear(group, change.sequence)
        batch.add(change)

    def take_sequence(self, group: str) -> int:
        counters = self._numbered_group(group)
        counters.named = counters.appended = True
        counters.last += 1
        return counters.last

    def take_record_time(self, group: str, instant: Instant) -> Instant:
        counters = self._numbered_group(group)
        counters.last_recorded = max(instant, counters.last_recorded + 1)
        return counters.last_recorded

    def _numbered_group(self, group: str) -> _Group:
        if group not in self.groups:
            raise StoreError(f"this transaction does not hold group {group!r}")
        return self._numbered.setdefault(group, self.groups[group])

    def finish(self) -> bool:
        """Write the appended rows; return True if there are any."""
        self.write(self, counters=list(self._numbered.values()))
        rows_by_kind = (self.drops, self.puts, self.patches)
        return bool(self._numbered) or any(rows for by_kind in rows_by_kind for rows in by_kind.values())


def entries_of(changes: Iterable[RowChanges]) -> list[tuple[str, int]]:
    """Return the (group, sequence) of the entries of changes, each once, sorted."""
    return sorted({(change.group, change.sequence) for change in changes})


def _outrun(change: RowChanges) -> Outrun:
    return Outrun(
        f"sequence {change.sequence} of group {change.group!r} was decided for record time "
        f"{change.recorded_at}, but the group or this entry has changed since: nothing was changed; "
        f"run it again"
    )


def counted(states: Iterable[Sequence[Any]], sums: Iterable[Sequence[Any]]) -> dict[str, GroupCounts]:
    """Return counts by group, sorted. states: rows of (group, state, number of episodes).

    sums: rows of (group, the remaining fields of GroupCounts in their order); rows of a group are added up.
    """
    # Withdrawn episodes are retired, so `states` has none.
    sum_fields = [each.name for each in fields(GroupCounts) if each.name not in {*STATES[:WITHDRAWN], "held"}]
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for group, *numbers in sums:
        totals[group].update(dict(zip(sum_fields, numbers, strict=True)))
    for group, state, number in states:
        totals[group][STATES[state]] = number
    return {group: GroupCounts(**totals[group]) for group in sorted(totals)}


def portions(rows: Iterable[tuple[Kind[Any], Row]], size: int) -> Iterator[tuple[Kind[Any], list[Row]]]:
    """Yield the rows in order, in portions of one kind, of at most `size` rows and about _PORTION_BYTES."""
    for kind, rows_of_kind in groupby(rows, itemgetter(0)):
        portion, weight = list[Row](), 0
        for _, row in rows_of_kind:
            portion.append(row)
            weight += sum(len(value) for value in row if isinstance(value, str | bytes))
            if len(portion) == size or weight > _PORTION_BYTES:
                yield kind, portion
                portion, weight = [], 0
        if portion:
            yield kind, portion


def refuse_existing(location: object, group: Counters) -> StoreError:
    """Return the refusal to copy a group into a store that has it, or had it."""
    used = f"was there and was removed: its {group.last} sequences are never used again"
    why = "is there already" if group.named else used
    return StoreError(f"group {group.asked!r} in {location} {why}; a copy needs a store that never had it")


def stale(location: object, newest: object, epoch: int | None) -> StaleWriter:
    """Return the refusal of a writer that does not hold the store; epoch: its former epoch."""
    why = "this process does not ingest it" if epoch is None else f"{epoch} was superseded"
    return StaleWriter(f"{location} is at epoch {newest}, and {why}: nothing was changed; run it again")


def check_version(location: object, stored: int, ours: int) -> None:
    """Raise StoreError for data of another schema."""
    written = f"kgray (schema {stored}; this one knows {ours})"
    if stored > ours:
        raise StoreError(f"{location} was written by a newer {written}: upgrade kgray")
    if stored < ours:
        raise StoreError(
            f"{location} was written by an earlier {written}: stop the processes that use it, and run "
            f"`kgray upgrade`, which asks no model; --dry-run says what it would do"
        )


def slot_of(group: str) -> int:
    """Return the slot of a group: the same in every process. The store knows the slot's shard."""
    return zlib.crc32(group.encode(errors="surrogatepass")) % SLOTS


@dataclass(slots=True, kw_only=True)
class WriterLock:
    """A writer's lock on shards and their slots, during one `Store.writing`.

    shards  numbers of the locked shards
    epoch   of the lock; a restarted writer continues with the epoch of its predecessor
    token   differs from the token of every other lock, also of a lock with the same epoch
    slots   slot -> epoch; a slot that is moved to a locked shard is added by the first write to it
    """

    shards: Collection[int]
    epoch: int
    token: object
    slots: dict[int, int] = field(default_factory=dict)


class SlotRow(NamedTuple):
    """The row of a locked slot; newest, token: epoch and token of the last lock on its shard."""

    slot: int
    shard: int
    epoch: int
    newest: int
    token: Any


def slots_of(groups: Iterable[str]) -> list[int]:
    """Return the slots of these groups, each once, in the common order of locking."""
    return sorted(set(map(slot_of, groups)))


def check_slots(
    location: object,
    locks: Sequence[WriterLock],
    groups: Iterable[str],
    locked: Iterable[Any],
    *,
    epoch: int | None,
) -> None:
    """Raise StaleWriter unless locks with this epoch (None: any epoch) cover the slots of these groups.

    locked: the fields of a SlotRow for each of these slots, which the transaction has locked

    If a lock has the shard of a slot but not the slot, the slot was moved to the shard: the lock adopts the
    epoch of the row, unless another lock has taken the shard. A slot that left a lock and came back has a new
    epoch and is refused, because a write from before the slot left may still arrive.
    """
    rows = list(starmap(SlotRow, locked))
    if len(rows) < len(slots_of(groups)):
        raise stale(location, "no", None)
    for row in rows:
        lock = next(
            (each for each in locks if row.shard in each.shards and epoch in (None, each.epoch)), None
        )
        if lock is None:
            if not locks:
                raise stale(location, row.newest, None)
            raise StaleWriter(
                f"slot {row.slot} in {location} is of shard {row.shard}, which this run does not hold: "
                f"nothing was changed"
            )
        is_newest = (lock.epoch, lock.token) == (row.newest, row.token)
        if not is_newest or lock.slots.setdefault(row.slot, row.epoch) != row.epoch:
            raise stale(location, max(row.newest, row.epoch), lock.epoch)


def check_move(location: object, slots: Collection[int], shard: int, shards: int) -> None:
    """Raise StoreError for a slot or a shard that does not exist. shards: the store's number of shards."""
    if strange := [slot for slot in slots if not 0 <= slot < SLOTS]:
        raise StoreError(f"there is no slot {strange[0]}: the slots of {location} are 0 to {SLOTS - 1}")
    if not 0 <= shard < shards:
        raise StoreError(f"{location} has {shards} shards: a slot cannot be moved to shard {shard}")


def check_shard(location: object, shard: int, shards: int) -> None:
    """Raise StoreError for a shard that cannot be taken."""
    if not 0 <= shard < shards:
        raise StoreError(f"{location} has {shards} shards: there is no shard {shard}")


def check_empty(location: object, shards: int, remaining: int) -> None:
    """Raise StoreError if the number of shards cannot be set. remaining: slots of the shards to drop."""
    if not 1 <= shards <= SLOTS:
        raise StoreError(f"{shards} shards: {location} can have 1 to {SLOTS}")
    if remaining:
        raise StoreError(f"{remaining} slots of {location} are of shards beyond {shards}: move them first")


def check_moved(location: object, slots: Collection[int], moved: Collection[object]) -> None:
    """Raise StaleWriter unless all of these slots were moved."""
    if len(moved) < len(set(slots)):
        raise StaleWriter(f"a shard in {location} was taken while its slots were moved: run it again")
