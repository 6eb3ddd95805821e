"""A group's searchable rows in a reader's memory: words, vectors, speakers and times.

All statistics of a search are computed here, over one group alone: all stores rank alike, and no group's
ranking depends on another group. The first search of a group loads its index; later searches add the newly
committed rows. A removal discards the index.

Consistency needs no snapshot: a group commits in the order of its sequences (R20), so the rows before the
first pending sequence do not change until `GroupHead.removals` does. An index has exactly these rows. It also
has rows that a view does not show (retracted, not yet known); callers drop them when they read the view.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, reduce
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgray.domain.records import Place
from kgray.domain.times import SECOND
from kgray.errors import Unavailable, damaged
from kgray.ports import Store, Vector, at_one_moment
from kgray.schema import reads
from kgray.schema.kinds import COMMITTED
from kgray.schema.reads import MessageRow
from kgray.schema.record_rows import name_vectors, search_columns
from kgray.schema.rows import as_weights, sign_bits
from kgray.search.loading import (
    EvidencePlaces,
    Exact,
    LoadedEntries,
    LoadedName,
    LoadedPiece,
    LoadedVector,
    scanned,
)
from kgray.search.query import Speakers

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
# rows in ascending order; the count, or (float32) the weight, of the term in each
Postings = tuple[NDArray[np.int32], NDArray[Any]]
_Run = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]  # terms (uint32), sorted; their rows; amounts

MEMORY_BYTES = 512 << 20  # of all indexes of a reader
EXACT_BYTES = 64 << 20  # of one set of exact vectors; a larger set has only signs (1/32 of the size)
RESCORED = 100  # vectors with an exact cosine, chosen by their signs
SESSION_GAP = 6 * 3600 * SECOND  # a longer silence in a source begins a new session
SESSION_MESSAGES = 64  # longest session: a channel without silences is cut here
CHUNK = 500  # sequences a read, when an index is extended
_PAGE = 4096  # vectors an append
_TRIES = 20
RELOAD = 4  # up to 1/4 of the known rows, new rows are read by keys; above, all rows are read in one scan


def grown(array: NDArray[np.generic], values: Iterable[int]) -> Ints:
    """Return the array with the values appended."""
    return np.concatenate((array, np.fromiter(values, np.int64)))


class Runs:
    """Postings as sorted runs, merged as they grow: additions are cheap, a look-up searches ~log(n) runs."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def append(self, terms: NDArray[Any], rows: NDArray[Any], amounts: NDArray[Any]) -> None:
        """Append postings, sorted by term and row, whose rows come after all stored rows."""
        while self._runs and len(terms) and len(self._runs[-1][0]) < 2 * len(terms):
            parts = zip(self._runs.pop(), (terms, rows, amounts), strict=True)
            terms, rows, amounts = map(np.concatenate, parts)
            order = np.argsort(terms, kind="stable")
            terms, rows, amounts = terms[order], rows[order], amounts[order]
        self._runs += [(terms, rows, amounts)] if len(terms) else []

    def having(self, term: int) -> Postings:
        """Return the rows that have a term, in ascending order, and the amount of it in each."""
        matches: list[Postings] = []
        for terms, rows, amounts in self._runs:
            first, last = (terms.searchsorted(np.uint32(term), side) for side in ("left", "right"))
            if first < last:
                matches.append((rows[first:last], amounts[first:last]))
        matches = matches or [(np.zeros(0, np.int32), np.zeros(0, np.int32))]
        return np.concatenate([rows for rows, _ in matches]), np.concatenate([n for _, n in matches])

    def nbytes(self) -> int:
        """Return the memory in bytes."""
        return 3 * sum(run[0].nbytes for run in self._runs)  # terms, rows and amounts have equal sizes


