"""A whole group as Parquet tables of the store's rows; an import restores it unchanged.

kgray.json      the group's counters, the embedder of its vectors, the columns and the number of rows of
                each table
KIND.parquet    the rows of a kind (`kgray.schema.kinds`), in the order of its key
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from kgray.errors import InputError
from kgray.io.interchange.files import Rows, write_json
from kgray.io.interchange.snapshot import Snapshot
from kgray.io.interchange.tables import TEXTS, write_table
from kgray.schema.kinds import ACCESS_KEYS, AUDIT, BY_NAME, KINDS, SCHEDULES, WEBHOOKS, Kind

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
