"""The stateless steps of ingestion as Ray tasks: `extract_episode` and `resolve_node`.

The sequencer submits a chunk of steps as one task. Each step has an object reference of its own. Ray runs the
tasks on any node with room, and again where their process is lost. A task asks no model and writes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any

import ray
from ray.exceptions import RayError

from kgray.errors import KgrayError, Unavailable
from kgray.ingest import steps
from kgray.ports import QuestionRequest
from kgray.ports.ingest import Reply
from kgray.runtime import telemetry
from kgray.runtime.pools import FIRST_DELAY_S, Outcome, PoolCall, portable
from kgray.runtime.spec import DeploymentSpec
from kgray.runtime.wiring import build_models, build_ontology
from kgray.system.outages import OUTAGES

_RETRIES = 3  # of a task whose process is lost, by Ray
_LATE_S = 10.0  # a slower task waits for a processor, or for the start of a process
_NAME = 160  # characters of a task's name
_TASKS = "the tasks in Ray"
_Request = tuple[steps.Reading | QuestionRequest, Sequence[Reply]]


@dataclass(frozen=True, slots=True)
class StepCalls:
    """The calls of one step, as a pool of a `Chunker`."""

    tasks: StepTasks
    step: str

    def call(self, request: object) -> PoolCall:
        """Return a call for a request. Sends nothing."""
        return PoolCall(next(self.tasks.numbers), request, asyncio.get_running_loop().create_future())

    def send(self, calls: Sequence[PoolCall]) -> None:
        """Submit a chunk of calls as one task."""
        self.tasks.send(self.step, calls)

    def abandon(self, call: PoolCall) -> None:
        """Drop a call; a step takes milliseconds, so the task goes on."""
        call.answer.cancel()


class StepTasks:
    """Submits chunks of steps as tasks, a limited number at a time; used from one event loop."""

    def __init__(self, spec: DeploymentSpec, sizes: Mapping[str, int]) -> None:
        """Submit nothing yet. sizes: step -> maximum of calls in a chunk, the most urgent step first."""
        profile = spec.cluster.tasks
        options: dict[str, Any] = {"num_cpus": profile.cpus, "max_retries": _RETRIES}
        if profile.labels:
            options["label_selector"] = dict(profile.labels)
        remote: Any = ray.remote
        functions = {function.__name__: remote(**options)(function) for function in _functions(spec)}
        self._functions: dict[str, Any] = functions
        # Keyed by step and number of results; a cache, because `options` takes as long as a call.
        self._unnamed: dict[tuple[str, int], Any] = {}
        self._patience_s = spec.values["model.patience_s"]
        # Each task that runs at the same moment needs a process of its own.
        self._free_tasks = profile.at_once
        # Calls that wait for a free task share the next one of their step: the busier, the larger the chunks.
        self._sizes, self._waiting = sizes, {step: list[PoolCall]() for step in sizes}
        self._names = profile.names  # how many more tasks get a name of their own
        self._running: set[asyncio.Task[None]] = set()
        self.numbers = count()
        # A process takes seconds to start. The first episode would wait for it.
        for _ in range(profile.at_once):
            functions["extract_episode"].options(name="warm_up").remote()

    def of(self, step: str) -> StepCalls:
        """Return the calls of one step."""
        return StepCalls(self, step)

    def send(self, step: str, calls: Sequence[PoolCall]) -> None:
        """Submit a chunk as soon as fewer than the maximum of tasks run."""
        self._waiting[step] += calls
        self._submit()

    def _submit(self) -> None:
        for step, waiting in self._waiting.items():
            while waiting and self._free_tasks:
                chunk, waiting[:] = waiting[: self._sizes[step]], waiting[self._sizes[step] :]
                self._free_tasks -= 1
                task = asyncio.create_task(self._run_chunk(step, chunk))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Drop the waiting calls, and cancel the others.

        Their futures get no result, so call this after the callers have ended.
        """
        for waiting in self._waiting.values():
            waiting.clear()
        for task in (tasks := [*self._running]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_chunk(self, step: str, calls: Sequence[PoolCall]) -> None:
        try:
            await self._run_until_answered(step, calls)
        except Exception as error:  # noqa: BLE001 - a bug of ours: every caller meets it
            for call in calls:
                call.fail(error)
        finally:
            self._free_tasks += 1
            self._submit()

    async def _run_until_answered(self, step: str, calls: Sequence[PoolCall]) -> None:
        """Run a chunk until each of its calls has an outcome, or the patience is spent."""
        deadline, delay = time.monotonic() + self._patience_s, FIRST_DELAY_S
        while remaining := [call for call in calls if not call.answer.done()]:
            try:
                outcomes = await self._run(step, remaining, deadline)
            except (RayError, TimeoutError) as error:
                lines = str(error).strip().splitlines() or ["no node has a processor for them"]
                failed = f"{type(error).__name__}: {lines[-1]}"[:200]
                OUTAGES.failed(_TASKS, failed, since=time.time(), patience_s=self._patience_s)
                if time.monotonic() + delay >= deadline:
                    for call in remaining:
                        call.fail(Unavailable(f"the tasks in Ray give no result: {failed}", waited=True))
                    return
                await asyncio.sleep(delay)
                delay *= 2
                continue
            OUTAGES.answered(_TASKS)
            for call, outcome in zip(remaining, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    call.fail(outcome)
                elif not call.answer.done():
                    call.answer.set_result(outcome)

    async def _run(self, step: str, calls: Sequence[PoolCall], deadline: float) -> list[Outcome]:
        """Submit one task; return its outcomes. Raises RayError, or TimeoutError at `deadline`."""
        requests = [call.request for call in calls]
        options, key = self._functions[step].options, (step, len(calls))
        if self._names > 0:
            self._names -= 1
            task = options(num_returns=len(calls), name=name_of(step, requests))
        elif (task := self._unnamed.get(key)) is None:
            task = self._unnamed[key] = options(num_returns=len(calls))
        result = task.remote(*requests)
        futures = [ref.as_future() for ref in (result if len(calls) > 1 else [result])]
        while True:
            left_s = deadline - time.monotonic()
            _, late = await asyncio.wait(futures, timeout=min(_LATE_S, max(0.0, left_s)))
            if not late:
                return [future.result() for future in futures]
            if left_s <= 0:
                ray.cancel(result[0] if len(calls) > 1 else result)
                raise TimeoutError
            reason = "wait for a free processor or for the start of a process"
            OUTAGES.failed(_TASKS, reason, since=time.time() - _LATE_S, patience_s=self._patience_s)


def _functions(spec: DeploymentSpec) -> list[Callable[..., Any]]:
    """Return the functions that become tasks. Ray sends them once to each process, which keeps the parts."""
    # (extractor, judge, ontology), built with the first task of a process. They render prompts and read
    # replies, and call no model.
    parts: list[Any] = []

    def built() -> Any:  # noqa: ANN401
        if not parts:
            telemetry.start("tasks")
            settings = spec.settings()
            ontology = build_ontology(settings)
            parts.append((*build_models(settings, ontology), ontology))
        return parts[0]

    def warm_up() -> None:
        with suppress(KgrayError):  # the first step meets the error, too, and returns it
            built()

    def extract_episode(*requests: _Request) -> Any:  # noqa: ANN401
        def step(*request: Any) -> Outcome:  # noqa: ANN401
            extractor, _, ontology = built()
            return steps.extract_episode(extractor, ontology, *request)

        return outcomes_of(step, "extract_episode", requests) if requests else warm_up()

    def resolve_node(*requests: _Request) -> Any:  # noqa: ANN401
        def step(*request: Any) -> Outcome:  # noqa: ANN401
            return steps.resolve_node(built()[1], *request)

        return outcomes_of(step, "resolve_node", requests)

    return [extract_episode, resolve_node]


def outcomes_of(step: Callable[..., Outcome], name: str, requests: Sequence[_Request]) -> Any:  # noqa: ANN401
    """Return a step's outcome for each request: a result, a call, or an error; no list for one request.

    The log of the task has a line with group and sequence for each step.
    """
    outcomes: list[Outcome] = []
    for request in requests:
        start, outcome = time.monotonic(), None
        try:
            outcome = step(*request)
        except Exception as error:  # noqa: BLE001 - the sequencer decides how to treat it
            outcome = portable(error)
        outcomes.append(outcome)
        telemetry.stage(name, *episode_of(request), seconds=time.monotonic() - start, outcome=outcome)
    return outcomes if len(outcomes) > 1 else outcomes[0]


def episode_of(request: _Request) -> tuple[str, int]:
    """Return group and sequence of the episode that a request is about."""
    question = request[0]
    episode = (question if isinstance(question, QuestionRequest) else question.request).episode
    return episode.group, episode.sequence


def name_of(step: str, requests: Sequence[_Request]) -> str:
    """Return a task's name, such as "extract_episode group=team sequence=4,5"."""
    parts = [step]
    for group, episodes in groupby(map(episode_of, requests), key=lambda episode: episode[0]):
        parts.append(f"group={group} sequence={','.join(str(sequence) for _, sequence in episodes)}")
    name = " ".join(parts)
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."