class Words(Runs):
    """Postings of the words of n rows: the frequency of each term in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: NDArray[np.int32] = np.zeros(0, np.int32)
        self._texts: list[bytes] = []

    def add(self, packed: Sequence[bytes]) -> None:
        """Append rows, each the terms of a text as `words.packed` gives them."""
        lengths = np.fromiter((len(terms) // 4 for terms in packed), np.int32, len(packed))
        terms = np.frombuffer(b"".join(packed), "<u4")
        rows = np.repeat(np.arange(len(lengths), dtype=np.int32) + np.int32(len(self.lengths)), lengths)
        self.lengths = np.concatenate((self.lengths, lengths))
        self._texts += packed
        order = np.argsort(terms, kind="stable")  # rows of a term stay in their order
        terms, rows = terms[order], rows[order]
        first = np.ones(len(terms), bool)
        first[1:] = (terms[1:] != terms[:-1]) | (rows[1:] != rows[:-1])
        starts = np.flatnonzero(first)
        self.append(terms[starts], rows[starts], np.diff(starts, append=len(terms)).astype(np.int32))

    def terms(self, row: int) -> list[int]:
        """Return the terms of a row, in order."""
        return [int(term) for term in np.frombuffer(self._texts[row], "<u4")]

    def having_phrase(self, terms: Sequence[int]) -> list[int]:
        """Return the rows that have these terms in sequence."""
        phrase = re.compile(b"(?s)(?:.{4})*?" + re.escape(np.array(terms, "<u4").tobytes()))
        rows = reduce(np.intersect1d, (self.having(term)[0] for term in set(terms)))
        return [int(row) for row in rows if phrase.match(self._texts[row])]


class Tokens(Runs):
    """Postings of the tokens that an embedder weighs (`ports.Embedding.weights`)."""

    def add(self, first: int, weights: Sequence[bytes]) -> None:
        """Append rows, numbered from `first` on, each in the format of `rows.weight_bytes`."""
        arrays = [*map(as_weights, weights)]
        tokens, amounts = (np.concatenate(parts) for parts in zip(*arrays, strict=True))
        numbers = np.arange(first, first + len(arrays), dtype=np.int32)
        rows = np.repeat(numbers, [len(ids) for ids, _ in arrays])
        order = np.argsort(tokens, kind="stable")
        self.append(tokens[order], rows[order], amounts[order])


class Vectors:
    """Unit vectors by name: exact (float32) up to EXACT_BYTES, above that only their signs.

    For random directions the share of differing signs is angle / pi (Charikar, STOC 2002), so near vectors
    have similar signs. The RESCORED vectors with the most similar signs are read from the store for an exact
    cosine; this read dominates the time of a search in a large group. Recall on 30,000 x 1024 in 1,500
    clusters: all of the best 10, 0.972 of the best 20 (0.982 with 400 vectors).
    """

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.rows: dict[object, int] = {}  # name -> row
        self.owners: Ints = np.zeros(0, np.int64)  # row -> number of its owner
        self.tokens = Tokens()  # empty if the embedder gives no token weights
        self._names: list[object] = []
        self._places: list[Place] = []  # row -> (sequence of the stored row, position in it)
        self._exact: Floats | None = np.zeros((0, dimensions), np.float32)
        # (words of 64 bits, rows): one operation takes one word of all rows
        self._signs: NDArray[np.uint64] = np.zeros((-(-dimensions // 64), 0), np.uint64)

    def keeps_exact(self, count: int = 0) -> bool:
        """Return whether exact vectors are stored, and will be after `count` additions."""
        return self._exact is not None and (len(self._names) + count) * self.dimensions * 4 <= EXACT_BYTES

    def add(
        self, names: Sequence[object], values: Sequence[bytes], numbers: Mapping[object, int],
        places: Sequence[Place], *, signs: bool, weights: Sequence[bytes | None] = (),
    ) -> None:  # fmt: skip
        """Append vectors (float32), or their signs; skip names that already have one.

        numbers: name -> number of its owner; places: position of each vector in the store (`RECORDS`)
        weights: packed token weights of each vector, if the embedder gives them
        """
        fresh = [n for n, name in enumerate(names) if name not in self.rows]
        if not fresh:
            return
        if any(weights):
            self.tokens.add(len(self._names), [weights[n] or b"" for n in fresh])
        self.rows.update((names[n], row) for row, n in enumerate(fresh, len(self._names)))
        self._names += [names[n] for n in fresh]
        self._places += [places[n] for n in fresh]
        self.owners = grown(self.owners, (numbers[names[n]] for n in fresh))
        joined = b"".join([values[n] for n in fresh])
        if signs and self._exact is not None:
            self._signs, self._exact = _by_word(self._exact), None
        if self._exact is None:
            packed = np.frombuffer(joined, np.uint64).reshape(len(fresh), -1).T if signs else None
            new_signs = _by_word(_matrix(joined, len(fresh))) if packed is None else packed
            self._signs = np.concatenate((self._signs, new_signs), axis=1)
            return
        stored, count = self._exact, len(self._names)
        room = stored.base
        if room is None or len(room) < count:  # room for 1/8 more, so that few commits copy the array
            room = np.empty((count + count // 8, self.dimensions), np.float32)
            room[: len(stored)] = stored
        room[len(stored) : count] = _matrix(joined, len(fresh))
        self._exact = room[:count]

    def places_of(self, names: Iterable[object]) -> list[tuple[object, Place]]:
        """Return (name, position of its vector in the store) for each name that has a vector."""
        return [(name, self._places[self.rows[name]]) for name in names if name in self.rows]

    def cosines(self, query: Vector, exact: Exact) -> Floats:
        """Return the cosine of each row with the query.

        With signs only, it is exact for the RESCORED nearest, which `exact` reads from the store, and for the
        others an estimate, cos(pi x share of differing signs), bounded by the smallest exact cosine.
        """
        if self._exact is not None:
            return np.asarray(self._exact @ query, np.float32)
        differing = np.zeros(len(self._names), np.uint16)
        for stored, queried in zip(self._signs, _by_word(query[None, :])[:, 0], strict=True):
            differing += np.bitwise_count(stored ^ queried)
        angles = np.pi * np.arange(self.dimensions + 1, dtype=np.float32) / self.dimensions
        cosines = np.cos(angles)[differing]
        nearest = np.argpartition(cosines, max(0, len(cosines) - RESCORED))[-RESCORED:]
        targets = [(self._names[row], self._places[row]) for row in nearest]
        read = [(self.rows[name], value) for name, value in exact(targets)]
        if read:
            values = _matrix(b"".join([value for _, value in read]), len(read)) @ query
            np.minimum(cosines, values.min(), out=cosines)  # an estimate never outranks an exact value
            cosines[[row for row, _ in read]] = values
        return np.asarray(cosines, np.float32)

    def nbytes(self) -> int:
        """Return the memory in bytes, without names."""
        return self.tokens.nbytes() + (self._signs if self._exact is None else self._exact).nbytes


def _matrix(joined: bytes, rows: int) -> Floats:
    return np.frombuffer(joined, "<f4").reshape(rows, -1)


def _by_word(matrix: Floats) -> NDArray[np.uint64]:
    """Return the sign bits of vectors: (words of 64 bits, rows)."""
    return np.ascontiguousarray(sign_bits(np.ascontiguousarray(matrix, np.float32)).view(np.uint64).T)


class _Column:
    """A text column: each row has the number of its text; numbers follow the order of arrival."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.numbers: dict[object, int] = {}  # text -> number
        self.number_of: Ints = np.zeros(0, np.int64)  # row -> number

    def add(self, rows: Sequence[str]) -> None:
        fresh = [text for text in dict.fromkeys(rows) if text not in self.numbers]
        self.numbers.update((text, number) for number, text in enumerate(fresh, len(self.texts)))
        self.texts += fresh
        self.number_of = grown(self.number_of, (self.numbers[text] for text in rows))


