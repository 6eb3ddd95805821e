"""A group's searchable rows in a reader's memory: words, vectors, and who said what when.

A store keeps rows; what a search counts and compares is worked out here, of one group alone: both stores rank
alike, and no group's ranking depends on what another holds. An index is loaded at the first search of
a group, and then extended by what was committed since. A removal has it thrown away.

Consistency needs no snapshot: a group's commits are in the order of their sequences (R20), so the rows up to
the last sequence that has ended do not change until `GroupHead.removals` does. An index holds exactly those.
What a view does not show (retracted, not yet known) is found here too, and dropped by whoever asks the view.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np

from kgray import kinds
from kgray.errors import Unavailable
from kgray.kinds import COMMITTED, Read, Row
from kgray.ports import Store, at_one_moment
from kgray.search.postings import Words
from kgray.search.vectors import (
    MESSAGE_VECTORS,
    NAME_VECTORS,
    STATEMENT_VECTORS,
    Floats,
    Ints,
    Vectors,
    grown,
)
from kgray.times import SECOND

MEMORY_BYTES = 512 << 20  # of all indexes of a reader; the least recently used go first
SESSION_GAP = 6 * 3600 * SECOND  # a longer silence in a source begins a new session
SESSION_MESSAGES = 64  # a channel that is never silent is cut into sessions of so many
_CHUNK = 500  # sequences a read, when an index is extended
_PAGE = 4096  # vectors that are appended together
_TRIES = 20
_ANEW = 4  # what is new is read by keys up to 1/4 of what is there; beyond, all is read in one scan


@dataclass(slots=True)
class _Codes:
    """Texts as small numbers, in the order in which they came."""

    texts: list[str] = field(default_factory=list)
    numbers: dict[object, int] = field(default_factory=dict)
    _all: frozenset[str] = frozenset()

    def of(self, text: str) -> int:
        if (number := self.numbers.get(text)) is None:
            number = self.numbers[text] = len(self.texts)
            self.texts.append(text)
        return number

    def all(self) -> frozenset[str]:
        """Return the texts: the same set until one is added, so that its hash is computed once."""
        if len(self._all) != len(self.texts):
            self._all = frozenset(self.texts)
        return self._all


class Messages:
    """The committed episodes of a group, in the order of their sequences."""

    def __init__(self, dimensions: int) -> None:
        """Hold none."""
        self.words, self.vectors = Words(), Vectors(dimensions)
        self.numbers: dict[object, int] = {}  # sequence -> row
        self.sequences: Ints = np.zeros(0, np.int64)
        self.times: Ints = np.zeros(0, np.int64)  # reference times
        self.speaker_numbers: Ints = np.zeros(0, np.int64)  # into `speakers`
        self.source_numbers: Ints = np.zeros(0, np.int64)
        self.speakers, self.sources = _Codes(), _Codes()

    def add(self, found: Sequence[Row]) -> None:
        """Append rows of EPISODE_WORDS."""
        rows = [row for row in found if row[5] == COMMITTED]
        if not rows:
            return
        self.words.add([row[6] for row in rows])
        self.numbers.update((row[0], n) for n, row in enumerate(rows, len(self.numbers)))
        self.sequences = grown(self.sequences, (row[0] for row in rows))
        self.times = grown(self.times, (row[4] for row in rows))
        self.speaker_numbers = grown(self.speaker_numbers, (self.speakers.of(row[3] or "") for row in rows))
        self.source_numbers = grown(self.source_numbers, (self.sources.of(row[2]) for row in rows))
        self.__dict__.pop("sessions", None)

    def numbered(self, rows: Ints) -> list[Any]:
        """Return the sequences of rows."""
        return [*self.sequences[rows].tolist()]

    @cached_property
    def sessions(self) -> Sessions:
        """The messages by source and time, cut where a source was silent."""
        order = np.lexsort((self.sequences, self.times, self.source_numbers))
        times, sources = self.times[order], self.source_numbers[order]
        begins = np.ones(len(order), bool)
        begins[1:] = (sources[1:] != sources[:-1]) | (times[1:] - times[:-1] > SESSION_GAP)
        starts = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
        begins |= (np.arange(len(order)) - starts) % SESSION_MESSAGES == 0
        numbers = np.cumsum(begins) - 1
        of_row = np.empty(len(order), np.int64)
        of_row[order] = numbers
        count = int(numbers[-1]) + 1 if len(order) else 0
        lengths = np.bincount(of_row, self.words.lengths, count).astype(np.float32)
        return Sessions(order=order, ordered=numbers, of_row=of_row, count=count, lengths=lengths)


@dataclass(frozen=True, slots=True)
class Sessions:
    """order: rows by (source, time, sequence); ordered: the number of the session of each, in that order.

    of_row: row -> number of its session; count of them; lengths: words of each.
    """

    order: Ints
    ordered: Ints
    of_row: Ints
    count: int
    lengths: Floats


class Pieces:
    """The evidence of a group: a row a piece, with the vector of its statement."""

    def __init__(self, dimensions: int) -> None:
        """Hold none."""
        self.words, self.vectors = Words(), Vectors(dimensions)
        self.sequences: Ints = np.zeros(0, np.int64)
        self.ordinals: Ints = np.zeros(0, np.int64)
        self.statement_numbers: Ints = np.zeros(0, np.int64)
        self.statements = _Codes()

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows of EVIDENCE_WORDS."""
        if rows:
            self.words.add([row[3] for row in rows])
            self.sequences = grown(self.sequences, (row[0] for row in rows))
            self.ordinals = grown(self.ordinals, (row[1] for row in rows))
            numbers = (self.statements.of(row[2]) for row in rows)
            self.statement_numbers = grown(self.statement_numbers, numbers)

    def places(self, rows: Ints) -> list[Any]:
        """Return the places of rows."""
        return [*zip(self.sequences[rows].tolist(), self.ordinals[rows].tolist(), strict=True)]


