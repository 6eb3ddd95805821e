"""The files' rows, each with its place: in the order of the files, or of the rows' reference times."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kgray.backfill.manifest import VERSION, FileProgress, Manifest
from kgray.backfill.sorting import Sorter
from kgray.intake import Defaults, Position, Refusal, Submitted, read_file
from kgray.memory.run_files import SORTED
from kgray.records import Draft

Order = Literal["file", "reference-time"]
Stop = Callable[[], bool]
_AT_ONCE = 16  # rows that are read before others get their turn
_REFUSED_FIRST, _UNTIMED_LAST = -(1 << 62), 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row and where it stands in the order of reading, from 0. item None: the file has no more."""

    file: FileProgress
    number: int
    item: Submitted | Refusal | None


class Reader:
    """Reads the rows of a run that no earlier attempt has had; tells how many are left."""

    def __init__(self, manifest: Manifest, defaults: Defaults, folder: Path, stop: Stop) -> None:
        """Read the manifest's files; folder: where sorted rows may lie meanwhile."""
        self._manifest, self._defaults, self._folder, self._stop = manifest, defaults, folder, stop
        self._files: Sequence[FileProgress] = manifest.files
        self._position: Position | None = None  # of the file that is being read
        self._read = 0  # rows, with those that an earlier attempt had
        self._bytes = 0  # of the files that are read
        self._all: int | None = None  # rows, once they are all known
        self.complete = False  # every row was handed out
        self.sorting = 0  # rows that are read to be sorted, while they are

    def rows(self) -> AsyncGenerator[Row]:
        """Yield the rows in the run's order."""
        return self._by_file() if self._manifest.options["order"] == "file" else self._by_time()

    def left(self) -> int | None:
        """Return about how many rows are not read yet; None where nothing tells."""
        if self._all is not None:
            return self._all - self._read
        whole = sum(row.size for row in self._files)
        here = 0.0
        if self._position is not None:
            here = self._position.share() * self._current.size
        had = self._bytes + here
        return round((whole - had) * self._read / had) if had and self._read else None

    async def _by_file(self) -> AsyncGenerator[Row]:
        for file in self._files:
            self._read += file.rows
            if not file.complete:
                for number, item in enumerate(self._items(file, file.rows), file.rows):
                    if number % _AT_ONCE == 0:
                        await asyncio.sleep(0)
                    self._read += 1
                    yield Row(file=file, number=number, item=item)
                yield Row(file=file, number=-1, item=None)
            self._position = None
            self._bytes += file.size
        self.complete = True

    def _items(self, file: FileProgress, skip: int) -> Iterator[Submitted | Refusal]:
        self._current, self._position = file, Position()
        return read_file(Path(file.path), self._defaults, name=file.name, skip=skip, position=self._position)

    async def _by_time(self) -> AsyncGenerator[Row]:
        """Yield by (reference time, file, row): refusals first, what acceptance will time last."""
        skip = self._manifest.ordered
        if all(file.complete for file in self._files):
            self._read = self._all = skip
            self.complete = True
            return
        sorter = await self._sorted()
        if sorter is None:
            return
        self._all, self.sorting = sorter.count, 0
        for number, found in enumerate(sorter.sorted()):
            self._read += 1
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if number >= skip:
                yield Row(file=self._files[found[1]], number=number, item=_unpacked(found))
        for file in self._files:
            yield Row(file=file, number=-1, item=None)
        self.complete = True
        shutil.rmtree(self._folder / SORTED, ignore_errors=True)

    async def _sorted(self) -> Sorter | None:
        """Return the rows sorted, by an earlier attempt where it came so far; None: asked to stop."""
        folder = self._folder / SORTED
        files = [[file.name, file.path, file.size, file.mtime_ns] for file in self._files]
        of = {"version": VERSION, "options": self._manifest.options, "files": files}
        if (kept := Sorter.kept(folder, of)) is not None:
            return kept
        sorter = Sorter(folder)
        for at, file in enumerate(self._files):
            for number, item in enumerate(self._items(file, 0)):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                if self._stop():
                    return None
                sorter.add(*_packed(item, at, number))
                self.sorting = sorter.count
            self._position = None
            self._bytes += file.size
        sorter.keep(of)
        return sorter


def _packed(item: Submitted | Refusal, file: int, number: int) -> tuple[list[Any], int]:
    """Return (time, file, row, what the item holds) and about how many characters it takes."""
    if isinstance(item, Refusal):
        return [_REFUSED_FIRST, file, number, item.as_dict()], len(item.reason)
    draft = item.draft
    time = _UNTIMED_LAST if draft.reference_time is None else draft.reference_time
    held = [item.file, item.line, item.whole, draft.group, draft.source, draft.kind, draft.text]
    held += [draft.speaker, draft.reference_time, draft.client_id, draft.metadata]
    return [time, file, number, held], len(draft.text) + len(draft.metadata)


def _unpacked(row: list[Any]) -> Submitted | Refusal:
    held = row[3]
    if isinstance(held, dict):
        return Refusal(**held)
    file, line, whole, group, source, kind, text, speaker, time, client_id, metadata = held
    draft = Draft(
        group=group,
        source=source,
        kind=kind,
        text=text,
        speaker=speaker,
        reference_time=time,
        client_id=client_id,
        metadata=metadata,
    )
    return Submitted(draft=draft, file=file, line=line, whole=whole)
