"""One `kgray up` or `down` of a data folder at a time: the second one meets what the first one left.

Without it, two that begin together would each start a Ray, and one of them would stay with no note of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kgray import locks

LOCK_FILE = "ray.lock"
_PAUSE_S = 0.1


@contextmanager
def one_at_a_time(data: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's turn; another process's is waited for, and told of once.

    In a folder that is not there no Ray is noted, so there is nothing to take turns for.
    """
    if not data.is_dir():
        yield
        return
    told: set[str] = set()

    def wait(holder: str) -> None:
        if not told:
            tell(f"waiting: {holder} starts or ends the Ray of {data} now")
            told.add(holder)
        time.sleep(_PAUSE_S)

    with locks.held(data / LOCK_FILE, wait):
        yield
