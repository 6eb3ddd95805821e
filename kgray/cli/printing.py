"""Output: one JSON document for programs, aligned lines for people; on standard error notes and progress."""

from __future__ import annotations

import json
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from kgray.backfill.report import RunProgress


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
    return day if at.time() == datetime.min.time() else f"{day}T{at:%H:%M}Z"


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


_PATIENCE_S = 2.0
_EVERY_S = 0.1
_CELLS = 30
_LINE_S = 5.0


class Ticker:
    """Shows how far a long run is: a line at the bottom of a terminal, drawn once the work takes a while.

    Leaving the block removes the line. Where standard error is no terminal: a line every few seconds.
    """

    def __init__(self, total: int = 0, *, every_s: float = _LINE_S) -> None:
        """total: steps to come; 0 = not known. every_s: seconds between two lines without a terminal."""
        self.total = total
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._started = self._drawn = time.monotonic()
        self._shown, self._every_s = False, every_s

    def __call__(self, standing: RunProgress) -> None:
        """Show the progress, if it is time to."""
        if not self._terminal and time.monotonic() - self._drawn >= self._every_s:
            self._drawn = time.monotonic()
            note(progress_line(standing))
        elif self._is_time():
            bar = _cells(min(standing.ended, standing.total), standing.total) if standing.total else ""
            self._draw(f"{bar}{progress_line(standing)}")

    def _is_time(self) -> bool:
        """Whether to draw the line on the terminal now."""
        now = time.monotonic()
        return self._terminal and now - self._started > _PATIENCE_S and now - self._drawn > _EVERY_S

    def _draw(self, text: str) -> None:
        self._shown, self._drawn = True, time.monotonic()
        click.echo(f"\r\x1b[K{text}", err=True, nl=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the line from the screen."""
        if self._shown:
            self._draw("")


class Progress(Ticker):
    """Counts steps, on a terminal alone; without a total only their count is shown."""

    _done = _failed = 0

    def step(self, outcome: str) -> None:
        """Count one step of the ingest loop."""
        self._done += 1
        self._failed += outcome == "failed"
        if self._is_time():
            rate = self._done / (time.monotonic() - self._started)
            counts = f"{f', {self._failed} failed' if self._failed else ''}, {rate:.0f}/s"
            if self.total < self._done:
                self._draw(f"{self._done} done{counts}")
                return
            left = (self.total - self._done) / rate
            bar = _cells(self._done, self.total)
            self._draw(f"{bar}{self._done}/{self.total}{counts}, {left:.0f} s left")


def _cells(done: int, total: int) -> str:
    filled = _CELLS * done // total
    return f"[{'#' * filled}{'.' * (_CELLS - filled)}] "


def progress_line(standing: RunProgress) -> str:
    """Return the progress of a run in one line."""
    counts = (
        (standing.accepted, "accepted", True),
        (standing.duplicate, "duplicate", False),
        (standing.refused, "refused", False),
        (standing.ended - standing.failed, "committed", True),
        (standing.failed, "failed", True),
    )
    words = [f"{standing.sorting} rows read to be sorted"] if standing.sorting else []
    words += [f"{number} {name}" for number, name, always in counts if number or always]
    left = standing.left_s
    words += [f"{standing.rate:.1f}/s"] if standing.rate else []
    return ", ".join(words) + ("" if left is None else f", about {duration(left)} left")


def duration(seconds: float) -> str:
    """Return a length of time in the unit that fits."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
