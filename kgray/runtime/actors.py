"""Making an actor of a plain class, and calling actors with Ray's errors turned into kgray's.

Control calls run in a concurrency group of their own, with its own thread and event loop, so they answer
while the actor is busy. Ray retries no call (max_task_retries=0). The router (`pools`) and `RemoteWriter`
retry, because they know whether a call may be repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from kgray.errors import Unavailable
from kgray.runtime.outcomes import Lost, NumberedOutcome, NumberedRequest
from kgray.runtime.pools import Chunker, Pool
from kgray.runtime.profile import profile_of
from kgray.runtime.spec import DeploymentSpec

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])
Handle = Any  # Ray's type of a handle does not know our methods
_ANSWER_S = 10.0  # for a control call
_CALLS = 4  # model calls that one request may need in sequence: the call, repairs of its reply, a retry


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


@contextmanager
def _lost() -> Iterator[None]:
    """Turn Ray's errors into Lost, except RayTaskError, which the called method itself raised."""
    try:
        yield
    except RayTaskError:
        raise
    except RayError as error:
        lines = str(error).strip().splitlines() or [""]  # Ray's many lines as one short line
        raise Lost(f"{type(error).__name__}: {lines[-1]}"[:200]) from None


async def reached(call: Awaitable[_T]) -> _T:
    """Return what an actor answers. Raises Lost."""
    with _lost():
        return await call


def answer(call: Any, timeout_s: float = _ANSWER_S) -> Any:  # noqa: ANN401 - whatever the actor returns
    """Return what an actor answers, blocking. Raises Unavailable where it does not."""
    try:
        with _lost():
            return ray.get(call, timeout=timeout_s)
    except Lost as error:
        raise Unavailable(f"an actor does not answer: {error}") from None


class RemoteWorker:
    """A worker process as the router (`pools`) sees it; found by its name again where it was replaced."""

    def __init__(self, name: str, find: Callable[[str], Handle]) -> None:
        self.name, self._find = name, find
        self._handle = find(name)

    async def work(self, chunk: Sequence[NumberedRequest]) -> AsyncIterator[Sequence[NumberedOutcome]]:
        """Yield the outcomes of a chunk as its calls end. Raises Lost where the process went away."""
        with _lost():
            async for ended in self._handle.work.remote(chunk):
                yield await ended

    def abandon(self, numbers: Sequence[int]) -> None:
        """Cancel these requests. Fire and forget: if the message is lost, a model call is wasted."""
        self._handle.abandon.remote(list(numbers))

    async def health(self) -> None:
        """Return once the process has answered. Raises Lost."""
        try:
            await reached(self._handle.health.remote())
        except Lost:
            with suppress(ValueError, RayError):  # there is none at the moment
                self._handle = self._find(self.name)
            raise

    def restart(self) -> None:
        """End the process; Ray starts another in its place."""
        ray.kill(self._handle, no_restart=False)


def pool_of(spec: DeploymentSpec, names: Sequence[str], what: str) -> Pool:
    """Return the pool of a deployment's workers with these names; what: see `Pool`."""
    limits = profile_of(spec.profile, "the deployment").limits
    patience_s, timeout_s = spec.values["model.patience_s"], spec.values["model.timeout_s"]
    find = partial(ray.get_actor, namespace=spec.namespace)
    return Pool(
        [RemoteWorker(name, find) for name in names],
        patience_s=patience_s,
        answer_deadline_s=patience_s + _CALLS * timeout_s,
        health_every_s=limits.health_every_s,
        health_deadline_s=limits.health_deadline_s,
        what=what,
    )


def writing_workers(spec: DeploymentSpec) -> Chunker:
    """Return the way to the workers that read, for summaries: each a chunk of its own."""
    count = profile_of(spec.profile, "the deployment").extraction.workers
    names = [f"models-{number}" for number in range(count)]
    return Chunker(pool_of(spec, names, "the workers that read"), size=1, linger_s=0.0)
