"""Shows the progress of long work on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Self

import click

from kgray.cli.printing import note

if TYPE_CHECKING:
    from kgray.memory.backfill.run import RunProgress

PATIENCE_S = 2.0  # before a progress bar is drawn
EVERY_S = 0.1  # between two drawings of it
LINE_S = 5.0  # between two lines without a terminal


class Progress:
    """The progress of long work: a line at the bottom of a terminal, drawn after some seconds.

    The end of the block removes the line. If standard error is no terminal, a run prints a line every few
    seconds, and steps print nothing.
    """

    def __init__(self, remaining: Callable[[], int] | None = None) -> None:
        """remaining: called at the first step, returns the number of steps to come."""
        self.total, self._remaining = 0, remaining  # 0 = not known
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._started = self._printed_at = monotonic()
        self._is_drawn, self._ended, self._failed = False, 0, 0

    def __call__(self, standing: RunProgress) -> None:
        """Print the progress of a run, at most once in an interval."""
        if self._terminal:
            self._draw(standing.ended, standing.total or 0, progress_line(standing))
        elif monotonic() - self._printed_at >= LINE_S:
            self._printed_at = monotonic()
            note(progress_line(standing))

    def step(self, *details: object) -> None:
        """Count one step; the last of its details is its outcome."""
        if self._remaining is not None and not self.total:
            self.total = self._remaining() + 1
        self._ended += 1
        self._failed += details[-1] == "failed"
        if self._terminal:
            ended, total = self._ended, self.total if self.total >= self._ended else 0
            rate = ended / max(monotonic() - self._started, 0.001)
            counts = f"{f', {self._failed} failed' if self._failed else ''}, {rate:.0f}/s"
            line = f"{ended}/{total}{counts}, {(total - ended) / rate:.0f} s left"
            self._draw(ended, total, line if total else f"{ended} done{counts}")

    def _draw(self, ended: int, total: int, line: str) -> None:
        """Draw the line, with a bar if the total is known, at most once in an interval."""
        clock = monotonic()
        if clock - self._started <= PATIENCE_S or clock - self._printed_at <= EVERY_S:
            return
        self._is_drawn, self._printed_at = True, clock
        filled = 30 * min(ended, total) // (total or 1)
        bar = f"[{'#' * filled}{'.' * (30 - filled)}] " if total else ""
        click.echo(f"\r\x1b[K{bar}{line}", err=True, nl=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the line from the screen."""
        if self._is_drawn:
            click.echo("\r\x1b[K", err=True, nl=False)


def progress_line(standing: RunProgress) -> str:
    """Return the progress of a run in one line."""
    words = [f"{standing.sorting} rows read to be sorted"] if standing.sorting else []
    words += [f"{standing.accepted} accepted"]
    words += [f"{number} {name}" for name in ("duplicate", "refused") if (number := getattr(standing, name))]
    words += [f"{standing.ended - standing.failed} committed", f"{standing.failed} failed"]
    words += [f"{standing.rate:.1f}/s"] if standing.rate else []
    if (remaining_s := standing.left_s) is not None:
        minutes = f"{remaining_s / 60:.0f} min" if remaining_s < 7200 else f"{remaining_s / 3600:.1f} h"
        words += [f"about {f'{remaining_s:.0f} s' if remaining_s < 120 else minutes} left"]
    return ", ".join(words)
