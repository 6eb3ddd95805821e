"""The paired bootstrap over messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.labelled_set.shares import Counts

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Interval:
    """Mean difference of two F1 over resamples, with the bounds of its 90 % interval."""

    mean: float
    low: float
    high: float


def bootstrap(
    first: Sequence[Counts], second: Sequence[Counts], *, resamples: int = RESAMPLES, seed: int = 1
) -> Interval:
    """Return F1(first) - F1(second) over messages that are drawn with replacement, in pairs.

    first, second: counts of the same messages in the same order, at least one. Deterministic for a seed.
    """
    if len(first) != len(second) or not first:
        raise ValueError("both readers need counts of the same messages, at least one")
    drawn = np.random.default_rng(seed).integers(0, len(first), (resamples, len(first)))
    difference = _f1_of(first, drawn) - _f1_of(second, drawn)
    low, high = np.quantile(difference, (0.05, 0.95))
    return Interval(float(difference.mean()), float(low), float(high))


def _f1_of(counts: Sequence[Counts], drawn: np.ndarray) -> np.ndarray:
    """Return (resamples,): the F1 of each row of drawn messages."""
    right = np.array([count.right for count in counts])[drawn].sum(axis=1)
    errors = np.array([count.wrong + count.missed for count in counts])[drawn].sum(axis=1)
    total = 2 * right + errors
    return np.where(total > 0, 2 * right / np.maximum(total, 1), 1.0)


# ----------------------------------------------------------------------------- identities, ends
