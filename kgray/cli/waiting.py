"""Tells the user what a command waits for, and keeps the last outage for `kgray status` (R24)."""

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
_SECOND_S = 10.0  # the second line; each further one after twice the time
_TODO = (
    "Start it, or put its settings right; Ctrl-C stops the command: what was accepted is safe, run it again"
)


class WaitTeller:
    """Says what this process waits for: within seconds, again at growing intervals, and when it is over."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        """folder: where the last outage is noted, if it exists; say: prints a line."""
        self._folder, self._say = folder, say
        self._told: dict[str, tuple[Outage, float]] = {}  # with the age at which it is told of again, seconds

    def look(self, now: float | None = None) -> None:
        """Report outages that began, last or ended. now: None = this machine's clock."""
        now = time.time() if now is None else now
        current = {one.what: one for one in OUTAGES.current(now)}
        for what, one in current.items():
            age = now - one.since
            known, next_s = self._told.get(what, (None, 0.0))
            is_new = known is None or (known.slow and not one.slow)
            if age < (next_s if not is_new else 0.0 if one.slow else _FIRST_S):
                continue
            self._told[what] = one, max(_SECOND_S, 2 * age)
            self._note(one, None)  # first: who has read the line finds it in the status
            verb = "it is given" if one.slow else "it is tried again for"
            left = f"{verb} up to {max(0.0, one.until - now):.0f} s more"
            news = f" for {age:.0f} s; {left}" if one.slow else f"; {left}. {_TODO}"
            again = f"still waiting, for {age:.0f} s now: {one.words}; {left}"
            self._say(f"waiting: {one.words}{news}" if is_new else again)
        self._tell_over(current.keys(), now)

    def end(self) -> None:
        """Tell what is over; note what is still waited for: the command ends."""
        current = OUTAGES.current()
        self._tell_over({one.what for one in current}, time.time())
        for one in current:
            self._note(one, None)

    def _tell_over(self, current: Set[str], now: float) -> None:
        for what in self._told.keys() - current:
            over, _ = self._told.pop(what)
            self._note(over, now)
            again = "answered" if over.slow else "answers again"
            self._say(f"{what} {again} after {now - over.since:.0f} s")

    def _note(self, outage: Outage, until: float | None) -> None:
        if outage.slow or not self._folder.is_dir():
            return
        # A folder that only may be read, a full disk: the line was told.
        with suppress(OSError), replaced(self._folder / FILE) as file:
            file.write(json.dumps(_row(outage, until)) + "\n")


@contextmanager
def told(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Tell what the process waits for while the block runs, from a thread: the block may block."""

    def line(text: str) -> None:
        with suppress(OSError, ValueError):  # standard error may be closed
            if sys.stderr is not None and sys.stderr.isatty():
                sys.stderr.write("\r\x1b[K")  # a progress bar
            say(text)

    OUTAGES.forget()
    teller, ended = WaitTeller(folder, line), threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            teller.look()

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()
        teller.end()


def last_outage(folder: Path, actors: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the outage that the actors are in, else the last one that a command met.

    Its keys: what, reason, since, until (None: not over when it was last seen), seen.
    """
    for one in (one for actor in actors for one in actor.get("waits", ()) if not one["slow"]):
        return _row(Outage(**one), None)
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {name: found[name] for name in ("what", "reason", "since", "until", "seen")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _row(outage: Outage, until: float | None) -> dict[str, Any]:
    moments = {"since": outage.since, "until": until, "seen": time.time()}
    shown = {name: at and times.show(round(at * times.SECOND)) for name, at in moments.items()}
    return {"what": outage.what, "reason": outage.reason, **shown}
