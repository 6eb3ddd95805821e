"""The actor that leases the seats of a deployment's engines, and a decider's side of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayError

from kgray.runtime import telemetry
from kgray.runtime.actors import Handle, reached
from kgray.runtime.pools import Lost, answer_within
from kgray.runtime.seats import Renewal, Seats, wants
from kgray.runtime.spec import DeploymentSpec

REGISTRY = "seats-0"  # its name
RENEW_S = 0.25  # between two renewals of a lease
_LEASE_S = 10.0  # a lease that is not renewed ends
_DEADLINE_S = 2.0  # for an answer


class SeatRegistry:
    """The actor over `Seats`. Nothing in it is durable. Calls take microseconds, so one thread is enough."""

    def __init__(self, spec: DeploymentSpec, name: str) -> None:
        """Begin with the seats of the engines that the profile has at least."""
        telemetry.start(name)
        self._spec = spec
        self._seats = Seats(spec.seats, _LEASE_S, time.monotonic() + 4 * RENEW_S)

    def renew(self, report: Renewal) -> int:
        """Return how many calls the decider may have in flight."""
        return self._seats.renew(report, time.monotonic())

    def end(self, holder: str, process: str) -> None:
        """End a lease."""
        self._seats.end(holder, process)

    def resize(self, seats: int) -> None:
        """Set the number of seats: the sum over the live engines."""
        self._seats.seats = seats

    def stats(self) -> dict[str, Any]:
        """Return the number of seats, and the leased seats by holder."""
        return {"pid": os.getpid(), "seats": self._seats.seats, "leased": self._seats.leased()}

    def describe(self) -> dict[str, Any]:
        """Return the spec that the actor was built from."""
        return {"pid": os.getpid(), "spec": self._spec, "fault": None}


@dataclass(eq=False)
class SeatHolder:
    """A decider's lease. If the registry does not answer for long, the decider takes an even share."""

    find: Callable[[str], Handle]  # returns an actor by its name
    holder: str
    process: str
    share: Callable[[], int]  # returns an even share of the seats
    width: int = 1  # seats
    _registry: Any = None  # the actor's handle, after the first look-up
    _renewed_at: float = field(default_factory=time.monotonic)

    async def renew(self, demand: tuple[int, int], used: int, pending: int, bulk_used: int) -> int:
        """Renew the lease; return the number of seats.

        demand, used, pending   as `seats.wants` takes them
        bulk_used               backfill calls in flight
        """
        report = Renewal(
            holder=self.holder,
            process=self.process,
            wants=wants(demand, used, self.width, pending),
            width=self.width,
            used=used,
            bulk_used=bulk_used,
        )
        try:
            if self._registry is None:
                self._registry = await asyncio.to_thread(self.find, REGISTRY)
            self.width = await answer_within(reached(self._registry.renew, report), _DEADLINE_S)
            self._renewed_at = time.monotonic()
        except (Lost, TimeoutError, RayError, ValueError) as error:  # ValueError: no such actor
            self._registry = None
            if time.monotonic() - self._renewed_at > _LEASE_S and self.width != (share := self.share()):
                telemetry.LOGGER.warning("no seats are leased (%s): an even share", type(error).__name__)
                self.width = share
        return self.width

    def end(self) -> None:
        """Return the lease."""
        if self._registry is not None:
            self._registry.end.remote(self.holder, self.process)
