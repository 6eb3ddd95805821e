"""Which known entities a name may mean, by its letters and by its vector; exact and deterministic (R14, R15).

`NameLookUp` blocks by name: the whole name, every telling token, the initials of names of several words,
the letters of an acronym. `likeness` then compares the name with each candidate's shown name.

`Nearest` finds similar vectors in a time that does not grow with the group. Vectors are quantised to integers
whose products sum to less than 2**24, so a float32 matrix product is exact in any order and on any machine.
Above EXACT_UP_TO rows, the signs of each 16 dimensions form a band, and only rows
that share a whole band with the query are candidates; exact products rank them. The chance that two vectors
share one of 64 bands:

cosine      0      0.8    0.9
chance  0.001     0.81  0.996

(Charikar, STOC 2002, for the sign bits; Leskovec et al., Mining of Massive Datasets, 3.4, for the bands.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from kgray.derivation import names
from kgray.ports import Matrix, Vector

Likeness = Literal["equal", "initials", "subset", "acronym", "surname"]


class Postings(Protocol):
    """Blocking key -> the entities that bear it, oldest first; a dict, or a view over one."""

    def get(self, key: str, /) -> list[str] | None:
        """Return the entities; None = there are none."""
        ...


# A name is blocked by its rarest tokens, and of a frequent token only the oldest bearers count: so the cost
# does not grow with the group. A model could not choose among more than this many Alices anyway.
MAX_POSTING = 12
_RAREST = 2


class NameLookUp:
    """Finds entities by parts of their names and aliases."""

    def __init__(
        self, by_key: Postings, by_token: Postings, by_initials: Postings, by_short: Postings
    ) -> None:
        """Take the four look-ups; by_short: first initial and last token ("m webb")."""
        self._by_key, self._by_token = by_key, by_token
        self._by_initials, self._by_short = by_initials, by_short

    def bearers(self, surface: str) -> list[str]:
        """Return the entities that bear this full name or alias."""
        return self._by_key.get(names.key(surface)) or []

    def bears_word(self, token: str) -> list[str]:
        """Return the entities one of whose names holds this token."""
        return self._by_token.get(token) or []

    def near(self, surface: str) -> list[str]:
        """Return the entities that share a blocking key with the surface, each once."""
        tokens = names.tokens(surface)
        postings = sorted((p for t in tokens if (p := self._by_token.get(t))), key=len)[:_RAREST]
        postings += [self._by_key.get(letters) or [] for letters in names.initials(surface)]
        if len(tokens) > 1:
            postings.append(self._by_short.get(_short(surface)) or [])
            postings += [self._by_key.get(token) or [] for token in tokens]
        if names.is_acronym(surface):
            postings.append(self._by_initials.get(surface.casefold()) or [])
        found: dict[str, None] = {}
        for posting in postings:
            found.update(dict.fromkeys(posting[:MAX_POSTING]))
        return list(found)


class NameIndex(NameLookUp):
    """The names and aliases of a group's entities; commits add to it."""

    def __init__(self) -> None:
        """Start empty."""
        self._keys: dict[str, list[str]] = {}
        self._tokens: dict[str, list[str]] = {}
        self._initials: dict[str, list[str]] = {}
        self._shorts: dict[str, list[str]] = {}
        super().__init__(self._keys, self._tokens, self._initials, self._shorts)

    def seen_through(self, view: Callable[[Postings, str], Postings]) -> NameLookUp:
        """Return a look-up over view(postings, "name") and view(postings, "token").

        Initials and short forms come from this index directly. Later additions to the index show too.
        """
        keys, tokens = view(self._keys, "name"), view(self._tokens, "token")
        return NameLookUp(keys, tokens, self._initials, self._shorts)

    def add(self, entity: str, surface: str) -> None:
        """Note that an entity bears a surface."""
        _note(self._keys, names.key(surface), entity)
        for token in names.tokens(surface):
            _note(self._tokens, token, entity)
        for letters in names.initials(surface):
            _note(self._initials, letters, entity)
        if len(names.tokens(surface)) > 1:
            _note(self._shorts, _short(surface), entity)


def likeness(surface: str, shown: str) -> Likeness | None:
    """Return how two names may be the same by their letters; None = each has a token that the other lacks."""
    a, b = names.tokens(surface), names.tokens(shown)
    if a == b or sorted(a) == sorted(b):
        return "equal"
    if names.is_acronym(surface) and surface.casefold() in names.initials(shown):
        return "acronym"
    if names.is_acronym(shown) and shown.casefold() in names.initials(surface):
        return "acronym"
    few, many = (a, b) if len(a) <= len(b) else (b, a)
    left = list(many)
    for token in few:
        if token in left:
            left.remove(token)
            continue
        for other in left:
            if _pairs(token, other):
                left.remove(other)
                break
        else:
            return "surname" if _one_surname(a, b) else None
    return "subset" if left else "initials"