class _Indexed:
    """Rows with words and vectors. numbers: name -> number of the owner of its vector."""

    def __init__(self, dimensions: int) -> None:
        self.words, self.vectors = Words(), Vectors(dimensions)
        self.numbers: dict[object, int] = {}
        self.sequences: Ints = np.zeros(0, np.int64)


class Sessions(NamedTuple):
    """The messages by source and time, cut after a long silence of a source."""

    order: Ints  # rows by (source, time, sequence)
    ordered: Ints  # the session numbers of these rows, in that order
    places: Ints  # row -> its place in that order
    of_row: Ints  # row -> number of its session
    total: int
    lengths: Floats  # words in each session


class Messages(_Indexed):
    """The committed episodes of a group, in the order of their sequences."""

    def __init__(self, dimensions: int) -> None:
        super().__init__(dimensions)
        self.times: Ints = np.zeros(0, np.int64)  # reference times
        self.speakers, self.sources = _Column(), _Column()
        self.known = Speakers()

    def add(self, rows: Sequence[MessageRow], words: Sequence[bytes]) -> None:
        """Append messages in order of sequence, each with its words."""
        if not rows:
            return
        self.words.add(words)
        self.numbers.update((row.sequence, n) for n, row in enumerate(rows, len(self.numbers)))
        self.sequences = grown(self.sequences, (row.sequence for row in rows))
        self.times = grown(self.times, (row.reference_time for row in rows))
        count = len(self.speakers.texts)
        self.speakers.add([row.speaker or "" for row in rows])
        for speaker in self.speakers.texts[count:]:
            self.known.add(speaker)
        self.sources.add([row.source for row in rows])
        self.__dict__.pop("sessions", None)

    def newest(self, count: int) -> list[int]:
        """Return the sequences of the newest messages by reference time, the newest first."""
        return [*self.sequences[np.lexsort((self.sequences, self.times))[::-1][:count]].tolist()]

    def records(self, rows: Ints) -> list[Any]:
        """Return the sequences of rows."""
        return [*self.sequences[rows].tolist()]

    @cached_property
    def sessions(self) -> Sessions:
        """The sessions of all messages."""
        order = np.lexsort((self.sequences, self.times, self.sources.number_of))
        times, sources = self.times[order], self.sources.number_of[order]
        begins = np.ones(len(order), bool)
        begins[1:] = (sources[1:] != sources[:-1]) | (times[1:] - times[:-1] > SESSION_GAP)
        starts = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
        begins |= (np.arange(len(order)) - starts) % SESSION_MESSAGES == 0
        numbers = np.cumsum(begins) - 1
        places = np.argsort(order)
        count = int(numbers[-1]) + 1 if len(order) else 0
        lengths = np.bincount(numbers, self.words.lengths[order], count).astype(np.float32)
        return Sessions(order, numbers, places, numbers[places], count, lengths)


