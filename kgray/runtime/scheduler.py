"""Communities on Ray: an actor of `kgray up` refreshes them at their times; a task a group finds them.

Nothing of the actor is durable: what was begun and has ended is in the store, so one that Ray starts anew
goes on where the last one was (`kgray.memory.schedules`).
"""

from __future__ import annotations

import asyncio
import os
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import ray

from kgray import times
from kgray.communities.found import Problem, clustered
from kgray.communities.partition import Levels
from kgray.communities.refresh import Refresh
from kgray.errors import Unavailable
from kgray.memory.schedules import Schedules, carry_out
from kgray.runtime import telemetry
from kgray.runtime.actors import control
from kgray.runtime.pooled import OnWorkers, PooledReader
from kgray.runtime.pools import pool_of
from kgray.runtime.spec import DeploymentSpec
from kgray.times import SECOND, Instant
from kgray.wiring import OpenStore, build_summarizer, open_reader

_LOOK_S = 5.0  # at most so long between two looks at the schedules: a command may have added one
_AFTER_FAULT_S = 60.0
_AT_ONCE = 8  # groups whose communities are found at the same time
_TASK_BYTES = 200 << 20  # of a task that finds communities, without its graph
_CACHE_MB = 8


class Scheduler:
    """Serves the schedules of one store by itself, one refresh at a time."""

    async def __init__(self, spec: DeploymentSpec) -> None:  # type: ignore[misc]  # Ray awaits it in its loop
        telemetry.start("scheduler")
        self._spec = spec
        self._state = "starting"
        self._next: Instant | None = None
        self._service = asyncio.create_task(self._serve())

    @cached_property
    def _opened(self) -> OpenStore:
        return open_reader(self._spec.settings(), Path(self._spec.data), cache_mb=_CACHE_MB)

    async def _serve(self) -> None:
        while True:
            pause_s = _LOOK_S
            try:
                schedules = Schedules(self._opened.store)
                self._next = await carry_out(schedules, times.now, self._refreshed)
                self._state = "waiting"
                if self._next is not None:
                    pause_s = min(pause_s, max(0.0, (self._next - times.now()) / SECOND))
            except Exception as error:  # noqa: BLE001 - whatever it is, the next look may go well
                telemetry.LOGGER.exception("the schedules cannot be carried out")
                self._state, pause_s = f"faulty: {error}", _AFTER_FAULT_S
            await asyncio.sleep(pause_s)

    async def _refreshed(self) -> str:
        """Refresh the groups of which a tenth is new; return what was done, in a line."""
        self._state = "refreshing"
        opened, local = self._opened, build_summarizer(self._spec.settings())
        readers = partial(pool_of, self._spec, "models")
        refresh = Refresh(
            store=opened.store,
            embedder=opened.embedder,
            summarizer=local and PooledReader(OnWorkers(readers, local), local),
            due=True,
            cluster=clustered_by_a_task,
        )
        done = await refresh.groups(list(opened.store.heads()), at_once=_AT_ONCE)
        for how in ("kept", "written", "offline"):
            count = sum(getattr(one, how) for one in done.values())
            telemetry.measure("kgray_community_texts", count, how=how)
        news, calls = (sum(getattr(one, what) for one in done.values()) for what in ("news", "calls"))
        said = f"{news} of {len(done)} groups refreshed, {calls} model calls"
        telemetry.LOGGER.info("communities refreshed: %s", said)
        return said

    @control
    async def stats(self) -> dict[str, Any]:
        """Return what it does, and when it has something to do next."""
        return {"pid": os.getpid(), "state": self._state, "next": times.show(self._next)}

    @control
    async def describe(self) -> dict[str, Any]:
        """Return what the actor was built from."""
        return {"pid": os.getpid(), "spec": self._spec, "fault": None}


def clustered_by_a_task(problem: Problem) -> Levels:
    """Find communities in one task of the Ray that this process is in. Raises Unavailable if it is lost."""
    task = ray.remote(num_cpus=1, memory=_TASK_BYTES + 400 * len(problem.graph.ends))(clustered)
    try:
        found: Levels = ray.get(task.remote(problem))
    except ray.exceptions.RayError as error:
        why = str(error).strip().splitlines()[0][:200]
        raise Unavailable(f"the task that finds communities was lost ({why}): run it again") from None
    return found
