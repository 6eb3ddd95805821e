"""How many workers there are to be, when each loads its model, and which are quarantined. Without Ray."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_FULL = 0.9  # of what the workers take: chunks do not divide it evenly
_LOOKS = 2  # in a row: at which all are full, before more are started; at which one gave no answer
_LONGEST_PAUSE_S = 300.0  # between two starts of a worker that fails each time
_ENDED = "its process ended while it loaded its model"
Rows = Mapping[str, Mapping[str, Any]]  # stats of workers by name; without "pid" where one does not answer


@dataclass(slots=True)
class _Start:
    """The latest starts of one worker."""

    pid: int = 0  # the process that was seen last
    is_up: bool = False  # with its model
    missed: int = 0  # looks in a row that it did not answer
    loads: bool = False  # it was asked to load its model, and has not been up since
    has_fault: bool = False  # it has said what is wrong, and is counted
    failures: int = 0  # in a row
    reason: str = ""  # of the last one
    again_at: float = 0.0


class Starts:
    """Decides when workers load their models. One whose start fails is quarantined, until a start succeeds.

    A start fails with a fault of the model or its settings, or by the end of the process that loads. The
    pause before the next start begins with `pause_s`, and doubles with each failure, up to 300 s.
    """

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._starts: dict[str, _Start] = {}

    def looked(self, rows: Rows, now: float) -> tuple[list[str], list[str]]:
        """Return the names of the workers that are to load their models, and of those to end and start again.

        rows: of all workers that exist: pid; loaded and loading, two flags; fault, None or an error
        """
        self._starts = {name: self._starts.get(name, _Start()) for name in rows}
        load, again = list[str](), list[str]()
        for name, start in self._starts.items():
            if (
                pid := rows[name].get("pid")
            ) is None:  # it has no node, or Ray starts its process, or it is slow
                start.missed += 1
                start.is_up &= start.missed < _LOOKS
                continue
            start.missed, start.is_up = 0, rows[name]["loaded"]
            fault = rows[name].get("fault")
            if start.pid != pid:
                if start.loads and not start.has_fault:
                    self._failed(start, _ENDED, now)
                start.pid, start.loads, start.has_fault = pid, False, False
            if start.is_up:
                self._starts[name] = _Start(pid, is_up=True)
            elif fault is not None and not start.has_fault:
                start.has_fault = True
                self._failed(start, str(fault), now)
            elif rows[name]["loading"]:
                start.loads = True
            elif now >= start.again_at:
                start.loads = True
                (load if fault is None else again).append(name)
        return load, again

    def up(self) -> list[str]:
        """Return the names of the workers that have their models; one look without an answer is forgiven."""
        return [name for name, start in self._starts.items() if start.is_up]

    def quarantined(self) -> dict[str, str]:
        """Return why the last start failed, by name, of each worker that has failed and is not up."""
        found = {name: start for name, start in self._starts.items() if start.failures}
        return {
            name: start.reason if start.failures == 1 else f"{start.reason} ({start.failures} starts failed)"
            for name, start in found.items()
        }

    def _failed(self, start: _Start, reason: str, now: float) -> None:
        start.failures, start.reason = start.failures + 1, reason
        start.again_at = now + min(self._pause_s * 2 ** min(start.failures - 1, 20), _LONGEST_PAUSE_S)


@dataclass(slots=True)
class PoolSize:
    """How many workers of a kind there are to be: more while all are full, fewer where some have no work."""

    least: int
    most: int
    takes: int  # requests that one works on at a time
    idle_s: float  # without work for so long, one beyond the least ends
    full_at: float = field(default_factory=time.monotonic)  # when all were full last
    _full: int = 0  # looks in a row at which they were

    def looked(self, rows: Mapping[int, Mapping[str, Any]], now: float) -> tuple[list[int], list[int]]:
        """Return the numbers of the workers to start, and of those to end.

        rows: the stats of each worker that exists, by number; of one that loads, or has no node, not "loaded"
        """
        up = [row for row in rows.values() if row.get("loaded")]
        full = bool(up) and sum(row["running"] for row in up) >= _FULL * self.takes * len(up)
        self.full_at = now if full else self.full_at
        coming = any(not row.get("loaded") and row.get("fault") is None for row in rows.values())
        self._full = self._full + 1 if full and not coming else 0
        start: list[int] = []
        if self._full >= _LOOKS:
            self._full, start = 0, [number for number in range(self.most) if number not in rows][: len(up)]
        idle = {n: row["idle_s"] if row.get("loaded") else now - self.full_at for n, row in rows.items()}
        return start, [number for number in rows if number >= self.least and idle[number] >= self.idle_s]
