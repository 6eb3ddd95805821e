"""Other processes, looked at from outside: memory, CPU time, and their end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress

from kgray.errors import SettingsError

_MB = 1 << 20


def require_psutil() -> None:
    """Raise SettingsError where psutil is not installed."""
    try:
        import psutil  # noqa: F401
    except ImportError:
        raise SettingsError("this measurement needs psutil: pip install psutil") from None


def rss_mb(pid: int) -> float | None:
    """Return a process's resident memory, less what it shares with others; None where it is gone."""
    import psutil

    try:
        found = psutil.Process(pid).memory_info()
    except psutil.Error:
        return None
    return float(found.rss - found.shared) / _MB


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far; 0 where it is gone."""
    import psutil

    try:
        found = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(found.user + found.system)


def below(pid: int) -> set[int]:
    """Return the processes that a process has started, and those that they have."""
    import psutil

    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.Error:
        return set()


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def kill(pid: int) -> None:
    """End a process at once; one that is gone already is no fault."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class CpuByRole:
    """CPU seconds of processes by what they do, from when this was made."""

    def __init__(self, roles: Mapping[str, Iterable[int]]) -> None:
        """Take the processes of each role; of one that stands in several, the first counts."""
        seen: set[int] = set()
        self._before: dict[str, dict[int, float]] = {}
        for role, pids in roles.items():
            own = [pid for pid in pids if pid not in seen]
            seen.update(own)
            self._before[role] = {pid: cpu_s(pid) for pid in own}

    def spent(self) -> dict[str, float]:
        """Return the seconds since."""
        return {
            role: round(sum(max(0.0, cpu_s(pid) - since) for pid, since in before.items()), 3)
            for role, before in self._before.items()
        }
