"""How the seats of engines are divided among deciders: who wants how many, and who gets them. Without Ray.

A seat is one call that an engine works on. Each decider tells how many calls it has in flight and how many
more it could make, by lane; it makes no more calls at a time than it has leased seats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kgray.runtime.pooled import Calls

_FULL = 0.9  # of its seats in use: a decider could use more
_FLOOR = 8  # seats that a decider without work keeps, so that it need not wait for its first


class Lanes:
    """Counts a decider's calls in flight by lane: live, then backfill."""

    def __init__(self) -> None:
        self.in_flight = [0, 0]

    def wants(self, width: int, pending: int) -> tuple[int, int]:
        """Return how many seats the decider could use, by lane.

        width: those that it has; pending: entries that wait in its log, each of which needs a call or more

        Who uses nearly all could use as many as there are entries; who uses less than half, twice what it
        uses. The calls of the live lane are made first, so what is in flight says whether any of them wait.
        """
        live, bulk = self.in_flight
        used = live + bulk
        most = max(2 * width, pending) if used >= _FULL * width else min(width, 2 * used)
        if bulk == 0 < live:
            return most, 0
        first = min(most, 2 * live + _FLOOR) if live else 0
        return first, most - first


@dataclass(slots=True, eq=False)
class CountedCalls(Calls):
    """Calls on their way to a pool, counted by the lane of their episodes."""

    calls: Calls
    lanes: Lanes

    async def ask(self, request: Any) -> Any:  # noqa: ANN401 - as the port has them
        """Return what a worker makes of a request, or raise the error it answers with."""
        lane = int(request.episode.bulk)
        self.lanes.in_flight[lane] += 1
        try:
            return await self.calls.ask(request)
        finally:
            self.lanes.in_flight[lane] -= 1


@dataclass(slots=True)
class _Lease:
    """What one decider has."""

    process: str
    width: int  # calls that it may have in flight
    used: int  # that it had, when it told last
    wants: tuple[int, int]  # by lane
    until: float

    @property
    def taken(self) -> int:
        """Seats that nobody else may have: calls beyond a width that has shrunk go on to their end."""
        return max(self.width, self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a decider tells when it renews its lease."""

    holder: str
    process: str  # of the holder: another one of that name has another
    wants: tuple[int, int]  # seats by lane, live first
    width: int  # calls that it may have in flight
    used: int  # that it has


class Seats:
    """Leases seats. What is taken is never more than there is, but for one seat that each decider has.

    The live lane of all deciders goes before the backfill lane of any. Within a lane nobody gets more than
    another one that wants more. A lease ends when its holder returns it, when another process has the
    holder's name, or where it is not renewed within `lease_s`.
    """

    def __init__(self, seats: int, lease_s: float, opens_at: float = 0.0) -> None:
        """opens_at: before, each holder keeps what it has: they may have leased from a registry that died."""
        self.seats, self._lease_s, self._opens_at = seats, lease_s, opens_at
        self._leases: dict[str, _Lease] = {}

    def lease(self, told: Request, now: float) -> int:
        """Return how many calls the holder may have in flight from now on, at least one."""
        self._leases = {name: one for name, one in self._leases.items() if one.until > now}
        lease = _Lease(told.process, told.width, told.used, told.wants, now + self._lease_s)
        self._leases[told.holder] = lease
        if now >= self._opens_at:
            others = self.taken() - lease.taken
            lease.width = max(1, min(self._target(told.holder), self.seats - others))
        return lease.width

    def end(self, holder: str, process: str) -> None:
        """Take a lease back, unless another process of that name has it."""
        if (one := self._leases.get(holder)) is not None and one.process == process:
            del self._leases[holder]

    def leased(self) -> dict[str, int]:
        """Return the seats that each holder has."""
        return {name: one.width for name, one in self._leases.items()}

    def taken(self) -> int:
        """Return the seats that are leased, or still in use."""
        return sum(one.taken for one in self._leases.values())

    def _target(self, holder: str) -> int:
        """Return the holder's share of all seats, as if nobody had any."""
        few = min(_FLOOR, self.seats // (4 * len(self._leases)))
        live = shares({name: max(few, one.wants[0]) for name, one in self._leases.items()}, self.seats)
        bulk = {
            name: max(0, sum(one.wants) - live[name]) for name, one in self._leases.items() if one.wants[1]
        }
        return live[holder] + shares(bulk, self.seats - sum(live.values())).get(holder, 0)


def shares(wants: Mapping[str, int], seats: int) -> dict[str, int]:
    """Divide seats: nobody gets more than it wants, or more than another one that wants more."""
    found: dict[str, int] = {}
    for done, name in enumerate(sorted(wants, key=lambda name: (wants[name], name))):
        found[name] = min(wants[name], (seats - sum(found.values())) // (len(wants) - done))
    return found
