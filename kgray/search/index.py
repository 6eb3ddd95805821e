"""A group's searchable rows in a reader's memory: words, vectors, and who said what when.

What a search counts and compares is worked out here, of one group alone: both stores rank alike, and no
group's ranking depends on what another holds. An index is loaded at the first search of a group, and then
extended by what was committed since. A removal has it thrown away.

Consistency needs no snapshot: a group's commits are in the order of their sequences (R20), so the rows up to
the last sequence that has ended do not change until `GroupHead.removals` does. An index holds exactly those.
What a view does not show (retracted, not yet known) is found here too, and dropped by whoever asks the view.
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

from kgray import reads
from kgray.errors import Unavailable, damaged
from kgray.kinds import COMMITTED
from kgray.ports import Store, Vector, at_one_moment
from kgray.reads import MessageRow
from kgray.record_rows import name_vectors, search_columns
from kgray.records import Place
from kgray.rows import as_weights, sign_bits
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
from kgray.times import SECOND

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
# rows, rising; how often, or (float32) how much of the term
Postings = tuple[NDArray[np.int32], NDArray[Any]]
_Run = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]  # terms (uint32), sorted; the rows of each; how much

MEMORY_BYTES = 512 << 20  # of all indexes of a reader; the least recently used go first
EXACT_BYTES = 64 << 20  # of a set of vectors that is kept whole; beyond, their signs: 1/32 of it
RESCORED = 100  # vectors that signs choose and whose cosine is then exact
SESSION_GAP = 6 * 3600 * SECOND  # a longer silence in a source begins a new session
SESSION_MESSAGES = 64  # a channel that is never silent is cut into sessions of so many
_CHUNK = 500  # sequences a read, when an index is extended
_PAGE = 4096  # vectors that are appended together
_TRIES = 20
_ANEW = 4  # what is new is read by keys up to 1/4 of what is there; beyond, all is read in one scan


def grown(array: NDArray[np.generic], values: Iterable[int]) -> Ints:
    """Return an array with values behind it."""
    return np.concatenate((array, np.fromiter(values, np.int64)))


class Runs:
    """Postings as sorted runs, merged as they grow: cheap to add to, and a look-up searches about log(n)."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def append(self, terms: NDArray[Any], rows: NDArray[Any], much: NDArray[Any]) -> None:
        """Append postings, sorted by term and row, whose rows come after all that are there."""
        while self._runs and len(terms) and len(self._runs[-1][0]) < 2 * len(terms):
            parts = zip(self._runs.pop(), (terms, rows, much), strict=True)
            terms, rows, much = map(np.concatenate, parts)
            order = np.argsort(terms, kind="stable")
            terms, rows, much = terms[order], rows[order], much[order]
        self._runs += [(terms, rows, much)] if len(terms) else []

    def having(self, term: int) -> Postings:
        """Return the rows that have a term, rising, and how much of it each has."""
        found: list[Postings] = []
        for terms, rows, much in self._runs:
            first, last = (terms.searchsorted(np.uint32(term), side) for side in ("left", "right"))
            if first < last:
                found.append((rows[first:last], much[first:last]))
        found = found or [(np.zeros(0, np.int32), np.zeros(0, np.int32))]
        return np.concatenate([rows for rows, _ in found]), np.concatenate([much for _, much in found])

    def nbytes(self) -> int:
        """Memory held."""
        return 3 * sum(run[0].nbytes for run in self._runs)  # terms, rows, how much: as many bytes each


class Words(Runs):
    """Postings of the words of n rows: how often each has a term."""

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
        """Return the rows that have these terms one after the other."""
        wanted = re.compile(b"(?s)(?:.{4})*?" + re.escape(np.array(terms, "<u4").tobytes()))
        rows = reduce(np.intersect1d, (self.having(term)[0] for term in set(terms)))
        return [int(row) for row in rows if wanted.match(self._texts[row])]


class Tokens(Runs):
    """Postings of the tokens that an embedder weighs (`ports.Embedding.weights`)."""

    def add(self, first: int, weights: Sequence[bytes]) -> None:
        """Append rows, numbered from `first` on, each what `rows.weight_bytes` gives of a text."""
        held = [as_weights(kept) for kept in weights]
        tokens, much = (np.concatenate(parts) for parts in zip(*held, strict=True))
        rows = np.repeat(np.arange(first, first + len(held), dtype=np.int32), [len(ids) for ids, _ in held])
        order = np.argsort(tokens, kind="stable")
        self.append(tokens[order], rows[order], much[order])