class Pieces(_Indexed):
    """The evidence of a group: a row a piece, with the vector of its statement."""

    def __init__(self, dimensions: int) -> None:
        super().__init__(dimensions)
        self.ordinals: Ints = np.zeros(0, np.int64)
        self.statements = _Column()
        self.numbers = self.statements.numbers

    def add(self, pieces: Sequence[LoadedPiece]) -> None:
        """Append pieces of evidence in order of place."""
        if pieces:
            self.words.add([piece.words for piece in pieces])
            self.sequences = grown(self.sequences, (piece.sequence for piece in pieces))
            self.ordinals = grown(self.ordinals, (piece.ordinal for piece in pieces))
            self.statements.add([piece.statement for piece in pieces])

    def places(self) -> EvidencePlaces:
        """Return the places of all evidence."""
        return EvidencePlaces(self.sequences, self.ordinals, self.statements.number_of, self.numbers)

    def records(self, rows: Ints) -> list[Any]:
        """Return the places of rows."""
        return [*zip(self.sequences[rows].tolist(), self.ordinals[rows].tolist(), strict=True)]


class Names(_Indexed):
    """The surfaces of a group's recorded entities: a row a surface."""

    def __init__(self, dimensions: int) -> None:
        super().__init__(dimensions)
        self.entities = _Column()

    def add(self, names: Iterable[LoadedName]) -> None:
        """Append new names; skip the others."""
        new: dict[tuple[str, str], LoadedName] = {}
        for name in sorted(names, key=lambda item: item.place):  # in commit order: ties go by row
            if name.name not in self.numbers:
                new.setdefault(name.name, name)
        self.words.add([name.words for name in new.values()])
        self.numbers.update((name, n) for n, name in enumerate(new, len(self.numbers)))
        self.entities.add([entity for entity, _ in new])

    def records(self, rows: Ints) -> list[Any]:
        """Return the recorded entities that rows name."""
        return [self.entities.texts[number] for number in self.entities.number_of[rows].tolist()]


