"""Restores the groups of a backup into a store, embedded or on a server."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from kgray.errors import InputError, StoreError
from kgray.maintenance.transfer.backup_files import (
    SCHEMA,
    Manifest,
    Root,
    damage_error,
    file_sha256,
    open_file,
    read_manifest,
    root_at,
    text_lines,
    write_file,
)
from kgray.maintenance.transfer.copying import conflict_error, single_writer
from kgray.ports import Embedder, GroupHead, Store
from kgray.runtime.wiring import OpenStore, build_embedder, open_store
from kgray.schema.kinds import Kind, Row
from kgray.settings import CONFIG_NAME, Settings, require_built
from kgray.storage.sqlite import FILE, install, open_sqlite
from kgray.storage.texts import OnRow, Sum, parse_head, parse_rows, rows_of, sum_of, take_over
from kgray.system import locks

_RESTORING = "restoring"  # the folder, in the data folder, for the store's file of a backup
_Origin = Callable[[str], tuple[GroupHead, Generator[tuple[Kind[Any], Row], None, None]]]  # of a group's rows


def verify(origin: str, groups: Sequence[str] = ()) -> Manifest:
    """Read all files of a backup, or the files of some groups; return the manifest.

    origin: a folder or URL. Raises InputError where there is no backup, StoreError where it is damaged.
    """
    root, manifest = _selected(origin, groups)
    if manifest.store_sha256 is None:
        _verify(root, manifest)
    else:
        _fetch(root / FILE, manifest.store_sha256)
    return manifest


def lend_settings(origin: str, data: Path) -> None:
    """Copy the settings of a backup into a data folder without settings. Raises the errors of `verify`."""
    root, _ = _selected(origin, ())
    if not (data / CONFIG_NAME).exists():
        with suppress(FileNotFoundError), open_file(root / CONFIG_NAME) as file:
            text = file.read()
            with locks.explained(data, "made"):
                locks.make_folder(data)
            with write_file(data / CONFIG_NAME) as out:
                out.write(text)


def restore(
    settings: Settings, data: Path, origin: str, groups: Sequence[str] = (), *,
    on_row: OnRow = lambda: None,
) -> Manifest:  # fmt: skip
    """Restore all groups of a backup, or some, into a store, which is created if missing.

    data    the data folder
    origin  the folder or URL of the backup
    on_row  called for each row that is written, and for each row that is compared

    An existing group is compared. Raises StoreError, with nothing changed, if the backup is damaged or of
    another schema, or if the store has a group with other rows; InputError for another embedder; NotFound;
    Locked; Unavailable.
    """
    root, manifest = _selected(origin, groups)
    require_built(settings)
    embedder = _embedder(settings, manifest, root)
    if manifest.schema != SCHEMA:
        raise StoreError(
            f"the backup at {root} has rows of another schema, that of kgray {manifest.version}: restore it "
            f"with that version, and run `kgray upgrade` then"
        )
    with ExitStack() as stack:
        rows: _Origin = partial(_rows_in_files, root, manifest)
        if manifest.store_sha256 is None:
            _verify(root, manifest)
        else:
            stage = stack.enter_context(locks.staging(data / _RESTORING))
            _fetch(root / FILE, manifest.store_sha256, stage / FILE)
            embedded = settings.store.backend == "sqlite" and not groups
            if not (embedded and install(stage / FILE, data)):
                copy = open_sqlite(stage, create=False)
                rows = partial(_rows_in_store, stack.enter_context(closing(copy)))
        store = stack.enter_context(closing(open_store(settings, data, embedder, create=True)))
        target = OpenStore(settings=settings, folder=data, store=store)
        if (store.embedder, store.dimensions) != (manifest.embedder, manifest.dimensions):
            raise InputError(
                f"the backup at {root} was embedded with {manifest.embedder!r} ({manifest.dimensions} "
                f"numbers a text), and {target.location} was built with {store.embedder!r} "
                f"({store.dimensions}): restore it into a new store"
            )
        stack.enter_context(single_writer(target))
        _fill(target, manifest, root, rows, on_row)
    return manifest


def _selected(origin: str, groups: Sequence[str]) -> tuple[Root, Manifest]:
    root = root_at(origin)
    manifest = read_manifest(root)
    return root, manifest.part(groups, root) if groups else manifest


def _embedder(settings: Settings, manifest: Manifest, root: Root) -> Embedder:
    """Return the embedder of the settings, which must be that of the backup. Raises InputError."""
    embedder, width = build_embedder(settings), manifest.dimensions
    if (embedder.identity, embedder.dimensions or width) != (manifest.embedder, width):
        raise InputError(
            f"the backup at {root} was embedded with {manifest.embedder!r} ({width} numbers a text), and the "
            f"settings are for {embedder.identity!r} ({embedder.dimensions}): set the embedder as it was"
        )
    embedder.dimensions = width  # so that no server is asked for it
    return embedder


def _rows_in_files(
    root: Root, manifest: Manifest, group: str
) -> tuple[GroupHead, Generator[tuple[Kind[Any], Row], None, None]]:
    lines = text_lines(root / str(manifest.groups[group].file))
    return parse_head(next(lines)), parse_rows(lines)


def _rows_in_store(
    store: Store, group: str
) -> tuple[GroupHead, Generator[tuple[Kind[Any], Row], None, None]]:
    head = store.heads([group])[group]
    return head, rows_of(store, group, head)


def _verify(root: Root, manifest: Manifest) -> None:
    """Read the files of the groups. Raises StoreError where a file is missing, damaged or replaced."""
    for entry in manifest.groups.values():
        file, text = root / str(entry.file), hashlib.sha256()
        for line in text_lines(file):
            text.update(line)
        if text.hexdigest() != entry.sha256:
            raise damage_error(file)


def _fetch(file: Root, sha256: str, to: Path | None = None) -> None:
    """Read the store's file, and copy it to another. Raises StoreError where it is missing or damaged."""
    try:
        if file_sha256(file, to) == sha256:
            return
    except FileNotFoundError:
        pass
    raise damage_error(file)


def _fill(target: OpenStore, manifest: Manifest, root: Root, rows_from: _Origin, on_row: OnRow) -> None:
    """Compare the groups that the store has, then write the other groups into it. Raises StoreError."""
    heads = target.store.heads(manifest.groups)
    present = {group for group in manifest.groups if heads[group].named}
    for group in sorted(present):
        if sum_of(target.store, group, on_row).sha256 != manifest.groups[group].sha256:
            raise conflict_error(target, group, f"as in the backup at {root}")
    for group in sorted(manifest.groups.keys() - present):

        def verify(ours: Sum, theirs: Sum, expected: str = manifest.groups[group].sha256) -> None:
            if ours.sha256 != expected:
                raise damage_error(root)
            if different := ours.differing(theirs):
                raise StoreError(f"the copy of group {ours.group!r} differs ({'; '.join(different[:3])})")

        head, rows = rows_from(group)
        take_over(target.store, group, head, rows, verify, on_row)
