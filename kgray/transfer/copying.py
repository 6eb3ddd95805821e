"""Copies a group from one store to another and compares the two; the source is not changed.

Groups are compared by their texts, which a backup contains: lines of JSON. The first line has the name and
the counters of the group, the rows of each kind follow a line with its name, and a row is an array of its
values in the order of the kind's columns, bytes as base64. Equal groups have equal texts on every store.
"""

from __future__ import annotations

import hashlib
import json
from binascii import a2b_base64, b2a_base64
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from kgray import times
from kgray.derivation import dump
from kgray.derivation.stored import View, records_of
from kgray.errors import InputError, Locked, NotFound, StoreError
from kgray.kinds import BY_NAME, KINDS, Kind, Row
from kgray.ledger import dumped_episodes
from kgray.ports import GroupHead, Store
from kgray.reads import EPISODES_SINCE
from kgray.times import Instant
from kgray.wiring import OpenStore

OnRow = Callable[[], None]
# Displayed names of kinds, if different from their own names.
_CALLED = {"operations": "corrections", "community_runs": "runs of communities"}
_MOMENTS = 4  # number of earlier moments for comparisons of the two graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of a copy, or of a comparison. rows: counts by kind; moments: number of compared graphs."""

    group: str
    rows: Mapping[str, int]
    moments: int
    existed: bool


def copy_group(source: OpenStore, target: OpenStore, group: str, *, on_row: OnRow = lambda: None) -> Copied:
    """Copy a group with all its records and record times into a store that never had it, and compare.

    If the target has the group already, the two are only compared. Raises NotFound, InputError if a copy
    between the two is not possible, StoreError if the copy differs; it is then deleted.
    """
    with _both_locked(source, target):
        head = source.store.heads([group])[group]
        if not head.named:
            raise NotFound(f"there is no group {group!r} in {source.location}")
        existed, moments = target.store.heads([group])[group].named, 0

        def verify(ours: Sum, theirs: Sum) -> None:
            nonlocal moments
            moments = _verified(source, target, group, ours, theirs)

        if existed:
            ours, theirs = (sum_of(side.store, group, on_row) for side in (source, target))
            if different := ours.differing(theirs):
                raise conflict_error(target, group, "; ".join(different[:3]))
            verify(ours, theirs)
        else:
            ours = take_over(target.store, group, head, rows_of(source.store, group, head), verify, on_row)
    return Copied(group=group, rows=dict(ours.counts), moments=moments, existed=existed)


def take_over(
    target: Store, group: str, head: GroupHead, rows: Generator[tuple[Kind[Any], Row], None, None],
    verify: Callable[[Sum, Sum], None], on_row: OnRow,
) -> Sum:  # fmt: skip
    """Write a group into a store that never had it, inside `writing`; return the sum of its rows.

    verify: gets the sums of the rows and of the new group; if it raises, the new group is deleted
    """
    ours = Sum(group, head)
    # Always closed: a store with an open scan cannot be closed.
    with closing(rows):
        passing = ours.passing(rows, on_row)
        target.adopt(group, head, passing, lambda: verify(ours, sum_of(target, group, on_row)))
    return ours


def conflict_error(target: OpenStore, group: str, difference: str) -> StoreError:
    """Return the error for a group that the target has with other rows."""
    return StoreError(
        f"group {group!r} is in {target.location} already, and not the same ({difference}): nothing was "
        "changed; a copy needs a store that never had the group"
    )


@contextmanager
def _both_locked(source: OpenStore, target: OpenStore) -> Iterator[None]:
    """Lock two compatible stores for a copy: no other process commits to them inside the block."""
    first, second = source.store, target.store
    if (first.embedder, first.dimensions) != (second.embedder, second.dimensions):
        raise InputError(
            f"the source was embedded with {first.embedder!r} ({first.dimensions} numbers a text) and the "
            f"target is for {second.embedder!r} ({second.dimensions}): vectors of two "
            "embedders cannot be compared; "
            "set the same embedder for both"
        )
    ours, theirs = source.settings.store, target.settings.store
    one_folder = source.folder.resolve() == target.folder.resolve()
    same_database = (ours.uri, ours.database) == (theirs.uri, theirs.database)
    if ours.backend == theirs.backend and (one_folder if ours.backend == "sqlite" else same_database):
        raise InputError(f"the source and the target are one store, {source.location}: name another target")
    with ExitStack() as stack:
        for side in (source, target):
            stack.enter_context(single_writer(side, shared=one_folder and side.store.remote))
        yield


@contextmanager
def single_writer(side: OpenStore, *, shared: bool = False) -> Iterator[None]:
    """Lock a store as its only writer; shared: see `Store.writing`."""
    with ExitStack() as stack:
        try:
            stack.enter_context(side.store.writing(shared=shared))
        except Locked as error:
            raise Locked(f"{side.location} is in use: {error}; run the command when that has ended") from None
        yield