class Names:
    """The surfaces of a group's recorded entities: a row a surface."""

    def __init__(self, dimensions: int) -> None:
        """Hold none."""
        self.words, self.vectors = Words(), Vectors(dimensions)
        self.numbers: dict[object, int] = {}  # (entity, surface) -> row
        self.entity_numbers: Ints = np.zeros(0, np.int64)
        self.entities = _Codes()

    def add(self, found: Sequence[Row]) -> None:
        """Append rows of NAME_WORDS that are not there yet."""
        new = (row for row in found if (row[2], row[3]) not in self.numbers)
        rows = sorted(new, key=lambda row: row[:2])  # as commits bring them: equal scores go by row
        if rows:
            self.words.add([row[4] for row in rows])
            self.numbers.update(((row[2], row[3]), n) for n, row in enumerate(rows, len(self.numbers)))
            self.entity_numbers = grown(self.entity_numbers, (self.entities.of(row[2]) for row in rows))

    def owners(self, rows: Ints) -> list[Any]:
        """Return the recorded entities that rows name."""
        return [self.entities.texts[number] for number in self.entity_numbers[rows].tolist()]


class GroupIndex:
    """What is known of one group up to a sequence."""

    def __init__(self, group: str, dimensions: int, removals: int) -> None:
        """Hold nothing; removals: the group's count when it is loaded."""
        self.group, self.removals, self.upto = group, removals, 0
        self.messages, self.pieces, self.names = Messages(dimensions), Pieces(dimensions), Names(dimensions)

    def nbytes(self) -> int:
        """Memory held, about."""
        parts = (self.messages, self.pieces, self.names)
        return sum(p.words.nbytes() + p.vectors.nbytes() + 64 * len(p.words.lengths) for p in parts)

    def load(self, store: Store, upto: int) -> None:
        """Read all rows of sequences up to `upto`, in scans."""

        def scanned(read: Read) -> list[Row]:
            return [row for row in store.rows(read, self.group) if row[0] <= upto]

        self.messages.add(scanned(kinds.EPISODE_WORDS))
        self.pieces.add(scanned(kinds.EVIDENCE_WORDS))
        self.names.add(scanned(kinds.NAME_WORDS))
        self._add_vectors(store, None, None, None)
        self.upto = upto

    def extend(self, store: Store, upto: int) -> None:
        """Read the rows of the sequences after those that are held, up to `upto`."""

        def rows(read: Read, values: Sequence[object]) -> list[Row]:
            return list(store.rows(read, self.group, values)) if values else []

        for first in range(self.upto + 1, upto + 1, _CHUNK):
            sequences = range(first, min(first + _CHUNK, upto + 1))
            pieces = rows(kinds.EVIDENCE_WORDS_IN, sequences)
            entities = list(dict.fromkeys(row[3] for row in rows(kinds.MENTIONS_IN, sequences)))
            self.messages.add(rows(kinds.EPISODE_WORDS_AT, sequences))
            self.pieces.add(pieces)
            self.names.add([row for row in rows(kinds.NAME_WORDS_OF, entities) if row[0] <= upto])
            self._add_vectors(store, sequences, list(dict.fromkeys(row[2] for row in pieces)), entities)
            self.upto = sequences[-1]

    def _add_vectors(
        self,
        store: Store,
        sequences: Sequence[int] | None,
        statements: Sequence[str] | None,
        entities: Sequence[str] | None,
    ) -> None:
        """Read the vectors of these owners, or (None) all, of what is indexed."""
        for vectors, reads, owners, indexed in (
            (self.messages.vectors, MESSAGE_VECTORS, sequences, self.messages.numbers),
            (self.pieces.vectors, STATEMENT_VECTORS, statements, self.pieces.statements.numbers),
            (self.names.vectors, NAME_VECTORS, entities, self.names.numbers),
        ):
            signs = not vectors.keeps_whole(len(indexed))
            found = store.rows(*reads.read(self.group, owners, signs=signs)) if owners != [] else iter(())
            some = (row for row in found if reads.name(row) in indexed)
            while page := list(islice(some, _PAGE)):
                weights = [row[-2] for row in page] if reads.weighed else ()
                values = [row[-1] for row in page]
                vectors.add([*map(reads.name, page)], values, indexed, signs=signs, weights=weights)


