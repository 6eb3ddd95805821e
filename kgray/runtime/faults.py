"""Errors as values, to pass them between processes.

Ray wraps an exception it transports, adds the other process's traceback, and makes it hard to tell from one
of its own. So an actor returns a `Fault` where kgray raised an error.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from kgray import errors
from kgray.errors import ContentError, KgrayError, Unavailable

_T = TypeVar("_T")


class Lost(Exception):
    """A call got no answer: the process ended, hangs, or is out of reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error: the name of its class, its message, and what its class keeps beside the message."""

    kind: str
    message: str
    raw: str = ""
    waited: bool = False


Outcome = Any  # a value of the port's own, or a Fault
NumberedRequest = tuple[int, Any]
NumberedOutcome = tuple[int, Outcome]


def fault_of(error: BaseException) -> Fault:
    """Return an error as a value."""
    return Fault(
        kind=type(error).__name__,
        message=str(error),
        raw=error.raw if isinstance(error, ContentError) else "",
        waited=isinstance(error, Unavailable) and error.waited,
    )


def error_of(fault: Fault) -> Exception:
    """Return the error that a fault stands for; RuntimeError where its class is not one of kgray's."""
    cls = getattr(errors, fault.kind, None)
    if not (isinstance(cls, type) and issubclass(cls, KgrayError)):
        return RuntimeError(f"{fault.kind}: {fault.message}")
    if issubclass(cls, ContentError):
        return cls(fault.message, raw=fault.raw)
    if issubclass(cls, Unavailable):
        return cls(fault.message, waited=fault.waited)
    return cls(fault.message)


async def outcome_of(call: Awaitable[_T]) -> _T | Fault:
    """Return what a call returns, or the error that it raises as a value."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - the other side decides what it means
        return fault_of(error)