def _verified(source: OpenStore, target: OpenStore, group: str, ours: Sum, theirs: Sum) -> int:
    """Compare the graphs at several moments; return the number. Raises StoreError if they differ."""
    if different := ours.differing(theirs):
        raise StoreError(f"the copy of group {group!r} differs ({'; '.join(different[:3])})")
    with source.store.reading():
        ended = [row.ended_at for row in source.store.rows(EPISODES_SINCE, group)]
    moments = [None, *ended[:: max(1, len(ended) // _MOMENTS)][:_MOMENTS]]
    for moment in moments:
        if _digest(source.store, group, moment) != _digest(target.store, group, moment):
            moment_text = "as known now" if moment is None else f"as known at {times.show(moment)}"
            raise StoreError(f"the copy of group {group!r} derives another graph {moment_text}")
    return len(moments)


def _digest(store: Store, group: str, known_at: Instant | None) -> str:
    with store.reading():
        view = View(records_of(store, group, known_at), lambda _: [])  # a dump names episodes, and reads none
        return dump.digest(dump.rows(view, dumped_episodes(store, group, known_at)))


def sum_of(store: Store, group: str, on_row: OnRow = lambda: None) -> Sum:
    """Return the sum of a group's rows in one snapshot; `on_row` is called for each."""
    with store.reading():
        total = Sum(group, store.heads([group])[group])
        deque(total.passing(rows_of(store, group, total.head), on_row), maxlen=0)
    return total


def rows_of(store: Store, group: str, head: GroupHead) -> Generator[tuple[Kind[Any], Row], None, None]:
    """Yield every row of a group at a moment, kind by kind in the order of KINDS, each kind in its order.

    Entries appended since `head` are skipped: the copy would give their sequences to other entries.
    Raises Outrun at the end if the group was written in between.
    """
    with store.reading():
        for kind in KINDS:
            place = kind.names.index("sequence") if kind.log else None
            for row in store.rows(kind.all, group):
                if place is None or row[place] <= head.last:
                    yield kind, row


def _base64(value: bytes) -> str:
    return b2a_base64(value, newline=False).decode("ascii")


_LINE = json.JSONEncoder(separators=(",", ":"), default=_base64)
_WRITTEN: Mapping[str, Callable[[Any], Any]] = {"texts": tuple, "bytes": a2b_base64}
# For each kind: the positions of columns with types that JSON lacks, with the functions that restore them.
_RESTORED = {
    kind: [(n, _WRITTEN[column.type]) for n, column in enumerate(kind.columns) if column.type in _WRITTEN]
    for kind in KINDS
}


def _line(value: object) -> bytes:
    return _LINE.encode(value).encode("ascii") + b"\n"


def parse_head(line: bytes) -> GroupHead:
    """Return the counters of a group from the first line of its text. Raises ValueError, KeyError."""
    counters = json.loads(line)
    return GroupHead(named=True, last=counters["last"], last_recorded=counters["last_recorded"])


def parse_rows(lines: Iterable[bytes]) -> Generator[tuple[Kind[Any], Row], None, None]:
    """Yield the rows of a group's text, whose first line was read before. Raises ValueError, KeyError."""
    kind = KINDS[0]
    for line in lines:
        values = json.loads(line)
        if isinstance(values, dict):
            kind = BY_NAME[values["kind"]]
            continue
        for place, restore in _RESTORED[kind]:
            if values[place] is not None:
                values[place] = restore(values[place])
        yield kind, kind.row(*values)


@dataclass(slots=True)
class Sum:
    """Sums of the rows read so far."""

    group: str
    head: GroupHead
    counts: Counter[str] = field(default_factory=lambda: Counter({"group": 1}))  # by shown name of the kind
    hashes: dict[str, str] = field(default_factory=dict)  # SHA-256 of the text up to the end of a kind
    _of_kind: Counter[str] = field(default_factory=Counter)
    _text: Any = field(default_factory=hashlib.sha256, compare=False, repr=False)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._of_kind.total()

    @property
    def sha256(self) -> str:
        """The SHA-256 of the group's text, in hex."""
        return str(self._text.hexdigest())

    def passing(
        self, rows: Iterable[tuple[Kind[Any], Row]], on_row: OnRow = lambda: None,
        write: Callable[[bytes], object] = lambda _: None,
    ) -> Iterator[tuple[Kind[Any], Row]]:  # fmt: skip
        """Yield the same rows while counting and hashing them; write: called with each line of the text."""

        def add(line: bytes) -> None:
            self._text.update(line)
            write(line)

        head = self.head
        add(_line({"group": self.group, "last": head.last, "last_recorded": head.last_recorded}))
        for kind, pairs in groupby(rows, key=itemgetter(0)):
            count = 0
            add(_line({"kind": kind.name}))
            for pair in pairs:
                add(_line(pair[1]))
                count += 1
                on_row()
                yield pair
            self.hashes[kind.name] = self.sha256
            self._of_kind[kind.name] += count
            self.counts[called(kind)] += count

    def differing(self, copy: Sum) -> list[str]:
        """Return a line for each kind with more or fewer rows; if none, for the first that differs."""
        same_head = (self.head.last, self.head.last_recorded) == (copy.head.last, copy.head.last_recorded)
        lines = [] if same_head else ["group: 1 rows, 1 in the copy, of other content"]
        for kind in KINDS:
            ours, theirs = self._of_kind[kind.name], copy._of_kind[kind.name]
            if ours != theirs:
                lines.append(f"{called(kind)}: {ours} rows, {theirs} in the copy")
            elif not lines and self.hashes.get(kind.name) != copy.hashes.get(kind.name):
                lines.append(f"{called(kind)}: {ours} rows, {theirs} in the copy, of other content")
        return lines


def called(kind: Kind[Any]) -> str:
    """Return the displayed name of a kind."""
    return _CALLED.get(kind.name, kind.name.replace("_", " "))
