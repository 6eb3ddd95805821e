"""Writes a group to a new file or folder, which appears only when it is complete."""

from __future__ import annotations

import os
import secrets
import tarfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from shutil import rmtree

from kgray.domain.times import SECOND, Instant
from kgray.errors import InputError
from kgray.io.interchange.files import Rows
from kgray.io.interchange.formats import Format, Report, format_called
from kgray.io.interchange.snapshot import Snapshot
from kgray.ports import Store, at_one_moment
from kgray.ports.ingest import Stop, never
from kgray.schema import kinds
from kgray.system import locks


def export(
    store: Store, group: str, to: str, path: Path, *,
    as_of: Instant | None = None, known_at: Instant | None = None, stop: Stop = never,
) -> Report:  # fmt: skip
    """Write an existing group; arguments and errors as of `AsyncMemory.export`."""
    format_ = format_called(to, "writer")
    writer = format_.module()
    check_free(format_, path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")

    def work() -> tuple[Rows, str, Instant]:
        _drop(part)  # of a pass during which the group changed
        if format_.is_folder:
            part.mkdir(mode=locks.OWNER_FOLDER)
        with closing(Snapshot(store, group, as_of, known_at, stop)) as snapshot:
            rows: Rows = writer.write(snapshot, part)
            return rows, state_of(store, group), snapshot.head.last_recorded

    try:
        with locks.explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            rows, state, recorded_at = at_one_moment(store, work)
            files = 0
            for files, file in enumerate(_files(part), 1):  # noqa: B007 - the last is the count
                locks.sync(file)
            part.replace(path)
            locks.sync(path.parent)
    finally:
        _drop(part)
    return Report(format=to, files=files, rows=rows, state=state, recorded_at=recorded_at)


def state_of(store: Store, group: str) -> str:
    """Return a text that changes with the group: its counters and the runs of its communities."""
    runs = [row.run for row in store.rows(kinds.COMMUNITY_RUNS.all, group)]
    return f"{store.heads([group])[group]} {runs}"


def check_free(format_: Format, path: Path) -> None:
    """Raise InputError if the path exists already."""
    if format_.is_folder and path.is_dir() and not path.is_symlink():
        if any(path.iterdir()):
            raise InputError(f"{path} is not empty: {format_.name} needs a new folder", field="path")
    elif os.path.lexists(path):
        raise InputError(
            f"{path} is there already: name a new {'folder' if format_.is_folder else 'file'}", field="path"
        )


def pack(folder: Path, tar: Path, at: Instant) -> None:
    """Write the files of a folder as a .tar that depends only on their content. at: the time of all."""
    with (
        open(tar, "wb", opener=locks.for_owner) as raw,
        tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as out,
    ):
        for file in filter(Path.is_file, sorted(folder.rglob("*"))):
            entry = tarfile.TarInfo(file.relative_to(folder).as_posix())
            entry.size, entry.mode, entry.mtime = file.stat().st_size, locks.OWNER_FILE, at // SECOND
            with file.open("rb") as content:
                out.addfile(entry, content)


def unpack(tar: Path, folder: Path) -> None:
    """Write the files of a .tar into a folder. Raises tarfile.TarError, OSError."""
    with tarfile.open(tar) as packed:
        packed.extractall(folder, filter="data")


def _files(path: Path) -> Iterator[Path]:
    """Yield the files of a folder, or the file itself."""
    if not path.is_dir():
        yield path
    for folder, _, names in os.walk(path):
        yield from (Path(folder, name) for name in names)


def _drop(path: Path) -> None:
    if path.is_dir():
        rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # it may be missing, or its folder
            path.unlink()
