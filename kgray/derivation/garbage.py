"""Garbage collection while a group's state is loaded, and while it is in memory.

A group of 100,000 facts is some millions of objects that stay. CPython's cyclic collector would walk them
again and again for every few hundred new ones; what a run allocates besides is freed by reference counts.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Young objects between two collections, and how many of each generation pass before the next older one.
_RARE = (100_000, 50, 1_000)


@contextmanager
def garbage_collected_rarely() -> Iterator[None]:
    """Let the collector run rarely inside; the caller's thresholds come back after it."""
    before = gc.get_threshold()
    gc.set_threshold(*_RARE)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def garbage_not_collected() -> Iterator[None]:
    """Keep the collector off inside: for a bulk load."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
