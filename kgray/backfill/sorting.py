"""An order over more rows than memory holds: sorted runs on disk, merged."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

HELD = 32 << 20  # characters of rows in memory at a time
FAN_IN = 64  # runs merged at once: files open
_OVERHEAD = 400  # characters that a row counts beside its own


class Sorter:
    """Rows (lists of JSON values) in ascending order. Their first items must tell any two rows apart."""

    def __init__(self, folder: Path, *, held: int = HELD, fan_in: int = FAN_IN) -> None:
        """Write sorted runs into a folder that the caller removes."""
        self._folder, self._held, self._fan_in = folder, held, fan_in
        self._rows: list[list[Any]] = []
        self._size = 0
        self._runs: list[Path] = []
        self._made = 0
        self.count = 0

    def add(self, row: list[Any], size: int = 0) -> None:
        """Take a row; size: about its characters."""
        self._rows.append(row)
        self._size += size + _OVERHEAD
        self.count += 1
        if self._size >= self._held:
            self._spill()

    def sorted(self) -> Iterator[list[Any]]:
        """Yield all rows in order; to be called once, when all are in."""
        if not self._runs:
            self._rows.sort()
            yield from self._rows
            return
        self._spill()
        while len(self._runs) > self._fan_in:
            first, self._runs = self._runs[: self._fan_in], self._runs[self._fan_in :]
            self._runs.append(self._written(_merged(first)))
            for run in first:
                run.unlink()
        yield from _merged(self._runs)

    def _spill(self) -> None:
        if self._rows:
            self._rows.sort()
            self._runs.append(self._written(iter(self._rows)))
        self._rows, self._size = [], 0

    def _written(self, rows: Iterator[list[Any]]) -> Path:
        self._made += 1
        path = self._folder / f"run-{self._made}.jsonl"
        with path.open("w", encoding="utf-8") as out:
            while block := list(islice(rows, 1000)):
                out.writelines(json.dumps(row) + "\n" for row in block)
        return path


def _merged(runs: list[Path]) -> Iterator[list[Any]]:
    with ExitStack() as stack:
        files = [stack.enter_context(run.open(encoding="utf-8", newline="\n")) for run in runs]
        yield from heapq.merge(*(map(json.loads, file) for file in files))
