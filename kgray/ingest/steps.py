"""The stateless steps of ingestion: `extract_episode` and `resolve_node`, and the loop that carries them out.

Both are pure: they render prompts, parse and check replies, and ground extractions. They call no model and
never wait. A step returns the next call of the model; with the reply to it the step runs again, until it
returns its result. `Stepping` is that loop. It runs in the process that decides the group; a step runs there
or as a task of Ray, and the model of this process or of a worker answers the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar, cast

from kgray.domain.ontology import Ontology
from kgray.domain.records import Extraction
from kgray.errors import Cost, KgrayError
from kgray.graph.texts import with_own_sentences
from kgray.ingest.extract import ground
from kgray.ingest.repeats import without_repeats
from kgray.ingest.union import joined
from kgray.ingest.units import TextUnit
from kgray.models.prompting.replies import speaker_first
from kgray.ports import ExtractionRequest, Extractor, Judge, Judged, QuestionRequest
from kgray.ports.steps import ModelCall, NextCall, Reply, replayed, steps_of, total

Place = Callable[[], AbstractAsyncContextManager[object]]  # entered around each call of a model
_Q = TypeVar("_Q")
_R = TypeVar("_R", Extraction, Judged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The text of one reading: an episode, or one unit of a long text.

    is_whole    the request has the whole text, so that the extraction is checked at once
    units       the extractions of all units of a long text, which are joined without a call
    """

    request: ExtractionRequest
    is_whole: bool = True
    units: tuple[tuple[TextUnit, Extraction], ...] = ()


def extract_episode(
    extractor: Extractor, ontology: Ontology, reading: Reading, replies: Sequence[Reply]
) -> NextCall | Extraction:
    """Return the next call for an extraction, or the extraction, without its cost.

    Raises InvalidAnswer and Refused because of replies.
    """
    request = reading.request
    if reading.units:
        return _checked(joined(reading.units), request, ontology)
    call, extraction = replayed(steps_of(extractor, request), replies)
    if extraction is None:
        return NextCall("extract", request.episode.group, request.episode.sequence, cast("Any", call))
    return _checked(extraction, request, ontology) if reading.is_whole else extraction


def resolve_node(judge: Judge, request: QuestionRequest, replies: Sequence[Reply]) -> NextCall | Judged:
    """Return the next call for an episode's open nodes, or their answers, without the cost.

    With `pipeline.resolution = "per_node"` a request has one open node, with "batched" all of its episode.
    Raises InvalidAnswer and Refused because of replies.
    """
    call, judged = replayed(steps_of(judge, request), replies)
    if judged is None:
        return NextCall("judge", request.episode.group, request.episode.sequence, cast("Any", call))
    return cast("Judged", judged)


def _checked(extraction: Extraction, request: ExtractionRequest, ontology: Ontology) -> Extraction:
    """Return the extraction, the speaker first, without repetitions and parts that the text lacks.

    Each fact has a sentence of its own.
    """
    grounded = ground(speaker_first(extraction, request.episode), request)
    # The check for repetitions reads the words of the sentences, so they are replaced after it.
    return with_own_sentences(without_repeats(grounded, request, ontology), ontology)


@dataclass(frozen=True, slots=True)
class Stepping(Generic[_Q, _R]):
    """The loop of step, call, step.

    step    runs a step on a request and the replies so far
    answer  makes a call of the model
    """

    step: Callable[[_Q, Sequence[Reply]], Awaitable[NextCall | _R]]
    answer: Callable[[NextCall], Awaitable[Reply]]

    async def carry_out(self, request: _Q, place: Place = nullcontext) -> _R:
        """Return the result of a request, with the cost of its calls.

        Raises as `Extractor.extract` does; an error has the cost of the calls before it, too.
        """
        replies: list[Reply] = []
        try:
            while isinstance(outcome := await self.step(request, replies), NextCall):
                async with place():
                    replies.append(await self.answer(outcome))
        except (KgrayError, asyncio.CancelledError) as error:
            last = getattr(error, "spent", Cost())
            error.spent = total([*(reply.cost for reply in replies), last])  # type: ignore[union-attr]
            raise
        if not replies:
            return outcome
        return replace(outcome, **total([reply.cost for reply in replies])._asdict())


async def made_by(model: Any, answer_whole: Callable[[Any], Awaitable[Reply]], next_call: NextCall) -> Reply:  # noqa: ANN401
    """Return a model's reply to a call; answer_whole: answers a request of a model without prompts."""
    call = next_call.call
    reply: Reply = await (model.answer(call) if isinstance(call, ModelCall) else answer_whole(call))
    return reply


def local_extracting(extractor: Extractor, ontology: Ontology) -> Stepping[Reading, Extraction]:
    """Return the loop that extracts in this process."""

    async def step(reading: Reading, replies: Sequence[Reply]) -> NextCall | Extraction:
        return extract_episode(extractor, ontology, reading, replies)

    return Stepping(step, partial(made_by, extractor, extractor.extract))


def local_resolving(judge: Judge) -> Stepping[QuestionRequest, Judged]:
    """Return the loop that answers questions in this process."""

    async def step(request: QuestionRequest, replies: Sequence[Reply]) -> NextCall | Judged:
        return resolve_node(judge, request, replies)

    return Stepping(step, partial(made_by, judge, judge.judge))
