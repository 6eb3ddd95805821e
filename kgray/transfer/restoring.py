"""Puts the groups of a backup back into a store, embedded or on a server."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from kgray import locks
from kgray.errors import InputError, StoreError
from kgray.kinds import Kind, Row
from kgray.ports import Embedder, GroupHead, Store
from kgray.settings import CONFIG_NAME, Settings, require_built
from kgray.stores.sqlite import FILE, install, open_sqlite
from kgray.transfer.backup_files import (
    SCHEMA,
    Manifest,
    Root,
    damaged,
    hashed,
    opened,
    read_manifest,
    root_at,
    text_lines,
    written,
)
from kgray.transfer.copying import (
    OnRow,
    Sum,
    differs,
    head_in,
    held_alone,
    rows_in,
    rows_of,
    summed,
    take_over,
)
from kgray.wiring import OpenStore, build_embedder, open_store

_RESTORING = "restoring"  # the folder, in the data folder, for the store's file of a backup
_Origin = Callable[[str], tuple[GroupHead, Generator[tuple[Kind[Any], Row], None, None]]]  # of a group's rows


def verify(origin: str, groups: Sequence[str] = ()) -> Manifest:
    """Read all files of a backup, or those of some groups; return what is in it.

    origin: a folder or URL. Raises InputError where there is no backup, StoreError where it is damaged.
    """
    root, found = _chosen(origin, groups)
    if found.store_sha256 is None:
        _verify(root, found)
    else:
        _fetch(root / FILE, found.store_sha256)
    return found


def lend_settings(origin: str, data: Path) -> None:
    """Give a data folder without settings those of a backup. Raises as `verify`."""
    root, _ = _chosen(origin, ())
    if not (data / CONFIG_NAME).exists():
        with suppress(FileNotFoundError), opened(root / CONFIG_NAME) as file:
            text = file.read()
            with locks.explained(data, "made"):
                locks.make_folder(data)
            with written(data / CONFIG_NAME) as out:
                out.write(text)


def restore(
    settings: Settings, data: Path, origin: str, groups: Sequence[str] = (), *,
    on_row: OnRow = lambda: None,
) -> Manifest:  # fmt: skip
    """Put all groups of a backup, or some, into a store, which is made where there is none.

    data    the data folder
    origin  the folder or URL of the backup
    on_row  called for each row that is put, and for each that is read to compare

    A group that is there already is compared. Raises StoreError, with nothing changed, where the backup is
    damaged or of another schema, or the store has a group with other rows; InputError for another embedder;
    NotFound; Locked; Unavailable.
    """
    root, found = _chosen(origin, groups)
    require_built(settings)
    embedder = _embedder(settings, found, root)
    if found.schema != SCHEMA:
        raise StoreError(
            f"the backup at {root} has rows of another schema, that of kgray {found.version}: restore it "
            f"with that version, and run `kgray upgrade` then"
        )
    with ExitStack() as stack:
        rows: _Origin = partial(_rows_in_files, root, found)
        if found.store_sha256 is None:
            _verify(root, found)
        else:
            stage = stack.enter_context(locks.staging(data / _RESTORING))
            _fetch(root / FILE, found.store_sha256, stage / FILE)
            embedded = settings.store.backend == "sqlite" and not groups
            if not (embedded and install(stage / FILE, data)):
                copy = open_sqlite(stage, create=False)
                rows = partial(_rows_in_store, stack.enter_context(closing(copy)))
        store = stack.enter_context(closing(open_store(settings, data, embedder, create=True)))
        target = OpenStore(settings=settings, folder=data, store=store)
        if (store.embedder, store.dimensions) != (found.embedder, found.dimensions):
            raise InputError(
                f"the backup at {root} was embedded with {found.embedder!r} ({found.dimensions} numbers a text), "
                f"and {target.shown} was built with {store.embedder!r} ({store.dimensions}): restore it into a "
                f"new store"
            )
        stack.enter_context(held_alone(target))
        _fill(target, found, root, rows, on_row)
    return found


def _chosen(origin: str, groups: Sequence[str]) -> tuple[Root, Manifest]:
    root = root_at(origin)
    found = read_manifest(root)
    return root, found.part(groups, root) if groups else found


def _embedder(settings: Settings, found: Manifest, root: Root) -> Embedder:
    """Return the embedder of the settings, which must be that of the backup. Raises InputError."""
    embedder = build_embedder(settings)
    if (embedder.identity, embedder.dimensions or found.dimensions) != (found.embedder, found.dimensions):
        raise InputError(
            f"the backup at {root} was embedded with {found.embedder!r} ({found.dimensions} numbers a text), "
            f"and the settings are for {embedder.identity!r} ({embedder.dimensions}): set the embedder as it "
            f"was"
        )
    embedder.dimensions = found.dimensions  # so that no server is asked for it
    return embedder


def _rows_in_files(
    root: Root, found: Manifest, group: str
) -> tuple[GroupHead, Generator[tuple[Kind[Any], Row], None, None]]:
    lines = text_lines(root / str(found.groups[group].file))
    return head_in(next(lines)), rows_in(lines)


def _rows_in_store(
    store: Store, group: str
) -> tuple[GroupHead, Generator[tuple[Kind[Any], Row], None, None]]:
    head = store.heads([group])[group]
    return head, rows_of(store, group, head)


def _verify(root: Root, found: Manifest) -> None:
    """Read the groups' files. Raises StoreError where one is missing, damaged or another."""
    for entry in found.groups.values():
        file, text = root / str(entry.file), hashlib.sha256()
        for line in text_lines(file):
            text.update(line)
        if text.hexdigest() != entry.sha256:
            raise damaged(file)


def _fetch(file: Root, sha256: str, to: Path | None = None) -> None:
    """Read the store's file, and copy it to another. Raises StoreError where it is missing or damaged."""
    try:
        if hashed(file, to) == sha256:
            return
    except FileNotFoundError:
        pass
    raise damaged(file)


def _fill(target: OpenStore, found: Manifest, root: Root, rows_from: _Origin, on_row: OnRow) -> None:
    """Put those groups into a store that it lacks; before, compare those that it has. Raises StoreError."""
    heads = target.store.heads(found.groups)
    there = {group for group in found.groups if heads[group].named}
    for group in sorted(there):
        if summed(target.store, group, on_row).sha256 != found.groups[group].sha256:
            raise differs(target, group, f"as in the backup at {root}")
    for group in sorted(found.groups.keys() - there):

        def verify(ours: Sum, theirs: Sum, expected: str = found.groups[group].sha256) -> None:
            if ours.sha256 != expected:
                raise damaged(root)
            if different := ours.differing(theirs):
                raise StoreError(f"the copy of group {ours.group!r} differs ({'; '.join(different[:3])})")

        head, rows = rows_from(group)
        take_over(target.store, group, head, rows, verify, on_row)
