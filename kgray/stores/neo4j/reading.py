"""Declared reads run as statements, page by page.

The caller passes `ask`, which runs a statement and returns its rows: in a transaction that the caller holds,
or in one of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from kgray.kinds import Read, Row
from kgray.stores.neo4j.statements import STORED_READS, StoredRead
from kgray.stores.neo4j.values import MAX_ROWS, asked_values, converters

_PAGE_ROWS = 1_000
_PAGE_VECTORS = 250


class Ask(Protocol):
    """Run a statement and return its rows."""

    def __call__(self, statement: str, **values: Any) -> list[list[Any]]:  # noqa: ANN401 - what Cypher takes
        """Return each row in the order of its RETURN."""
        ...


def look_up(ask: Ask, read: Read, named: Mapping[str, str], values: Sequence[Any]) -> Iterator[Row]:
    """Yield the rows that have these values, in the order of the values, then in the kind's order.

    named: the group, as `statements.OPEN` takes it.
    """
    stored = STORED_READS[read]
    asked = asked_values(stored, values)
    rest = iter(asked)
    while portion := list(islice(rest, MAX_ROWS)):
        places = {_hashable(value): place for place, value in enumerate(portion)}
        found = ask(stored.statement, values=portion, **named)
        found.sort(key=lambda row: (places[_hashable(row[0])], *(row[1 + n] for n in stored.order)))
        yield from _converted(stored, (row[1:] for row in found))


def scan(ask: Ask, read: Read, named: Mapping[str, str]) -> Iterator[Row]:
    """Yield all rows of the group, in the kind's order; no transaction is held between two pages."""
    stored = STORED_READS[read]
    pages = _pages(ask, stored, named)
    if stored.order == stored.after:
        for page in pages:
            yield from _converted(stored, page)
        return
    # No index has them in this order. Vectors are large: packed page by page, and released as they are read.
    found: list[tuple[list[Any], Row]] = []
    for page in pages:
        places = [[record[n] for n in stored.order] for record in page]
        found.extend(zip(places, _converted(stored, page), strict=True))
    found.sort(key=lambda item: item[0], reverse=True)
    while found:
        yield found.pop()[1]


def _pages(ask: Ask, stored: StoredRead, named: Mapping[str, str]) -> Iterator[list[list[Any]]]:
    after: list[Any] = list(stored.first)
    limit = _PAGE_ROWS if stored.read.kind.vector is None else _PAGE_VECTORS
    while True:
        page = ask(stored.statement, after=after, limit=limit, **named)
        if page:
            after = [page[-1][n] for n in stored.after]
            yield page
        if len(page) < limit:
            return


def _converted(stored: StoredRead, found: Iterable[list[Any]]) -> Iterator[Row]:
    changed = [(place, convert) for place, convert in converters(stored) if place < stored.width]
    for row in found:
        for place, convert in changed:
            row[place] = convert(row[place])
        yield tuple(row[: stored.width])


def _hashable(value: Any) -> Any:  # noqa: ANN401 - a value that was asked for
    return tuple(value) if isinstance(value, list) else value
