"""Python's cyclic garbage collector during work on millions of objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# gc.set_threshold: new objects per collection, and collections of one generation per one of the next.
_RARE = (100_000, 50, 1_000)
_PART = 500  # items of a list that are freed together

_OPEN: list[bool] = []  # the blocks that are open, in any thread: whether the collector was on before each


@contextmanager
def garbage_not_collected() -> Iterator[None]:
    """Turn the collector off inside the block, for a bulk load: else all threads would wait 0.13 s."""
    _OPEN.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        if _OPEN.pop():
            gc.enable()


def let_go(*held: object) -> None:
    """Empty what is not used any more bit by bit: freed at once, 100,000 facts keep the lock for 0.4 s."""
    for one in held:
        if isinstance(one, list):
            while one:
                del one[-_PART:]
        while isinstance(one, dict | set) and one:
            one.popitem() if isinstance(one, dict) else one.pop()


@contextmanager
def garbage_collected_rarely() -> Iterator[None]:
    """Let Python's cyclic garbage collector run rarely inside the block.

    It would scan the millions of objects of a group of 100,000 facts for every few hundred new ones.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_RARE)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def collect_garbage_rarely() -> None:
    """Do the same from now on, and leave alone what is there: for a worker or writer, 7 % of its time."""
    gc.freeze()
    gc.set_threshold(*_RARE)