def _one_surname(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Whether two two-word names share the last word ("Vicky Kelstaholm", "Victoria Kelstaholm")."""
    if len(a) != 2 or len(b) != 2 or a[1] != b[1]:
        return False
    return min(len(a[0]), len(b[0])) > 1 and not any(c.isdigit() for c in "".join(a + b))


def _pairs(a: str, b: str) -> bool:
    """Whether one token is an initial or prefix of the other; never where either has a digit (R15)."""
    if a[0] != b[0] or not (a.startswith(b) or b.startswith(a)):
        return False
    return not any(c.isdigit() for c in a + b)


def _short(surface: str) -> str:
    tokens = names.tokens(surface)
    return f"{tokens[0][0]} {tokens[-1]}"


def _note(index: dict[str, list[str]], key: str, entity: str) -> None:
    # An entity often comes back with a new alias that shares a token; only the posting's ends are searched.
    posting = index.get(key)
    if posting is None:
        index[key] = [entity]
    elif entity not in posting[-MAX_POSTING:] and entity not in posting[:MAX_POSTING]:
        posting.append(entity)


# Up to this many rows all products are computed: that costs no more than the bands would.
EXACT_UP_TO = 512
MOST_SCORED = 64  # above EXACT_UP_TO: rows whose exact product is computed
_RUN = 1024  # new rows are kept unsorted up to this many, then become a sorted run
_PIECE = 16  # dimensions per band


Prepared = tuple[NDArray[np.float32], float]  # (quantised vector, its Euclidean length)


class Nearest:
    """An index of quantised unit vectors, appended in a fixed order, for queries by cosine."""

    def __init__(self, dimensions: int) -> None:
        """Start empty, for vectors of this many dimensions (at least 16, else ValueError)."""
        self._levels = min(127, math.isqrt((2**24 - 1) // dimensions))
        self._scale = self._levels * math.sqrt(dimensions) / 4
        self._dimensions = dimensions
        if dimensions < _PIECE:
            raise ValueError(f"an embedder of {dimensions} numbers a text: at least {_PIECE} are needed")
        self._pieces = dimensions // _PIECE
        self._count = 0
        self._rows: NDArray[np.int8] = np.empty((0, dimensions), np.int8)
        self._bands: NDArray[np.uint16] = np.empty((0, self._pieces), np.uint16)
        self._lengths: NDArray[np.float64] = np.empty(0, np.float64)
        self._runs: list[tuple[NDArray[np.uint32], NDArray[np.int32], int]] = []  # keys, row ids, rows
        self._sorted = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count

    def quantised(self, vector: Vector | Matrix) -> NDArray[np.int8]:
        """Return unit vectors, (d,) or (n, d), as integers; dimensions x levels**2 < 2**24."""
        levels = vector * np.float32(self._scale)
        np.rint(levels, out=levels)
        np.clip(levels, -self._levels, self._levels, out=levels)
        return np.asarray(levels, dtype=np.int8)

    def add(self, vector: Vector) -> int:
        """Append a row and return its number."""
        if self._count == len(self._rows):
            self._grow(max(64, 2 * self._count))
        row = self.quantised(vector)
        self._rows[self._count] = row
        self._bands[self._count] = self._pieces_of(row)
        self._lengths[self._count] = _lengths(row[None, :])[0]
        self._count += 1
        if self._count - self._sorted >= _RUN:
            self._sort_tail()
        return self._count - 1

    def extend(self, vectors: Matrix) -> None:
        """Append rows (n, d) at once, for loading a group's state."""
        if self._count + len(vectors) > len(self._rows):
            self._grow(self._count + len(vectors))
        rows = self.quantised(vectors)
        self._rows[self._count : self._count + len(rows)] = rows
        self._bands[self._count : self._count + len(rows)] = self._pieces_of(rows)
        self._lengths[self._count : self._count + len(rows)] = _lengths(rows)
        self._count += len(rows)
        if self._count - self._sorted >= _RUN:
            self._sort_tail()

    def near(self, vector: Vector, floor: float, limit: int) -> list[tuple[float, int]]:
        """Return at most `limit` (cosine, row) with cosine >= floor, nearest first, ties by row."""
        if not self._count:
            return []
        query = self.quantised(vector)
        chosen = self._candidates(query)
        rows = self._rows[: self._count] if chosen is None else self._rows[chosen]
        if not len(rows):
            return []
        dots = rows.astype(np.float32) @ query.astype(np.float32)
        lengths = self._lengths[: self._count] if chosen is None else self._lengths[chosen]
        cosines = dots.astype(np.float64) / (lengths * _lengths(query[None, :])[0])
        ids = np.arange(self._count) if chosen is None else chosen
        order = np.lexsort((ids, -cosines))[:limit]
        return [(float(cosines[i]), int(ids[i])) for i in order if cosines[i] >= floor]

    def prepared(self, vector: Vector) -> Prepared:
        """Return a vector that is in no index, in the form `cosines` takes."""
        row = self.quantised(vector)
        return row.astype(np.float32), float(_lengths(row[None, :])[0])

    def cosines(self, vector: Vector, rows: Sequence[Prepared]) -> NDArray[np.float64]:
        """Return the cosine of a vector with each row, (n,), equal to what the index would compute."""
        if not rows:
            return np.empty(0, np.float64)
        query, length = self.prepared(vector)
        dots = np.stack([row for row, _ in rows]) @ query
        return dots.astype(np.float64) / (np.array([other for _, other in rows]) * length)

    def _candidates(self, query: NDArray[np.int8]) -> NDArray[np.int64] | None:
        """Return the rows that share a whole band with the query, ascending; None = all rows."""
        if self._count <= EXACT_UP_TO:
            return None
        pieces = self._pieces_of(query)
        keys = _keys(pieces[None, :]).ravel()
        found = []
        for run_keys, run_rows, _ in self._runs:
            starts = np.searchsorted(run_keys, keys, "left")
            ends = np.searchsorted(run_keys, keys, "right")
            found += [run_rows[starts[i] : ends[i]] for i in np.flatnonzero(ends > starts)]
        tail = self._bands[self._sorted : self._count]
        found.append(np.nonzero(tail == pieces)[0].astype(np.int32) + self._sorted)
        rows, shared = np.unique(np.concatenate(found), return_counts=True)
        if len(rows) > MOST_SCORED:
            # Names made of the same words share bands by the thousand. Keep those that share most (they are
            # nearest), the oldest first, so that a query costs the same however many there are.
            rows = np.sort(rows[np.lexsort((rows, -shared))[:MOST_SCORED]])
        return rows.astype(np.int64)

    def _pieces_of(self, rows: NDArray[np.int8]) -> NDArray[np.uint16]:
        """Return the sign bits of each band, (..., bands); the last dims % 16 dimensions are not used."""
        signs = rows[..., : self._pieces * _PIECE] > 0
        return np.packbits(signs, axis=-1).view(np.uint16)

    def _grow(self, capacity: int) -> None:
        rows = np.empty((capacity, self._dimensions), np.int8)
        rows[: self._count] = self._rows[: self._count]
        bands = np.empty((capacity, self._pieces), np.uint16)
        bands[: self._count] = self._bands[: self._count]
        lengths = np.empty(capacity, np.float64)
        lengths[: self._count] = self._lengths[: self._count]
        self._rows, self._bands, self._lengths = rows, bands, lengths

    def _sort_tail(self) -> None:
        """Turn the unsorted tail into a sorted run. Runs of similar size merge: O(log n) merges per row."""
        keys = _keys(self._bands[self._sorted : self._count])
        rows = np.repeat(np.arange(self._sorted, self._count, dtype=np.int32), self._pieces)
        self._push(keys.ravel(), rows, self._count - self._sorted)
        self._sorted = self._count

    def _push(self, keys: NDArray[np.uint32], rows: NDArray[np.int32], count: int) -> None:
        while self._runs and self._runs[-1][2] <= 4 * count:
            older_keys, older_rows, older = self._runs.pop()
            keys, rows = np.concatenate((older_keys, keys)), np.concatenate((older_rows, rows))
            count += older
        order = np.argsort(keys, kind="stable")
        self._runs.append((keys[order], rows[order], count))


def _lengths(rows: NDArray[np.int8]) -> NDArray[np.float64]:
    """Return the exact lengths of quantised rows, at least 1, so that a row of zeros has cosine 0."""
    wide = rows.astype(np.float32)  # the squares sum to less than 2**24: exact
    squares: NDArray[np.float64] = np.einsum("ij,ij->i", wide, wide).astype(np.float64)
    return np.sqrt(np.maximum(squares, 1.0))


def _keys(pieces: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """Return (n, bands) sign bits as keys that include the band's number: number << 16 | bits."""
    places = np.arange(pieces.shape[1], dtype=np.uint32) << 16
    keys: NDArray[np.uint32] = np.bitwise_or(places[None, :], pieces.astype(np.uint32))
    return keys
