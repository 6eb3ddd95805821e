"""Steps: the work on a request of a language model, cut at the model's calls, so that no step waits.

A step is a pure function of the request and the replies so far. It returns the next call, or the result. So
any process can carry out any step, and a step that was lost with its process is repeated.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from kgray.errors import Cost
from kgray.ports import ExtractionRequest, Judged, QuestionRequest
from kgray.records import Extraction, Spent

T = TypeVar("T")
Mode = Literal["json_schema", "json_object", "text"]  # the form of a request to a server, strongest first


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A call of a language model: any worker with the same settings can make it, and has its prompt.

    kinds   kinds of the answered questions, sorted: they determine the schema; () for an extraction
    room    maximum tokens of the reply
    weaker  number of forms below the strongest form that the server supports
    """

    task: str
    data: str
    kinds: tuple[str, ...] = ()
    room: int
    temperature: float = 0.0
    weaker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply(Spent):
    """A model's reply to a call, or the server's message if it rejects the call.

    mode    the form of the request; cut: whether the reply was cut at its bound
    """

    mode: Mode
    text: str = ""
    cut: bool = False
    rejection: str | None = None


# A call of a language model, or a whole request of a model without prompts.
AnyCall = ModelCall | ExtractionRequest | QuestionRequest
Reply = ModelReply | Extraction | Judged
Steps = Generator[Any, Any, T]  # yields calls (`AnyCall`), is sent their replies, and returns the result


@dataclass(frozen=True, slots=True)
class NextCall:
    """The call that a step needs before it can continue."""

    stage: Literal["extract", "judge"]
    group: str
    sequence: int
    call: AnyCall


@runtime_checkable
class Stepwise(Protocol):
    """An extractor or a judge that works in steps; other models answer a request in a single call."""

    def steps(self, request: Any) -> Steps[Any]:  # noqa: ANN401 - ExtractionRequest or QuestionRequest
        """Return the steps of a request. They raise InvalidAnswer and Refused."""

    async def answer(self, call: ModelCall) -> ModelReply:
        """Make a call. Raises the errors of `Extractor.extract`."""


def steps_of(model: object, request: ExtractionRequest | QuestionRequest) -> Steps[Any]:
    """Return the steps of a request: the model's own, or the request itself as a single call."""
    return model.steps(request) if isinstance(model, Stepwise) else _single_call(request)


def replayed(steps: Steps[T], replies: Sequence[Reply]) -> tuple[AnyCall | None, T | None]:
    """Return the next call after these replies, or else the result."""
    try:
        call = next(steps)
        for reply in replies:
            call = steps.send(reply)
    except StopIteration as end:
        return None, end.value
    return call, None


def total(costs: Sequence[Cost]) -> Cost:
    """Return the sum of costs."""
    return Cost(*map(sum, zip(*costs, strict=True))) if costs else Cost()


def _single_call(request: ExtractionRequest | QuestionRequest) -> Steps[Reply]:
    reply: Reply = yield request
    return reply
