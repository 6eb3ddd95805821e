"""Rows of `kgray.kinds` to the maps that statements take, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import numpy as np

from kgray import kinds, times
from kgray.errors import StoreError
from kgray.kinds import COMMITTED, Key, Kind, Row
from kgray.stores.neo4j.batch import PutRow
from kgray.stores.neo4j.mapping import STORED, digest, mark
from kgray.stores.neo4j.statements import StoredRead
from kgray.stores.words import marked, words
from kgray.times import Instant

Values = dict[str, Any]  # one row of an UNWIND, or the properties of a node
MAX_ROWS = 1_000  # an UNWIND: with vectors of 1,024 numbers 9 MB
_INT_LIMIT = 1 << 63
_ORDINAL_BITS = 20
# Graphiti's name for an episode's kind; kgray's own kind is stored beside it.
_THEIR_KINDS: Mapping[str, str] = {"message": "message", "text": "text", "json": "json", "triples": "json"}


def portions(values: Iterable[Values]) -> Iterator[list[Values]]:
    """Yield the rows in portions of MAX_ROWS, in order."""
    rest = iter(values)
    while portion := list(islice(rest, MAX_ROWS)):
        yield portion


def storable(value: Any) -> bool:  # noqa: ANN401 - a text, a number or a place that is asked for
    """Whether the database can hold a value; a look-up of one that it cannot hold finds nothing."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # a lone surrogate
            return False
        return True
    if isinstance(value, int):
        return -_INT_LIMIT <= value < _INT_LIMIT
    return all(map(storable, value))


# ------------------------------------------------------------------------------------ to the database


def key_values(kind: Kind, group: str, key: Key) -> Values:
    """Return the properties by which a row is matched."""
    stored = STORED[kind]
    return {"group_id": group} | {
        prop: digest(value) if column in stored.digested else value
        for column, prop, value in zip(kind.key, stored.key, key, strict=True)
    }


def row_values(kind: Kind, group: str, row: Row) -> Values:
    """Return all properties of a row but its vector."""
    stored = STORED[kind]
    made: Values = {"group_id": group}
    for column, value in zip(kind.columns, row, strict=True):
        if column.type == "texts":
            made[stored.property_of(column.name)] = list(value)
        elif column.type != "vector":
            made[stored.property_of(column.name)] = value
            if column.name in stored.digested:
                made[f"{column.name}_key"] = digest(value)
    if kind.words is not None:
        text = kind.text(row)
        made["words"] = None if text is None else marked(words(text), mark(group))
    return made


def vector_values(kind: Kind, group: str, put: PutRow, *, dimensions: int) -> Values:
    """Return the row of a statement of PUT_VECTORS. Raises StoreError for a vector of another width."""
    numbers = np.frombuffer(put.row[-1], "<f4")
    if len(numbers) != dimensions:
        raise StoreError(
            f"a vector of {len(numbers)} numbers in a store of {dimensions} numbers a vector: nothing was "
            f"changed"
        )
    # Vectors with the same score are found by age.
    held = row_values(kind, group, put.row) | {"place": put.sequence << _ORDINAL_BITS | put.ordinal}
    return key_values(kind, group, kind.key_of(put.row)) | {"put": held, "embedding": numbers.tolist()}


def episode_values(group: str, row: Row, facts: Sequence[str]) -> Values:
    """Return the row of PUT_EPISODES; a committed episode has the properties that Graphiti's readers expect.

    facts: the ids of the facts that came with it.
    """
    put = row_values(kinds.EPISODES, group, row)
    committed = put["state"] == COMMITTED
    if committed:
        put |= {
            "name": put["client_id"] or put["uuid"],
            "source": _THEIR_KINDS[put["kind"]],
            "valid_at": times.to_datetime(put["said"]),
            "created_at": _moment(put["ended_at"]),
            "entity_edges": sorted(facts),
        }
    live = committed and put["retired_at"] is None
    return {"group_id": group, "sequence": put["sequence"], "put": put, "live": live}


def entity_values(group: str, row: Row, at: Instant) -> Values:
    """Return the row of PUT_ENTITIES; at: when this graph learned of it."""
    put = row_values(kinds.ENTITIES, group, row) | {"summary": ""}
    return {"group_id": group, "uuid": put["uuid"], "at": times.to_datetime(at), "put": put}


def fact_values(group: str, id_: str, row: Row | None) -> Values:
    """Return the row of CHANGE_FACTS and NEW_FACTS. row: None = drop the fact."""
    made: Values = {"group_id": group, "uuid": id_, "source": None, "end": None, "put": None, "value": None}
    if row is None:
        return made
    put = row_values(kinds.FACTS, group, row)
    for ours, theirs in (
        ("created", "created_at"), ("valid", "valid_at"), ("invalid", "invalid_at"), ("expired", "expired_at")
    ):  # fmt: skip
        put[theirs] = _moment(put[ours])
    shown = None
    if put["target"] is None:
        shown = f"{put['value']} {put['unit']}" if put["unit"] else put["value"]  # as `Value.shown`
    end = id_ if put["target"] is None else put["target"]
    return made | {"source": put["source"], "end": end, "put": put, "value": shown}


def patch_values(kind: Kind, group: str, key: Key, columns: Mapping[str, Any]) -> Values:
    """Return the row of PATCH."""
    stored = STORED[kind]
    put = {stored.property_of(name): list(v) if isinstance(v, tuple) else v for name, v in columns.items()}
    return key_values(kind, group, key) | {"put": put}


def _moment(instant: Instant | None) -> datetime | None:
    """Return the aware UTC datetime of an instant, for Graphiti's readers."""
    return None if instant is None else times.to_datetime(instant)


# ---------------------------------------------------------------------------------- from the database


def _vector(value: Any) -> bytes:  # noqa: ANN401 - a list of numbers
    if value is None:
        raise StoreError("a vector has lost its numbers: restore the database, or add the episodes again")
    return np.asarray(value, "<f4").tobytes()


def converters(read: StoredRead) -> list[tuple[int, Callable[[Any], Any]]]:
    """Return which columns of a read's rows are converted, and how."""
    types = {column.name: column.type for column in read.read.kind.columns}
    made: Mapping[str, Callable[[Any], Any]] = {"texts": tuple, "vector": _vector}
    return [
        (place, made[types[name]])
        for place, name in enumerate(read.columns)
        if name is not None and types[name] in made
    ]


def asked_values(read: StoredRead, values: Iterable[Any]) -> dict[Any, Any]:
    """Return a look-up's values without repeats, in order: as stored in the database -> as given."""
    by = read.read.by
    hashed = isinstance(by, str) and by in STORED[read.read.kind].digested
    distinct: Iterable[Any] = dict.fromkeys(tuple(v) if isinstance(v, list) else v for v in values)
    return {(digest(value) if hashed else value): value for value in distinct if storable(value)}
