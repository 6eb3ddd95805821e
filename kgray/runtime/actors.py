"""The plain classes as actors, and actors as what the plain classes ask for.

Control calls have a concurrency group, thus a thread and a loop, of their own: they answer while the
work is at its busiest. Ray repeats no call of ours (max_task_retries=0): the router and the writer's
port do, because they know what a repetition means.
"""

from __future__ import annotations

import asyncio
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

from kgray.ports import RowChanges
from kgray.runtime import logs
from kgray.runtime.outcomes import Answered, Fault, Lost, Numbered
from kgray.runtime.sequencer import Links, Sequencer
from kgray.runtime.terms import Terms
from kgray.runtime.workers import EmbedWorker, ModelWorker
from kgray.runtime.writer import GraphWriter

_T = TypeVar("_T")
Handle = Any  # Ray's type of a handle knows nothing of ours
_F = TypeVar("_F", bound=Callable[..., Any])
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
    """Have a method answer from a thread and a loop of its own."""
    made: _F = ray.method(concurrency_group="control")(method)
    return made


def streaming(method: _F) -> _F:
    """Have what a method yields sent as it is yielded."""
    made: _F = ray.method(num_returns="streaming")(method)
    return made


def as_actor(cls: type[Any]) -> Any:  # noqa: ANN401 - Ray's class of an actor has no useful type
    """Return a class as one of actors, with a control group."""
    remote: Any = ray.remote
    return remote(concurrency_groups={"control": 4})(cls)


class WorkingActor:
    """A worker: of episodes and questions, or of texts."""

    def __init__(
        self, build: Callable[[Terms, str], ModelWorker | EmbedWorker], terms: Terms, name: str
    ) -> None:
        """Build the worker here."""
        logs.start(name)
        self._worker = build(terms, name)

    @streaming
    async def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[list[Answered]]:
        """See `workers`."""
        async for ended in self._worker.work(chunk):
            yield ended

    @control
    async def health(self) -> int:
        """Return the process's id once the loop of the work has turned."""
        return await self._worker.attendance.health()

    @control
    async def drain(self, grace_s: float) -> int:
        """Wait until nothing is in hand, at most so long."""
        return await self._worker.attendance.drain(grace_s)

    @control
    async def stats(self) -> dict[str, Any]:
        """Return how much is in hand and done."""
        return self._worker.stats()

    @control
    async def describe(self) -> dict[str, Any]:
        """Return what it was built from."""
        return self._worker.describe()

    @control
    async def abandon(self, numbers: Sequence[int]) -> None:
        """End calls that nobody waits for."""
        self._worker.abandon(numbers)


class WriterActor:
    """The one writer of a shard. Its methods run in threads; `begin` and `write` take turns in one."""

    def __init__(self, terms: Terms, shard: int) -> None:
        """Hold nothing yet."""
        logs.start(f"writer-{shard}")
        self._writer = GraphWriter(terms, shard)

    def begin(self) -> int | Fault:
        """Take a new epoch."""
        return self._writer.begin()

    def write(self, epoch: int, number: int, changes: Sequence[RowChanges]) -> Fault | None:
        """Carry out a batch."""
        return self._writer.write(epoch, number, changes)

    def close(self) -> None:
        """Let the store go."""
        self._writer.close()

    @control
    def stats(self) -> dict[str, Any]:
        """Return the epoch and how much was written."""
        return self._writer.stats()

    @control
    def describe(self) -> dict[str, Any]:
        """Return what it was built from."""
        return self._writer.describe()


class SequencerActor:
    """The runner of a shard. It serves from its start on, so that one that was restarted goes on alone."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it, in the loop that the service then has
        self,
        terms: Terms,
        shard: int,
        writer: str,
        models: Sequence[str],
        embedders: Sequence[str],
    ) -> None:
        """Take the work up at once. The others are known by name: a handle would not outlive its sender."""
        logs.start(f"sequencer-{shard}")
        context = ray.get_runtime_context()
        me, name, namespace = context.get_actor_id(), context.get_actor_name() or "", terms.namespace()

        async def newest() -> bool:
            found = await asyncio.to_thread(ray.get_actor, name, namespace=namespace)
            return bool(found._actor_id.hex() == me)  # noqa: SLF001 - no other way to ask who bears a name

        def named(other: str) -> Handle:
            return ray.get_actor(other, namespace=namespace)

        links = Links(
            writer=ActorWriter(named(writer), deadline_s=terms.profile["limits"]["write_deadline_s"]),
            models=[ActorWorker(other, named(other)) for other in models],
            embedders=[ActorWorker(other, named(other)) for other in embedders],
            newest=newest,
        )
        self._sequencer = Sequencer(terms, shard, links)
        self._service = asyncio.create_task(self._sequencer.serve())

    @control
    async def stats(self, since: int = 0) -> dict[str, Any]:
        """Return how it goes."""
        return self._sequencer.stats(since)

    @control
    async def describe(self) -> dict[str, Any]:
        """Return what it was built from."""
        return self._sequencer.describe()

    @control
    async def resume(self) -> None:
        """Try again after a fault."""
        self._sequencer.resume()

    @control
    async def drain(self, grace_s: float) -> int:
        """Commit what is in flight, and end."""
        return await self._sequencer.drain(grace_s)


class ActorWorker:
    """`pools.Worker` over an actor."""

    def __init__(self, name: str, handle: Handle) -> None:
        """Ask this actor."""
        self.name, self._handle = name, handle

    async def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[Sequence[Answered]]:
        """Yield what has ended of a chunk, as it ends. Raises Lost where the process went away."""
        try:
            async for ended in self._handle.work.remote(chunk):
                yield await ended
        except _GONE as error:
            raise Lost(_line(error)) from None

    def abandon(self, numbers: Sequence[int]) -> None:
        """Say that nobody waits for these any longer; a lost word costs a wasted call."""
        self._handle.abandon.remote(list(numbers))

    async def health(self) -> None:
        """Return once the process has answered. Raises Lost."""
        await reached(self._handle.health.remote())

    def restart(self) -> None:
        """End the process; Ray starts another in its place."""
        ray.kill(self._handle, no_restart=False)


class ActorWriter:
    """`writer.WriterLink` over an actor; one that does not answer in time is started anew."""

    def __init__(self, handle: Handle, *, deadline_s: float) -> None:
        """deadline_s: of one batch."""
        self._handle, self._deadline_s = handle, deadline_s

    async def begin(self) -> int | Fault:
        """Take a new epoch."""
        found: int | Fault = await self._in_time(self._handle.begin)
        return found

    async def write(self, epoch: int, number: int, changes: Sequence[RowChanges]) -> Fault | None:
        """Carry out a batch."""
        found: Fault | None = await self._in_time(self._handle.write, epoch, number, changes)
        return found

    async def _in_time(self, method: Any, *args: object) -> Any:  # noqa: ANN401 - an actor's method
        try:
            return await asyncio.wait_for(reached(method.remote(*args)), self._deadline_s)
        except PendingCallsLimitExceeded as error:
            raise Lost(_line(error)) from None
        except TimeoutError:
            ray.kill(self._handle, no_restart=False)
            raise Lost(f"the writer did not answer within {self._deadline_s:g} s") from None


async def reached(call: Awaitable[_T]) -> _T:
    """Return what an actor answers. Raises Lost where Ray could not bring the answer."""
    try:
        return await call
    except _GONE as error:
        raise Lost(_line(error)) from None


def _line(error: Exception) -> str:
    """Return Ray's many lines as one short one."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"[:200]