class GroupIndex:
    """The searchable rows of one group up to a sequence."""

    def __init__(self, group: str, dimensions: int, removals: int) -> None:
        """Start empty. removals: the group's removal count at the time of loading."""
        self.group, self.dimensions, self.removals, self.upto = group, dimensions, removals, 0
        self.messages, self.pieces, self.names = Messages(dimensions), Pieces(dimensions), Names(dimensions)

    def nbytes(self) -> int:
        """Return the approximate memory in bytes."""
        parts: tuple[_Indexed, ...] = (self.messages, self.pieces, self.names)
        sizes = (p.words.nbytes() + p.vectors.nbytes() + 4 * int(p.words.lengths.sum()) for p in parts)
        return sum(sizes) + 68 * sum(len(p.words.lengths) for p in parts)

    def load(self, store: Store, upto: int, sequences: Sequence[int] | None = None) -> None:
        """Read the rows of these sequences, or scan all up to `upto` if None. Raises Damaged."""
        try:
            self._load(store, upto, sequences)
        except (LookupError, ValueError, TypeError, AttributeError) as fault:  # a row that cannot be read
            raise damaged(self.group, fault) from fault

    def _load(self, store: Store, upto: int, sequences: Sequence[int] | None) -> None:
        message_rows = scanned(store, self.group, reads.MESSAGES, reads.MESSAGES_AT, sequences)
        messages = {row.sequence: row for row in message_rows}
        searched = scanned(store, self.group, reads.SEARCHED, reads.SEARCHED_AT, sequences)
        entries = LoadedEntries()
        for row in searched:
            message = messages.get(row.sequence)
            if message is None or (message.state == COMMITTED and message.sequence <= upto):
                entries.take(row.sequence, search_columns(row.search), message)
        self.messages.add(entries.messages, entries.words)
        self.pieces.add(entries.pieces)
        self.names.add(entries.names)
        self._add_vectors(store, entries, sequences)
        self.upto = sequences[-1] if sequences else upto

    def _add_vectors(self, store: Store, entries: LoadedEntries, sequences: Sequence[int] | None) -> None:
        """Add the vectors of loaded entries: exact ones while they are few, else their signs."""
        texts: tuple[tuple[_Indexed, Iterable[LoadedVector]], ...] = (
            (self.messages, entries.message_vectors),
            (self.pieces, entries.statement_vectors.values()),
        )
        names = (self.names, [name.vector for name in entries.names])
        exact = {part for part, _ in (*texts, names) if part.vectors.keeps_exact(len(part.numbers))}
        width = 4 * self.dimensions
        values: dict[Place, bytes] = {}
        if {self.messages, self.pieces} & exact:
            for row in scanned(store, self.group, reads.VECTORS, reads.VECTORS_AT, sequences):
                column = row.vectors or b""
                for at in range(len(column) // width):
                    values[row.sequence, at] = column[at * width : (at + 1) * width]
        for part, vectors in texts:
            _add(part, vectors, values if part in exact else None)
        values.clear()
        if self.names in exact:
            for named in scanned(store, self.group, reads.NAME_VECTORS, reads.NAME_VECTORS_AT, sequences):
                for at, name in enumerate(name_vectors(named.names)):
                    values[named.sequence, at] = name.vector
        _add(*names, values if self.names in exact else None)


def _add(part: _Indexed, vectors: Iterable[LoadedVector], values: Mapping[Place, bytes] | None) -> None:
    """Add vectors to a part of an index; values: exact vectors by place, or None to add signs."""
    usable = (v for v in vectors if v.name in part.numbers and (values is None or v.place in values))
    while page := list(islice(usable, _PAGE)):
        part.vectors.add(
            [v.name for v in page],
            [v.signs if values is None else values[v.place] for v in page],
            part.numbers,
            [v.place for v in page],
            signs=values is None,
            weights=[v.weights for v in page],
        )


class Indexes:
    """A cache of the indexes of one store's groups; above a memory budget it drops the least recently used.

    It is thread-safe: an index is extended only under `lock`, which a user holds while it reads the index.
    """

    def __init__(self, store: Store, dimensions: int, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._store, self._dimensions, self._memory = store, dimensions, memory_bytes
        self._cache: OrderedDict[str, GroupIndex] = OrderedDict()
        self.lock = threading.RLock()  # no index is extended while a thread holds it

    @contextmanager
    def open(self, group: str) -> Iterator[GroupIndex]:
        """Yield the group's index, up to date with the last commit, under the lock.

        Raises Unavailable if rows are removed faster than they are read.
        """
        with self.lock:
            yield self._current(group)

    def _current(self, group: str) -> GroupIndex:
        store = self._store

        def ended() -> tuple[int, int]:
            """Return the group's removal count, and the last sequence before its first pending entry."""
            head, first = store.heads([group])[group], store.pending_sequences(group, 0, 1)
            return head.removals, first[0][0] - 1 if first else head.last

        for _ in range(_TRIES):
            removals, upto = at_one_moment(store, ended)
            index = self._cache.pop(group, None)
            if index is None or index.removals != removals or index.upto > upto:
                index = GroupIndex(group, self._dimensions, removals)
            if index.upto == upto:
                self._cache[group] = index
                return index
            if (upto - index.upto) * RELOAD > index.upto:
                index = GroupIndex(group, self._dimensions, removals)
                index.load(store, upto)
            for first in range(index.upto + 1, upto + 1, CHUNK):
                index.load(store, upto, range(first, min(first + CHUNK, upto + 1)))
            if store.heads([group])[group].removals == removals:
                self._cache[group] = index
                while len(self._cache) > 1 and sum(i.nbytes() for i in self._cache.values()) > self._memory:
                    self._cache.popitem(last=False)
                return index
        raise Unavailable(f"group {group!r} is removed from faster than it can be read: run it again")
