"""The ingest loop of a server: a thread that carries out what is pending, and tells who waits for it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from kgray.errors import KgrayError
from kgray.memory.face import AsyncMemory
from kgray.storage.ledger import pending_groups

_LOOK_S = 0.25  # between two looks for entries of other processes
_AGAIN_S = 5.0  # after an outage or a fault
_log = logging.getLogger("kgray.server")


class Background:
    """Ingests in a thread from `start` to `stop`; knows how much waits, and for how long."""

    def __init__(self, memory: AsyncMemory, on_outcome: Callable[[str], None] = lambda _: None) -> None:
        """on_outcome: called in the thread with the outcome of each entry."""
        self.fault = ""  # why it does not ingest now, in one line
        self.pending = 0  # entries that have not ended, when `look` was last called
        self._memory, self._on_outcome = memory, on_outcome
        self._arrived = 0
        self._arrivals: deque[tuple[float, int]] = deque()  # (when, how many had arrived before)
        self._poked, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stepped = asyncio.Event()
        self._telling = False

    def start(self) -> None:
        """Start the thread; to be called in the server's event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="kgray-ingest", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have what is in flight committed and end the thread; blocks."""
        self._stopping.set()
        self._poked.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Count what waits; blocks."""
        pending, moment = self._memory.store.pending_count(), time.monotonic()
        ended = self._arrived - pending  # as if the first that came were the first to end
        while len(self._arrivals) > 1 and self._arrivals[1][1] <= ended:
            self._arrivals.popleft()
        if not pending:
            self._arrivals.clear()
        elif not self._arrivals:  # it was there before this server, or another process appended it
            self._arrived, self._arrivals = pending, deque([(moment, 0)])
        self.pending = pending

    @property
    def oldest_s(self) -> float:
        """The age of the oldest waiting entry, in seconds: an estimate, 0 = no entry waits."""
        return time.monotonic() - self._arrivals[0][0] if self._arrivals else 0.0

    def appended(self, count: int) -> None:
        """Note the number of appended episodes."""
        self._arrivals.append((time.monotonic(), self._arrived))
        self._arrived += count
        self.pending += count
        self._poked.set()

    async def step(self, timeout_s: float) -> None:
        """Wait until an entry ends, or for the timeout; it misses entries that another process ends."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stepped.wait(), timeout_s)

    def _step(self, _group: str, _sequence: int, outcome: str) -> None:
        self._on_outcome(outcome)
        if not self._telling and self._loop is not None:
            self._telling = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._telling = False
        former, self._stepped = self._stepped, asyncio.Event()
        former.set()

    def _run(self) -> None:
        stop = self._stopping.is_set
        while not stop():
            self._poked.wait(_LOOK_S)
            self._poked.clear()
            fault = ""
            try:
                if pending_groups(self._memory.store) and not stop():
                    report = asyncio.run(self._memory.ingest(on_step=self._step, stop=stop))
                    fault = report.reason if report.stopped else ""
            except KgrayError as error:
                fault = str(error)
            except Exception as error:  # noqa: BLE001 - the loop outlives it, and says so
                fault = f"fault in kgray ({type(error).__name__})"
                _log.exception("the ingest loop met a fault")
            if fault and fault != self.fault:
                _log.warning("not ingesting: %s", fault)
            self.fault = fault
            if fault:
                self._stopping.wait(_AGAIN_S)
