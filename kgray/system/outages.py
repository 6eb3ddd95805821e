"""The servers that this process waits for because they do not answer (R24).

Clients of models, connections to stores, and the router of calls to workers report here. Commands and
`kgray status` read the current outages. All methods may be called in any thread.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# Seconds after which a silent server is reported.
_FIRST_ANSWER_S = 2.5  # if it has not answered this process yet
_LATER_ANSWER_S = 10.0  # afterwards; three times its longest silence so far, if that is longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A server that does not answer. Times are seconds since the epoch."""

    what: str  # the server, with its address
    reason: str  # its behaviour, as the predicate of a sentence
    since: float  # when the first unanswered request was sent
    until: float  # when the caller gives up
    slow: bool = False  # there was no error: a call takes long

    @property
    def words(self) -> str:
        """The server and the reason, as the start of a sentence."""
        return f"{self.what} {self.reason}"


@dataclass(slots=True)
class _Server:
    outage: Outage | None = None
    writing: tuple[str, float] | None = None  # the speed of an unfinished reply, in words; its latest end
    calls: list[tuple[float, float]] = field(default_factory=list)  # start, deadline
    answer_at: float | None = None  # when the last answer came
    longest_s: float = 0.0  # the longest wait for an answer

    def silence_start(self, time_now: float) -> float:
        """Return when the current silence began; without a call the given time."""
        return max(min((start for start, _ in self.calls), default=time_now), self.answer_at or 0.0)


class OutageBoard:
    """The outages of one process, and the outages that other processes reported to it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Drop all outages."""
        with self._guard:
            self._servers: defaultdict[str, _Server] = defaultdict(_Server)
            self._reports: dict[str, tuple[Outage, ...]] = {}  # by the process that sent them

    @contextmanager
    def asking(self, name: str, limit_s: float) -> Iterator[None]:
        """Record a call for the duration of the block; limit_s: the caller's deadline, in seconds."""
        start = time.time()
        call = start, start + limit_s
        with self._guard:
            calls = self._servers[name].calls
            calls.append(call)
        try:
            yield
        finally:
            with self._guard:
                calls.remove(call)

    def failed(self, name: str, reason: str, *, since: float, patience_s: float) -> None:
        """Record that a request sent at `since` failed, and that the caller tries again."""
        with self._guard:
            server = self._servers[name]
            start = since if server.outage is None else server.outage.since
            server.outage = Outage(what=name, reason=reason, since=start, until=start + patience_s)
            server.writing = None

    def writes(self, name: str, words: str, *, left_s: float) -> None:
        """Record in words how fast a server writes a reply; left_s: at most these seconds until its end."""
        with self._guard:
            server = self._servers[name]
            server.outage, server.writing = None, (words, time.time() + left_s)

    def answered(self, name: str) -> None:
        """Record an answer of a server, which ends its outage."""
        time_now = time.time()
        with self._guard:
            server = self._servers[name]
            server.outage = server.writing = None
            server.longest_s = max(time_now - server.silence_start(time_now), server.longest_s)
            server.answer_at = time_now

    def tell(self, source: str, outages: Iterable[Outage]) -> None:
        """Replace the outages that another process reported."""
        with self._guard:
            self._reports[source] = tuple(outages)

    def current(self, clock: float | None = None) -> list[Outage]:
        """Return an outage for each server: errors, then slow servers, the longest outage first.

        clock: the present time, in seconds since the epoch; None = the time of the system
        """
        time_now = time.time() if clock is None else clock
        with self._guard:
            outages = [server.outage for server in self._servers.values() if server.outage is not None]
            outages += [outage for report in self._reports.values() for outage in report]
            for name, server in self._servers.items():
                start = server.silence_start(time_now)
                limit_s = _FIRST_ANSWER_S
                if server.answer_at is not None:
                    limit_s = max(_LATER_ANSWER_S, 3 * server.longest_s)
                if server.calls and time_now - start >= limit_s:
                    silence = "has not answered yet", max(deadline for _, deadline in server.calls)
                    reason, end = server.writing or silence
                    outages.append(Outage(what=name, reason=reason, since=start, until=end, slow=True))
        by_server: dict[str, Outage] = {}
        for outage in sorted(outages, key=lambda outage: (outage.slow, outage.since)):
            by_server.setdefault(outage.what, outage)
        return list(by_server.values())

    def why(self) -> str:
        """Return the words of the longest outage; "" if no server failed."""
        return next((outage.words for outage in self.current() if not outage.slow), "")


OUTAGES = OutageBoard()
