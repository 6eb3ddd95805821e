"""What this process waits for: servers that do not answer (R24).

Whoever waits for a server says so here: the client of a model, the connection to a store, the router over
workers. Who shows it (a command, `kgray status`) asks what there is now. Threads may do both.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _Server:
    failed: Outage | None = None
    writing: tuple[str, float] | None = None  # words on a reply that is under way, its end
    calls: list[tuple[float, float]] = field(default_factory=list)  # sent at, given up at
    answered: float | None = None
    longest: float = 0.0  # wait for an answer

    def quiet_since(self, now: float) -> float:
        """Return since when calls are on their way and none was answered; now where there is no call."""
        return max(min((sent for sent, _ in self.calls), default=now), self.answered or 0.0)


class OutageBoard:
    """The outages of one process, and those that other processes have told it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Start anew."""
        with self._guard:
            self._servers: defaultdict[str, _Server] = defaultdict(_Server)
            self._told: dict[str, tuple[Outage, ...]] = {}  # by whoever told of them

    @contextmanager
    def asking(self, what: str, limit_s: float) -> Iterator[None]:
        """Note a call that is on its way; limit_s: for how long it is waited for."""
        now = time.time()
        with self._guard:
            calls = self._servers[what].calls
            calls.append((now, now + limit_s))
        try:
            yield
        finally:
            with self._guard:
                calls.remove((now, now + limit_s))

    def failed(self, what: str, reason: str, *, since: float, patience_s: float) -> None:
        """Note that a request which was sent at `since` failed, and that the server is waited for."""
        with self._guard:
            server = self._servers[what]
            since = since if server.failed is None else server.failed.since
            server.failed = Outage(what=what, reason=reason, since=since, until=since + patience_s)
            server.writing = None

    def writes(self, what: str, words: str, *, left_s: float) -> None:
        """Note how fast a server writes a reply, and when it ends at the latest, at that speed."""
        with self._guard:
            server = self._servers[what]
            server.failed, server.writing = None, (words, time.time() + left_s)

    def answered(self, what: str) -> None:
        """Note that a server answers: an outage of it is over."""
        now = time.time()
        with self._guard:
            server = self._servers[what]
            server.failed = server.writing = None
            server.longest = max(now - server.quiet_since(now), server.longest)
            server.answered = now

    def tell(self, source: str, outages: Iterable[Outage]) -> None:
        """Replace what another process has told of."""
        with self._guard:
            self._told[source] = tuple(outages)

    def current(self, now: float | None = None) -> list[Outage]:
        """Return what is waited for, one a server, the longest first; errors before what is only slow."""
        now = time.time() if now is None else now
        with self._guard:
            found = [server.failed for server in self._servers.values() if server.failed is not None]
            found += [one for told in self._told.values() for one in told]
            for what, server in self._servers.items():
                since, known = server.quiet_since(now), server.answered is not None
                patient = max(_LATER_ANSWER_S, 3 * server.longest) if known else _FIRST_ANSWER_S
                if server.calls and now - since >= patient:
                    silent = "has not answered yet", max(end for _, end in server.calls)
                    reason, until = server.writing or silent
                    found.append(Outage(what=what, reason=reason, since=since, until=until, slow=True))
        by_server: dict[str, Outage] = {}
        for one in sorted(found, key=lambda one: (one.slow, one.since)):
            by_server.setdefault(one.what, one)
        return list(by_server.values())

    def why(self) -> str:
        """Return the words of the longest outage; "" where no server has failed."""
        return next((one.words for one in self.current() if not one.slow), "")


OUTAGES = OutageBoard()
