"""The time limit of a wait for another process: more than the slowest machine needs."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable

HANGS_S = 600.0


def wait_for(check: Callable[[], bool], running: subprocess.Popen[bytes] | None = None) -> None:
    """Look again and again until a check holds; fail where it never does, or the process has ended before."""
    deadline = time.monotonic() + HANGS_S
    while not check():
        if running is not None and running.poll() is not None:
            # It may have ended between the look and the question.
            assert check(), running.communicate()[1].decode()
            return
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


async def until(check: Callable[[], bool]) -> None:
    """Look again and again until a check holds, while other tasks run; fail where it never does."""
    ends = time.monotonic() + HANGS_S
    while not check():
        assert time.monotonic() < ends, "waited in vain"
        await asyncio.sleep(0.01)


def line_of(running: subprocess.Popen[bytes]) -> str:
    """Return the next line on a command's standard error; "" where it has ended."""
    assert running.stderr is not None
    return running.stderr.readline().decode()
