"""Postings: for a term of words, or a token of an embedder, the rows of a text that have it, and how much."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgray.rows import as_weights

Much = NDArray[Any]  # int32: how often a row has a term; float32: what a token weighs in it
Postings = tuple[NDArray[np.int32], Much]  # rows, rising; how much each has of the term
_Run = tuple[NDArray[np.uint32], NDArray[np.int32], Much]  # terms, sorted; for each term its rows, rising


class Runs:
    """Postings as sorted runs that are merged as they grow.

    Each new one is at least half as long as the one before: to add is cheap, and a look-up searches about
    log(n) of them.
    """

    def __init__(self) -> None:
        """Hold none."""
        self._runs: list[_Run] = []

    def _append(self, run: _Run) -> None:
        """Append postings whose rows come after all that are there."""
        if not len(run[0]):
            return
        while self._runs and len(self._runs[-1][0]) < 2 * len(run[0]):
            older = self._runs.pop()
            order = np.argsort(np.concatenate((older[0], run[0])), kind="stable")
            run = (
                np.concatenate((older[0], run[0]))[order],
                np.concatenate((older[1], run[1]))[order],
                np.concatenate((older[2], run[2]))[order],
            )
        self._runs.append(run)

    def having(self, term: int) -> Postings:
        """Return the rows that have a term, rising, and how much of it each has."""
        found: list[Postings] = [(np.zeros(0, np.int32), np.zeros(0, np.int32))]
        for terms, rows, much in self._runs:
            first, last = (terms.searchsorted(np.uint32(term), side) for side in ("left", "right"))
            if first < last:
                found.append((rows[first:last], much[first:last]))
        found = found[1:] or found  # counts stay whole numbers
        return np.concatenate([rows for rows, _ in found]), np.concatenate([much for _, much in found])

    def nbytes(self) -> int:
        """Memory held."""
        return 3 * sum(run[0].nbytes for run in self._runs)  # terms, rows, how much: as many bytes each


class Words(Runs):
    """Postings of the words of n rows: how often each has a term."""

    def __init__(self) -> None:
        """Hold no row."""
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
        self._append((terms[starts], rows[starts], np.diff(starts, append=len(terms)).astype(np.int32)))

    def having_phrase(self, terms: Sequence[int]) -> list[int]:
        """Return the rows that have these terms one after the other."""
        wanted = np.array(terms, "<u4").tobytes()
        rows = reduce(np.intersect1d, (self.having(term)[0] for term in set(terms)))

        def has(text: bytes) -> bool:
            at = text.find(wanted)
            while at > 0 and at % 4:  # between two terms begins none
                at = text.find(wanted, at + 1)
            return at >= 0

        return [int(row) for row in rows if has(self._texts[row])]

    def nbytes(self) -> int:
        """Memory held."""
        return super().nbytes() + self.lengths.nbytes + 4 * int(self.lengths.sum())


class Tokens(Runs):
    """Postings of the tokens that an embedder weighs (`ports.Embedding.weights`)."""

    def add(self, first: int, weights: Sequence[bytes]) -> None:
        """Append rows, numbered from `first` on, each what `rows.weight_bytes` gives of a text."""
        held = [as_weights(kept) for kept in weights]
        tokens, much = (np.concatenate(parts) for parts in zip(*held, strict=True))
        lengths = [len(ids) for ids, _ in held]
        rows = np.repeat(np.arange(first, first + len(held), dtype=np.int32), lengths)
        order = np.argsort(tokens, kind="stable")
        self._append((tokens[order], rows[order], much[order]))
