"""Communities on Ray: an actor of `kgray up` submits their refreshes as jobs; a task a group finds them.

Nothing of the actor is durable: the store knows which run is open, and Ray how its job went, so an actor that
Ray starts again goes on from there (`kgray.communities.schedules`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import ray

from kgray.communities.detection import Problem, detect_levels
from kgray.communities.partition import Levels
from kgray.communities.schedules import JobState, Schedule, Schedules, Ticks
from kgray.domain import times
from kgray.domain.times import SECOND, Instant
from kgray.errors import STOPPED, Unavailable
from kgray.runtime import telemetry
from kgray.runtime.actors import control
from kgray.runtime.job_log import exit_code_of, reason_of
from kgray.runtime.jobs import Job, JobServer
from kgray.runtime.spec import DeploymentSpec
from kgray.runtime.wiring import open_reader

_LOOK_S = 5.0  # the longest pause between two looks at the schedules: a command may add a schedule
_AFTER_FAULT_S = 60.0
_TASK_BYTES = 200 << 20  # of a task that finds communities, without its graph
_CACHE_MB = 8
_LINE = "kgray: "  # begins a command's line about its result
_NODE = "ray.io/node-id"  # a label that Ray gives each node
_TEXTS = re.compile(r"(\d+) (kept|written|offline)")


class Scheduler:
    """Serves the schedules of one store by itself, one refresh at a time."""

    async def __init__(self, spec: DeploymentSpec) -> None:  # type: ignore[misc]  # Ray awaits it in its loop
        telemetry.start("scheduler")
        self._spec = spec
        self._state = "starting"
        self._next: Instant | None = None
        self._looks = ThreadPoolExecutor(1, "kgray-schedules")  # a single thread reads the store
        self._service = asyncio.create_task(self._serve())

    @cached_property
    def _schedules(self) -> Schedules:
        settings, data = self._spec.settings(), Path(self._spec.data)
        return Schedules(open_reader(settings, data, cache_mb=_CACHE_MB).store)

    @cached_property
    def _ticks(self) -> Ticks:
        return Ticks(self._schedules, RefreshJobs(self._spec, JobServer()), times.now, self._report)

    async def _serve(self) -> None:
        while True:
            pause_s = _LOOK_S
            try:
                await asyncio.get_running_loop().run_in_executor(self._looks, self._look)
                if self._next is not None:
                    pause_s = min(pause_s, max(0.0, (self._next - times.now()) / SECOND))
            except Exception as error:  # noqa: BLE001 - any error: the next look may succeed
                telemetry.LOGGER.exception("the schedules cannot be carried out")
                self._state, pause_s = f"faulty: {error}", _AFTER_FAULT_S
            await asyncio.sleep(pause_s)

    def _look(self) -> None:
        # Without schedules, a Ray needs no job server.
        self._next = self._ticks.look() if self._schedules.every() else None
        is_open = any(schedule.is_open for schedule in self._schedules.every())
        self._state = "refreshing" if is_open else "waiting"

    def _report(self, schedule: Schedule) -> None:
        """Report a run that has ended, in the log and in the metrics."""
        level = logging.WARNING if schedule.has_failed else logging.INFO
        job = f"{self._spec.namespace}-{schedule.job}"
        telemetry.LOGGER.log(level, "schedule %s, job %s: %s", schedule.name, job, schedule.said)
        for count, fate in _TEXTS.findall(schedule.said):
            telemetry.measure("kgray_community_texts", int(count), how=fate)

    @control
    async def stats(self) -> dict[str, Any]:
        """Return its state, and the time of its next run."""
        return {"pid": os.getpid(), "state": self._state, "next": times.show(self._next)}

    @control
    async def describe(self) -> dict[str, Any]:
        """Return the actor's spec and process."""
        return {"pid": os.getpid(), "spec": self._spec, "fault": None}


class RefreshJobs:
    """`communities.schedules.Jobs` of one store, through a Ray's job server."""

    def __init__(self, spec: DeploymentSpec, server: JobServer) -> None:
        self._spec, self._server = spec, server

    def submit(self, schedule: Schedule) -> None:
        """Submit the job of the latest run, to the node that can open the store."""
        command = [sys.executable, "-m", "kgray.cli.job", "communities", "refresh"]
        command += ["--data", self._spec.data, "--cold" if schedule.full else "--due"]
        command += [word for group in schedule.groups for word in ("--group", group)]
        labels = dict(self._spec.cluster.sequencer.labels)
        if self._spec.on_one_node:
            labels = {_NODE: ray.get_runtime_context().get_node_id()}  # the actor's own
        job = Job(command=command, environ=self._spec.environ(), labels=labels)
        self._server.submit(self._id(schedule), job)

    def state(self, schedule: Schedule) -> JobState | None:
        """Return the state of the job of the latest run."""
        details = self._server.details(self._id(schedule))
        if details is None:
            return None
        status, code = details.status.value, exit_code_of(details)
        if status == "SUCCEEDED":
            lines = self._server.log(self._id(schedule)).splitlines()
            last = next((line for line in reversed(lines) if line.startswith(_LINE)), "done")
            return JobState("succeeded", last.removeprefix(_LINE))
        if status == "STOPPED":
            return JobState("failed", "its job was stopped")
        if status != "FAILED":
            return JobState("open")
        reason = reason_of(details).removeprefix(_LINE)
        return JobState("interrupted" if code in (None, STOPPED) else "failed", reason)

    def is_idle(self) -> bool:
        """Return True if no refresh of the store runs as a job."""
        return not self._server.running(f"{self._spec.namespace}-")

    def _id(self, schedule: Schedule) -> str:
        return f"{self._spec.namespace}-{schedule.job}"


def clustered_by_a_task(problem: Problem) -> Levels:
    """Find communities in one task of the Ray that this process is in. Raises Unavailable if it is lost."""
    task = ray.remote(num_cpus=1, memory=_TASK_BYTES + 400 * len(problem.graph.ends))(detect_levels)
    try:
        levels: Levels = ray.get(task.remote(problem))
    except ray.exceptions.RayError as error:
        why = str(error).strip().splitlines()[0][:200]
        raise Unavailable(f"the task that finds communities was lost ({why}): run it again") from None
    return levels
