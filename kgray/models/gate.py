"""The gate in front of the model: it limits the number of calls and sets their order."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple


class Urgency(NamedTuple):
    """Sort key of a call to the model: the smallest goes first."""

    bulk: bool  # whether it belongs to the backfill lane, which goes after the live lane
    number: int  # the count of episodes taken before this episode
    step: int  # 0 = questions, 1 = extraction
    length: int = 0  # minus the text's length near the end of a backlog (longest first), else 0


class Gate:
    """Limits the calls in flight to `width`; waiting calls enter by urgency, then by arrival.

    In order of arrival, extractions of distant episodes would delay the questions of the next episodes:

    order         wasted calls   stalls
    by arrival              46     30 s
    by urgency              14      7 s
    """

    def __init__(self, width: float) -> None:
        """Allow `width` calls at a time, rounded down; after an increase of `width` call `let_in`."""
        self.width = width
        self.in_flight = 0
        self._held_back = 0
        self._demand = [0, 0]
        self._waiting: list[tuple[Urgency, int, asyncio.Future[None]]] = []
        self._order = count()

    @property
    def demand(self) -> tuple[int, int]:
        """The number of calls that are in flight or wait: of the live lane, and of the backfill lane."""
        live, bulk = self._demand
        return live, bulk

    def hold_back(self, places: int) -> None:
        """Reserve this many places for the live lane."""
        self._held_back = places
        self.let_in()

    @asynccontextmanager
    async def pass_through(self, urgency: Urgency) -> AsyncIterator[None]:
        """Hold one place inside the `with` block; waits until there is one."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (urgency, next(self._order), turn))
        self._demand[urgency.bulk] += 1
        self.let_in()
        try:
            await turn
            yield
        finally:
            self._demand[urgency.bulk] -= 1
            # A call that is cancelled just as it is let in gives its place back too.
            if turn.done() and not turn.cancelled():
                self.in_flight -= 1
                self.let_in()

    def let_in(self) -> None:
        """Let calls in by urgency, as many as there are places for."""
        while self._waiting:
            urgency, _, turn = self._waiting[0]
            if not turn.done():
                if self.in_flight >= int(self.width) - (self._held_back if urgency.bulk else 0):
                    return
                self.in_flight += 1
                turn.set_result(None)
            heapq.heappop(self._waiting)
