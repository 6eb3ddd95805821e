"""What both stores do alike: how they write, reads that follow from others, a copy into a store, refusals.

A store supplies the abstract methods of a `Transaction`; this module decides which changes apply (R21, R23,
R24), buffers what an append puts, and folds rows. Changes of any entries and groups are written together.
One that erases, or clears its group, is written by itself, after what came before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

from kgray import kinds
from kgray import rows as packing
from kgray.errors import Outrun, StaleWriter, StoreError, Unwritable
from kgray.kinds import EPISODES, OPERATIONS, Key, Kind, Read, Row
from kgray.ledger import held
from kgray.ports import Appending, GroupCounts, GroupHead, Patch, RowChanges, Store
from kgray.records import Episode, Operation
from kgray.times import Instant

EVERY_SEQUENCE = (1 << 63) - 1
_ENDED = {EPISODES: "ended_at", OPERATIONS: "recorded_at"}
RowName = tuple[str, Key]  # group, key
_State = tuple[int, Instant | None]  # of an entry, and when it ended


@dataclass(slots=True, kw_only=True)
class Counters:
    """A locked group's counters, as a transaction advances them; see `ports.GroupHead`."""

    asked: str
    named: bool = False  # False: removed, never there, or not to be read now
    last: int = 0
    last_recorded: Instant = 0
    removals: int = 0
    appended: bool = False  # something waits in it from now on

    @property
    def head(self) -> GroupHead:
        return GroupHead(
            named=self.named, last=self.last, last_recorded=self.last_recorded, removals=self.removals
        )


_Group = TypeVar("_Group", bound=Counters)


class Transaction(ABC, Generic[_Group]):
    """One open write transaction. groups: those that it holds, without any that was never there."""

    groups: Mapping[str, _Group]

    @abstractmethod
    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> list[Row]: ...

    @abstractmethod
    def states(self, entries: Sequence[tuple[str, int]]) -> Iterable[tuple[Kind, str, int, _State]]:
        """Yield (ledger, group, sequence, state) of the entries that are there."""

    @abstractmethod
    def clear(self, group: _Group, sequence: int) -> None:
        """Delete a group's rows, or begin to: of log kinds those before an entry, of others all (R27)."""

    @abstractmethod
    def write(self, found: FoldedBatch) -> None:
        """Drop, patch and put rows."""

    @abstractmethod
    def keep(self, groups: Iterable[_Group]) -> None:
        """Write back counters."""

    @abstractmethod
    def settle(self, groups: Sequence[str]) -> None:
        """Note that nothing waits any more in those of these groups of which that is so."""

    def carry_out(self, changes: Sequence[RowChanges]) -> None:
        """Write what still applies of the changes of `Store.apply`, and the counters of their groups."""
        before = {name: group.head for name, group in self.groups.items()}
        for segment in _segments(changes):
            asked = sorted({(change.group, change.sequence) for change in segment})
            stored = {(ledger, group, number): state for ledger, group, number, state in self.states(asked)}
            found = FoldedBatch()
            for change in segment:
                self._take(change, found, stored)
            self.write(found)
        self.keep([group for name, group in self.groups.items() if group.head != before[name]])
        ended = {c.group for c in changes if c.recorded_at is not None or c.ledger is not EPISODES}
        self.settle(sorted(ended))

    def _take(
        self, change: RowChanges, found: FoldedBatch, stored: Mapping[tuple[Kind, str, int], _State]
    ) -> None:
        """Collect a change where it still applies.

        Raises Outrun where its entry was ended by another, and the change says what it rests on: its sender
        takes a graph for stored that is not.
        """
        group = self.groups.get(change.group)
        state, ended_at = found.state(change, stored.get((change.ledger, change.group, change.sequence)))
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
        found.add(change)


def _by_kind() -> defaultdict[Kind, dict[RowName, Any]]:
    return defaultdict(dict)


