"""`python -m bench seats`: thousands of seats of engines, leased to simulated deciders, in simulated time.

No process and no engine runs: the registry's own code (`kgray.runtime.seats`) divides the seats. A call lasts
0.5 to 3 s. The processor time of a renewal is measured; everything else is counted.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean

from kgray.errors import KgrayError
from kgray.runtime.registry import RENEW_S as TICK_S
from kgray.runtime.seats import Renewal, Seats, wants

LIVE, BULK = 0, 1
_LEASE_S = 10.0
_PHASE_S = 10.0


@dataclass(slots=True)
class Decider:
    """Makes calls while it has seats, calls of its live lane first, like the gate of a decider."""

    name: str
    waiting: tuple[deque[float], deque[float]] = field(default_factory=lambda: (deque(), deque()))
    running: list[tuple[float, int]] = field(default_factory=list)  # ends of calls, with their lanes
    width: int = 1
    waited: list[float] = field(default_factory=list)  # seconds that live calls waited
    ended: int = 0

    @property
    def used(self) -> int:
        """Return the number of calls in flight."""
        return len(self.running)

    @property
    def demand(self) -> tuple[int, int]:
        """Return the calls in flight or in the window, by lane, as a decider's gate counts them."""
        running = [sum(call_lane == lane for _, call_lane in self.running) for lane in (LIVE, BULK)]
        window = max(128, 2 * self.width)
        live = running[LIVE] + min(window, len(self.waiting[LIVE]))
        return live, running[BULK] + min(window, len(self.waiting[BULK]))

    def lease(self, seats: Seats, instant: float) -> float:
        """Renew the lease; return the seconds of processor time that the registry spends."""
        demand = wants(self.demand, self.used, self.width, self.used + sum(map(len, self.waiting)))
        report = Renewal(
            holder=self.name, process="1", wants=demand, width=self.width, used=self.used,
            bulk_used=sum(lane == BULK for _, lane in self.running),
        )  # fmt: skip
        began = time.thread_time()
        self.width = seats.renew(report, instant)
        return time.thread_time() - began

    def work(self, instant: float, takes: random.Random) -> None:
        """End the calls whose time is over, and begin waiting calls."""
        while self.running and self.running[0][0] <= instant:
            heapq.heappop(self.running)
            self.ended += 1
        for lane in (LIVE, BULK):
            while self.waiting[lane] and self.used < self.width:
                start_time = self.waiting[lane].popleft()
                if lane == LIVE:
                    self.waited.append(instant - start_time)
                heapq.heappush(self.running, (instant + takes.uniform(0.5, 3.0), lane))


def simulate(
    deciders: Sequence[Decider], seats: Seats, begin: float, end: float, costs: list[float] | None = None
) -> list[int]:
    """Simulate a time span; return the used seats at each tick. Raises KgrayError above the number of seats.

    costs   gets the processor time of each renewal
    """
    takes, used = random.Random(7), list[int]()  # noqa: S311 - a simulation
    for tick in range(round(begin / TICK_S), round(end / TICK_S)):
        for place, decider in enumerate(deciders):  # they report one after another, never simultaneously
            cost = decider.lease(seats, tick * TICK_S + place * TICK_S / len(deciders))
            if costs is not None:
                costs.append(cost)
            decider.work(tick * TICK_S, takes)
            if max(seats.occupied(), sum(seats.leased().values())) > seats.seats:
                raise KgrayError(f"{seats.occupied()} of {seats.seats} seats are leased")
        used.append(sum(item.used for item in deciders))
        if used[-1] > seats.seats:
            raise KgrayError(f"{used[-1]} of {seats.seats} seats are in use")
    return used


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatFigures:
    """The outcome of a simulation.

    renewals_a_second       calls to the registry, of all deciders
    renewal_ms              processor time of one, the mean
    in_use_two, in_use_all  share of the seats in use while two deciders, and all, have a backfill
    least, most             seats in use of the deciders with fewest and most, when all have a backfill
    live, live_mean_s, live_most_s   live calls of one decider during that backfill, and their waits
    alone_s                 computed: the longest wait with only an even share of the seats
    """

    seats: int
    deciders: int
    renewals_a_second: float
    renewal_ms: float
    in_use_two: float
    in_use_all: float
    least: int
    most: int
    live: int
    live_mean_s: float
    live_most_s: float
    alone_s: float


def run(engines: int, seats_each: int, shards: int) -> SeatFigures:
    """Simulate a backfill of two deciders, then of all, then live calls of one for half of the seats."""
    seats, costs = Seats(engines * seats_each, _LEASE_S), list[float]()
    deciders = [Decider(f"sequencer-{number}") for number in range(shards)]
    for item in deciders[:2]:
        item.waiting[BULK].extend([0.0] * 40 * seats.seats)
    of_two = simulate(deciders, seats, 0.0, _PHASE_S, costs)
    for item in deciders[2:]:
        item.waiting[BULK].extend([_PHASE_S] * (160 * seats.seats // shards))
    of_all = simulate(deciders, seats, _PHASE_S, 2 * _PHASE_S, costs)
    in_use, busy = [item.used for item in deciders], deciders[shards // 2]
    live = seats.seats // 2
    busy.waiting[LIVE].extend([2 * _PHASE_S] * live)
    simulate(deciders, seats, 2 * _PHASE_S, 4 * _PHASE_S, costs)
    if len(busy.waited) < live:
        raise KgrayError(f"{len(busy.waited)} of {live} live calls began within {2 * _PHASE_S:g} s")
    settled = round(3 / TICK_S)
    return SeatFigures(
        seats=seats.seats,
        deciders=shards,
        renewals_a_second=shards / TICK_S,
        renewal_ms=1000 * mean(costs),
        in_use_two=mean(of_two[settled:]) / seats.seats,
        in_use_all=mean(of_all[settled:]) / seats.seats,
        least=min(in_use),
        most=max(in_use),
        live=live,
        live_mean_s=mean(busy.waited),
        live_most_s=max(busy.waited),
        alone_s=live * 1.75 * shards / seats.seats,
    )


def table(figures: SeatFigures) -> str:
    """Return the figures for people."""
    lines = [
        f"seats     {figures.seats} for {figures.deciders} deciders",
        f"renewals  {figures.renewals_a_second:.0f} a second, {figures.renewal_ms:.3f} ms of processor time",
        f"in use    {figures.in_use_two:.1%} with two backfills, {figures.in_use_all:.1%} with one for each",
        f"each      {figures.least} to {figures.most} seats while all have a backfill",
        f"live      {figures.live} calls wait {figures.live_mean_s:.1f} s, at most {figures.live_most_s:.1f}",
        f"alone     {figures.alone_s:.0f} s at most with an even share of the seats (computed)",
    ]
    return "\n".join(lines)
