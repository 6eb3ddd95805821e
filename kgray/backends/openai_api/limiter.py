"""How many requests are at a server at once, and when the next may go."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Limiter:
    """A cap that halves when the server says "too many" and grows back with each success (AIMD).

    One a server and key, shared by all that call it on one event loop; first come, first served.
    """

    def __init__(self, cap: int) -> None:
        """Start at the cap."""
        self.cap = cap
        self.limit = float(cap)
        self.running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._resume_at = 0.0
        self._cut_at = 0.0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Hold one place at the server; yields the moment at which it was taken."""
        await self._acquire()
        try:
            while (left := self._resume_at - time.monotonic()) > 0:  # noqa: ASYNC110 - until a moment, which may move
                await asyncio.sleep(left)
            yield time.monotonic()
        finally:
            self.running -= 1
            self._wake()

    def succeeded(self) -> None:
        """Grow by one for each full round of successes."""
        self.limit = min(float(self.cap), self.limit + 1 / self.limit)
        self._wake()

    def throttled(self, sent_at: float) -> None:
        """Halve, once for all requests that were under way together."""
        if sent_at >= self._cut_at:
            self.limit = max(1.0, self.limit / 2)
            self._cut_at = time.monotonic()

    def pause(self, seconds: float) -> None:
        """Send nothing for a while: the server said when to come back."""
        self._resume_at = max(self._resume_at, time.monotonic() + seconds)

    async def _acquire(self) -> None:
        if self.running < int(self.limit) and not self._waiting:
            self.running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.running -= 1  # the place was given in the same moment: it goes to the next
                self._wake()
            raise

    def _wake(self) -> None:
        # Not a Condition: a waiter that is cancelled just as it is woken would keep the place for itself.
        while self._waiting and self.running < int(self.limit):
            turn = self._waiting.popleft()
            if not turn.done():
                self.running += 1
                turn.set_result(None)
