"""Output: one JSON document for programs, or aligned lines for people."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, time
from typing import Any

import click

Style = Mapping[str, Any]  # what click.style takes
DIM: Style = {"dim": True}
BOLD: Style = {"bold": True}
SHORT = 8  # digits of an id that people see
_GAP = 2  # spaces between two columns
_LEAST_COLUMNS = 20  # of the last column on a narrow terminal
_HIDDEN = {"Cc", "Cs", "Zl", "Zp"}
_BIDI = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def emit_json(document: object) -> None:
    """Print one JSON document, UTF-8 whatever the terminal is."""
    click.echo(json.dumps(document, ensure_ascii=False).encode())


def note(line: str) -> None:
    """Print a line on standard error."""
    with suppress(OSError):  # a note may be lost, the result may not
        click.echo(f"kgray: {line}", err=True)


def plain(text: str) -> str:
    """Return stored text as one line without control characters, which could steer a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if unicodedata.category(c) in _HIDDEN or c in _BIDI else c for c in text)


def moment(at: datetime) -> str:
    """Return the day, and the minute unless it is midnight UTC."""
    day = at.date().isoformat()
    return day if at.time() == time.min else f"{day}T{at:%H:%M}Z"


def span(valid_at: datetime | None, invalid_at: datetime | None, *, event: bool = False) -> str:
    """Return `from .. to` for people; of an event its moment."""
    if event and valid_at is not None:
        return moment(valid_at)
    start = "unknown" if valid_at is None else moment(valid_at)
    return f"{start} .. {'now' if invalid_at is None else moment(invalid_at)}"


def short(identifier: str) -> str:
    """Return the beginning of an id, which commands take as long as it is unique in the group."""
    return identifier[:SHORT]


def width(text: str) -> int:
    """Return how many columns a terminal gives the text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def fitted(text: str, columns: int) -> str:
    """Return the text, cut with an ellipsis where it takes more columns of a terminal."""
    if width(text) <= columns:
        return text
    while text and width(text) > columns - 1:
        text = text[:-1]
    return f"{text}\u2026"


def table(
    rows: Sequence[Sequence[object]],
    *,
    head: Sequence[str] = (),
    styles: Sequence[Style | None] = (),
    nothing: str = "",
) -> None:
    """Print rows in aligned columns, numbers to the right; where there is no row, `nothing` instead.

    On a terminal, the head is dimmed, columns have their styles, and the last one is cut to what fits.
    """
    if not rows:
        click.echo(nothing)
        return
    every = [[plain(str(cell)) for cell in row] for row in rows]
    heads = [list(head)] if head else []
    columns = list(zip(*heads, *every, strict=True))
    widths = [max(map(width, column)) for column in columns]
    right = [all(cell.isdigit() for cell in column[len(heads) :]) for column in columns]
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    for number, row in enumerate([*heads, *every]):
        if is_terminal:
            from shutil import get_terminal_size  # slow to import, and `kgray --help` does not need it

            room = get_terminal_size().columns - sum(widths[:-1]) - _GAP * len(widths[:-1])
            row[-1] = fitted(row[-1], max(_LEAST_COLUMNS, room))
        cells = [
            " " * (wide - width(cell)) + cell if is_right else cell + " " * (wide - width(cell))
            for cell, wide, is_right in zip(row, widths, right, strict=True)
        ]
        cells[-1] = cells[-1].rstrip()
        chosen = [DIM] * len(cells) if number < len(heads) else [*styles, *[None] * len(cells)]
        styled = [
            click.style(cell, **style) if style else cell for cell, style in zip(cells, chosen, strict=False)
        ]
        click.echo((" " * _GAP).join(styled).rstrip())


def pairs(values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
    """Print names and values, aligned."""
    found = list(values.items() if isinstance(values, Mapping) else values)
    longest = max((width(name) for name, _ in found), default=0)
    for name, value in found:
        click.echo(f"{name}{' ' * (longest - width(name))}  {plain(str(value))}")


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return `1 episode`, `2 episodes`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
