"""What an actor answers: a value of the port's own, or the error that it met, as a value too.

Ray wraps an exception that it transports, adds the other process's traceback, and makes it hard to tell from
one of its own. So an actor returns kgray's errors, which can be pickled, and raises nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kgray.errors import KgrayError
from kgray.ports import Embedding, Matrix, SummaryRequest, embedded

_T = TypeVar("_T")
Embedded = tuple[Matrix, list[bytes] | None]  # of several texts: vectors; weights of their tokens, if any
Outcome = Any  # a value of the port's own, or a KgrayError; a RuntimeError stands for a bug of ours
NumberedRequest = tuple[int, Any]
NumberedOutcome = tuple[int, Outcome]
TOLD = -1  # in place of a number: the outcome is what the worker waits for itself, a tuple of Outage


class RerankRequest(NamedTuple):
    """Asks a reranker for the scores of texts."""

    query: str
    texts: Sequence[str]


async def answered(model: Any, request: Any) -> Any:  # noqa: ANN401 - as the ports have them
    """Return what an embedder, a reranker or a summariser makes of a request."""
    if isinstance(request, SummaryRequest):
        return await model.write(request)
    if isinstance(request, RerankRequest):
        return await model.score(*request)
    return together(await embedded(model, request))


def together(found: Sequence[Embedding]) -> Embedded:
    """Return what an embedder said of several texts in the form in which it is sent: one matrix."""
    vectors = np.stack([one.vector for one in found])
    weights = [one.weights for one in found if one.weights is not None]
    return vectors, weights or None


class Lost(Exception):
    """A call got no answer: the process ended, hangs, or is out of reach."""


class Gone(Lost):
    """The very actor that was asked has ended for good; another one may have its name."""


def portable(error: Exception) -> Exception:
    """Return the error; a RuntimeError that names it where it is not one of kgray's, and may not pickle."""
    if isinstance(error, KgrayError):
        return error.with_traceback(None)
    return RuntimeError(f"{type(error).__name__}: {error}")


_LATE_S = 0.1  # for what came meanwhile to be read


async def within(call: Awaitable[_T], seconds: float) -> _T:
    """Return what a call returns. Raises TimeoutError, and cancels it, where it takes longer.

    Unlike `asyncio.wait_for`, which from Python 3.12 on forgets an answer that came while this event loop
    stood still, it reads what has come once the time is over.
    """
    task = asyncio.ensure_future(call)
    try:
        for wait_s in (seconds, _LATE_S):
            await asyncio.wait((task,), timeout=wait_s)
            if task.done():
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()


async def outcome_of(call: Awaitable[_T]) -> _T | Exception:
    """Return what a call returns, or the error that it raises as a value."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - the other side decides what it means
        return portable(error)
