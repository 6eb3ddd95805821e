"""Cosine over a group's vectors, exact in every score, and what is kept in memory for it.

Small sets are one float32 matrix. Past EXACT_ROWS the sign bits of all rows are kept (128 bytes a
row at 1024 dimensions), hamming distance picks the candidates, and their float32 vectors, read
from the file, give the exact cosine. For vectors of random directions the share of differing signs
is angle / pi (Charikar, STOC 2002), so near vectors are near in bits too.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kgray.kinds import SearchScope
from kgray.ports import Vector
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import Database, array, keys_of

EXACT_ROWS = 2_000
# Candidates that are re-scored. Of the true 20 best of 100,000 x 1024 they hold 0.965 where vectors
# form 5,000 clusters (800: 0.975, 200: 0.953), and 0.39 of vectors of random directions, where the
# 20th and the 400th best differ by chance. 400 take 3 ms to read.
CANDIDATES = 400
CANDIDATES_A_HIT = 10
_BUDGET_BYTES = 256 << 20
_BLOCK = 16_384  # rows a step: the distances of a block stay in the processor's cache

Bits = NDArray[np.uint64]


def sign_bits(matrix: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return (n, bytes): the signs of (n, d), padded with zero bits to whole words of 64."""
    packed = np.packbits(matrix > 0, axis=1)
    missing = -packed.shape[1] % 8
    if not missing:
        return packed
    return np.ascontiguousarray(np.pad(packed, ((0, 0), (0, missing))))


@dataclass(slots=True)
class _Set:
    """The vectors of one (group, scope) as known in memory."""

    removals: int  # the group's count of deletions when they were read
    count: int = 0
    keys: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    exact: NDArray[np.float32] | None = None  # (capacity, d) while count <= EXACT_ROWS
    bits: Bits | None = None  # (words, capacity): a row of words a step, contiguous

    def nbytes(self) -> int:
        """Memory held."""
        return self.keys.nbytes + sum(a.nbytes for a in (self.exact, self.bits) if a is not None)


