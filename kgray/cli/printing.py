"""Output: one JSON document for programs, aligned lines for people, notes on standard error."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, time
from typing import TYPE_CHECKING, Any

import click

from kgray.domain.json_form import as_json

if TYPE_CHECKING:
    pass

Style = Mapping[str, Any]  # keyword arguments of click.style
DIM: Style = {"dim": True}
_STYLES: Mapping[str, Style] = {"id": DIM, "name": {"bold": True}, "type": {"fg": "cyan"}}
_HIDDEN = {"Cc", "Cs", "Zl", "Zp"}
_BIDI = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def emit_json(document: object) -> None:
    """Print a result as one JSON document in UTF-8, independent of the terminal."""
    import json  # `kgray --help` does not need it

    click.echo(json.dumps(as_json(document), ensure_ascii=False).encode())


def note(line: str) -> None:
    """Print a line on standard error; line breaks (of a server's message) become spaces."""
    with suppress(OSError):  # a note may be lost, the result may not
        click.echo(f"kgray: {' '.join(line.encode(errors='backslashreplace').decode().split())}", err=True)


def plain_lines(text: str) -> str:
    """Return stored text without control characters but line breaks."""
    return "\n".join(map(plain, text.split("\n")))


def plain(text: str) -> str:
    """Return stored text as one line without control characters, which could steer a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if unicodedata.category(c) in _HIDDEN or c in _BIDI else c for c in text)


def moment(at: datetime) -> str:
    """Return the day, with the minute unless it is midnight UTC."""
    day = at.date().isoformat()
    return day if at.time() == time.min else f"{day}T{at:%H:%M}Z"


def span(valid_at: datetime | None, invalid_at: datetime | None, *, event: bool = False) -> str:
    """Return `from .. to` for people, or the moment of an event."""
    if event and valid_at is not None:
        return moment(valid_at)
    start = "unknown" if valid_at is None else moment(valid_at)
    return f"{start} .. {'now' if invalid_at is None else moment(invalid_at)}"


def short(identifier: str) -> str:
    """Return the beginning of an id; commands accept it if it is unique in the group."""
    return identifier[:8]


def width(text: str) -> int:
    """Return the number of terminal columns of the text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def fitted(text: str, columns: int) -> str:
    """Return the text, cut with an ellipsis if it is wider than `columns`."""
    if width(text) <= columns:
        return text
    while text and width(text) > columns - 1:
        text = text[:-1]
    return f"{text}\u2026"


def table(
    rows: Sequence[Sequence[object]], *, head: Sequence[str] = (), styles: Sequence[Style | None] = (),
    nothing: str = "",
) -> None:  # fmt: skip
    """Print rows in aligned columns, numbers to the right; without rows, print `nothing`.

    On a terminal the head is dimmed, columns have `styles`, else the styles of their names in the head, and
    the last column is cut to the terminal's width.
    """
    if not rows:
        click.echo(nothing)
        return
    every = [[plain(str(cell)) for cell in row] for row in rows]
    heads, looks = [list(head)] if head else [], styles or [_STYLES.get(name) for name in head]
    columns = list(zip(*heads, *every, strict=True))
    widths = [max(map(width, column)) for column in columns]
    right = [all(cell.isdigit() for cell in column[len(heads) :]) for column in columns]
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    for number, row in enumerate([*heads, *every]):
        if is_terminal:
            from shutil import get_terminal_size  # slow to import, and `kgray --help` does not need it

            room = get_terminal_size().columns - sum(wide + 2 for wide in widths[:-1])
            row[-1] = fitted(row[-1], max(20, room))
        chosen = [DIM] * len(row) if number < len(heads) else [*looks, *[None] * len(row)]
        styled = []
        for at, (cell, wide) in enumerate(zip(row, widths, strict=True)):
            pad = " " * (wide - width(cell))
            padded = pad + cell if right[at] else cell + pad * (at < len(row) - 1)
            styled.append(click.style(padded, **style) if (style := chosen[at]) else padded)
        click.echo("  ".join(styled).rstrip())


def pairs(values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
    """Print names and values, aligned."""
    rows = list(values.items() if isinstance(values, Mapping) else values)
    longest = max((width(name) for name, _ in rows), default=0)
    for name, value in rows:
        click.echo(f"{name}{' ' * (longest - width(name))}  {plain(str(value))}")


def counted(number: int, noun: str) -> str:
    """Return `1 episode`, `2 episodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
