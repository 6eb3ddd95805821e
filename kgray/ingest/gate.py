"""A gate in front of the model: so many calls and tokens in flight, the most urgent first."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple


class Urgency(NamedTuple):
    """Smaller goes first.

    bulk     the backfill lane goes behind the live one
    number   when its episode was taken
    step     0 = resolution, 1 = extraction
    length   minus the text's length, where the end of a backlog is in sight
    """

    bulk: bool
    number: int
    step: int
    length: int = 0


class Gate:
    """Lets `width` calls through at a time; waiters go by urgency, then by arrival.

    First come, first served would let the extractions of far episodes stand before the questions of
    the next ones: 46 wasted calls and 30 s of stalls instead of 14 and 7 in a trial.
    """

    def __init__(self, width: int, *, tokens: int | None = None) -> None:
        """Open a gate for `width` calls that hold about `tokens` tokens together (None: no bound)."""
        self._free = width
        self._in_flight = 0
        self._tokens_free = tokens
        self._held_back = 0
        self._waiting: list[tuple[Urgency, int, int, asyncio.Future[None]]] = []
        self._order = count()

    def hold_back(self, places: int) -> None:
        """Keep so many places for the live lane."""
        self._held_back = places
        self._let_in()

    @asynccontextmanager
    async def pass_through(self, urgency: Urgency, tokens: int = 0) -> AsyncIterator[None]:
        """Hold one of the places, and about so many tokens, while the call is made."""
        await self._enter(urgency, tokens)
        try:
            yield
        finally:
            self._leave(tokens)

    async def _enter(self, urgency: Urgency, tokens: int) -> None:
        if not self._waiting and self._fits(urgency, tokens):
            self._take(tokens)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (urgency, next(self._order), tokens, turn))
        self._let_in()  # it may be more urgent than one for whom there is no place
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(tokens)  # the place was given in the very moment of the cancellation
            raise

    def _fits(self, urgency: Urgency, tokens: int) -> bool:
        if self._free <= (self._held_back if urgency.bulk else 0):
            return False
        # One alone always fits: a text that is larger than the bound would wait for ever.
        return self._tokens_free is None or self._in_flight == 0 or tokens <= self._tokens_free

    def _take(self, tokens: int) -> None:
        self._free -= 1
        self._in_flight += 1
        if self._tokens_free is not None:
            self._tokens_free -= tokens

    def _leave(self, tokens: int) -> None:
        self._free += 1
        self._in_flight -= 1
        if self._tokens_free is not None:
            self._tokens_free += tokens
        self._let_in()

    def _let_in(self) -> None:
        """Give the free places to the most urgent; one that has no room is waited for, not passed by."""
        while self._waiting:
            urgency, _, tokens, turn = self._waiting[0]
            if turn.done():
                heapq.heappop(self._waiting)
                continue
            if not self._fits(urgency, tokens):
                return
            heapq.heappop(self._waiting)
            self._take(tokens)
            turn.set_result(None)
