"""Output: one JSON document for programs, aligned lines for people, and on standard error how far it is."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, time
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from kgray.backfill.run import RunProgress

Style = Mapping[str, Any]  # what click.style takes
DIM: Style = {"dim": True}
_STYLES: Mapping[str, Style] = {"id": DIM, "name": {"bold": True}, "type": {"fg": "cyan"}}
_HIDDEN = {"Cc", "Cs", "Zl", "Zp"}
_PATIENCE_S = 2.0  # before a progress bar is drawn
_EVERY_S = 0.1
_LINE_S = 5.0  # between two lines, where there is no terminal
_BIDI = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def emit_json(document: object) -> None:
    """Print one JSON document, UTF-8 whatever the terminal is."""
    import json  # `kgray --help` does not need it

    click.echo(json.dumps(document, ensure_ascii=False).encode())


def note(line: str) -> None:
    """Print a line on standard error; what a server said may have more than one."""
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
    return identifier[:8]


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
    rows: Sequence[Sequence[object]], *, head: Sequence[str] = (), styles: Sequence[Style | None] = (),
    nothing: str = "",
) -> None:  # fmt: skip
    """Print rows in aligned columns, numbers to the right; where there is no row, `nothing` instead.

    On a terminal, the head is dimmed, columns have their styles, else those of their names in the head, and
    the last one is cut to what fits.
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
            shown = pad + cell if right[at] else cell + pad * (at < len(row) - 1)
            styled.append(click.style(shown, **style) if (style := chosen[at]) else shown)
        click.echo("  ".join(styled).rstrip())


def pairs(values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
    """Print names and values, aligned."""
    found = list(values.items() if isinstance(values, Mapping) else values)
    longest = max((width(name) for name, _ in found), default=0)
    for name, value in found:
        click.echo(f"{name}{' ' * (longest - width(name))}  {plain(str(value))}")


def counted(number: int, one: str) -> str:
    """Return `1 episode`, `2 episodes`."""
    return f"{number} {one}{'' if number == 1 else 's'}"


class Progress:
    """Shows how far long work is: a line at the bottom of a terminal, drawn once it takes a while.

    Leaving the block removes the line. Where standard error is no terminal, a run tells it by a line every
    few seconds, and steps are not told.
    """

    def __init__(self, left: Callable[[], int] | None = None) -> None:
        """left: asked at the first step for those to come."""
        self.total, self._left = 0, left  # 0 = not known
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._started = self._told = monotonic()
        self._shown, self._done, self._failed = False, 0, 0

    def __call__(self, standing: RunProgress) -> None:
        """Show how far a run is, if it is time to."""
        if self._terminal:
            self._draw(standing.ended, standing.total or 0, progress_line(standing))
        elif monotonic() - self._told >= _LINE_S:
            self._told = monotonic()
            note(progress_line(standing))

    def step(self, *told: object) -> None:
        """Count one step; the last of what is told of it is its outcome."""
        if self._left is not None and not self.total:
            self.total = self._left() + 1
        self._done += 1
        self._failed += told[-1] == "failed"
        if self._terminal:
            done, total = self._done, self.total if self.total >= self._done else 0
            rate = done / max(monotonic() - self._started, 0.001)
            counts = f"{f', {self._failed} failed' if self._failed else ''}, {rate:.0f}/s"
            line = f"{done}/{total}{counts}, {(total - done) / rate:.0f} s left"
            self._draw(done, total, line if total else f"{done} done{counts}")

    def _draw(self, done: int, total: int, line: str) -> None:
        """Draw the line, with a bar where the total is known, if it is time to."""
        now = monotonic()
        if now - self._started <= _PATIENCE_S or now - self._told <= _EVERY_S:
            return
        self._shown, self._told = True, now
        filled = 30 * min(done, total) // (total or 1)
        bar = f"[{'#' * filled}{'.' * (30 - filled)}] " if total else ""
        click.echo(f"\r\x1b[K{bar}{line}", err=True, nl=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the line from the screen."""
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)


def progress_line(standing: RunProgress) -> str:
    """Return the progress of a run in one line."""
    words = [f"{standing.sorting} rows read to be sorted"] if standing.sorting else []
    words += [f"{standing.accepted} accepted"]
    words += [f"{number} {name}" for name in ("duplicate", "refused") if (number := getattr(standing, name))]
    words += [f"{standing.ended - standing.failed} committed", f"{standing.failed} failed"]
    words += [f"{standing.rate:.1f}/s"] if standing.rate else []
    if (left := standing.left_s) is not None:
        minutes = f"{left / 60:.0f} min" if left < 7200 else f"{left / 3600:.1f} h"
        words += [f"about {f'{left:.0f} s' if left < 120 else minutes} left"]
    return ", ".join(words)
