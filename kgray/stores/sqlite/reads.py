"""Declared reads (`kinds.READS`), page by page, on either connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from kgray.kinds import READS, Read, Row
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import keys_of
from kgray.stores.sqlite.schema import MASK, SHIFT
from kgray.stores.sqlite.statements import ReadBy

_PAGE_ROWS = 1_000  # no statement is open between two pages
_PAGE_VALUES = 500
Restored = Callable[[list[Row]], list[Row]]
Run = Callable[[str, Sequence[Any]], list[Row]]  # a statement and its values -> all its rows

_ENCODER = json.JSONEncoder(separators=(",", ":"))  # made once: each look-up binds one array

def array(values: Any) -> str:  # noqa: ANN401 - any iterable of JSON values
    """Return a JSON array for json_each: escaped, so that any string passes, lone surrogates too."""
    return _ENCODER.encode(list(values))


def read_rows(run: Run, read: Read, no: int, values: Sequence[Any]) -> Iterator[Row]:
    """Return the rows of a declared read of the group with this number, read page by page."""
    pages = _pages(run, sql.OF_READ[read], no, values)
    for restored in _RESTORED[read]:
        pages = map(restored, pages)
    return chain.from_iterable(pages)  # no generator of ours is entered for a row


def _pages(run: Run, how: sql.ReadStatements, no: int, values: Sequence[Any]) -> Iterator[list[Row]]:
    match how.by:
        case ReadBy.VALUES:
            asked: list[Any] = list(dict.fromkeys(values))
            if how.keys:
                asked = [no << SHIFT | n for n in asked if 0 < n <= MASK]  # any other n is in no group
            for start in range(0, len(asked), _PAGE_VALUES):
                yield run(how.sql, (no, array(asked[start : start + _PAGE_VALUES])))
        case ReadBy.KEYS:
            first, last = keys_of(no)
            ((highest,),) = run(how.last, (first, last))
            while highest is not None and first <= highest:
                yield run(how.sql, (first, first + _PAGE_ROWS - 1))
                first += _PAGE_ROWS
        case ReadBy.PLACES:
            page = run(how.sql, (no, _PAGE_ROWS))
            while page:
                yield [row[: -how.extra] for row in page] if how.extra else page
                if len(page) < _PAGE_ROWS:
                    break
                place = [page[-1][n] for n in how.place]
                page = run(how.after, (no, *place, _PAGE_ROWS))


def _bools(place: int) -> Restored:
    after = place + 1
    return lambda page: [(*row[:place], row[place] == 1, *row[after:]) for row in page]


def _tuples(place: int) -> Restored:
    after = place + 1
    return lambda page: [(*row[:place], _tuple(row[place]), *row[after:]) for row in page]


def _tuple(text: str) -> tuple[str, ...]:
    return () if text == "[]" else tuple(json.loads(text))


def _restored(read: Read) -> Iterator[Restored]:
    """Yield what makes values of what SQLite does not know: bool and tuples."""
    types = {column.name: column.type for column in read.kind.columns}
    for place, name in enumerate(read.chosen):
        if types[name] in {"bool", "texts"}:
            yield _bools(place) if types[name] == "bool" else _tuples(place)


_RESTORED: Mapping[Read, Sequence[Restored]] = {read: tuple(_restored(read)) for read in READS}