@dataclass(slots=True)
class FoldedBatch:
    """Rows by kind, each once. erases: what is dropped or replaced must not stay readable (R25)."""

    drops: defaultdict[Kind, dict[RowName, None]] = field(default_factory=_by_kind)
    puts: defaultdict[Kind, dict[RowName, Row]] = field(default_factory=_by_kind)
    patches: defaultdict[Kind, dict[RowName, dict[str, Any]]] = field(default_factory=_by_kind)
    erases: bool = False

    def add(self, change: RowChanges) -> None:
        """Add what a change drops, puts and patches."""
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
        """Return the state of a change's entry after what was added; stored: as in the store."""
        ledger, name = change.ledger, (change.group, (change.sequence,))
        if (row := self.puts[ledger].get(name)) is not None:
            return row[ledger.names.index("state")], row[ledger.names.index(_ENDED[ledger])]
        if stored is None or name in self.drops[ledger]:
            return None, None
        patched = self.patches[ledger].get(name, {})
        return patched.get("state", stored[0]), patched.get(_ENDED[ledger], stored[1])

    def drop(self, kind: Kind, group: str, key: Key) -> None:
        self.puts[kind].pop((group, key), None)
        self.patches[kind].pop((group, key), None)
        self.drops[kind][group, key] = None

    def put(self, kind: Kind, group: str, row: Row) -> None:
        name = (group, kind.key_of(row))
        if kind.first_wins:
            self.puts[kind].setdefault(name, row)
            return
        # A row that is replaced is not dropped first: its relationships stay.
        self.drops[kind].pop(name, None)
        self.patches[kind].pop(name, None)
        self.puts[kind][name] = row

    def patch(self, group: str, patch: Patch) -> None:
        """Add a patch; one of a row that is put here changes what is put."""
        kind, width = patch.kind, len(patch.kind.key)
        for row in patch.rows:
            name, new = (group, row[:width]), dict(zip(patch.columns, row[width:], strict=True))
            put = self.puts[kind].get(name)
            if put is None or kind.first_wins:
                self.patches[kind].setdefault(name, {}).update(new)
            if put is not None:
                self.puts[kind][name] = tuple(
                    new.get(column, value) for column, value in zip(kind.names, put, strict=True)
                )


