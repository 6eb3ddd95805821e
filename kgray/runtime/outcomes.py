"""What crosses a process border: requests with a number, and what became of them. Errors travel as values.

An exception that Ray carries would arrive wrapped, with a traceback of another process, and could not be
told from one that Ray itself raises; so what kgray raises on purpose is a `Fault` on the way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kgray import errors
from kgray.errors import ContentError, KgrayError, Unavailable

_T = TypeVar("_T")


class Lost(Exception):
    """The process at the other end went away, or cannot be reached: what it had in hand is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error as a value: the class's name, its line, and what its class keeps beside it."""

    kind: str
    message: str
    raw: str = ""
    waited: bool = False


Outcome = Any  # a value of the port's own, or a Fault
Answered = tuple[int, Outcome]  # the number of the request, and what became of it
Numbered = tuple[int, Any]  # the number and the request


def fault_of(error: BaseException) -> Fault:
    """Return an error as a value."""
    return Fault(
        kind=type(error).__name__,
        message=str(error),
        raw=error.raw if isinstance(error, ContentError) else "",
        waited=isinstance(error, Unavailable) and error.waited,
    )


def error_of(fault: Fault) -> Exception:
    """Return the error that a fault tells of; RuntimeError for what was none of ours."""
    cls = getattr(errors, fault.kind, None)
    if not (isinstance(cls, type) and issubclass(cls, KgrayError)):
        return RuntimeError(f"{fault.kind}: {fault.message}")
    if issubclass(cls, ContentError):
        return cls(fault.message, raw=fault.raw)
    if issubclass(cls, Unavailable):
        return cls(fault.message, waited=fault.waited)
    return cls(fault.message)


def value_of(outcome: Outcome) -> Any:  # noqa: ANN401 - the port's value
    """Return the value, or raise the error that stands in its place."""
    if isinstance(outcome, Fault):
        raise error_of(outcome) from None
    return outcome


async def caught(call: Callable[[], Awaitable[_T]]) -> _T | Fault:
    """Make a call and return its value, or its error as a value."""
    try:
        return await call()
    except Exception as error:  # noqa: BLE001 - the other side decides what it means
        return fault_of(error)
