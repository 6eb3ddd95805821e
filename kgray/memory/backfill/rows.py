"""The files' rows, each with its place: in the order of the files, or of the rows' reference times."""

from __future__ import annotations

import asyncio
import json
import tempfile
from array import array
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from kgray.domain.records import Draft
from kgray.io.intake.drafts import Defaults, Refusal
from kgray.io.intake.files import Submitted, read_file
from kgray.io.intake.formats import Position
from kgray.memory.backfill.inputs import InputFile
from kgray.memory.backfill.manifest import Manifest
from kgray.ports.ingest import Stop
from kgray.system.locks import explained

Order = Literal["file", "reference-time"]
_AT_ONCE = 16  # rows that are read before other tasks run
_FIRST, _LAST = -(1 << 63), (1 << 63) - 1  # sort keys: refusals come first, rows without a time last


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRow:
    """A row and its position in reading order, from 0. item None marks the end of the file."""

    file: InputFile
    number: int
    item: Submitted | Refusal | None


class BackfillRows:
    """Reads the rows of a run that no earlier attempt has read; estimates the number of remaining rows."""

    def __init__(self, manifest: Manifest, defaults: Defaults, folder: Path, stop: Stop) -> None:
        """folder: of the run; an unnamed temporary file there holds the rows to sort."""
        self._manifest, self._defaults, self._folder, self._stop = manifest, defaults, folder, stop
        self._position = Position()  # in the current file
        self._size = 0  # bytes of the current file
        self._read = 0  # rows, including rows of earlier attempts
        self._bytes = 0  # of the files that were read to their end
        self._all: int | None = None  # all rows, once they are counted
        self.complete = False  # every row was yielded
        self.sorting = 0  # rows read so far for sorting; 0 = not sorting

    def rows(self) -> AsyncGenerator[PlacedRow]:
        """Yield the rows in the run's order."""
        return self._by_time() if self._manifest.by_time else self._by_file()

    def remaining(self) -> int | None:
        """Return an estimate of the rows not read yet; None if there is no basis for it."""
        if self._all is not None:
            return self._all - self._read
        total = sum(file.size for file in self._manifest.files)
        bytes_read = self._bytes + self._position.share() * self._size
        return round((total - bytes_read) * self._read / bytes_read) if bytes_read and self._read else None

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
        # In a thread: a file system may be slow, and skipped rows must be read before the first new row.
        while page := await asyncio.to_thread(lambda: list(islice(items, _AT_ONCE))):
            for item in page:
                yield number, item
                number += 1
        self._size, self._bytes = 0, self._bytes + file.size

    async def _by_time(self) -> AsyncGenerator[PlacedRow]:
        """Yield by (reference time, file, row): refusals first, rows without a time last.

        All are sorted first: the rows lie on disk, 16 bytes of each in memory.
        """
        files = self._manifest.files
        all_complete = all(file.complete for file in files)
        times, places, size = array("q"), array("q"), 0
        with explained(self._folder):
            sorted_rows = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed below
        try:
            for at, file in enumerate([] if all_complete else files):
                async for _, item in self._items(file, 0):
                    if self._stop():
                        return
                    time = _FIRST if isinstance(item, Refusal) else item.draft.reference_time
                    times.append(_LAST if time is None else time)
                    places.append(size)
                    with explained(self._folder):
                        size += sorted_rows.write(json.dumps([at, asdict(item)]).encode() + b"\n")
                    self.sorting = len(places)
            with explained(self._folder):
                sorted_rows.flush()
            self._all, self.sorting = (self._manifest.ordered if all_complete else len(places)), 0
            for number, place in enumerate(np.argsort(np.array(times), kind="stable").tolist()):
                self._read += 1
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                if number >= self._manifest.ordered:
                    sorted_rows.seek(places[place])
                    at, row = json.loads(sorted_rows.readline())
                    draft = row.pop("draft", None)
                    item = Refusal(**row) if draft is None else Submitted(draft=Draft(**draft), **row)
                    yield PlacedRow(file=files[at], number=number, item=item)
        finally:
            with suppress(OSError):  # a failed write has raised its error already
                sorted_rows.close()
        for file in files:
            yield PlacedRow(file=file, number=-1, item=None)
        self.complete = True
