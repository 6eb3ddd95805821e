"""How both stores write: changes in order, checked against their entries, each row written once.

A store supplies a `Transaction`; this module decides which changes apply (R21, R23, R24), buffers what an
append puts, and folds rows. Changes of any entries and groups are written together. One that erases, or
clears its group, is written by itself, after what came before it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol, TypeVar

from kgray.errors import Outrun, StoreError, Unwritable
from kgray.kinds import EPISODES, OPERATIONS, Key, Kind, Read, Row
from kgray.ports import GroupHead, Patch, RowChanges
from kgray.ports.store import Appending
from kgray.times import Instant

EVERY_SEQUENCE = (1 << 63) - 1
_ENDED = {EPISODES: "ended_at", OPERATIONS: "recorded_at"}
RowName = tuple[str, Key]  # group, key
_State = tuple[int, Instant | None]  # of an entry, and when it ended


@dataclass(slots=True, kw_only=True)
class Counters:
    """A locked group's counters, as a transaction advances them; see `ports.GroupHead`.

    named       False: removed, never there, or not to be read now
    appended    something waits in it from now on
    """

    asked: str
    named: bool = False
    last: int = 0
    last_recorded: Instant = 0
    removals: int = 0
    appended: bool = False

    @property
    def head(self) -> GroupHead:
        """Return them in the port's form."""
        return GroupHead(
            named=self.named, last=self.last, last_recorded=self.last_recorded, removals=self.removals
        )


_Group = TypeVar("_Group", bound=Counters)


class Transaction(Protocol[_Group]):
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
    def write(self, found: FoldedBatch) -> Iterable[str]:
        """Drop, patch and put rows; return the groups in which a vector took the place of another."""

    @abstractmethod
    def keep(self, groups: Iterable[_Group]) -> None:
        """Write back counters."""

    @abstractmethod
    def settle(self, groups: Sequence[str]) -> None:
        """Note that nothing waits any more in those of these groups of which that is so."""


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
                self.drop(change.group, kind, tuple(key))
        for kind, rows in change.puts.items():
            for row in rows:
                self.put(change.group, kind, row)
        for patch in change.patches:
            self.patch(change.group, patch)

    def drop(self, group: str, kind: Kind, key: Key) -> None:
        self.puts[kind].pop((group, key), None)
        self.patches[kind].pop((group, key), None)
        self.drops[kind][group, key] = None

    def put(self, group: str, kind: Kind, row: Row) -> None:
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


class AppendBuffer(Appending):
    """`ports.Appending`: reads at once, writes at `finish`. groups: those that are locked."""

    def __init__(self, running: Transaction[Any], groups: Mapping[str, Counters]) -> None:
        self._running, self._groups = running, groups
        self._found = FoldedBatch()
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

    def put(self, kind: Kind, group: str, row: Row) -> None:
        self._found.put(group, kind, row)

    def patch(self, group: str, patch: Patch) -> None:
        self._found.patch(group, patch)

    def drop(self, kind: Kind, group: str, key: Key) -> None:
        self._found.drop(group, kind, key)

    def finish(self) -> bool:
        """Write what was appended; return whether anything was."""
        self._running.keep(self._taken.values())
        self._running.write(self._found)
        wrote = (self._found.drops, self._found.puts, self._found.patches)
        return bool(self._taken) or any(rows for by_kind in wrote for rows in by_kind.values())

    def _take(self, group: str) -> Counters:
        if group not in self._groups:
            raise StoreError(f"this transaction does not hold group {group!r}")
        return self._taken.setdefault(group, self._groups[group])


class AppliedBatch:
    """Carries out the changes of `Store.apply` that still apply."""

    def __init__(self, running: Transaction[Any]) -> None:
        self._running = running
        self._states: dict[tuple[Kind, str, int], _State] = {}

    def carry_out(self, changes: Sequence[RowChanges]) -> None:
        """Write what changes say, the counters of their groups, and which of these wait for nothing."""
        groups: Mapping[str, Counters] = self._running.groups
        before = {name: group.head for name, group in groups.items()}
        for segment in _segments(changes):
            self._read_states(segment)
            found = FoldedBatch()
            for change in segment:
                self._take(change, found)
            for name in self._running.write(found):
                groups[name].removals += 1
        self._running.keep([group for name, group in groups.items() if group.head != before[name]])
        ended = {c.group for c in changes if c.recorded_at is not None or c.ledger is not EPISODES}
        self._running.settle(sorted(ended))

    def _take(self, change: RowChanges, found: FoldedBatch) -> None:
        """Collect a change where it still applies.

        Raises Outrun where its entry was ended by another, and the change says what it rests on: its sender
        takes a graph for stored that is not.
        """
        group = self._running.groups.get(change.group)
        state, ended_at = self._state(change)
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
            self._running.clear(group, change.sequence)
        found.add(change)
        self._note_states(change)

    def _state(self, change: RowChanges) -> tuple[int | None, Instant | None]:
        ledgers = _ENDED if change.ledger is None else (change.ledger,)
        found = (self._states.get((ledger, change.group, change.sequence)) for ledger in ledgers)
        return next((state for state in found if state is not None), (None, None))

    def _read_states(self, changes: Iterable[RowChanges]) -> None:
        asked = sorted({(change.group, change.sequence) for change in changes})
        for *entry, state in self._running.states(asked):
            self._states[tuple(entry)] = state  # type: ignore[index]

    def _note_states(self, change: RowChanges) -> None:
        """Remember the states that entries have once this change is applied."""
        for ledger, ended in _ENDED.items():
            for (sequence,) in change.drops.get(ledger, ()):
                self._states.pop((ledger, change.group, sequence), None)
            state, ended_at = map(ledger.names.index, ("state", ended))
            for row in change.puts.get(ledger, ()):
                self._states[ledger, change.group, row[0]] = row[state], row[ended_at]
        for patch in change.patches:
            if patch.kind in _ENDED and "state" in patch.columns:
                at = 1 + patch.columns.index("state")
                for row in patch.rows:
                    entry = (patch.kind, change.group, row[0])
                    if entry in self._states:
                        self._states[entry] = row[at], self._states[entry][1]


def _segments(changes: Iterable[RowChanges]) -> Iterator[list[RowChanges]]:
    """Divide the changes so that one that erases or clears stands alone."""
    for alone, found in groupby(changes, lambda change: change.erases or change.clear):
        together = list(found)
        yield from [[change] for change in together] if alone else [together]


def _outrun(change: RowChanges) -> Outrun:
    return Outrun(
        f"sequence {change.sequence} of group {change.group!r} bears the record time {change.recorded_at}, "
        f"which is not past the group's last, or another has recorded since it was decided: nothing was "
        f"changed, run it again"
    )