class Vectors:
    """Unit vectors by their names; whole up to EXACT_BYTES, beyond that their signs.

    For vectors of random directions the share of differing signs is angle / pi (Charikar, STOC 2002), so near
    vectors are near in signs too: these choose RESCORED vectors, whose cosine is then computed from the
    store's rows, which is what a search of a large group waits for. Of the true 20 best of 30,000 x 1024 in
    1,500 clusters that finds 0.972, of the 10 best all; 400 vectors find 0.982 of the 20.
    """

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.rows: dict[object, int] = {}  # name -> row
        self.owners: Ints = np.zeros(0, np.int64)  # of each row: whose vector it is, as a number
        self.tokens = Tokens()  # of each row, where the embedder weighs them
        self._names: list[object] = []
        self._places: list[Place] = []  # of each row: the sequence of the stored row, the position there
        self._whole: Floats | None = np.zeros((0, dimensions), np.float32)
        # (words of 64 bits, rows): one operation takes one word of all rows
        self._signs: NDArray[np.uint64] = np.zeros((-(-dimensions // 64), 0), np.uint64)

    def keeps_whole(self, more: int = 0) -> bool:
        """Whether the vectors themselves are held, and still will be with so many more."""
        held = (len(self._names) + more) * self.dimensions * 4
        return self._whole is not None and held <= EXACT_BYTES

    def add(
        self,
        names: Sequence[object],
        values: Sequence[bytes],
        numbers: Mapping[object, int],
        places: Sequence[Place],
        *,
        signs: bool,
        weights: Sequence[bytes | None] = (),
    ) -> None:
        """Append vectors (float32), or their signs; names that are there already are skipped.

        numbers: of the owners, by name; places: where the store has each vector (`RECORDS`)
        weights: of the tokens of each, if any are weighed
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
        if signs and self._whole is not None:
            self._signs, self._whole = _by_word(self._whole), None
        if self._whole is None:
            packed = np.frombuffer(joined, np.uint64).reshape(len(fresh), -1).T if signs else None
            more = _by_word(_matrix(joined, len(fresh))) if packed is None else packed
            self._signs = np.concatenate((self._signs, more), axis=1)
            return
        held, count = self._whole, len(self._names)
        room = held.base
        if room is None or len(room) < count:  # with room for an eighth: few commits copy all of it
            room = np.empty((count + count // 8, self.dimensions), np.float32)
            room[: len(held)] = held
        room[len(held) : count] = _matrix(joined, len(fresh))
        self._whole = room[:count]

    def places_of(self, names: Iterable[object]) -> list[tuple[object, Place]]:
        """Return where the store has the vectors of these names, of those that have one."""
        return [(name, self._places[self.rows[name]]) for name in names if name in self.rows]

    def cosines(self, query: Vector, exact: Exact) -> Floats:
        """Return the cosine of each row with the query.

        Where only signs are held, it is exact for the RESCORED nearest, which `exact` reads by their names;
        for others an estimate, cos(pi x share of differing signs), and no more than the least of those.
        """
        if self._whole is not None:
            return np.asarray(self._whole @ query, np.float32)
        differing = np.zeros(len(self._names), np.uint16)
        for held, asked in zip(self._signs, _by_word(query[None, :])[:, 0], strict=True):
            differing += np.bitwise_count(held ^ asked)
        found = np.cos(np.pi * np.arange(self.dimensions + 1, dtype=np.float32) / self.dimensions)[differing]
        nearest = np.argpartition(found, max(0, len(found) - RESCORED))[-RESCORED:]
        asked = [(self._names[row], self._places[row]) for row in nearest]
        there = [(self.rows[name], value) for name, value in exact(asked)]
        if there:
            values = _matrix(b"".join([value for _, value in there]), len(there)) @ query
            np.minimum(found, values.min(), out=found)  # no estimate stands above what is known
            found[[row for row, _ in there]] = values
        return np.asarray(found, np.float32)

    def nbytes(self) -> int:
        """Memory held, names not counted."""
        return self.tokens.nbytes() + (self._signs if self._whole is None else self._whole).nbytes


def _matrix(joined: bytes, rows: int) -> Floats:
    return np.frombuffer(joined, "<f4").reshape(rows, -1)


def _by_word(matrix: Floats) -> NDArray[np.uint64]:
    """Return the sign bits of vectors: (words of 64 bits, rows)."""
    return np.ascontiguousarray(sign_bits(np.ascontiguousarray(matrix, np.float32)).view(np.uint64).T)


class _Column:
    """A text of each row, as small numbers in the order in which the texts came."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.numbers: dict[object, int] = {}  # of each text
        self.of: Ints = np.zeros(0, np.int64)  # row -> number

    def add(self, rows: Sequence[str]) -> None:
        fresh = [text for text in dict.fromkeys(rows) if text not in self.numbers]
        self.numbers.update((text, number) for number, text in enumerate(fresh, len(self.texts)))
        self.texts += fresh
        self.of = grown(self.of, (self.numbers[text] for text in rows))


class _Indexed:
    """Rows with words and vectors; numbers: of whose vector each is, by its name."""

    def __init__(self, dimensions: int) -> None:
        self.words, self.vectors = Words(), Vectors(dimensions)
        self.numbers: dict[object, int] = {}
        self.sequences: Ints = np.zeros(0, np.int64)


class Sessions(NamedTuple):
    """The messages by source and time, cut where a source was silent."""

    order: Ints  # rows by (source, time, sequence)
    ordered: Ints  # the number of the session of each, in that order
    of_row: Ints  # row -> number of its session
    total: int
    lengths: Floats  # words of each session


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
        before = len(self.speakers.texts)
        self.speakers.add([row.speaker or "" for row in rows])
        for speaker in self.speakers.texts[before:]:
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
        order = np.lexsort((self.sequences, self.times, self.sources.of))
        times, sources = self.times[order], self.sources.of[order]
        begins = np.ones(len(order), bool)
        begins[1:] = (sources[1:] != sources[:-1]) | (times[1:] - times[:-1] > SESSION_GAP)
        starts = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
        begins |= (np.arange(len(order)) - starts) % SESSION_MESSAGES == 0
        numbers = np.cumsum(begins) - 1
        of_row = np.empty(len(order), np.int64)
        of_row[order] = numbers
        count = int(numbers[-1]) + 1 if len(order) else 0
        lengths = np.bincount(of_row, self.words.lengths, count).astype(np.float32)
        return Sessions(order, numbers, of_row, count, lengths)


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
        return EvidencePlaces(self.sequences, self.ordinals, self.statements.of, self.numbers)

    def records(self, rows: Ints) -> list[Any]:
        """Return the places of rows."""
        return [*zip(self.sequences[rows].tolist(), self.ordinals[rows].tolist(), strict=True)]


class Names(_Indexed):
    """The surfaces of a group's recorded entities: a row a surface."""

    def __init__(self, dimensions: int) -> None:
        super().__init__(dimensions)
        self.entities = _Column()

    def add(self, names: Iterable[LoadedName]) -> None:
        """Append names that are not there yet."""
        new: dict[tuple[str, str], LoadedName] = {}
        for name in sorted(names, key=lambda one: one.place):  # as commits bring them: equal scores go by row
            if name.name not in self.numbers:
                new.setdefault(name.name, name)
        self.words.add([name.words for name in new.values()])
        self.numbers.update((name, n) for n, name in enumerate(new, len(self.numbers)))
        self.entities.add([entity for entity, _ in new])

    def records(self, rows: Ints) -> list[Any]:
        """Return the recorded entities that rows name."""
        return [self.entities.texts[number] for number in self.entities.of[rows].tolist()]


class GroupIndex:
    """What is known of one group up to a sequence."""

    def __init__(self, group: str, dimensions: int, removals: int) -> None:
        """Hold nothing; removals: the group's count when it is loaded."""
        self.group, self.dimensions, self.removals, self.upto = group, dimensions, removals, 0
        self.messages, self.pieces, self.names = Messages(dimensions), Pieces(dimensions), Names(dimensions)

    def nbytes(self) -> int:
        """Memory held, about."""
        parts: tuple[_Indexed, ...] = (self.messages, self.pieces, self.names)
        held = (p.words.nbytes() + p.vectors.nbytes() + 4 * int(p.words.lengths.sum()) for p in parts)
        return sum(held) + 68 * sum(len(p.words.lengths) for p in parts)

    def load(self, store: Store, upto: int, sequences: Sequence[int] | None = None) -> None:
        """Read the rows of these sequences; None: of all up to `upto`, in scans. Raises Damaged."""
        try:
            self._load(store, upto, sequences)
        except (LookupError, ValueError, TypeError, AttributeError) as fault:  # a row that cannot be read
            raise damaged(self.group, fault) from fault

    def _load(self, store: Store, upto: int, sequences: Sequence[int] | None) -> None:
        said = scanned(store, self.group, reads.MESSAGES, reads.MESSAGES_AT, sequences)
        messages = {row.sequence: row for row in said}
        searched = scanned(store, self.group, reads.SEARCHED, reads.SEARCHED_AT, sequences)
        found = LoadedEntries()
        for row in searched:
            message = messages.get(row.sequence)
            if message is None or (message.state == COMMITTED and message.sequence <= upto):
                found.take(row.sequence, search_columns(row.search), message)
        self.messages.add(found.messages, found.words)
        self.pieces.add(found.pieces)
        self.names.add(found.names)
        self._add_vectors(store, found, sequences)
        self.upto = sequences[-1] if sequences else upto

    def _add_vectors(self, store: Store, found: LoadedEntries, sequences: Sequence[int] | None) -> None:
        """Add the vectors of loaded entries: whole ones while they are few, else their signs."""
        texts: tuple[tuple[_Indexed, Iterable[LoadedVector]], ...] = (
            (self.messages, found.message_vectors),
            (self.pieces, found.statement_vectors.values()),
        )
        names = (self.names, [name.vector for name in found.names])
        whole = {part for part, _ in (*texts, names) if part.vectors.keeps_whole(len(part.numbers))}
        width = 4 * self.dimensions
        values: dict[Place, bytes] = {}
        if {self.messages, self.pieces} & whole:
            for row in scanned(store, self.group, reads.VECTORS, reads.VECTORS_AT, sequences):
                column = row.vectors or b""
                for at in range(len(column) // width):
                    values[row.sequence, at] = column[at * width : (at + 1) * width]
        for part, vectors in texts:
            _add(part, vectors, values if part in whole else None)
        values.clear()
        if self.names in whole:
            for named in scanned(store, self.group, reads.NAME_VECTORS, reads.NAME_VECTORS_AT, sequences):
                for at, name in enumerate(name_vectors(named.names)):
                    values[named.sequence, at] = name.vector
        _add(*names, values if self.names in whole else None)


def _add(part: _Indexed, vectors: Iterable[LoadedVector], values: Mapping[Place, bytes] | None) -> None:
    """Add vectors to a part of an index; values: of them by place; None: add their signs."""
    some = (one for one in vectors if one.name in part.numbers and (values is None or one.place in values))
    while page := list(islice(some, _PAGE)):
        part.vectors.add(
            [one.name for one in page],
            [one.signs if values is None else values[one.place] for one in page],
            part.numbers,
            [one.place for one in page],
            signs=values is None,
            weights=[one.weights for one in page],
        )


class Indexes:
    """The indexes that a reader of one store holds; above a budget, the least recently used are dropped.

    Any number of threads may ask: one refreshes an index at a time, and what is returned is not changed while
    it is used, because an extension is made under the lock that its user holds.
    """

    def __init__(self, store: Store, dimensions: int, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._store, self._dimensions, self._memory = store, dimensions, memory_bytes
        self._held: OrderedDict[str, GroupIndex] = OrderedDict()
        self.lock = threading.RLock()  # whoever holds it has no index extended that was given out

    @contextmanager
    def of(self, group: str) -> Iterator[GroupIndex]:
        """Hold the group's index, brought up to what has been committed.

        Raises Unavailable where rows are removed faster than they are read.
        """
        with self.lock:
            yield self._current(group)

    def _current(self, group: str) -> GroupIndex:
        store = self._store

        def ended() -> tuple[int, int]:
            """Return the group's count of removals, and its last sequence up to which all has ended."""
            head, first = store.heads([group])[group], store.pending_sequences(group, 0, 1)
            return head.removals, first[0][0] - 1 if first else head.last

        for _ in range(_TRIES):
            removals, upto = at_one_moment(store, ended)
            known = self._held.pop(group, None)
            if known is None or known.removals != removals or known.upto > upto:
                known = GroupIndex(group, self._dimensions, removals)
            if known.upto == upto:
                self._held[group] = known
                return known
            if (upto - known.upto) * _ANEW > known.upto:
                known = GroupIndex(group, self._dimensions, removals)
                known.load(store, upto)
            for first in range(known.upto + 1, upto + 1, _CHUNK):
                known.load(store, upto, range(first, min(first + _CHUNK, upto + 1)))
            if store.heads([group])[group].removals == removals:
                self._held[group] = known
                while len(self._held) > 1 and sum(i.nbytes() for i in self._held.values()) > self._memory:
                    self._held.popitem(last=False)
                return known
        raise Unavailable(f"group {group!r} is removed from faster than it can be read: run it again")
