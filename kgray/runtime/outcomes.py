"""What an actor answers: a value of the port's own, or the error that it met, as a value too.

Ray wraps an exception that it transports, adds the other process's traceback, and makes it hard to tell from
one of its own. So an actor returns kgray's errors, which can be pickled, and raises nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from kgray.errors import KgrayError

_T = TypeVar("_T")
Outcome = Any  # a value of the port's own, or a KgrayError; a RuntimeError stands for a bug of ours
NumberedRequest = tuple[int, Any]
NumberedOutcome = tuple[int, Outcome]
TOLD = -1  # in place of a number: the outcome is what the worker waits for itself, a tuple of Outage


class Lost(Exception):
    """A call got no answer: the process ended, hangs, or is out of reach."""


def portable(error: Exception) -> Exception:
    """Return the error; a RuntimeError that names it where it is not one of kgray's, and may not pickle."""
    if isinstance(error, KgrayError):
        return error.with_traceback(None)
    return RuntimeError(f"{type(error).__name__}: {error}")


async def outcome_of(call: Awaitable[_T]) -> _T | Exception:
    """Return what a call returns, or the error that it raises as a value."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - the other side decides what it means
        return portable(error)
