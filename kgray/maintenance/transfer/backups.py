"""Makes backups: all groups of a store, or some, at a single moment, while others write to it."""

from __future__ import annotations

import gzip
import io
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from kgray.domain import times
from kgray.errors import InputError, NotFound
from kgray.io.intake.remote import RemoteFile
from kgray.maintenance.transfer.backup_files import (
    MANIFEST,
    SCHEMA,
    GroupEntry,
    Manifest,
    Root,
    file_sha256,
    open_file,
    root_at,
    write_file,
    write_manifest,
)
from kgray.ports import Store, at_one_moment
from kgray.runtime.wiring import OpenStore
from kgray.schema.kinds import OWN
from kgray.settings import CONFIG_NAME, portable_toml
from kgray.storage.sqlite import FILE, SqliteStore, open_sqlite
from kgray.storage.texts import OnRow, Sum, rows_of, sum_of
from kgray.system import locks

_UNFINISHED = "unfinished"  # the folder inside a backup's folder for incomplete files
_BUFFER = 1 << 20
_LEVEL = 1  # of gzip
_Entries = dict[str, GroupEntry]


def backup(
    source: OpenStore, to: str, groups: Sequence[str] = (), *, on_row: OnRow = lambda: None
) -> Manifest:
    """Copy all groups, or some, to a folder that is new or empty, or to a URL, while others write.

    on_row: called for each row that is read

    The copy of an embedded store is a snapshot of a moment; on a server, each group has its own moment.
    Raises NotFound, InputError if the folder is not empty, StoreError, NoSpace, Unavailable.
    """
    root, store, store_sha256 = root_at(to), source.store, None
    with _target(root) as folder:
        if isinstance(store, SqliteStore) and isinstance(folder, Path) and not groups:
            entries, store_sha256 = _copied(store, folder, on_row)
        else:
            entries = _exported(source, groups, folder, on_row)
        config = source.folder / CONFIG_NAME
        if config.is_file():
            with write_file(folder / CONFIG_NAME) as out:
                out.write(portable_toml(config).encode())
        manifest = Manifest(
            made_at=times.to_datetime(times.now()).isoformat(),
            embedder=store.embedder,
            dimensions=store.dimensions,
            schema=SCHEMA,
            store_sha256=store_sha256,
            groups=entries,
        )
        write_manifest(folder, manifest)
    return manifest


@contextmanager
def _target(root: Root) -> Iterator[Root]:
    """Yield the folder for new files of a backup; at the end move them into place, the manifest last."""
    with suppress(FileNotFoundError), open_file(root / MANIFEST):
        raise InputError(f"there is a backup at {root} already: name another place")
    if isinstance(root, RemoteFile):
        yield root  # every file appears when it is complete, the manifest last
        return
    is_new = not root.exists()
    with locks.explained(root, "made"):
        present = {path.name for path in root.iterdir()} if not is_new else set()
        if present and _UNFINISHED not in present:
            raise InputError(f"{root} is not empty: name a new folder for the backup")
        locks.make_folder(root)
    try:
        with locks.staging(root / _UNFINISHED) as folder:
            yield folder
            with locks.explained(root):
                files = {path.name for path in folder.iterdir()} - {locks.LOCK, MANIFEST}
                for name in (*sorted(files), MANIFEST):
                    (folder / name).replace(root / name)
                locks.sync(root)
    except BaseException:
        with suppress(OSError):
            if is_new:
                root.rmdir()  # it stays if it contains files of a backup
        raise


def names_of(store: Store) -> list[str]:
    """Return the names of all groups, including the store's internal group if it has rows."""
    return [*store.heads(), *[OWN] * store.heads([OWN])[OWN].named]


def _copied(store: SqliteStore, folder: Path, on_row: OnRow) -> tuple[_Entries, str]:
    """Copy the file of an embedded store; return the groups in the copy, and the SHA-256 of the file."""
    store.copy_to(folder / FILE, on_row)
    copy = open_sqlite(folder, create=False)
    with closing(copy):
        sums = {name: sum_of(copy, name, on_row) for name in names_of(copy)}
    entries = {name: GroupEntry(rows=text.rows, sha256=text.sha256) for name, text in sums.items()}
    return entries, file_sha256(folder / FILE)


def _exported(source: OpenStore, groups: Sequence[str], folder: Root, on_row: OnRow) -> _Entries:
    """Write a file for each group, without groups that others remove while this runs."""
    store, entries = source.store, _Entries()
    with ExitStack() as stack:
        if not store.remote:
            stack.enter_context(store.reading())  # a snapshot for all groups
        present = names_of(store)
        if missing := sorted(set(groups) - set(present)):
            raise NotFound(f"there is no group {missing[0]!r} in {source.location}")
        for number, group in enumerate(sorted(set(groups)) or present, 1):
            name = f"rows-{number:06}.jsonl.gz"
            entry = at_one_moment(store, partial(_export, store, group, folder, name, on_row))
            if entry is not None:
                entries[group] = entry
    return entries


def _export(store: Store, group: str, folder: Root, name: str, on_row: OnRow) -> GroupEntry | None:
    """Write the file of a group; return None if the group was removed."""
    text = Sum(group, store.heads([group])[group])
    if not text.head.named:
        return None
    with (
        closing(rows_of(store, group, text.head)) as rows,
        write_file(folder / name) as raw,
        gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as packed,
        io.BufferedWriter(cast(Any, packed), _BUFFER) as out,
    ):
        deque(text.passing(rows, on_row, out.write), maxlen=0)
    return GroupEntry(rows=text.rows, sha256=text.sha256, file=name)
