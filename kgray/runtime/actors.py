"""Making an actor of a plain class, and calling actors with Ray's errors turned into kgray's.

Control calls run in a concurrency group of their own, with its own thread and event loop, so they answer
while the actor is busy. Ray retries no call: `pools` and `RemoteWriter` know which may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from kgray.errors import Cost, Unavailable
from kgray.ports import AnswerRequest
from kgray.runtime.pools import ActorEnded, Lost, Numbered, Unfit

_F = TypeVar("_F", bound=Callable[..., Any])
Handle = Any  # Ray's type of a handle does not know our methods
_ANSWER_S = 10.0  # for a control call
_LOOKS = ThreadPoolExecutor(1, "kgray-named")  # a single thread: look-ups wait while Ray's head is away


_method: Any = ray.method
control: Callable[[_F], _F] = _method(concurrency_group="control")
writing: Callable[[_F], _F] = _method(concurrency_group="writing")  # batches of a writer, side by side
streaming: Callable[[_F], _F] = _method(num_returns="streaming")  # each item is sent at once


def actor_of(cls: type[Any]) -> Any:  # noqa: ANN401 - Ray's class of an actor has no useful type
    """Return the actor class of a plain class, with a group of threads for control, and one for writing."""
    remote: Any = ray.remote
    return remote(concurrency_groups={"control": 4, "writing": 8})(cls)


def is_restarted() -> bool:
    """Return whether this process is that of an actor whose former process ended."""
    if not ray.is_initialized():  # Ray would start here to answer
        return False
    context = ray.get_runtime_context()
    return context.get_actor_id() is not None and context.was_current_actor_reconstructed


@contextmanager
def _lost() -> Iterator[None]:
    """Turn Ray's errors into Lost, except RayTaskError, which the called method itself raised."""
    try:
        yield
    except RayTaskError:
        raise
    except RayError as error:
        lines = str(error).strip().splitlines() or [""]  # Ray's many lines as one short line
        kind = ActorEnded if isinstance(error, ActorDiedError) else Lost
        raise kind(f"{type(error).__name__}: {lines[-1]}"[:200]) from None


async def reached(method: Any, *args: object) -> Any:  # noqa: ANN401 - a method of a handle, and its result
    """Call an actor; return its answer. Raises Lost."""
    with _lost():
        return await method.remote(*args)


def submit(method: Any, *args: object) -> Any:  # noqa: ANN401 - a method of a handle, and a reference to its result
    """Call an actor without waiting for it. Raises Lost, even if the actor has too many calls queued."""
    with _lost():
        return method.remote(*args)


def answer(call: Any, timeout_s: float = _ANSWER_S) -> Any:  # noqa: ANN401 - the actor's result
    """Wait for an actor's answer and return it. Raises Unavailable if it does not answer."""
    try:
        with _lost():
            return ray.get(call, timeout=timeout_s)
    except Lost as error:
        raise Unavailable(f"an actor does not answer: {error}") from None


@dataclass(eq=False)
class RemoteWorker:
    """A worker process as the router (`pools`) sees it.

    It keeps its handle: a process that Ray restarts has the same handle. If the actor has ended for good, it
    looks the name up again, in another thread than the event loop's.
    """

    name: str
    namespace: str
    only: Handle | None = None  # this actor, never a later actor of its name
    is_gone: bool = False  # `only` has ended for good

    def __post_init__(self) -> None:
        self._actor = self.only

    async def _handle(self) -> Handle:
        if self.is_gone:
            raise ActorEnded(f"{self.name} has ended")
        if self._actor is None:
            try:
                looked = asyncio.get_running_loop().run_in_executor
                self._actor = await looked(_LOOKS, ray.get_actor, self.name, self.namespace)
            except (ValueError, RayError) as error:
                raise Lost(f"{self.name} does not run ({type(error).__name__})") from None
        return self._actor

    async def work(self, chunk: Sequence[Numbered]) -> AsyncIterator[Sequence[Numbered]]:
        """Yield the outcomes of a chunk as its calls end. Raises Lost, ActorEnded."""
        handle = await self._handle()
        with self._reaching():
            async for ended in handle.work.remote(chunk):
                yield await ended

    async def answer(self, request: AnswerRequest) -> AsyncIterator[str | Cost | Exception]:
        """Yield the items of `ModelWorker.answer`. Raises Lost, ActorEnded."""
        handle = await self._handle()
        with self._reaching():
            async for part in handle.answer.remote(request):
                yield await part

    def abandon(self, numbers: Sequence[int]) -> None:
        """Cancel these requests. Fire and forget: if the message is lost, a model call is wasted."""
        if self._actor is not None:
            self._actor.abandon.remote(list(numbers))

    async def health(self) -> None:
        """Return once the process has answered, and has its model. Raises Unfit, Lost, ActorEnded."""
        handle = await self._handle()
        with self._reaching():
            state = await handle.health.remote()
            if isinstance(state, Exception):
                raise Unfit(state)
            if not state:
                raise Lost(f"{self.name} loads its model")

    def restart(self) -> None:
        """End the process; Ray starts another in its place."""
        if self._actor is not None:
            ray.kill(self._actor, no_restart=False)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            with _lost():
                yield
        except ActorEnded as error:
            self._actor = None
            if self.only is None:  # a new actor may have its name
                raise Lost(str(error)) from None
            self.is_gone = True
            raise
