"""Reports the servers that a command waits for, and stores the last outage for `kgray status` (R24)."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kgray import times
from kgray.locks import replaced
from kgray.outages import OUTAGES, Outage

FILE = "outage.json"  # in the data folder
_LOOK_S = 0.2
_FIRST_S = 1.0  # an outage that is over sooner is not worth a line
_SECOND_S = 10.0  # the second line; each further line comes after twice the time
_TODO = (
    "Start it, or put its settings right; Ctrl-C stops the command: what was accepted is safe, run it again"
)


class WaitReporter:
    """Reports outages that this process waits for: within seconds, at growing intervals, and at their end."""

    def __init__(self, folder: Path, print_line: Callable[[str], None]) -> None:
        """folder: stores the last outage, if the folder exists; print_line: prints a line."""
        self._folder, self._print = folder, print_line
        self._reported: dict[str, tuple[Outage, float]] = {}  # with the age of the next report, s

    def look(self, clock: float | None = None) -> None:
        """Report outages that began, last or ended. clock: seconds; None = this machine's clock."""
        clock = time.time() if clock is None else clock
        current = {outage.what: outage for outage in OUTAGES.current(clock)}
        for server, outage in current.items():
            age = clock - outage.since
            reported, next_s = self._reported.get(server, (None, 0.0))
            is_new = reported is None or (reported.slow and not outage.slow)
            if age < (next_s if not is_new else 0.0 if outage.slow else _FIRST_S):
                continue
            self._reported[server] = outage, max(_SECOND_S, 2 * age)
            self._note(outage, None)  # before the line: readers of the line look it up in the status
            verb = "it is given" if outage.slow else "it is tried again for"
            patience = f"{verb} up to {max(0.0, outage.until - clock):.0f} s more"
            news = f" for {age:.0f} s; {patience}" if outage.slow else f"; {patience}. {_TODO}"
            repeated = f"still waiting, for {age:.0f} s now: {outage.words}; {patience}"
            self._print(f"waiting: {outage.words}{news}" if is_new else repeated)
        self._report_ended(current.keys(), clock)

    def end(self) -> None:
        """Report the ended outages and store the others: the command ends."""
        current = OUTAGES.current()
        self._report_ended({outage.what for outage in current}, time.time())
        for outage in current:
            self._note(outage, None)

    def _report_ended(self, current: Set[str], clock: float) -> None:
        for server in self._reported.keys() - current:
            over, _ = self._reported.pop(server)
            self._note(over, clock)
            verb = "answered" if over.slow else "answers again"
            self._print(f"{server} {verb} after {clock - over.since:.0f} s")

    def _note(self, outage: Outage, ended_at: float | None) -> None:
        if outage.slow or not self._folder.is_dir():
            return
        # A read-only folder or a full disk: the line was printed.
        with suppress(OSError), replaced(self._folder / FILE) as file:
            file.write(json.dumps(_outage_row(outage, ended_at)) + "\n")


@contextmanager
def report_waits(folder: Path, print_line: Callable[[str], None]) -> Iterator[None]:
    """Report outages while the block runs, from a thread: the block may block."""

    def line(text: str) -> None:
        with suppress(OSError, ValueError):  # standard error may be closed
            if sys.stderr is not None and sys.stderr.isatty():
                sys.stderr.write("\r\x1b[K")  # a progress bar
            print_line(text)

    OUTAGES.forget()
    reporter, ended = WaitReporter(folder, line), threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            reporter.look()

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()
        reporter.end()


def last_outage(folder: Path, actors: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the current outage of the actors, else the last outage of a command.

    Its keys: what, reason, since, until (None: still lasting when last seen), seen.
    """
    for outage in (outage for actor in actors for outage in actor.get("waits", ()) if not outage["slow"]):
        return _outage_row(Outage(**outage), None)
    try:
        row: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {name: row[name] for name in ("what", "reason", "since", "until", "seen")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _outage_row(outage: Outage, ended_at: float | None) -> dict[str, Any]:
    moments = {"since": outage.since, "until": ended_at, "seen": time.time()}
    times_as_text = {name: at and times.show(round(at * times.SECOND)) for name, at in moments.items()}
    return {"what": outage.what, "reason": outage.reason, **times_as_text}
