"""One `kgray up` or `down` of a data folder at a time: the second one meets what the first one left.

Without it, two that begin together would each start a Ray, and one of them would stay with no note of it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kgray.errors import StoreError

LOCK_FILE = "ray.lock"
_PAUSE_S = 0.1


@contextmanager
def one_at_a_time(data: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's turn; another process's is waited for, and told of once.

    The kernel ends the turn of a process that dies, so nothing is waited for in vain. In a folder that is
    not there no Ray is noted, so there is nothing to take turns for.
    """
    path = data / LOCK_FILE
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise StoreError(f"{path} cannot be opened for writing: {error.strerror}") from None
    try:
        told = False
        while not _taken(handle):
            if not told:
                holder = os.pread(handle, 60, 0).decode(errors="replace").strip() or "another process"
                tell(f"waiting: {holder} starts or ends the Ray of {data} now")
                told = True
            time.sleep(_PAUSE_S)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
