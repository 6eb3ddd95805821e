"""A whole group as Parquet tables of the store's rows; an import restores each row, record times included.

kgray.json      the group's counters, the embedder of its vectors, the columns and the number of rows of
                each table
KIND.parquet    the rows of a kind (`kgray.schema.kinds`), in the order of its key
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from kgray.errors import InputError, StoreError
from kgray.io.interchange.files import Rows, write_json
from kgray.io.interchange.importing import ImportReport, check_folder
from kgray.io.interchange.lines import read_json
from kgray.io.interchange.snapshot import Snapshot
from kgray.io.interchange.tables import TEXTS, read_table, write_table
from kgray.ports import GroupHead, Store
from kgray.schema.kinds import ACCESS_KEYS, AUDIT, BY_NAME, COMMUNITIES, KINDS, SCHEDULES, WEBHOOKS, Kind, Row
from kgray.storage.texts import Sum, sum_of, take_over

MANIFEST = "kgray.json"
OWN_KINDS = frozenset({ACCESS_KEYS, AUDIT, WEBHOOKS, SCHEDULES})  # kinds without rows of groups
VERSION = 1  # of the layout; a greater number is refused
TYPES = {"int": pa.int64(), "bool": pa.bool_(), "text": pa.string(), "texts": TEXTS, "bytes": pa.binary()}


def schema_of(kind: Kind[Any]) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return the columns of a kind's table."""
    return pa.schema([pa.field(c.name, TYPES[c.type], nullable=c.optional) for c in kind.columns])


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write a folder. Raises InputError for a past moment: the tables hold the whole history."""
    if snapshot.as_of is not None or snapshot.known_at is not None:
        raise InputError("parquet holds a group with its whole history: leave out as_of and known_at")
    counts, about = Rows(), snapshot.about()
    for kind in KINDS:
        if kind not in OWN_KINDS:
            rows = _rows(snapshot, kind)
            counts[kind.name] = write_table(path / f"{kind.name}.parquet", schema_of(kind), rows, about)
    head, store = snapshot.head, snapshot.store
    manifest = {"format": VERSION, **about, "last": head.last, "last_recorded": head.last_recorded}
    manifest["removals"] = head.removals
    manifest |= {"embedder": store.embedder, "dimensions": store.dimensions}
    manifest["tables"] = {
        name: {"rows": count, "columns": [f"{c.name} {c.type}" for c in BY_NAME[name].columns]}
        for name, count in counts.items()
    }
    write_json(path / MANIFEST, manifest.items())
    return counts


def _rows(snapshot: Snapshot, kind: Kind[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a kind, without entries appended in between."""
    place = kind.names.index("sequence") if kind.log else None
    for row in snapshot.store.rows(kind.all, snapshot.group):
        snapshot.scratch.check()
        if place is None or row[place] <= snapshot.head.last:
            yield row


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
        return _compared(store, group, head, _read_rows(path, counts))

    def verify(written: Sum, stored: Sum) -> None:
        if different := written.differing(stored):
            raise StoreError(f"the import of group {group!r} differs ({'; '.join(different[:3])})")

    if dry_run:
        deque(_read_rows(path, counts), maxlen=0)
    else:
        with store.writing():
            take_over(store, group, head, _read_rows(path, counts), verify, lambda: None)
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


def _read_rows(path: Path, counts: dict[str, int]) -> Generator[tuple[Kind[Any], Row], None, None]:
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
