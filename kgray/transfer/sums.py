"""Counts and hashes of a group's rows, computed while they are read; equal in two stores with equal rows."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from kgray.kinds import ALL, EPISODES, KINDS, OPERATIONS, Kind, Row
from kgray.ports import GroupHead, Store
from kgray.times import Instant

OnRow = Callable[[], None]
# The names that are shown for kinds, where it is not the kind's own. Vectors are counted together.
_CALLED: Mapping[str, str] = {
    "operations": "corrections",
    "answer_uses": "uses of answers",
    "name_vectors": "vectors",
    "statement_vectors": "vectors",
    "episode_vectors": "vectors",
    "shown_entities": "shown entities",
}

_ENDED: Mapping[Kind, int] = {EPISODES: 13, OPERATIONS: 4}  # the column of the record time


def rows_of(store: Store, group: str, head: GroupHead) -> Iterator[tuple[Kind, Row]]:
    """Yield every row of a group, kind by kind in the order of KINDS, each kind in its order.

    head    the group's counters, read before: what others append meanwhile is left out, because the copy
            would give its sequence to another entry
    """
    for kind in KINDS:
        numbered = kind.log and kind.key[0] == "sequence"
        for row in store.rows(ALL[kind.name], group):
            if not numbered or row[0] <= head.last:
                yield kind, row


@dataclass(slots=True)
class Sum:
    """Sums of the rows read so far. counts: rows by shown name of the kind; hashes: SHA-256 of its rows."""

    head: GroupHead
    counts: Counter[str] = field(default_factory=lambda: Counter({"group": 1}))
    hashes: dict[str, str] = field(default_factory=dict)
    moments: list[Instant] = field(default_factory=list)  # record times of what ended, in the order of rows
    _of_kind: Counter[str] = field(default_factory=Counter)

    def passing(
        self, rows: Iterable[tuple[Kind, Row]], on_row: OnRow = lambda: None
    ) -> Iterator[tuple[Kind, Row]]:
        """Yield the same rows while counting and hashing them; on_row: called for each."""
        for kind, found in groupby(rows, key=itemgetter(0)):
            hashed = hashlib.sha256()
            for _, row in found:
                # The repr of a tuple of texts, numbers and bytes is complete and always the same.
                hashed.update(repr(row).encode("utf-8", "surrogatepass"))
                self._of_kind[kind.name] += 1
                self.counts[called(kind)] += 1
                ended = row[_ENDED[kind]] if kind in _ENDED else None
                self.moments += [] if ended is None else [ended]
                on_row()
                yield kind, row
            self.hashes[kind.name] = hashed.hexdigest()

    def differing(self, other: Sum) -> list[str]:
        """Return one line for each kind whose rows differ."""
        same = (self.head.last, self.head.last_recorded) == (other.head.last, other.head.last_recorded)
        lines = [] if same else ["group: 1 rows, 1 in the copy, of other content"]
        for kind in KINDS:
            ours, theirs = self._of_kind[kind.name], other._of_kind[kind.name]
            if self.hashes.get(kind.name) != other.hashes.get(kind.name):
                content = ", of other content" if ours == theirs else ""
                lines.append(f"{called(kind)}: {ours} rows, {theirs} in the copy{content}")
        return lines


def called(kind: Kind) -> str:
    """Return the name under which a kind is shown."""
    return _CALLED.get(kind.name, kind.name)
