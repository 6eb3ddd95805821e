"""Chance that depends on a seed and keys alone: the same on every machine, in every order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

from kgray.domain.records import canonical

_T = TypeVar("_T")
_RANGE = 1 << 64


class Dice:
    """A stream of throws named by its keys; two streams of different keys know nothing of each other."""

    __slots__ = ("_count", "_key")

    def __init__(self, *keys: object) -> None:
        """Start the stream of these keys (anything that JSON can hold)."""
        self._key = canonical(keys).encode()
        self._count = 0

    def number(self) -> int:
        """Return the next throw, from 0 to 2**64 - 1."""
        self._count += 1
        digest = hashlib.blake2b(self._key + self._count.to_bytes(4, "big"), digest_size=8).digest()
        return int.from_bytes(digest, "big")

    def unit(self) -> float:
        """Return a number from 0 up to but not including 1."""
        return self.number() / _RANGE

    def flip(self, rate: float) -> bool:
        """Return True at this rate."""
        return self.unit() < rate

    def number_below(self, count: int) -> int:
        """Return a number from 0 to count - 1; count > 0."""
        return self.number() * count // _RANGE

    def between(self, low: int, high: int) -> int:
        """Return a number from low to high, both included."""
        return low + self.number_below(high - low + 1)

    def pick(self, items: Sequence[_T]) -> _T:
        """Return one of the items."""
        return items[self.number_below(len(items))]

    def weighted(self, weights: Mapping[_T, float]) -> _T:
        """Return one of the keys, as often as its weight says."""
        likely = {key: weight for key, weight in weights.items() if weight > 0}
        remaining = self.unit() * sum(likely.values())
        *rest_of_keys, last = likely
        for key in rest_of_keys:
            remaining -= likely[key]
            if remaining < 0:
                return key
        return last


def chance(*keys: object) -> float:
    """Return the throw of these keys, in [0, 1)."""
    return Dice(*keys).unit()
