"""The vectors of one kind of rows of a group, in a reader's memory, and how they are read from a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from kgray import kinds
from kgray.kinds import Read, Row
from kgray.ports import Store, Vector
from kgray.rows import sign_bits
from kgray.search.postings import Tokens

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

EXACT_BYTES = 64 << 20  # of a set of vectors that is kept whole; beyond, their signs: 1/32 of it
RESCORED = 100  # vectors that signs choose and whose cosine is then exact

Exact = Callable[[list[object]], Iterable[tuple[object, bytes]]]  # names -> (name, vector)


class Vectors:
    """Unit vectors by their names; whole up to EXACT_BYTES, beyond that their signs.

    For vectors of random directions the share of differing signs is angle / pi (Charikar, STOC 2002), so near
    vectors are near in signs too: these choose RESCORED vectors, whose cosine is then computed from the
    store's rows, which is what a search of a large group waits for. Of the true 20 best of 30,000 x 1024 in
    1,500 clusters that finds 0.972, of the 10 best all; 400 vectors find 0.982 of the 20.
    """

    def __init__(self, dimensions: int) -> None:
        """Hold no vector."""
        self.dimensions = dimensions
        self.rows: dict[object, int] = {}  # name -> row
        self.owners: Ints = np.zeros(0, np.int64)  # of each row: whose vector it is, as a number
        self.tokens = Tokens()  # of each row, where the embedder weighs them
        self._names: list[object] = []
        self._whole: Floats | None = np.zeros((0, dimensions), np.float32)
        # (words of 64 bits, rows): one operation takes one word of all rows
        self._signs: NDArray[np.uint64] = np.zeros((-(-dimensions // 64), 0), np.uint64)

    @property
    def whole(self) -> bool:
        """Whether the vectors themselves are held."""
        return self._whole is not None

    def keeps_whole(self, more: int) -> bool:
        """Whether the vectors themselves are held, and still will be with so many more."""
        return self.whole and (len(self._names) + more) * self.dimensions * 4 <= EXACT_BYTES

    def add(
        self,
        names: Sequence[object],
        values: Sequence[bytes],
        numbers: Mapping[object, int],
        *,
        signs: bool,
        weights: Sequence[bytes | None] = (),
    ) -> None:
        """Append vectors (float32), or their signs; names that are there already are skipped.

        numbers: of the owners, by name; weights: of the tokens of each, if any are weighed
        """
        fresh = [n for n, name in enumerate(names) if name not in self.rows]
        if not fresh:
            return
        if any(weights):
            self.tokens.add(len(self._names), [weights[n] or b"" for n in fresh])
        for n in fresh:
            self.rows[names[n]] = len(self._names)
            self._names.append(names[n])
        self.owners = grown(self.owners, (numbers[names[n]] for n in fresh))
        joined = b"".join([values[n] for n in fresh])
        if signs and self._whole is not None:
            self._signs, self._whole = _by_word(self._whole), None
        if self._whole is not None:
            self._whole = _appended(self._whole, _matrix(joined, len(fresh)))
        elif signs:
            packed = np.frombuffer(joined, np.uint64).reshape(len(fresh), -1)
            self._signs = np.concatenate((self._signs, packed.T), axis=1)
        else:
            self._signs = np.concatenate((self._signs, _by_word(_matrix(joined, len(fresh)))), axis=1)

    def cosines(self, query: Vector, exact: Exact) -> Floats:
        """Return the cosine of each row with the query.

        Where only signs are held, it is exact for the RESCORED nearest, which `exact` reads by their names;
        for the others it is cos(pi x share of differing signs), an estimate, and no more than the least of
        those.
        """
        if self._whole is not None:
            return np.asarray(self._whole @ query, np.float32)
        differing = np.zeros(len(self._names), np.uint16)
        for held, asked in zip(self._signs, _by_word(query[None, :])[:, 0], strict=True):
            differing += np.bitwise_count(held ^ asked)
        found = np.cos(np.pi * np.arange(self.dimensions + 1, dtype=np.float32) / self.dimensions)[differing]
        nearest = np.argpartition(found, max(0, len(found) - RESCORED))[-RESCORED:]
        there = [(self.rows[name], value) for name, value in exact([self._names[row] for row in nearest])]
        if there:
            nearest = np.array([row for row, _ in there])
            values = _matrix(b"".join([value for _, value in there]), len(there)) @ query
            np.minimum(found, values.min(), out=found)  # no estimate stands above what is known
            found[nearest] = values
        return np.asarray(found, np.float32)

    def nbytes(self) -> int:
        """Memory held, names not counted."""
        return self.tokens.nbytes() + (self._signs if self._whole is None else self._whole).nbytes


def _matrix(joined: bytes, rows: int) -> Floats:
    return np.frombuffer(joined, "<f4").reshape(rows, -1)


def _appended(held: Floats, more: Floats) -> Floats:
    """Return rows with more behind them, in an array with room for an eighth: few commits copy it whole."""
    count = len(held) + len(more)
    room = held.base
    if room is None or len(room) < count:
        room = np.empty((count + count // 8, held.shape[1]), np.float32)
        room[: len(held)] = held
    room[len(held) : count] = more
    return room[:count]


def _by_word(matrix: Floats) -> NDArray[np.uint64]:
    """Return the sign bits of vectors: (words of 64 bits, rows)."""
    return np.ascontiguousarray(sign_bits(np.ascontiguousarray(matrix, np.float32)).view(np.uint64).T)


def grown(array: NDArray[np.generic], values: Iterable[int]) -> Ints:
    """Return an array with values behind it."""
    return np.concatenate((array, np.fromiter(values, np.int64)))


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorReads:
    """How the vectors of one kind are read, whole and their signs: all, or those of some owners.

    name    of a row; one that is a tuple begins with the owner's
    weighed whether the column before the vector has the weights of the text's tokens
    """

    scans: tuple[Read, Read]
    look_ups: tuple[Read, Read]
    name: Callable[[Row], object]
    weighed: bool = True

    def read(
        self, group: str, owners: Sequence[object] | None, *, signs: bool
    ) -> tuple[Read, str, Sequence[object]]:
        """Return the arguments of `Store.rows`; owners: None = all."""
        return (self.scans[signs], group, ()) if owners is None else (self.look_ups[signs], group, owners)

    def exact(self, store: Store, group: str) -> Exact:
        """Return what reads vectors of a group by their names."""

        def read(names: list[object]) -> Iterable[tuple[object, bytes]]:
            wanted, owners = set(names), dict.fromkeys(n[0] if isinstance(n, tuple) else n for n in names)
            rows = store.rows(*self.read(group, list(owners), signs=False))
            return [(self.name(row), row[-1]) for row in rows if self.name(row) in wanted]

        return read


MESSAGE_VECTORS = VectorReads(
    scans=(kinds.ALL["episode_vectors"], kinds.EPISODE_SIGNS),
    look_ups=(kinds.EPISODE_VECTORS_AT, kinds.EPISODE_SIGNS_AT),
    name=itemgetter(0),
)
STATEMENT_VECTORS = VectorReads(
    scans=(kinds.ALL["statement_vectors"], kinds.STATEMENT_SIGNS),
    look_ups=(kinds.STATEMENT_VECTORS_OF, kinds.STATEMENT_SIGNS_OF),
    name=itemgetter(0),
)
NAME_VECTORS = VectorReads(
    scans=(kinds.ALL["name_vectors"], kinds.NAME_SIGNS),
    look_ups=(kinds.NAME_VECTORS_OF, kinds.NAME_SIGNS_OF),
    name=itemgetter(0, 1),
    weighed=False,
)
