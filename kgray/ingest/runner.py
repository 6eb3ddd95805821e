"""The windowed runner: the plain loop's graph, with the model kept full (design section 5).

Any number of episodes are extracted at once, inside one group too; each is decided ahead on a view
of what earlier ones will probably add, only to find its questions; then, in order, on the true state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine
from typing import Any

from kgray.errors import Unavailable
from kgray.ingest.collecting import rare_collections
from kgray.ingest.committer import Committer
from kgray.ingest.gate import Gate
from kgray.ingest.lane import Lane
from kgray.ingest.parts import OnStep, Parts, Stop, Totals

GRACE_S = 5.0  # a run that is asked to stop commits what it has in flight for so long, takes nothing new
_LOOK_S = 0.5  # how often a run that waits for a model looks whether it is asked to stop


class Runner:
    """Carries out what is pending in all groups: many episodes in flight, commits in each group's order."""

    def __init__(self, parts: Parts) -> None:
        """Start with no group in memory."""
        self._parts = parts
        self.committer = Committer(parts)

    async def run(
        self,
        *,
        groups: Collection[str] | None = None,
        stop: Stop = lambda: False,
        on_step: OnStep = lambda *_: None,
    ) -> Totals:
        """Carry out everything pending until nothing is, or `stop()` is true; inside `store.writing()`.

        groups: of these alone, so that an outage that another group meets does not end the run.
        Raises as the plain loop does; what was accepted is safe, and the next run goes on (R24).
        """
        self.committer.forget_stale()
        flight = _Flight(self._parts, self.committer, groups, stop, on_step)
        try:
            with rare_collections():
                return await flight.fly()
        except Unavailable:
            if not stop():
                raise
            return flight.totals  # asked to stop, nobody waits for the model any longer
        finally:
            await flight.land()


class _Flight:
    """One run: its lanes, its tasks, its totals."""

    def __init__(
        self,
        parts: Parts,
        committer: Committer,
        groups: Collection[str] | None,
        stop: Stop,
        on_step: OnStep,
    ) -> None:
        self._parts, self._committer, self._groups = parts, committer, groups
        self._stop, self._on_step = stop, on_step
        self._gate = Gate(parts.streams)
        self.totals = Totals()
        self._lanes: dict[str, Lane] = {}
        self._taken = 0
        self._tail: int | None = None  # how many were taken when the end of the backlog came in sight
        self._tasks: set[asyncio.Task[Any]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def fly(self) -> Totals:
        heads: dict[asyncio.Task[tuple[int, str]], Lane] = {}
        grace: float | None = None
        while grace is None or time.monotonic() < grace:
            if grace is None and self._stop():
                grace = time.monotonic() + GRACE_S
            if grace is None:
                self._fill()
            for lane in self._lanes.values():
                if lane.tickets and lane not in heads.values():
                    heads[self._spawn(lane.commit_head())] = lane
            if not heads:
                break
            waiting: list[asyncio.Future[Any]] = [*heads, self._broken]
            left = None if grace is None else max(0.0, grace - time.monotonic())
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=left or _LOOK_S)
            if self._broken.done():
                self._broken.result()
            for task in [t for t in heads if t.done()]:
                lane = heads.pop(task)
                sequence, outcome = task.result()
                self.totals.count(outcome)
                self._on_step(lane.group, sequence, outcome)
        return self.totals

    def _fill(self) -> None:
        """Take entries into the window, the groups in turn, until it is full or nothing more is pending."""
        room = self._parts.window - sum(len(lane.tickets) for lane in self._lanes.values())
        # Taking one entry at a time would ask the store once a commit; a part of the window at once does.
        if room < max(1, self._parts.window // 8) and any(lane.tickets for lane in self._lanes.values()):
            return
        store = self._parts.store
        groups = [g for g in store.pending_groups() if self._groups is None or g in self._groups]
        untaken = store.pending_count() - (self._parts.window - room)
        if untaken > 2 * self._parts.streams:
            self._tail = None
        elif self._tail is None:
            self._tail = self._taken
        for turn, group in enumerate(groups):
            if room <= 0:
                return
            lane = self._lanes.get(group)
            if lane is None:
                lane = self._lanes[group] = self._lane(group)
            share = -(-room // (len(groups) - turn))
            for entry in store.pending(group, len(lane.tickets) + share):
                if entry.sequence > lane.last and not lane.barred:
                    lane.take(entry, self._taken, tail=self._tail)
                    self._taken += 1
                    room -= 1

    def _lane(self, group: str) -> Lane:
        return Lane(group, self._parts, self._committer, self._gate, self._spawn, self.totals, self._stop)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def land(self) -> None:
        """End every task; what they had in hand is pending still."""
        tasks = list(self._tasks)
        for lane in self._lanes.values():
            tasks += [call for ticket in lane.tickets for call in ticket.asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._broken.done():
            self._broken.exception()
        else:
            self._broken.cancel()
