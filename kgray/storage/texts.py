"""The text of a group: all its rows, for comparisons and backups.

A text is lines of JSON. The first line has the name and the counters of the group, the rows of each kind
follow a line with its name, and a row is an array of its values in the order of the kind's columns, bytes as
base64. Equal groups have equal texts on every store.
"""

from __future__ import annotations

import hashlib
import json
from binascii import a2b_base64, b2a_base64
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from kgray.ports import GroupHead, Store
from kgray.schema.kinds import BY_NAME, KINDS, Kind, Row

OnRow = Callable[[], None]
# Displayed names of kinds, if different from their own names.
_CALLED = {"operations": "corrections", "community_runs": "runs of communities"}


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
