"""Restores a group from kgray's own Parquet tables: every row as it was, record times included."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

from kgray.errors import InputError, StoreError
from kgray.interchange.lines import read_json
from kgray.interchange.parquet import MANIFEST, VERSION
from kgray.interchange.tables import read_table
from kgray.kinds import BY_NAME, KINDS, Kind, Row
from kgray.ports import GroupHead
from kgray.transfer.copying import Sum, conflict_error, single_writer, take_over
from kgray.wiring import OpenStore


def restore(path: Path, target: OpenStore, group: str) -> dict[str, int]:
    """Put the group of a folder into a store that never had it; return the number of rows by kind.

    Raises InputError for a folder that is no export, or of another embedder; StoreError where the store has
    the group, or a table lacks rows. Nothing was changed then.
    """
    manifest, store = read_json(path / MANIFEST), target.store
    if not isinstance(manifest, dict) or manifest.get("format") != VERSION:
        raise InputError(
            f"{path / MANIFEST} is of another layout than {VERSION}: use the kgray that wrote it"
        )
    embedder, dimensions = manifest.get("embedder"), manifest.get("dimensions")
    if (embedder, dimensions) != (store.embedder, store.dimensions):
        raise InputError(
            f"{path} was embedded with {embedder!r} ({dimensions} numbers a text), and {target.shown} was "
            f"built with {store.embedder!r} ({store.dimensions}): import it into a new store"
        )
    tables = manifest.get("tables") or {}
    counts = {name: int(told.get("rows", -1)) for name, told in tables.items() if name in BY_NAME}
    if store.heads([group])[group].named:
        raise conflict_error(target, group, f"the group of {path}")

    def verify(ours: Sum, theirs: Sum) -> None:
        if different := ours.differing(theirs):
            raise StoreError(f"the import of group {group!r} differs ({'; '.join(different[:3])})")

    head = GroupHead(named=True, last=manifest["last"], last_recorded=manifest["last_recorded"])
    with single_writer(target):
        take_over(store, group, head, _rows(path, counts), verify, lambda: None)
    return counts


def _rows(path: Path, counts: dict[str, int]) -> Generator[tuple[Kind[Any], Row], None, None]:
    for kind in KINDS:
        if kind.name not in counts:
            continue
        number = 0
        for row in read_table(path / f"{kind.name}.parquet", kind.names):
            texts = {column.name for column in kind.columns if column.type == "texts"}
            number += 1
            yield kind, kind.row(*(tuple(row[n] or ()) if n in texts else row[n] for n in kind.names))
        if number != counts[kind.name]:
            raise StoreError(
                f"{path / kind.name}.parquet has {number} rows, not {counts[kind.name]}: nothing was imported"
            )
