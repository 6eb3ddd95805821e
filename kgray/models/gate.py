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

    bulk: bool  # True: a call of the backfill lane, which comes after the live lane
    number: int  # the count of episodes taken before this episode
    step: int  # 0 = questions, 1 = extraction
    length: int = 0  # minus the text's length near the end of a backlog (longest first), else 0


class Gate:
    """Limits the calls in flight to `width`; waiting calls enter by urgency, then by arrival.

    By arrival alone, extractions of distant episodes would delay the questions of the next episodes. In a
    comparison, the order by urgency reduced wasted calls from 46 to 14, and stalls from 30 s to 7 s.
    """

    def __init__(self, width: float) -> None:
        """Allow `width` calls at a time, rounded down; after an increase of `width` call `let_in`."""
        self.width = width
        self.in_flight = 0
        self._reserved = 0
        self._demand = [0, 0]
        self.bulk_in_flight = 0  # of the backfill lane
        self._waiting: list[tuple[Urgency, int, asyncio.Future[None]]] = []
        self._order = count()

    @property
    def demand(self) -> tuple[int, int]:
        """The calls in flight or waiting: their number in the live lane, and in the backfill lane."""
        live, bulk = self._demand
        return live, bulk

    def hold_back(self, places: int) -> None:
        """Reserve this many places for the live lane."""
        self._reserved = places
        self.let_in()

    @asynccontextmanager
    async def pass_through(self, urgency: Urgency) -> AsyncIterator[None]:
        """Wait for a place, and occupy it inside the `with` block."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (urgency, next(self._order), turn))
        self._demand[urgency.bulk] += 1
        self.let_in()
        try:
            await turn
            yield
        finally:
            self._demand[urgency.bulk] -= 1
            # A call that was let in frees its place, also if it was cancelled before it could begin.
            if turn.done() and not turn.cancelled():
                self.in_flight -= 1
                self.bulk_in_flight -= urgency.bulk
                self.let_in()

    def let_in(self) -> None:
        """Let waiting calls in, by urgency, while places are free."""
        while self._waiting:
            urgency, _, turn = self._waiting[0]
            if not turn.done():
                if self.in_flight >= int(self.width) - (self._reserved if urgency.bulk else 0):
                    return
                self.in_flight += 1
                self.bulk_in_flight += urgency.bulk
                turn.set_result(None)
            heapq.heappop(self._waiting)