# ---------------------------------------------------------------------------------- the indexes of a reader


class Indexes:
    """The indexes that a reader of one store holds; above a budget, the least recently used are dropped.

    Any number of threads may ask: one refreshes an index at a time, and what is returned is not changed while
    it is used, because an extension is made under the lock that its user holds.
    """

    def __init__(self, store: Store, dimensions: int, *, memory_bytes: int = MEMORY_BYTES) -> None:
        """Read nothing yet; dimensions: numbers a vector."""
        self._store, self._dimensions, self._memory = store, dimensions, memory_bytes
        self._held: OrderedDict[str, GroupIndex] = OrderedDict()
        self._lock = threading.RLock()

    @contextmanager
    def of(self, group: str) -> Iterator[GroupIndex]:
        """Hold the group's index, brought up to what has been committed."""
        with self._lock:
            yield self._current(group)

    def unchanged(self) -> AbstractContextManager[object]:
        """Let no index that was given out be extended meanwhile."""
        return self._lock

    def _current(self, group: str) -> GroupIndex:
        """Return the index as of now; raises Unavailable where rows are removed faster than they are read."""
        store = self._store
        for _ in range(_TRIES):
            removals, upto = at_one_moment(store, partial(self._ended, group))
            known = self._held.pop(group, None)
            if known is not None and (known.removals, known.upto) == (removals, upto):
                self._held[group] = known
                return known
            if known is not None and (known.removals != removals or not known.upto <= upto):
                known = None
            if known is None or (upto - known.upto) * _ANEW > known.upto:
                known = GroupIndex(group, self._dimensions, removals)
                known.load(store, upto)
            else:
                known.extend(store, upto)
            if store.heads([group])[group].removals == removals:
                self._held[group] = known
                self._drop_others()
                return known
        raise Unavailable(f"group {group!r} is removed from faster than it can be read: run it again")

    def _ended(self, group: str) -> tuple[int, int]:
        """Return the group's count of removals, and its last sequence up to which all has ended."""
        head = self._store.heads([group])[group]
        first = self._store.pending_sequences(group, 0, 1)
        return head.removals, first[0][0] - 1 if first else head.last

    def _drop_others(self) -> None:
        while len(self._held) > 1 and sum(known.nbytes() for known in self._held.values()) > self._memory:
            self._held.popitem(last=False)
