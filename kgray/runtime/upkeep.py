"""Decide when workers load their models, which are quarantined, and how large pools are. Without Ray."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# A pool above this share of its capacity is full: chunks do not divide the capacity evenly.
_FULL_SHARE = 0.9
# Consecutive looks at a full pool before it grows; looks without an answer before a worker is lost.
_LOOKS = 2
# The longest pause between two starts of a worker whose starts fail.
_LONGEST_PAUSE_S = 300.0
_PROCESS_ENDED = "its process ended while it loaded its model"
Rows = Mapping[str, Mapping[str, Any]]  # stats of workers by name; a row without "pid": the worker is silent


@dataclass(slots=True)
class _Start:
    """The latest starts of a worker."""

    pid: int = 0  # the worker's process at the last look
    is_up: bool = False  # the process has loaded its model
    silent: int = 0  # consecutive looks without an answer
    loads: bool = False  # the process was asked to load its model, and has not finished
    has_fault: bool = False  # the process has reported a fault, which is counted in `failures`
    failures: int = 0  # consecutive failed starts
    reason: str = ""  # of the last failure
    again_at: float = 0.0  # no start before this moment


class Starts:
    """Decides when workers load their models, and quarantines a worker until it starts successfully.

    A start fails with a fault of the model or the settings, or when the process ends while it loads. The
    first pause after a failure is `pause_s`; each further failure doubles it, up to 300 s.
    """

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._starts: dict[str, _Start] = {}

    def update(self, rows: Rows, instant: float) -> tuple[list[str], list[str]]:
        """Return the names of the workers to load, and of the workers to end and start again.

        rows    every existing worker: pid; the flags loaded and loading; fault, None or an error
        """
        self._starts = {name: self._starts.get(name, _Start()) for name in rows}
        load, restart = list[str](), list[str]()
        for name, start in self._starts.items():
            pid, fault = rows[name].get("pid"), rows[name].get("fault")
            if pid is None:  # no node has room for the worker, or Ray starts its process
                start.silent += 1
                start.is_up &= start.silent < _LOOKS
                continue
            start.silent, start.is_up = 0, rows[name]["loaded"]
            if start.pid != pid:
                if start.loads and not start.has_fault:
                    self._failed(start, _PROCESS_ENDED, instant)
                start.pid, start.loads, start.has_fault = pid, False, False
            if start.is_up:
                self._starts[name] = _Start(pid, is_up=True)
            elif fault is not None and not start.has_fault:
                start.has_fault = True
                self._failed(start, str(fault), instant)
            elif rows[name]["loading"]:
                start.loads = True
            elif instant >= start.again_at:
                start.loads = True
                (load if fault is None else restart).append(name)
        return load, restart

    def up(self) -> list[str]:
        """Return the names of the workers that have loaded their models."""
        return [name for name, start in self._starts.items() if start.is_up]

    def quarantined(self) -> dict[str, str]:
        """Return the quarantined workers by name, each with the reason of its last failure."""
        failed = {name: start for name, start in self._starts.items() if start.failures}
        return {
            name: start.reason if start.failures == 1 else f"{start.reason} ({start.failures} starts failed)"
            for name, start in failed.items()
        }

    def _failed(self, start: _Start, reason: str, instant: float) -> None:
        start.failures, start.reason = start.failures + 1, reason
        start.again_at = instant + min(self._pause_s * 2 ** min(start.failures - 1, 20), _LONGEST_PAUSE_S)


@dataclass(slots=True)
class PoolSize:
    """The target size of a pool: it grows while all workers are full, and ends workers without work."""

    minimum: int
    maximum: int
    takes: int  # requests that a worker works on at a time
    idle_s: float  # after this time without work, a surplus worker ends
    full_at: float = field(default_factory=time.monotonic)  # the last time when all were full
    _full: int = 0  # consecutive looks at a full pool

    def update(self, rows: Mapping[int, Mapping[str, Any]], instant: float) -> tuple[list[int], list[int]]:
        """Return the numbers of the workers to start, and of the workers to end.

        rows: the stats of each existing worker, by number; a worker that loads or has no node lacks "loaded"
        """
        up = [row for row in rows.values() if row.get("loaded")]
        full = bool(up) and sum(row["running"] for row in up) >= _FULL_SHARE * self.takes * len(up)
        self.full_at = instant if full else self.full_at
        coming = any(not row.get("loaded") and row.get("fault") is None for row in rows.values())
        self._full = self._full + 1 if full and not coming else 0
        start: list[int] = []
        if self._full >= _LOOKS:
            self._full, start = 0, [number for number in range(self.maximum) if number not in rows][: len(up)]
        idle = {n: row["idle_s"] if row.get("loaded") else instant - self.full_at for n, row in rows.items()}
        return start, [number for number in rows if number >= self.minimum and idle[number] >= self.idle_s]
