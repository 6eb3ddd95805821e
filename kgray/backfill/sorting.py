"""Rows in another order than they came: their texts lie in a file, their keys and places in memory."""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kgray import locks
from kgray.locks import explained

_ROWS, _ORDER, _KEPT = "rows.jsonl", "order.npy", "order.json"  # the last is there where all rows are


class Sorter:
    """Rows (JSON values) in ascending order of their keys, equals as they came; 8 bytes and a key a row."""

    def __init__(self, folder: Path) -> None:
        """Write the rows into a file of a folder that the caller removes."""
        self._folder = folder
        with explained(folder):
            self._file = open(folder / _ROWS, "ab+", opener=locks.for_owner)  # noqa: SIM115 - until it is collected
        self._keys = bytearray()
        self._places = array("q")
        self._size = 0

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self._places)

    @classmethod
    def kept(cls, folder: Path, of: object) -> Sorter | None:
        """Return the order that `keep` saved for `of`; else empty the folder and return None."""
        try:
            if json.loads((folder / _KEPT).read_bytes()) == of:
                found = cls(folder)
                found._places = array("q", np.load(folder / _ORDER).tobytes())
                return found
        except (OSError, ValueError):
            pass  # it was killed before all rows were in
        with explained(folder):
            shutil.rmtree(folder, ignore_errors=True)
            locks.make_folder(folder)
        return None

    def keep(self, of: object) -> None:
        """Save the order in the folder, for `kept`; call it when all rows are in. of: as JSON, its input."""
        with explained(self._folder):
            self._file.flush()
            np.save(self._folder / _ORDER, self._order())
            with locks.replaced(self._folder / _KEPT) as out:
                json.dump(of, out)

    def add(self, key: bytes, row: object) -> None:
        """Add a row. key: as long as that of every other row."""
        line = json.dumps(row).encode() + b"\n"
        with explained(self._folder):
            self._file.write(line)
        self._keys += key
        self._places.append(self._size)
        self._size += len(line)

    def sorted(self) -> Iterator[Any]:
        """Yield all rows in order; to be called when all are in."""
        for place in self._order().tolist():
            self._file.seek(place)
            yield json.loads(self._file.readline())

    def _order(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the places of the rows in the file, in the rows' order."""
        places = np.array(self._places, dtype=np.int64)
        if self._keys:
            keys = np.frombuffer(self._keys, dtype=f"S{len(self._keys) // self.count}")
            places = places[np.argsort(keys, kind="stable")]
        return places
