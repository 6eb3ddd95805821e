"""An episode is settled by answers that come one by one: none waits for another that it does not rest on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kgray.domain.records import Extraction
from kgray.errors import InvalidAnswer
from kgray.ingest.calls import settle
from kgray.ingest.state import Answers, Decision, Questions, ReadEpisode
from kgray.ports import Answer, Question, QuestionRequest
from tests import make
from tests.waiting import HANGS_S

EPISODE = make.episode("Hi")
READ = ReadEpisode(episode=EPISODE, extraction=Extraction(entities=(), facts=()))
PER_NODE: Any = SimpleNamespace(pipeline=SimpleNamespace(resolution="per_node"), units=None)
FIRST, SLOW, LATER = (Question(kind="entity", item=name) for name in ("first", "slow", "later"))
CHANGE: Any = object()


async def attempt(answers: Answers) -> Decision:
    """Open two questions together, and a third with the answer to the first question."""
    expectation = [FIRST, SLOW, *([LATER] if FIRST in answers.by_question else [])]
    return Decision(
        questions=Questions(open=[q for q in expectation if q not in answers.by_question]), change=CHANGE
    )


async def nothing(_: list[str]) -> Any:
    return {}


async def settled(ask: Any) -> Any:
    settling = settle(READ, PER_NODE, attempt=attempt, embed=nothing, look_up=nothing, ask=ask)
    return await asyncio.wait_for(settling, HANGS_S)


async def test_a_question_waits_only_for_answers_that_it_depends_on() -> None:
    was_asked = asyncio.Event()
    items: list[str] = []

    async def ask(request: QuestionRequest) -> tuple[Answer, ...]:
        (question,) = request.questions
        items.append(question.item)
        if question == SLOW:
            await was_asked.wait()
        if question == LATER:
            was_asked.set()
        return ({"duplicate_of": None},)

    change, last = await settled(ask)
    assert change is CHANGE
    assert not last.questions
    assert items == ["first", "slow", "later"], "each is asked once"


async def test_an_error_is_raised_after_all_calls_end() -> None:
    ended: list[str] = []

    async def ask(request: QuestionRequest) -> tuple[Answer, ...]:
        (question,) = request.questions
        if question == FIRST:
            raise InvalidAnswer("no answer")
        await asyncio.sleep(0)
        ended.append(question.item)
        return ({"duplicate_of": None},)

    with pytest.raises(InvalidAnswer, match="no answer"):
        await settled(ask)
    assert ended == ["slow"]