class VectorSets:
    """The sets in memory; above a byte budget, the least recently used are dropped."""

    def __init__(self, db: Database, dimensions: int) -> None:
        """Read nothing yet."""
        self._db = db
        self._dimensions = dimensions
        self._words = -(-dimensions // 64)
        self._budget = _BUDGET_BYTES
        self._sets: OrderedDict[tuple[int, SearchScope], _Set] = OrderedDict()

    def nearest(
        self, no: int, scope: SearchScope, vector: Vector, limit: int
    ) -> list[tuple[str | int, float]]:
        """Return (owner, cosine), best first, ties by insertion; an owner once for each of its vectors.

        To be called inside a snapshot: the set in memory is brought to it first.
        """
        known = self._current(no, scope)
        if known.count == 0 or limit <= 0:
            return []
        query = np.ascontiguousarray(vector, dtype=np.float32)
        if known.exact is not None:
            chosen = np.arange(known.count)
            scores = known.exact[: known.count] @ query
        else:
            chosen = self._candidates(known, query, max(CANDIDATES, CANDIDATES_A_HIT * limit))
            chosen, scores = self._exact(known, scope, chosen, query)
        best = np.lexsort((chosen, -scores))[:limit]
        keys = [int(key) for key in known.keys[chosen[best]]]
        owners: dict[int, str | int] = dict(self._db.rows(sql.VECTORS[scope].owners_at, (array(keys),)))
        found = zip(keys, scores[best], strict=True)
        return [(owners[key], min(1.0, max(-1.0, float(score)))) for key, score in found]

    def clear(self) -> None:
        """Release the memory."""
        self._sets.clear()

    # ------------------------------------------------------------------------------- search

    def _candidates(self, known: _Set, query: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Return the indexes of the `count` rows of least hamming distance, ties by insertion, sorted."""
        bits = known.bits
        assert bits is not None  # noqa: S101 - one of the two is there: see _Set
        wanted = sign_bits(query[None, :]).view(np.uint64)[0]
        distances = np.empty(known.count, np.uint16)
        for start in range(0, known.count, _BLOCK):
            block = bits[:, start : min(start + _BLOCK, known.count)]
            total = distances[start : start + block.shape[1]]
            total[:] = 0
            for word in range(self._words):
                total += np.bitwise_count(block[word] ^ wanted[word])
        if known.count <= count:
            return np.arange(known.count)
        edge = np.partition(distances, count - 1)[count - 1]
        nearer = np.flatnonzero(distances < edge)
        at_edge = np.flatnonzero(distances == edge)[: count - len(nearer)]
        return np.sort(np.concatenate((nearer, at_edge)))

    def _exact(
        self, known: _Set, scope: SearchScope, chosen: NDArray[np.int64], query: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the candidates with their exact cosine, read from the file."""
        keys = known.keys[chosen]
        found = self._db.rows(sql.VECTORS[scope].vectors_at, (array(keys.tolist()),))
        matrix = np.frombuffer(b"".join([blob for _, blob in found]), "<f4").reshape(-1, self._dimensions)
        read = np.fromiter((key for key, _ in found), np.int64, len(found))
        places = chosen[np.searchsorted(keys, read)]  # keys rise with the index
        return places, matrix @ query

    # ------------------------------------------------------------------------------- memory

    def _current(self, no: int, scope: SearchScope) -> _Set:
        """Return the set as the snapshot has it: what was added is appended, a deletion reads all anew."""
        (removals,) = self._db.row(sql.GROUP_REMOVALS, (no,)) or (0,)
        known = self._sets.pop((no, scope), None)
        if known is None or known.removals != removals:
            known = _Set(removals=removals)
        first, last = keys_of(no)
        after = int(known.keys[known.count - 1]) + 1 if known.count else first
        (highest,) = self._db.row(sql.VECTORS[scope].last, (after, last)) or (None,)
        if highest is not None:
            self._extend(known, scope, after, last)
        self._sets[no, scope] = known
        while len(self._sets) > 1 and sum(held.nbytes() for held in self._sets.values()) > self._budget:
            self._sets.popitem(last=False)
        return known

    def _extend(self, known: _Set, scope: SearchScope, after: int, last: int) -> None:
        fresh = self._db.rows(sql.VECTORS[scope].bits, (after, last))
        count = known.count + len(fresh)
        self._grow(known, count)
        known.keys[known.count : count] = np.fromiter((key for key, _ in fresh), np.int64, len(fresh))
        if known.bits is not None:
            packed = np.frombuffer(b"".join([blob for _, blob in fresh]), np.uint64).reshape(-1, self._words)
            known.bits[:, known.count : count] = packed.T
        if known.exact is not None:
            vectors = self._db.rows(sql.VECTORS[scope].vectors, (after, last))
            floats = np.frombuffer(b"".join([blob for _, blob in vectors]), "<f4")
            known.exact[known.count : count] = floats.reshape(-1, self._dimensions)
        known.count = count

    def _grow(self, known: _Set, count: int) -> None:
        """Make room for `count` rows, twice as many as now at least; past EXACT_ROWS go over to bits."""
        if known.bits is None and count > EXACT_ROWS:
            kept = known.exact
            known.exact, known.bits = None, np.empty((self._words, 0), np.uint64)
            if kept is not None and known.count:
                old = sign_bits(kept[: known.count]).view(np.uint64)
                known.bits = np.ascontiguousarray(old.T)
        elif known.bits is None and known.exact is None:
            known.exact = np.empty((0, self._dimensions), np.float32)
        if count <= len(known.keys) and (known.bits is None or known.bits.shape[1] >= count):
            return
        capacity = max(count, 2 * known.count, 64)
        known.keys = np.concatenate((known.keys[: known.count], np.empty(capacity - known.count, np.int64)))
        if known.exact is not None:
            room = np.empty((capacity - known.count, self._dimensions), np.float32)
            known.exact = np.concatenate((known.exact[: known.count], room))
        if known.bits is not None:
            more = np.empty((self._words, capacity - known.count), np.uint64)
            known.bits = np.ascontiguousarray(np.concatenate((known.bits[:, : known.count], more), axis=1))
