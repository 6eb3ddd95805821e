"""The time limit of a wait for another process: more than the slowest machine needs."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable

HANGS_S = 600.0
PAUSES_S = (0.02, 0.3)  # the shortest and the longest pause between two looks


def pause_after(look_s: float) -> float:
    """Return the pause after a look of this length: looks take at most a third of a processor."""
    shortest, longest = PAUSES_S
    return min(max(shortest, 2 * look_s), longest)


def wait_for(check: Callable[[], bool], running: subprocess.Popen[bytes] | None = None) -> None:
    """Look again and again until a check holds; fail where it never does, or the process has ended before."""
    begun = time.monotonic()
    deadline = begun + HANGS_S
    while not check():
        look_s = time.monotonic() - begun
        if running is not None and running.poll() is not None:
            # It may have ended between the look and the question.
            assert check(), running.communicate()[1].decode()
            return
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause_after(look_s))
        begun = time.monotonic()


async def until(check: Callable[[], bool]) -> None:
    """Look again and again until a check holds, while other tasks run; fail where it never does."""
    begun = time.monotonic()
    deadline = begun + HANGS_S
    while not check():
        look_s = time.monotonic() - begun
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(pause_after(look_s))
        begun = time.monotonic()


def line_of(running: subprocess.Popen[bytes]) -> str:
    """Return the next line on a command's standard error; "" where it has ended."""
    assert running.stderr is not None
    return running.stderr.readline().decode()
