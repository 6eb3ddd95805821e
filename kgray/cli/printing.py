"""Output: one JSON document for programs, or aligned lines for people."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from kgray.times import DAY, Instant, to_datetime

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


def moment(instant: Instant) -> str:
    """Return the day, and the minute unless it is midnight UTC."""
    form = "%Y-%m-%d" if instant % DAY == 0 else "%Y-%m-%dT%H:%MZ"
    return to_datetime(instant).strftime(form)


def span(valid_at: Instant | None, invalid_at: Instant | None) -> str:
    """Return `from .. to` for people."""
    start = "always" if valid_at is None else moment(valid_at)
    return f"{start} .. {'now' if invalid_at is None else moment(invalid_at)}"


def width(text: str) -> int:
    """Return how many columns a terminal gives the text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def table(rows: Sequence[Sequence[str]], *, head: Sequence[str] = ()) -> None:
    """Print rows in aligned columns, numbers to the right, the head dimmed on a terminal."""
    every = [list(map(plain, row)) for row in rows]
    heads = [list(head)] if head else []
    columns = list(zip(*heads, *every, strict=True)) if every or heads else []
    widths = [max(map(width, column)) for column in columns]
    right = [all(cell.isdigit() for cell in column[len(heads) :]) and bool(every) for column in columns]
    for number, row in enumerate([*heads, *every]):
        cells = [
            " " * (wide - width(cell)) + cell if is_right else cell + " " * (wide - width(cell))
            for cell, wide, is_right in zip(row, widths, right, strict=True)
        ]
        line = "  ".join(cells).rstrip()
        click.echo(click.style(line, dim=True) if number < len(heads) else line)


def pairs(values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
    """Print names and values, aligned."""
    found = list(values.items() if isinstance(values, Mapping) else values)
    longest = max((width(name) for name, _ in found), default=0)
    for name, value in found:
        click.echo(f"{name}{' ' * (longest - width(name))}  {plain(str(value))}")


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return `1 episode`, `2 episodes`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
