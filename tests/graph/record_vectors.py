"""The vectors that the record rows of a group keep, with the weights of their tokens and their owners."""

from __future__ import annotations

from collections.abc import Iterator

from kgray.ports import Store
from kgray.schema import kinds
from kgray.schema.kinds import RecordRow
from kgray.schema.record_rows import search_columns, vector_at


def statement_vectors(store: Store, group: str) -> list[tuple[str, bytes | None, bytes]]:
    """Return (statement, weights, vector), sorted."""
    results = []
    for row in store.rows(kinds.RECORDS.all, group):
        statements = search_columns(row.search).statements
        for (id_, weights, _), vector in zip(statements, _vectors(store, row), strict=False):
            results.append((id_, weights, vector))
    return sorted(results)


def episode_vectors(store: Store, group: str) -> list[tuple[int, bytes | None, bytes]]:
    """Return (sequence, weights, vector), sorted."""
    results = []
    for row in store.rows(kinds.RECORDS.all, group):
        episode = search_columns(row.search).episode
        if episode is not None:
            *_, vector = _vectors(store, row)
            results.append((row.sequence, episode[1], vector))
    return sorted(results)


def _vectors(store: Store, row: RecordRow) -> Iterator[bytes]:
    """Yield the vectors of a row: first of its statements, then of the episode."""
    count = len(row.vectors or b"") // (4 * store.dimensions)
    return (vector_at(row.vectors, position, store.dimensions) for position in range(count))
