"""External merge sort: sorted runs on disk, merged."""

from __future__ import annotations

import heapq
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from kgray import locks
from kgray.memory.run_files import explained

HELD = 32 << 20  # characters of rows in memory at a time
FAN_IN = 64  # runs merged at once: files open
_OVERHEAD = 400  # bytes of a row's Python objects, counted on top of its characters
_KEPT = "order.json"  # in a folder whose runs hold all rows


class Sorter:
    """Rows (lists of JSON values) in ascending order. Their first items must tell any two rows apart."""

    def __init__(self, folder: Path, *, held: int | None = None, fan_in: int | None = None) -> None:
        """Write sorted runs into a folder that the caller removes. held, fan_in: default HELD and FAN_IN."""
        self._folder = folder
        self._held, self._fan_in = held or HELD, fan_in or FAN_IN
        self._rows: list[list[Any]] = []
        self._size = 0
        self._runs: list[Path] = []
        self._made = 0
        self.count = 0

    @classmethod
    def kept(cls, folder: Path, of: object) -> Sorter | None:
        """Return the order that `keep` saved for `of`; else empty the folder and return None."""
        found = cls(folder)
        try:
            kept = json.loads((folder / _KEPT).read_bytes())
            found._runs, found.count = [folder / name for name in kept["runs"]], kept["count"]
            if kept["of"] == of and all(run.is_file() for run in found._runs):
                return found
        except (OSError, ValueError, KeyError, TypeError):
            pass  # it was killed before all rows were in
        with explained(folder):
            shutil.rmtree(folder, ignore_errors=True)
            locks.make_folder(folder)
        return None

    def keep(self, of: object) -> None:
        """Save the order in the folder, for `kept`; call it when all rows are in. of: as JSON, its input."""
        self._spill()
        self._fold()
        with explained(self._folder):
            new = self._folder / f"{_KEPT}.new"
            runs = [run.name for run in self._runs]
            with open(new, "w", encoding="utf-8", opener=locks.for_owner) as out:
                json.dump({"of": of, "count": self.count, "runs": runs}, out)
            new.replace(self._folder / _KEPT)

    def add(self, row: list[Any], size: int = 0) -> None:
        """Add a row. size: its characters, roughly."""
        self._rows.append(row)
        self._size += size + _OVERHEAD
        self.count += 1
        if self._size >= self._held:
            self._spill()

    def sorted(self) -> Iterator[list[Any]]:
        """Yield all rows in order; to be called once, when all are in."""
        if self._runs:
            self._spill()
            self._fold()
            yield from _merged(self._runs)
        else:
            yield from sorted(self._rows)

    def _fold(self) -> None:
        """Merge runs until at most `fan_in` are left."""
        while len(self._runs) > self._fan_in:
            first, self._runs = self._runs[: self._fan_in], self._runs[self._fan_in :]
            self._runs.append(self._written(_merged(first)))
            for run in first:
                run.unlink()

    def _spill(self) -> None:
        if self._rows:
            self._runs.append(self._written(iter(sorted(self._rows))))
        self._rows, self._size = [], 0

    def _written(self, rows: Iterator[list[Any]]) -> Path:
        self._made += 1
        path = self._folder / f"run-{self._made}.jsonl"
        with explained(path), open(path, "w", encoding="utf-8", opener=locks.for_owner) as out:
            while block := list(islice(rows, 1000)):
                out.writelines(json.dumps(row) + "\n" for row in block)
            out.flush()
            os.fsync(out.fileno())
        return path


def _merged(runs: list[Path]) -> Iterator[list[Any]]:
    with ExitStack() as stack:
        files = [stack.enter_context(run.open(encoding="utf-8", newline="\n")) for run in runs]
        yield from heapq.merge(*(map(json.loads, file) for file in files))
