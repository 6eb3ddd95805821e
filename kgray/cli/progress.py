"""A progress bar on standard error, where that is a terminal and the work takes a while."""

from __future__ import annotations

import sys
import time

import click

_PATIENCE_S = 2.0
_EVERY_S = 0.1
_CELLS = 30


class Progress:
    """Counts steps; draws from two seconds on; `close` wipes the line."""

    def __init__(self, total: int = 0) -> None:
        """total: steps that are known to come; 0 = not known, then the count alone is shown."""
        self.total = total
        self._done = self._failed = 0
        self._shown = False
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._started = self._drawn = time.monotonic()

    def step(self, outcome: str) -> None:
        """Count one step of the ingest loop."""
        self._done += 1
        self._failed += outcome == "failed"
        moment = time.monotonic()
        if self._terminal and moment - self._started > _PATIENCE_S and moment - self._drawn > _EVERY_S:
            self._drawn, self._shown = moment, True
            click.echo(f"\r\x1b[K{self._line(moment)}", err=True, nl=False)

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)

    def _line(self, moment: float) -> str:
        rate = self._done / (moment - self._started)
        failed = f", {self._failed} failed" if self._failed else ""
        if self.total < self._done:
            return f"{self._done} done{failed}, {rate:.0f}/s"
        filled = _CELLS * self._done // self.total
        left = (self.total - self._done) / rate
        bar = "#" * filled + "." * (_CELLS - filled)
        return f"[{bar}] {self._done}/{self.total}{failed}, {rate:.0f}/s, {left:.0f} s left"
