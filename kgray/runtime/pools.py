"""The router over a pool of workers: least in flight, what a lost worker had in hand goes to another.

Plain Python over a small protocol: it knows nothing of Ray. A chunk's parts come back one by one; those
that do not come back are sent again, here and not by Ray, whose repeated generator may give other parts
in another order. Requests may be made twice; what they give is taken once (R21).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from kgray.errors import Unavailable
from kgray.runtime.outcomes import Answered, Fault, Lost, Numbered, Outcome, error_of

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0


class Worker(Protocol):
    """One worker process, as the router sees it."""

    name: str

    def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[Sequence[Answered]]:
        """Yield what has ended of a chunk, as it ends. Raises Lost where the process went away."""
        ...

    def abandon(self, numbers: Sequence[int]) -> None:
        """Say that nobody waits for these any longer; what comes of it is not known."""
        ...

    async def health(self) -> None:
        """Return once the process has answered. Raises Lost."""
        ...

    def restart(self) -> None:
        """End the process; another takes its place."""
        ...


@dataclass(slots=True, eq=False)
class Part:
    """One request on its way."""

    number: int
    request: Any
    answer: asyncio.Future[Any]
    lost_at: float | None = None  # when it first was in a worker's hand that went away
    times_lost: int = 0
    holder: Worker | None = None


@dataclass(slots=True, eq=False)
class _Seat:
    """A worker's place in the pool. missing: it went away, or does not answer."""

    worker: Worker
    in_flight: int = 0
    missing: bool = False
    restarts: int = 0
    carrying: set[asyncio.Task[None]] = field(default_factory=set)


