"""A progress bar on standard error, where that is a terminal and the work takes a while."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

import click

from kgray.cli import printing

if TYPE_CHECKING:
    from kgray.backfill.run import RunProgress

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
            printing.note(progress_line(standing))
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
