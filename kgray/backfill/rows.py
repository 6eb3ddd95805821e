"""The files' rows, each with its place: in the order of the files, or of the rows' reference times."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from kgray.backfill.inputs import InputFile
from kgray.backfill.manifest import VERSION, Manifest
from kgray.backfill.sorting import Sorter
from kgray.intake.drafts import Defaults, Refusal
from kgray.intake.files import Submitted, read_file
from kgray.intake.formats import Position
from kgray.memory.run_files import SORTED
from kgray.ports.ingest import Stop
from kgray.records import Draft

Order = Literal["file", "reference-time"]
_AT_ONCE = 16  # rows that are read before other tasks run
_EARLIEST, _UNTIMED_LAST = 1 << 62, (1 << 63) - 1  # added to a time; of rows without one


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRow:
    """One row and its position in reading order, from 0. item None marks the end of the file."""

    file: InputFile
    number: int
    item: Submitted | Refusal | None


class BackfillRows:
    """Reads the rows of a run that no earlier attempt has read; estimates how many are left."""

    def __init__(self, manifest: Manifest, defaults: Defaults, folder: Path, stop: Stop) -> None:
        """Read the manifest's files; folder: of the run, where sorted rows lie meanwhile."""
        self._manifest, self._defaults, self._stop = manifest, defaults, stop
        self._sorted_rows = folder / SORTED
        self._position = Position()  # in the file that is being read
        self._size = 0  # bytes of that file
        self._read = 0  # rows, with those that an earlier attempt had
        self._bytes = 0  # of the files that are read
        self._all: int | None = None  # rows, once they are all known
        self.complete = False  # every row was handed out
        self.sorting = 0  # rows that are read to be sorted, while they are

    def rows(self) -> AsyncGenerator[PlacedRow]:
        """Yield the rows in the run's order."""
        return self._by_time() if self._manifest.by_time else self._by_file()

    def left(self) -> int | None:
        """Return an estimate of the rows not read yet; None where there is no basis for it."""
        if self._all is not None:
            return self._all - self._read
        whole = sum(file.size for file in self._manifest.files)
        had = self._bytes + self._position.share() * self._size
        return round((whole - had) * self._read / had) if had and self._read else None

    async def _by_file(self) -> AsyncGenerator[PlacedRow]:
        for file in self._manifest.files:
            self._read += file.rows
            if file.complete:
                self._bytes += file.size
                continue
            async for number, item in self._items(file, file.rows):
                self._read += 1
                yield PlacedRow(file=file, number=number, item=item)
            yield PlacedRow(file=file, number=-1, item=None)
        self.complete = True

    async def _items(self, file: InputFile, skip: int) -> AsyncIterator[tuple[int, Submitted | Refusal]]:
        """Yield (number, row) of a file's rows after the first `skip`."""
        self._position, self._size = Position(), file.size
        position, number = self._position, skip
        items = read_file(file.place, self._defaults, name=file.name, skip=skip, position=position)
        # In a thread: a file system may be slow, and the first rows lie behind all those that are skipped.
        while page := await asyncio.to_thread(lambda: list(islice(items, _AT_ONCE))):
            for item in page:
                yield number, item
                number += 1
        self._size, self._bytes = 0, self._bytes + file.size

    async def _by_time(self) -> AsyncGenerator[PlacedRow]:
        """Yield by (reference time, file, row): refusals first, rows without a time last."""
        files, skip = self._manifest.files, self._manifest.ordered
        if all(file.complete for file in files):
            self._read = self._all = skip
            self.complete = True
            return
        sorter = await self._sorted()
        if sorter is None:
            return
        self._all, self.sorting = sorter.count, 0
        for number, (at, held) in enumerate(sorter.sorted()):
            self._read += 1
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if number >= skip:
                yield PlacedRow(file=files[at], number=number, item=_unpacked(held))
        for file in files:
            yield PlacedRow(file=file, number=-1, item=None)
        self.complete = True
        shutil.rmtree(self._sorted_rows, ignore_errors=True)

    async def _sorted(self) -> Sorter | None:
        """Return all rows sorted, reusing an earlier attempt's order; None where asked to stop."""
        files = [[file.name, file.path, file.size, file.mtime_ns] for file in self._manifest.files]
        of = {"version": VERSION, "options": self._manifest.options, "files": files}
        if (kept := Sorter.kept(self._sorted_rows, of)) is not None:
            return kept
        sorter = Sorter(self._sorted_rows)
        for at, file in enumerate(self._manifest.files):
            async for _, item in self._items(file, 0):
                if self._stop():
                    return None
                time, held = _packed(item)
                sorter.add(time.to_bytes(8), [at, held])
                self.sorting = sorter.count
        sorter.keep(of)
        return sorter


def _packed(item: Submitted | Refusal) -> tuple[int, dict[str, Any]]:
    """Return the time to sort by, never negative, and the item as JSON values."""
    if isinstance(item, Refusal):
        return 0, asdict(item)
    at = item.draft.reference_time
    return _UNTIMED_LAST if at is None else _EARLIEST + at, asdict(item)


def _unpacked(held: dict[str, Any]) -> Submitted | Refusal:
    draft = held.pop("draft", None)
    return Refusal(**held) if draft is None else Submitted(draft=Draft(**draft), **held)
