"""Declared reads run as statements, page by page.

The caller passes `ask`, which runs a statement and returns its rows: in a transaction that the caller holds,
or in one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kgray.kinds import Read, Row
from kgray.stores.neo4j.connection import MAX_ROWS
from kgray.stores.neo4j.mapping import STORED, digest
from kgray.stores.neo4j.statements import EVERYWHERE, STORED_READS, StoredRead

_PAGE_ROWS = 1_000
_INT_LIMIT = 1 << 63


Ask = Callable[..., list[list[Any]]]  # runs a statement with named values; rows in the order of its RETURN


def read_rows(ask: Ask, read: Read, named: Mapping[str, str], values: Sequence[Any]) -> Iterator[Row]:
    """Return the rows of a declared read. named: the group, as `statements.OPEN` takes it."""
    stored = STORED_READS[read]
    return _scan(ask, stored, named) if read.by is None else _look_up(ask, stored, named, values)


def read_everywhere(ask: Ask, read: Read, values: Sequence[Any]) -> list[tuple[str, Row]]:
    """Return (group, row) of a read in all groups, by group."""
    stored = STORED_READS[read]
    found = ask(EVERYWHERE[read], values=list(values))
    found.sort(key=lambda row: (row[0], *(row[1 + n] for n in stored.order)))
    groups = [row[0] for row in found]
    return list(zip(groups, _converted(stored, (row[1:] for row in found)), strict=True))


def _look_up(ask: Ask, stored: StoredRead, named: Mapping[str, str], values: Sequence[Any]) -> Iterator[Row]:
    asked = _asked_values(stored, values)
    for start in range(0, len(asked), MAX_ROWS):
        found = ask(stored.statement, values=asked[start : start + MAX_ROWS], **named)
        found.sort(key=lambda row: (row[0], *(row[1 + n] for n in stored.order)))
        yield from _converted(stored, (row[1:] for row in found))


def _scan(ask: Ask, stored: StoredRead, named: Mapping[str, str]) -> Iterator[Row]:
    pages = _pages(ask, stored, named)
    if stored.order == stored.after:
        for page in pages:
            yield from _converted(stored, page)
        return
    # No index has them in this order. They are released as they are read: vectors are large.
    found: list[tuple[list[Any], Row]] = []
    for page in pages:
        places = [[record[n] for n in stored.order] for record in page]
        found.extend(zip(places, _converted(stored, page), strict=True))
    found.sort(key=lambda item: item[0], reverse=True)
    while found:
        yield found.pop()[1]


def _pages(ask: Ask, stored: StoredRead, named: Mapping[str, str]) -> Iterator[list[list[Any]]]:
    after: list[Any] = list(stored.first)
    while True:
        page = ask(stored.statement, after=after, limit=_PAGE_ROWS, **named)
        if page:
            after = [page[-1][n] for n in stored.after]
            yield page
        if len(page) < _PAGE_ROWS:
            return


def _converted(stored: StoredRead, found: Iterable[list[Any]]) -> Iterator[Row]:
    changed = [(place, convert) for place, convert in _converters(stored) if place < stored.width]
    for row in found:
        for place, convert in changed:
            row[place] = convert(row[place])
        yield tuple(row[: stored.width])


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


def _converters(read: StoredRead) -> list[tuple[int, Callable[[Any], Any]]]:
    """Return which columns of a read's rows are converted, and how."""
    kind = read.read.kind
    types = {column.name: column.type for column in (*kind.columns, *kind.computed)}
    made: Mapping[str, Callable[[Any], Any]] = {"texts": tuple, "vector": bytes, "bytes": bytes}
    return [
        (place, made[types[name]])
        for place, name in enumerate(read.columns)
        if name is not None and types[name] in made
    ]


def _asked_values(read: StoredRead, values: Iterable[Any]) -> list[Any]:
    """Return a look-up's values without repeats, in order, as they are in the database."""
    by = read.read.by
    asked = [value for value in dict.fromkeys(values) if storable(value)]
    hashed = isinstance(by, str) and by in STORED[read.read.kind].digested
    return list(map(digest, asked)) if hashed else asked
