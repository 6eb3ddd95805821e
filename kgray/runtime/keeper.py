"""A deployment keeps itself up, and its pools at their size: actors are started and ended by those there are.

Ray starts again what dies, except where an actor was killed for good, or its creation failed while a node
was away. Every sequencer and every writer of a deployment that stays looks, so that one of them is enough.
The first sequencer sizes the pools.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kgray.runtime import logs
from kgray.runtime.profile import POOLS, READING, WorkersProfile, profile_of
from kgray.runtime.spec import DeploymentSpec

_EVERY_S = 5.0
_LOOKS = 2  # in a row at which all are full, before more are started
_ANSWER_S = 1.0  # for the stats of all workers of a pool: one that has no node gives no answer
_FULL = 0.9  # of what the workers take: chunks do not divide it evenly


@dataclass(slots=True)
class PoolSize:
    """How many workers of one kind there are to be: more while all are full, fewer where some have no work.

    takes: requests that one works on at a time; idle_s: without work for so long, one beyond the least ends
    """

    least: int
    most: int
    takes: int
    idle_s: float
    full_at: float = field(default_factory=time.monotonic)  # when all were full last
    _full: int = 0  # looks in a row at which they were

    def looked(self, rows: Mapping[int, Mapping[str, Any]], now: float) -> tuple[list[int], list[int]]:
        """Return the numbers of the workers to start, and of those to end.

        rows: the stats of each worker that exists, by number; of one that loads, or has no node, not "loaded"
        """
        up = [row for row in rows.values() if row.get("loaded")]
        full = bool(up) and sum(row["running"] for row in up) >= _FULL * self.takes * len(up)
        self.full_at = now if full else self.full_at
        self._full = self._full + 1 if full and len(up) == len(rows) else 0  # none while some come up
        start: list[int] = []
        if self._full >= _LOOKS:
            self._full, start = 0, [number for number in range(self.most) if number not in rows][: len(up)]
        idle = {n: row["idle_s"] if row.get("loaded") else now - self.full_at for n, row in rows.items()}
        return start, [number for number in rows if number >= self.least and idle[number] >= self.idle_s]


class Keeper:
    """Looks again and again, in a thread, until it is ended."""

    def __init__(self, spec: DeploymentSpec, *, stays: bool, sizes: bool = False) -> None:
        """Begin; the first look is after some seconds: those that start together find each other.

        stays: the deployment does, so what is missing of it is started again; sizes: keep pools at their size
        """
        self._spec, self._stays, self._ended = spec, stays, threading.Event()
        profile = profile_of(spec.profile, "the deployment")
        self._further: dict[str, Any] = {}  # the workers that this process has started
        self._sizes = {}
        for kind, table in POOLS.items():
            of: WorkersProfile = getattr(profile, table)
            engine = spec.values["model.backend"] == "vllm" and table in READING
            takes = profile.engine.max_num_seqs if engine else of.concurrency
            if sizes and of.most > of.least:
                self._sizes[kind] = PoolSize(of.least, of.most, takes, profile.limits.idle_s)
        looks = ((_EVERY_S, self._restore, stays), (profile.limits.health_every_s, self._size, self._sizes))
        for every_s, look, wanted in looks:
            if wanted:
                args = (every_s, look)
                threading.Thread(target=self._keep, args=args, name="kgray-keeper", daemon=True).start()

    def end(self) -> None:
        """Look no more: the deployment is being ended."""
        self._ended.set()

    def _keep(self, every_s: float, look: Callable[[], None]) -> None:
        while not self._ended.wait(every_s):
            try:
                look()
            except Exception as error:  # noqa: BLE001 - whatever Ray raises while its head is away
                logs.LOGGER.warning("cannot look for actors: %s", type(error).__name__)

    def _restore(self) -> None:
        from kgray.runtime.deploy import restore

        if started := restore(self._spec):
            logs.LOGGER.warning("missing, and started again: %s", ", ".join(started))

    def _size(self) -> None:
        from kgray.runtime import deploy

        for kind, size in self._sizes.items():
            there = deploy.workers(self._spec, kind)
            rows = {deploy.order(name)[1]: row for name, row in there.status(_ANSWER_S).items()}
            numbers = size.looked(rows, time.monotonic())
            start, end = ([f"{kind}-{number}" for number in of] for of in numbers)
            self._further |= deploy.further(self._spec, start, detached=self._stays)
            for name in end:
                if deploy.retire(self._spec, name, size.idle_s):
                    self._further.pop(name, None)
            if start or end:
                logs.LOGGER.info("workers that are started: %s; without work: %s", start, end)