class Pool:
    """Sends chunks to workers and each part's outcome to whom it belongs; used from one event loop."""

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        patience_s: float,
        answer_deadline_s: float,
        health_every_s: float = 5.0,
        health_deadline_s: float = 60.0,
    ) -> None:
        """Take the workers over.

        patience_s         how long a part that was lost is sent again before its caller is told
        answer_deadline_s  what a worker has not answered after so long is lost, though it lives: longer than
                           it waits for a model by itself
        """
        self._seats = [_Seat(worker) for worker in workers]
        self._patience_s = patience_s
        self._every_s, self._deadline_s = health_every_s, health_deadline_s
        self._answer_s = answer_deadline_s
        # Routers share workers, and one that was killed leaves its calls behind: no number is of two calls.
        self._numbers = count(secrets.randbits(62))
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._closed = False
        self.outage: tuple[float, str] | None = None  # wall clock and reason; None = the last answer was one

    def part(self, request: object) -> Part:
        """Return a request with a number and a place for its answer."""
        return Part(next(self._numbers), request, asyncio.get_running_loop().create_future())

    def send(self, parts: Sequence[Part], *, avoid: Collection[Worker] = ()) -> None:
        """Send a chunk to the worker with the least in flight."""
        seat = self._least(avoid)
        seat.in_flight += len(parts)
        for part in parts:
            part.holder = seat.worker
        carrying = self._spawn(self._carry(seat, parts))
        seat.carrying.add(carrying)
        carrying.add_done_callback(seat.carrying.discard)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look_after())

    def abandon(self, part: Part) -> None:
        """Take no more interest in a part; its worker is told."""
        part.answer.cancel()
        if part.holder is not None:
            part.holder.abandon([part.number])

    def in_flight(self) -> int:
        """Return how many parts are at workers."""
        return sum(seat.in_flight for seat in self._seats)

    def standing(self) -> list[dict[str, Any]]:
        """Return each worker's name, what it has in hand, whether it is missing, how often it hung."""
        return [
            {"name": s.worker.name, "in_flight": s.in_flight, "missing": s.missing, "restarts": s.restarts}
            for s in self._seats
        ]

    async def drain(self, grace_s: float) -> int:
        """Wait until nothing is at workers, at most so long; return how much still is."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=grace_s)
        return self.in_flight()

    async def close(self) -> None:
        """End what is under way; whoever waits is cancelled."""
        self._closed = True
        tasks = [*self._tasks, *([self._watch] if self._watch is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------- inside

    def _least(self, avoid: Collection[Worker]) -> _Seat:
        return min(
            self._seats, key=lambda seat: (seat.missing, seat.worker in avoid, seat.in_flight)
        )  # the first of equals

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _carry(self, seat: _Seat, parts: Sequence[Part]) -> None:
        left = {part.number: part for part in parts}
        try:
            reason = await self._carried(seat, left)
        except Exception as error:  # noqa: BLE001 - a fault of ours is each caller's to meet
            for part in left.values():
                if not part.answer.done():
                    part.answer.set_exception(error)
            return
        finally:
            seat.in_flight -= len(left)
        if lost := [part for part in left.values() if not part.answer.done()]:
            self._spawn(self._send_again(lost, seat.worker, reason))

    async def _carried(self, seat: _Seat, left: dict[int, Part]) -> str:
        """Hand out what comes back, and take it out of `left`; return why some did not come back."""
        worker = seat.worker
        try:
            async with asyncio.timeout(self._answer_s):
                async for ended in worker.work([(part.number, part.request) for part in left.values()]):
                    for number, outcome in ended:
                        if (part := left.pop(number, None)) is not None:
                            seat.in_flight -= 1
                            self._settle(part, outcome)
        except Lost as error:
            seat.missing = True
            return str(error)
        except TimeoutError:
            worker.abandon(list(left))
            return f"{worker.name} lives, and gave no answer within {self._answer_s:g} s"
        except asyncio.CancelledError:
            if self._closed:
                raise
            return f"{worker.name} did not answer within {self._deadline_s:g} s"
        seat.missing = False
        return f"{worker.name} ended its work without an answer"

    def _settle(self, part: Part, outcome: Outcome) -> None:
        if isinstance(outcome, Fault):
            if outcome.kind == Unavailable.__name__:
                self._out(outcome.message)
            if not part.answer.done():
                part.answer.set_exception(error_of(outcome))
            return
        self.outage = None
        if not part.answer.done():
            part.answer.set_result(outcome)

    async def _send_again(self, parts: list[Part], lost: Worker, reason: str) -> None:
        now = time.monotonic()
        self._out(reason)
        again = []
        for part in parts:
            part.lost_at = now if part.lost_at is None else part.lost_at
            part.times_lost += 1
            part.holder = None
            if part.answer.done():
                continue  # given up in this very moment
            if part.times_lost > 1 and now - part.lost_at >= self._patience_s:
                part.answer.set_exception(Unavailable(f"no worker answers: {reason}", waited=True))
            else:
                again.append(part)
        times = max((part.times_lost for part in again), default=0)
        if again and (all(seat.missing for seat in self._seats) or times > len(self._seats)):
            await asyncio.sleep(min(_FIRST_DELAY_S * 2 ** min(times, 10), _LONGEST_DELAY_S))
        if again := [part for part in again if not part.answer.done()]:
            self.send(again, avoid=(lost,))

    def _out(self, reason: str) -> None:
        if self.outage is None:
            self.outage = (time.time(), reason)

    async def _look_after(self) -> None:
        """Ask those with work in hand, and those that went away, whether they live; end what hangs."""
        while any(seat.in_flight or seat.missing for seat in self._seats):
            await asyncio.sleep(self._every_s)
            asked = [seat for seat in self._seats if seat.in_flight or seat.missing]
            await asyncio.gather(*(self._probe(seat) for seat in asked))

    async def _probe(self, seat: _Seat) -> None:
        try:
            await asyncio.wait_for(seat.worker.health(), self._deadline_s)
        except TimeoutError:
            seat.missing = True
            seat.restarts += 1
            seat.worker.restart()
            for carrying in list(seat.carrying):
                carrying.cancel()  # its parts go to others; one that hangs may not even end its streams
        except Lost:
            seat.missing = True
        else:
            seat.missing = False


class Gathering:
    """Calls made in the same moments, sent as chunks of at most `size`."""

    def __init__(self, pool: Pool, *, size: int, linger_s: float) -> None:
        """linger_s: how long the first of a chunk waits for more."""
        self._pool, self._size, self._linger_s = pool, size, linger_s
        self._waiting: list[Part] = []
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, request: object) -> Any:  # noqa: ANN401 - the port's value
        """Return what a worker makes of a request, or raise the error it answers with."""
        part = self._pool.part(request)
        self._waiting.append(part)
        if len(self._waiting) >= self._size:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._flush)
        try:
            return await part.answer
        except asyncio.CancelledError:
            with suppress(ValueError):
                self._waiting.remove(part)
            self._pool.abandon(part)
            raise

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        parts, self._waiting = self._waiting, []
        if parts:
            self._pool.send(parts)
