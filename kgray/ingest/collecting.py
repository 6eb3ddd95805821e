"""Rare garbage collections while a group's state is in memory.

A group of 100,000 facts is some millions of objects that stay. CPython's collector walks them again
and again for every few hundred new ones; what a run allocates besides is freed by reference counts.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Young objects between two collections, and how many of each sort pass before the next older sort.
_THRESHOLDS = (100_000, 50, 1_000)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector run rarely inside; the caller's thresholds come back after it."""
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
