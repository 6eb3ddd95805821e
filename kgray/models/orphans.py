"""A small process that ends the processes of an engine after the death of the engine's owner.

vLLM's core does not notice the death of the process that started it: after a kill, for want of memory for
example, it keeps the card's memory for ever. The guard reads a pipe that only the owner writes, so it also
notices a SIGKILL. It is in a session of its own, so that a kill of the owner's group leaves it alive.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

GRACE_S = 10.0  # for the ends of the processes by themselves, before they are killed
# Reads lines "pid start-time" until its input ends; the start time tells a later process of the same number
# apart. The topmost processes get SIGTERM, upon which vLLM's core ends its workers; later the others SIGKILL.
_GUARD = """
import os, signal, sys, time

def stat(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []

def remaining():
    stats = {pid: stat(pid) for pid in noted}
    return {pid: row[1] for pid, row in stats.items() if row and row[0] not in "ZX" and row[19] == noted[pid]}

def send(pids, number):
    for pid in pids:
        try:
            os.kill(int(pid), number)
        except OSError:
            pass

noted = dict(line.split() for line in sys.stdin)
parents = remaining()
send([pid for pid, parent in parents.items() if parent not in parents], signal.SIGTERM)
deadline = time.monotonic() + float(sys.argv[1])
while parents and time.monotonic() < deadline:
    time.sleep(0.1)
    parents = remaining()
send(parents, signal.SIGKILL)
"""


class Guard:
    """Ends the noted processes when this process dies, or when `close` is called."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._noted = set[str]()
        command = [sys.executable, "-I", "-S", "-c", _GUARD, str(grace_s)]
        self._process = subprocess.Popen(  # noqa: S603 - its program is above
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # else it would keep the owner's open
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def note(self, pids: Iterable[str]) -> None:
        """Note processes, by their numbers; those that are noted already are left out."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        for pid in {*pids} - self._noted - {str(self._process.pid)}:
            with suppress(OSError):  # it has ended, or the guard was killed
                start = Path("/proc", pid, "stat").read_text(errors="replace").rpartition(")")[2].split()[19]
                self._process.stdin.write(f"{pid} {start}\n")
                self._process.stdin.flush()
                self._noted.add(pid)

    def close(self) -> None:
        """End the noted processes that still run, within the grace time, and the guard."""
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=self._grace_s + 5)
