"""How a plain class becomes an actor, and what the call of an actor can meet.

Control calls have a concurrency group, thus a thread and an event loop, of their own: they answer while
the work is at its busiest. Ray repeats no call of ours (max_task_retries=0): the router and the writer's
port do, because they know what a repetition means.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    OutOfMemoryError,
    PendingCallsLimitExceeded,
    RayActorError,
    RaySystemError,
    TaskCancelledError,
    WorkerCrashedError,
)

from kgray.errors import Unavailable
from kgray.runtime.faults import Lost, NumberedOutcome, NumberedRequest

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])
Handle = Any  # Ray's type of a handle does not know our methods
_ANSWER_S = 10.0  # for a control call
_GONE = (
    RayActorError,
    WorkerCrashedError,
    ObjectLostError,
    OutOfMemoryError,
    RaySystemError,
    TaskCancelledError,
    GetTimeoutError,
    PendingCallsLimitExceeded,
)


def control(method: _F) -> _F:
    """Have a method answer from the thread and loop of the control group."""
    made: _F = ray.method(concurrency_group="control")(method)
    return made


def streaming(method: _F) -> _F:
    """Have what a method yields sent as it is yielded."""
    made: _F = ray.method(num_returns="streaming")(method)
    return made


def actor_of(cls: type[Any]) -> Any:  # noqa: ANN401 - Ray's class of an actor has no useful type
    """Return the actor class of a plain class, with a control group."""
    remote: Any = ray.remote
    return remote(concurrency_groups={"control": 4})(cls)


async def reached(call: Awaitable[_T]) -> _T:
    """Return what an actor answers. Raises Lost where Ray could not bring the answer."""
    try:
        return await call
    except _GONE as error:
        raise Lost(_line(error)) from None


def answer(call: Any, timeout_s: float = _ANSWER_S) -> Any:  # noqa: ANN401 - whatever the actor returns
    """Return what an actor answers, blocking. Raises Unavailable where it does not."""
    try:
        return ray.get(call, timeout=timeout_s)
    except (GetTimeoutError, RayActorError, RaySystemError) as error:
        raise Unavailable(f"an actor does not answer: {_line(error)}") from None


class RemoteWorker:
    """`pools.Worker` over an actor."""

    def __init__(self, name: str, handle: Handle) -> None:
        """Send work to this actor."""
        self.name, self._handle = name, handle

    async def work(self, chunk: Sequence[NumberedRequest]) -> AsyncIterator[Sequence[NumberedOutcome]]:
        """Yield the outcomes of a chunk as its calls end. Raises Lost where the process went away."""
        try:
            async for ended in self._handle.work.remote(chunk):
                yield await ended
        except _GONE as error:
            raise Lost(_line(error)) from None

    def abandon(self, numbers: Sequence[int]) -> None:
        """Tell the worker that nobody waits for these; a message that is lost costs a wasted call."""
        self._handle.abandon.remote(list(numbers))

    async def health(self) -> None:
        """Return once the process has answered. Raises Lost."""
        await reached(self._handle.health.remote())

    def restart(self) -> None:
        """End the process; Ray starts another in its place."""
        ray.kill(self._handle, no_restart=False)


def _line(error: Exception) -> str:
    """Return Ray's many lines as one short line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"[:200]
