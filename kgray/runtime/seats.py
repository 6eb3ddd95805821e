"""Divide the seats of engines among deciders. This module does not use Ray.

A seat is one call that an engine works on. A decider reports how many calls it has in flight, and how many
calls it could make, by lane. It keeps no more calls in flight than it has leased seats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A decider that uses this share of its seats could use more of them.
_BUSY_SHARE = 0.9
# Seats that an idle decider keeps, so that its first calls need not wait for a renewal.
_IDLE_SEATS = 8


def wants(demand: tuple[int, int], used: int, width: int, pending: int) -> tuple[int, int]:
    """Return how many seats a decider could use, by lane, live first.

    demand      calls that its gate has let in or holds back, by lane
    used        calls in flight; width: seats that the decider has
    pending     entries that wait in its log; each needs at least one call. While the seats are in use, those
                outside the window count too: as backfill where there is any, because live ones go first
    """
    live, bulk = demand
    queued = max(0, pending - live - bulk) if used >= _BUSY_SHARE * width else 0
    return (live, bulk + queued) if bulk else (live + queued, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """A decider's report, which renews its lease."""

    holder: str  # the decider's name
    process: str  # the decider's process: a process that takes the name later has another lease
    wants: tuple[int, int]  # seats by lane, live first
    width: int  # seats that the decider has
    used: int  # calls that the decider has in flight
    bulk_used: int = 0  # backfill calls among them


@dataclass(slots=True)
class _Lease:
    """The seats of one decider."""

    report: Renewal
    width: int
    expires_at: float

    @property
    def occupied(self) -> int:
        """Seats that no other decider may have: calls beyond a width that has shrunk run to their end."""
        return max(self.width, self.report.used)

    def missing(self, live: int) -> int:
        """Return the seats that live calls lack, because backfill calls still use the seats of this lease.

        live    the decider's share of seats for live calls
        """
        needed = self.report.bulk_used + min(live, self.report.wants[0])
        return max(0, needed - max(self.width, self.report.used))


class Seats:
    """Leases seats to deciders. The leases never exceed the seats, except that each decider has one seat.

    Live calls of all deciders go before the backfill calls of any: the next free seat goes to a waiting live
    call, even if its decider has more backfill calls in flight than its share. In one lane, no decider gets
    more seats than another decider that wants more. A lease ends when its holder returns it, when a new
    process takes the holder's name, or when it was not renewed for `lease_s` seconds.
    """

    def __init__(self, seats: int, lease_s: float, opens_at: float = 0.0) -> None:
        """Create a registry without leases.

        opens_at    until then each decider keeps the seats it reports: a former registry may have leased them
        """
        self.seats, self._lease_s, self._opens_at = seats, lease_s, opens_at
        self._leases: dict[str, _Lease] = {}

    def renew(self, report: Renewal, instant: float) -> int:
        """Return the number of calls that the decider may have in flight from now on, at least one."""
        self._leases = {name: lease for name, lease in self._leases.items() if lease.expires_at > instant}
        renewed = self._leases[report.holder] = _Lease(report, report.width, instant + self._lease_s)
        if instant >= self._opens_at:
            free = self.seats - self.occupied() + renewed.occupied
            live = self._live_shares()
            missing = {name: lease.missing(live[name]) for name, lease in self._leases.items()}
            own_live = min(report.wants[0], live[report.holder])
            for_live = report.bulk_used + own_live if missing.pop(report.holder) else own_live
            share = min(self._share(report.holder, live), free - sum(missing.values()))
            renewed.width = max(1, min(max(share, for_live), free))
        return renewed.width

    def end(self, holder: str, process: str) -> None:
        """End a lease, unless a new process has taken the holder's name."""
        lease = self._leases.get(holder)
        if lease is not None and lease.report.process == process:
            del self._leases[holder]

    def leased(self) -> dict[str, int]:
        """Return the number of seats by holder."""
        return {name: lease.width for name, lease in self._leases.items()}

    def occupied(self) -> int:
        """Return the number of seats that are leased or still in use."""
        return sum(lease.occupied for lease in self._leases.values())

    def _live_shares(self) -> dict[str, int]:
        """Return the seats for the live calls of each holder; an idle holder keeps a few."""
        idle = min(_IDLE_SEATS, self.seats // (4 * len(self._leases)))
        wants = {name: max(idle, lease.report.wants[0]) for name, lease in self._leases.items()}
        return shares(wants, self.seats)

    def _share(self, holder: str, live: Mapping[str, int]) -> int:
        """Return the seats of a holder if all seats were divided now; live: the seats for live calls."""
        wants = {name: lease.report.wants for name, lease in self._leases.items()}
        bulk = {name: max(0, sum(by_lane) - live[name]) for name, by_lane in wants.items() if by_lane[1]}
        return live[holder] + shares(bulk, self.seats - sum(live.values())).get(holder, 0)


def shares(wants: Mapping[str, int], seats: int) -> dict[str, int]:
    """Divide seats so that no holder gets more than it wants, or more than a holder that wants more."""
    divided: dict[str, int] = {}
    for place, name in enumerate(sorted(wants, key=lambda name: (wants[name], name))):
        divided[name] = min(wants[name], (seats - sum(divided.values())) // (len(wants) - place))
    return divided
