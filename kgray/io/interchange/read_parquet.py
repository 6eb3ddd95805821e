"""Restores a group from kgray's own Parquet tables: every row unchanged, record times included."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from pathlib import Path
from typing import Any

from kgray.errors import InputError, StoreError
from kgray.io.interchange.importing import ImportReport, check_folder
from kgray.io.interchange.lines import read_json
from kgray.io.interchange.parquet import MANIFEST, TYPES, VERSION
from kgray.io.interchange.tables import read_table
from kgray.ports import GroupHead, Store
from kgray.schema.kinds import BY_NAME, COMMUNITIES, KINDS, Kind, Row
from kgray.storage.texts import Sum, sum_of, take_over


def restore(path: Path, store: Store, group: str, *, dry_run: bool = False) -> ImportReport:
    """Restore the group of a folder into a store that never had it, or compare it with the same group.

    dry_run     read and check every row, and change nothing

    Raises InputError if the folder is no export, or has another embedder; StoreError if the store has the
    group with other rows, or a table lacks rows; Locked while another process ingests. Nothing changes then.
    """
    check_folder(path, "parquet")
    if path.is_dir() and not (path / MANIFEST).exists():
        raise InputError(f"{path} has no {MANIFEST}: name a folder of `kgray export --to parquet`")
    manifest = read_json(path / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != VERSION:
        raise InputError(
            f"{path / MANIFEST} is of another layout than {VERSION}: use the kgray that wrote it"
        )
    embedder, dimensions = manifest.get("embedder"), manifest.get("dimensions")
    if (embedder, dimensions) != (store.embedder, store.dimensions):
        raise InputError(
            f"{path} was embedded with {embedder!r} ({dimensions} numbers a text), and the store was built "
            f"with {store.embedder!r} ({store.dimensions}): import it into a new store"
        )
    if manifest.get("group") != group:
        raise InputError(
            f"{path} has the group {manifest.get('group')!r}: its rows keep their ids, so name that group"
        )
    try:
        tables = manifest["tables"]
        counts = {name: int(table["rows"]) for name, table in tables.items() if name in BY_NAME}
        last, recorded, removals = (int(manifest[name]) for name in ("last", "last_recorded", "removals"))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path / MANIFEST} lacks numbers of the group ({error})") from None
    _check_parents(path)
    head = GroupHead(named=True, last=last, last_recorded=recorded, removals=removals)
    if store.heads([group])[group].named:
        return _compared(store, group, head, _rows(path, counts))

    def verify(written: Sum, stored: Sum) -> None:
        if different := written.differing(stored):
            raise StoreError(f"the import of group {group!r} differs ({'; '.join(different[:3])})")

    if dry_run:
        deque(_rows(path, counts), maxlen=0)
    else:
        with store.writing():
            take_over(store, group, head, _rows(path, counts), verify, lambda: None)
    return ImportReport(format="parquet", taken=sum(counts.values()), changed=0, omitted=0, reasons={})


def _compared(
    store: Store, group: str, head: GroupHead, rows: Generator[tuple[Kind[Any], Row], None, None]
) -> ImportReport:
    """Return the report for a group that the store has already. Raises StoreError if it is not the same."""
    ours = Sum(group, head)
    deque(ours.passing(rows), maxlen=0)
    if different := ours.differing(sum_of(store, group)):
        raise StoreError(
            f"the store has group {group!r} already, and not the same ({'; '.join(different[:3])}): its "
            "tables need a store that never had it"
        )
    reasons = {"rows that the store has already": ours.rows}
    return ImportReport(format="parquet", taken=0, changed=0, omitted=0, reasons=reasons)


def _check_parents(path: Path) -> None:
    """Raise InputError where a community is inside itself: a reader of it would not end."""
    columns = ("run", "id", "parent")
    parents = {
        (row["run"], row["id"]): (row["run"], row["parent"])
        for row in read_table(path / f"{COMMUNITIES.name}.parquet", columns)
    }
    ended = set[object]()  # communities above which there is an end
    for start in parents:
        chain, place = set[object](), start
        while place in parents and place not in ended:
            if place in chain:
                raise InputError(f"{path / COMMUNITIES.name}.parquet: community {place[1]} is inside itself")
            chain.add(place)
            place = parents[place]
        ended |= chain


def _rows(path: Path, counts: dict[str, int]) -> Generator[tuple[Kind[Any], Row], None, None]:
    for kind in KINDS:
        if kind.name not in counts:
            continue
        number = 0
        types = {column.name: TYPES[column.type] for column in kind.columns}
        for row in read_table(path / f"{kind.name}.parquet", kind.names, types=types):
            texts = {column.name for column in kind.columns if column.type == "texts"}
            number += 1
            yield kind, kind.row(*(tuple(row[n] or ()) if n in texts else row[n] for n in kind.names))
        if number != counts[kind.name]:
            raise StoreError(
                f"{path / kind.name}.parquet has {number} rows, not {counts[kind.name]}: nothing was imported"
            )
