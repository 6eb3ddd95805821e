"""What this process waits for: servers that do not answer (R24).

Whoever waits for a server says so here: the client of a model, the connection to a store, the router over
workers. Who shows it (a command, `kgray status`) asks what there is now. Threads may do both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

# From when on a call without an answer is told of: of a server that has not answered this process yet; of
# another, after three times the longest wait so far.
_FIRST_ANSWER_S = 2.5
_LATER_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A server that is waited for. Moments are wall clock, in seconds."""

    what: str  # the server, with its address
    reason: str  # what it does instead of answering
    since: float  # when the first request was sent that got no answer
    until: float  # when those who wait give up
    slow: bool = False  # no error was met: a call is on its way for long

    @property
    def words(self) -> str:
        """Server and reason, as the start of a sentence."""
        return f"{self.what} {self.reason}"


class OutageBoard:
    """The outages of one process, and those that other processes have told it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._tickets = count()
        self.forget()

    def forget(self) -> None:
        """Start anew."""
        with self._guard:
            self._failed: dict[str, Outage] = {}
            self._told: dict[str, tuple[Outage, ...]] = {}  # by whoever told of them
            self._asked: dict[str, dict[int, tuple[float, float]]] = {}  # calls: sent at, given up at
            self._answered: dict[str, float] = {}
            self._longest: dict[str, float] = {}
            self._writing: dict[str, tuple[str, float]] = {}  # words on a reply that is under way, its end

    @contextmanager
    def asking(self, what: str, limit_s: float) -> Iterator[None]:
        """Note a call that is on its way; limit_s: for how long it is waited for."""
        now = time.time()
        with self._guard:
            ticket = next(self._tickets)
            self._asked.setdefault(what, {})[ticket] = (now, now + limit_s)
        try:
            yield
        finally:
            with self._guard:
                self._asked.get(what, {}).pop(ticket, None)

    def failed(self, what: str, reason: str, *, since: float, patience_s: float) -> None:
        """Note that a request which was sent at `since` failed, and that the server is waited for."""
        with self._guard:
            first = self._failed.get(what)
            since = since if first is None else first.since
            self._writing.pop(what, None)
            self._failed[what] = Outage(what=what, reason=reason, since=since, until=since + patience_s)

    def writes(self, what: str, words: str, *, left_s: float) -> None:
        """Note how fast a server writes a reply, and when it ends at the latest, at that speed."""
        with self._guard:
            self._failed.pop(what, None)
            self._writing[what] = words, time.time() + left_s

    def answered(self, what: str) -> None:
        """Note that a server answers: an outage of it is over."""
        now = time.time()
        with self._guard:
            self._failed.pop(what, None)
            self._writing.pop(what, None)
            quiet = now - self._quiet_since(what, now)
            self._longest[what] = max(quiet, self._longest.get(what, 0.0))
            self._answered[what] = now

    def tell(self, source: str, outages: Iterable[Outage]) -> None:
        """Replace what another process has told of."""
        with self._guard:
            self._told[source] = tuple(outages)

    def current(self, now: float | None = None) -> list[Outage]:
        """Return what is waited for, one a server, the longest first; errors before what is only slow."""
        now = time.time() if now is None else now
        with self._guard:
            found = [*self._failed.values(), *(one for told in self._told.values() for one in told)]
            found += [slow for what in self._asked if (slow := self._slow(what, now)) is not None]
        by_server: dict[str, Outage] = {}
        for one in sorted(found, key=lambda one: (one.slow, one.since)):
            by_server.setdefault(one.what, one)
        return list(by_server.values())

    def why(self) -> str:
        """Return the words of the longest outage; "" where no server has failed."""
        return next((one.words for one in self.current() if not one.slow), "")

    def _slow(self, what: str, now: float) -> Outage | None:
        calls = self._asked[what].values()
        since = self._quiet_since(what, now)
        known = what in self._answered
        patient = max(_LATER_ANSWER_S, 3 * self._longest[what]) if known else _FIRST_ANSWER_S
        if not calls or now - since < patient:
            return None
        silent = "has not answered yet", max(end for _, end in calls)
        reason, until = self._writing.get(what, silent)
        return Outage(what=what, reason=reason, since=since, until=until, slow=True)

    def _quiet_since(self, what: str, now: float) -> float:
        """Return since when calls are on their way and none was answered; now where there is no call."""
        sent = (at for at, _ in self._asked.get(what, {}).values())
        return max(min(sent, default=now), self._answered.get(what, 0.0))


OUTAGES = OutageBoard()
