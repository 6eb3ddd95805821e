"""Declared reads (`kinds.READS`), page by page, on either connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kgray.kinds import READS, Read, Row
from kgray.stores.sqlite import statements as sql
from kgray.stores.sqlite.database import keys_of
from kgray.stores.sqlite.schema import MASK, SHIFT
from kgray.stores.sqlite.statements import Way

_PAGE_ROWS = 1_000  # no statement is open between two pages
_PAGE_VALUES = 500
Run = Callable[[str, Sequence[Any]], list[Row]]  # a statement and its values -> all its rows


def array(values: Any) -> str:  # noqa: ANN401 - any iterable of JSON values
    """Return a JSON array for json_each: escaped, so that any string passes, lone surrogates too."""
    return json.dumps(list(values), separators=(",", ":"))


def read_rows(run: Run, read: Read, no: int, values: Sequence[Any]) -> Iterator[Row]:
    """Yield the rows of a declared read of the group with this number."""
    how = sql.OF_READ[read]
    restored = _RESTORED[read]
    for page in _pages(run, how, no, values):
        yield from page if restored is None else restored(page)


def _pages(run: Run, how: sql.ReadStatements, no: int, values: Sequence[Any]) -> Iterator[list[Row]]:
    match how.way:
        case Way.BY_VALUES:
            asked: list[Any] = list(dict.fromkeys(values))
            if how.keys:
                asked = [no << SHIFT | n for n in asked if 0 < n <= MASK]  # any other n is in no group
            for start in range(0, len(asked), _PAGE_VALUES):
                yield run(how.sql, (no, array(asked[start : start + _PAGE_VALUES])))
        case Way.BY_KEYS:
            first, last = keys_of(no)
            ((highest,),) = run(how.last, (first, last))
            while highest is not None and first <= highest:
                yield run(how.sql, (first, first + _PAGE_ROWS - 1))
                first += _PAGE_ROWS
        case Way.BY_PLACES:
            page = run(how.sql, (no, _PAGE_ROWS))
            while page:
                yield [row[: -how.place] for row in page]
                if len(page) < _PAGE_ROWS:
                    break
                page = run(how.after, (no, *page[-1][-how.place :], _PAGE_ROWS))
        case Way.AT_ONCE:
            yield run(how.sql, (no,))


def _tuple(text: str) -> tuple[str, ...]:
    return () if text == "[]" else tuple(json.loads(text))


def _restored(read: Read) -> Callable[[list[Row]], list[Row]] | None:
    """Return what makes values of what SQLite does not know: bool and tuples; None where there is none."""
    kinds = {column.name: column.type for column in read.kind.columns}
    made = {n: kinds[name] for n, name in enumerate(read.chosen) if kinds[name] in {"bool", "texts"}}
    if not made:
        return None
    if list(made.values()) == ["bool"]:  # by itself: 100,000 rows of evidence are read at a start
        (place,) = made
        after = place + 1
        return lambda page: [(*row[:place], row[place] == 1, *row[after:]) for row in page]
    makers = {n: bool if kind == "bool" else _tuple for n, kind in made.items()}
    return lambda page: [
        tuple([makers[n](value) if n in makers else value for n, value in enumerate(row)]) for row in page
    ]


_RESTORED: Mapping[Read, Callable[[list[Row]], list[Row]] | None] = {read: _restored(read) for read in READS}