class AppendBuffer(FoldedBatch, Appending):
    """`ports.Appending`: reads at once, writes at `finish`."""

    def __init__(self, running: Transaction[Any]) -> None:
        super().__init__()
        self._running = running
        self._taken: dict[str, Counters] = {}

    def rows(self, read: Read, group: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._running.rows(read, group, values)

    def take_sequence(self, group: str) -> int:
        taken = self._take(group)
        taken.named = taken.appended = True
        taken.last += 1
        return taken.last

    def take_record_time(self, group: str, now: Instant) -> Instant:
        taken = self._take(group)
        taken.last_recorded = max(now, taken.last_recorded + 1)
        return taken.last_recorded

    def finish(self) -> bool:
        """Write what was appended; return whether anything was."""
        self._running.keep(self._taken.values())
        self._running.write(self)
        wrote = (self.drops, self.puts, self.patches)
        return bool(self._taken) or any(rows for by_kind in wrote for rows in by_kind.values())

    def _take(self, group: str) -> Counters:
        if group not in self._running.groups:
            raise StoreError(f"this transaction does not hold group {group!r}")
        return self._taken.setdefault(group, self._running.groups[group])


def _segments(changes: Iterable[RowChanges]) -> Iterator[list[RowChanges]]:
    for alone, found in groupby(changes, lambda change: change.erases or change.clear):
        together = list(found)
        yield from [[change] for change in together] if alone else [together]


def _outrun(change: RowChanges) -> Outrun:
    return Outrun(
        f"sequence {change.sequence} of group {change.group!r} bears the record time {change.recorded_at}, "
        f"which is not past the group's last, or another has recorded since it was decided: nothing was "
        f"changed, run it again"
    )


class Reads(Store):
    """Reads that follow from others."""

    def pending(self, group: str, limit: int, *, after: int = 0) -> list[Episode | Operation]:
        with self.reading():
            asked = self.pending_sequences(group, after, limit)
            episodes = self.rows(kinds.EPISODES_AT, group, [sequence for sequence, its in asked if its])
            operations = self.rows(
                kinds.OPERATIONS_AT, group, [sequence for sequence, its in asked if not its]
            )
            # Where there are no snapshots, an entry may have ended meanwhile.
            found: list[Episode | Operation] = [
                packing.episode(group, row)
                for row in episodes
                if row[10] in (kinds.ACCEPTED, kinds.EXTRACTED)
            ]
            found += [packing.operation(group, row) for row in operations if row[3] == kinds.PENDING]
        return sorted(found, key=attrgetter("sequence"))

    def pending_groups(self) -> dict[str, bool]:
        return self.newly_pending(0)[0]

    def counts(self, group: str | None = None) -> dict[str, GroupCounts]:
        with self.reading():
            found = self._counted(group)
            found.pop(kinds.OWN, None)
            for name in held(self) & found.keys():
                found[name] = replace(found[name], held=found[name].accepted + found[name].extracted)
            return found

    @abstractmethod
    def _counted(self, group: str | None) -> dict[str, GroupCounts]: ...


def counted(states: Iterable[Sequence[Any]], rest: Iterable[Sequence[Any]]) -> dict[str, GroupCounts]:
    """Return counts by group, sorted. states: rows of (group, state, how many).

    rest: rows of (group, the other fields of GroupCounts in their order), several of a group are added up.
    """
    open_ = packing.STATES[: kinds.WITHDRAWN]  # what was withdrawn is retired
    others = [field.name for field in fields(GroupCounts) if field.name not in {*open_, "held"}]
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rest:
        found[row[0]].update(dict(zip(others, row[1:], strict=True)))
    for group, state, number in states:
        found[group][packing.STATES[state]] = number
    return {group: GroupCounts(**found[group]) for group in sorted(found)}


def portions(rows: Iterable[tuple[Kind, Row]], most: int) -> Iterator[tuple[Kind, list[Row]]]:
    """Yield the rows in portions of one kind and at most so many, in order."""
    for kind, found in groupby(rows, itemgetter(0)):
        while portion := [row for _, row in islice(found, most)]:
            yield kind, portion


def known(group: str, where: object, head: GroupHead | Counters) -> StoreError:
    """Return the refusal to copy a group into a store that has it, or had it."""
    why = (
        "is there already"
        if head.named
        else f"was there and was removed: its {head.last} sequences are never used again"
    )
    return StoreError(f"group {group!r} in {where} {why}; a copy needs a store that never had it")


def stale(where: object, newest: object, epoch: int | None) -> StaleWriter:
    """Return the refusal of a writer that does not hold the store; epoch: the one that it held."""
    why = "this process does not ingest it" if epoch is None else f"{epoch} was superseded"
    return StaleWriter(f"{where} is at epoch {newest}, and {why}: nothing was changed; run it again")


def check_version(where: object, stored: int, ours: int, *, empty: str) -> None:
    """Raise StoreError for data of another schema; empty: what takes the place of older data."""
    who, what_to_do = "an earlier", f"choose an empty {empty} and add the episodes again"
    if stored > ours:
        who, what_to_do = "a newer", "upgrade kgray"
    written = f"{where} was written by {who} kgray (schema {stored}; this one knows {ours})"
    if stored != ours:
        raise StoreError(f"{written}: {what_to_do}")


def check_embedder(
    where: object, stored: Mapping[str, object], embedder: str, dimensions: int, *, empty: str
) -> int:
    """Return how many numbers a vector has. stored: the store's note of its embedder; dimensions: 0 = any.

    Raises StoreError for a graph that was built with another embedder.
    """
    width = int(str(stored.get("dimensions")))
    if (stored.get("embedder"), width) != (embedder, dimensions or width):
        weighed = embedder.removesuffix("+sparse") == str(stored.get("embedder")).removesuffix("+sparse")
        raise StoreError(
            f"the embedder {embedder!r} gives {dimensions} numbers a text, but the graph in {where} was "
            f"built with {stored.get('embedder')!r} ({width} numbers): set "
            f"{'embedder.sparse as it was' if weighed else 'embedder.backend to that one'}, "
            f"or start an empty {empty} and add the episodes again"
        )
    return width
