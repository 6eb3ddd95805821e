"""Declared reads run as statements, page by page.

The caller passes `ask`, which runs a statement and returns its rows: in a transaction that the caller holds,
or in one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from kgray.kinds import Read, Row
from kgray.records import is_storable
from kgray.stores.neo4j.connection import MAX_ROWS
from kgray.stores.neo4j.mapping import STORED, digest
from kgray.stores.neo4j.statements import EVERYWHERE, OF_READ

_PAGE_ROWS = 1_000
_INT_LIMIT = 1 << 63


Ask = Callable[..., list[list[Any]]]  # runs a statement with named values; rows in the order of its RETURN


def read_rows(ask: Ask, read: Read, named: Mapping[str, str], values: Sequence[Any]) -> Iterator[Row]:
    """Return the rows of a declared read. named: the group, as `statements.OPEN` takes it."""
    if read.by is None:
        yield from _scan(ask, read, named, values)
        return
    asked = [value for value in dict.fromkeys(values) if storable(value)]
    if read.by in STORED[read.kind].digested:
        asked = list(map(digest, asked))
    for start in range(0, len(asked), MAX_ROWS):
        ((found,),) = ask(OF_READ[read], values=asked[start : start + MAX_ROWS], **named)
        yield from _rows(read, _sorted(read, found))


def read_everywhere(ask: Ask, read: Read, values: Sequence[Any]) -> list[tuple[str, Row]]:
    """Return (group, row) of a read in all groups, by group."""
    ((rows,),) = ask(EVERYWHERE[read], values=list(values))
    found = _sorted(read, rows)
    return list(zip([row[0] for row in found], _rows(read, found), strict=True))


def _sorted(read: Read, found: list[list[Any]]) -> list[list[Any]]:
    """Return rows that begin with a group, or the index of a value, by that and the kind's order."""
    found.sort(key=lambda row: (row[0], *row[1 + len(read.chosen) :]))
    return found


def _scan(ask: Ask, read: Read, named: Mapping[str, str], since: Sequence[Any]) -> Iterator[Row]:
    stored, walked = STORED[read.kind], read.place if read.since else read.kind.key
    key = stored.lookups(walked)
    types = {column.name: column.type for column in read.kind.columns}
    after = [*since, *(-1 if types[name] == "int" else "" for name in walked[len(since) :])]
    found: list[tuple[list[Any], Row]] = []
    size = _PAGE_ROWS
    while size == _PAGE_ROWS:
        ((page,),) = ask(OF_READ[read], after=after, limit=_PAGE_ROWS, **named)
        if not (size := len(page)):
            break
        after = page[-1][-len(key) :]
        rows = _rows(read, page, first=0)
        if key == tuple(map(stored.property_of, read.place)):
            yield from rows
        else:  # no index has them in this order
            found += zip([row[len(read.chosen) : -len(key)] for row in page], rows, strict=True)
    found.sort(key=itemgetter(0), reverse=True)
    while found:  # released as they are read: vectors are large
        yield found.pop()[1]


def _rows(read: Read, found: Iterable[list[Any]], *, first: int = 1) -> Iterator[Row]:
    """Yield rows of a read, whose columns begin at an index, with the types that Neo4j lacks."""
    types = {column.name: column.type for column in (*read.kind.columns, *read.kind.computed)}
    made: Mapping[str, Callable[[Any], Any]] = {"texts": tuple, "vector": bytes, "bytes": bytes}
    changed = [(n, made[types[name]]) for n, name in enumerate(read.chosen, first) if types[name] in made]
    for row in found:
        for place, convert in changed:
            row[place] = None if row[place] is None else convert(row[place])
        yield tuple(row[first : first + len(read.chosen)])


def storable(value: Any) -> bool:  # noqa: ANN401 - a text, a number or a place that is asked for
    """Whether the database can hold a value; a look-up of one that it cannot hold finds nothing."""
    if isinstance(value, str):
        return is_storable(value)
    if isinstance(value, int):
        return -_INT_LIMIT <= value < _INT_LIMIT
    return all(map(storable, value))
