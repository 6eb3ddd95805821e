"""The steps of ingestion: pure functions of a request and of the replies so far."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from kgray.domain.ontology import shipped
from kgray.errors import Cost, InvalidAnswer, Refused, Unavailable
from kgray.ingest.steps import Reading, Stepping, extract_episode, local_extracting, resolve_node
from kgray.models.openai_api.client import Client, Endpoint
from kgray.models.openai_api.extractor import OpenAIExtractor
from kgray.models.openai_api.judge import OpenAIJudge
from kgray.models.prompting.prompts import Prompts
from kgray.models.rules import RulesJudge
from kgray.models.rules.extractor import RulesExtractor
from kgray.ports import ExtractionRequest, Question, QuestionRequest
from kgray.ports.ingest import ModelCall, ModelReply, NextCall
from tests import make

EPISODE = make.episode("I work at Acme", "Alice", group="team", sequence=7, id="e")
READING = Reading(request=ExtractionRequest(episode=EPISODE))
CLIENT = Client(Endpoint(base_url="http://127.0.0.1:9/v1", name="m"))
EXTRACTOR = OpenAIExtractor(CLIENT, Prompts(shipped()))
STEPWISE = OpenAIExtractor(CLIENT, Prompts(shipped()), separate=True)
FACT = {"subject": "Alice", "relation": "WORKS_AT", "object": "Acme", "fact": "Alice works at Acme"}
NAMES = [{"name": "Alice", "type": "Person"}, {"name": "Acme", "type": "Organization"}]
QUESTIONS = (
    Question(kind="entity", item="Al", candidates=("Alice",), cards=("Al: here", "Alice: there")),
    Question(kind="compare", item="A", candidates=("B", "C")),
)


def replies(*texts: object) -> list[ModelReply]:
    return [
        ModelReply(mode="json_schema", text=json.dumps(text), calls=1, prompt_tokens=10, completion_tokens=2)
        for text in texts
    ]


def call_of(step: object) -> ModelCall:
    """Return the call that a step asks for."""
    assert isinstance(step, NextCall)
    assert isinstance(step.call, ModelCall)
    return step.call


def test_extracting_an_episode_gives_a_call_and_then_a_grounded_extraction() -> None:
    first = extract_episode(EXTRACTOR, shipped(), READING, ())
    assert isinstance(first, NextCall)
    assert (first.stage, first.group, first.sequence) == ("extract", "team", 7)
    assert "I work at Acme" in call_of(first).data

    reply = {"entities": [*NAMES, {"name": "Zanzibar", "type": "Place"}], "facts": [FACT]}
    result = extract_episode(EXTRACTOR, shipped(), READING, replies(reply))
    assert not isinstance(result, NextCall)
    assert [entity.name for entity in result.entities] == ["Alice", "Acme"]
    assert "entities[2]: 'Zanzibar' is not in the text" in result.dropped
    assert [fact.relation for fact in result.facts] == ["WORKS_AT"]


def test_a_step_depends_only_on_its_arguments() -> None:
    """So a step that was lost with its process is carried out again, by any process."""
    wrong = replies("no object")
    once, second_result = (extract_episode(EXTRACTOR, shipped(), READING, wrong) for _ in range(2))
    assert once == second_result
    assert pickle.loads(pickle.dumps(once)) == once  # noqa: S301 - our own


def test_an_unusable_reply_leads_to_a_repair_then_a_weaker_form_then_an_error() -> None:
    first, second, third = (
        call_of(extract_episode(EXTRACTOR, shipped(), READING, replies(*["no object"] * count)))
        for count in range(3)
    )
    assert second.data.startswith(first.data)
    assert "the reply holds no JSON object" in second.data
    assert [(call.temperature, call.weaker) for call in (first, second, third)] == [
        (0.0, 0),
        (0.2, 0),
        (0.0, 1),
    ]
    with pytest.raises(InvalidAnswer, match="no usable reply in 3 calls"):
        extract_episode(EXTRACTOR, shipped(), READING, replies(*["no object"] * 3))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param("400: response_format is not supported", {"weaker": 1}, id="the form"),
        pytest.param("400: max_tokens is too large", {"weaker": 0}, id="the room"),
    ],
)
def test_a_rejected_call_is_repeated_with_other_parameters(words: str, expected: dict[str, Any]) -> None:
    first_call = call_of(extract_episode(EXTRACTOR, shipped(), READING, ()))
    rejected = [ModelReply(mode="json_schema", rejection=words)]
    later_value = call_of(extract_episode(EXTRACTOR, shipped(), READING, rejected))
    room = first_call.room if expected["weaker"] else first_call.room // 4
    assert later_value == replace(first_call, room=room, **expected)


def test_a_rejection_of_the_text_is_a_refusal() -> None:
    with pytest.raises(Refused, match="context length"):
        extract_episode(
            EXTRACTOR, shipped(), READING, [ModelReply(mode="text", rejection="400: context length")]
        )


def test_reading_in_steps_asks_for_names_then_facts_then_dates() -> None:
    model_replies = replies(
        {"entities": NAMES}, {"facts": [FACT]}, {"facts": [{"id": 0, "start": None, "end": None}]}
    )
    tasks = [
        call_of(extract_episode(STEPWISE, shipped(), READING, model_replies[:count])).task
        for count in range(3)
    ]
    assert tasks == ["extract_entities", "extract_facts", "date_facts"]
    result = extract_episode(STEPWISE, shipped(), READING, model_replies)
    assert not isinstance(result, NextCall)
    assert len(result.facts) == 1


@pytest.mark.parametrize(("apart", "calls"), [(False, ["batched"]), (True, ["resolve_entity", "compare"])])
def test_questions_are_sent_together_or_one_by_one(apart: bool, calls: list[str]) -> None:
    judge, request = (
        OpenAIJudge(CLIENT, Prompts(), apart=apart),
        QuestionRequest(episode=EPISODE, questions=QUESTIONS),
    )
    merged, compared = {"id": 0, "duplicate_of": 0}, {"id": 1, "answers": ["same", "independent"]}
    model_replies = replies({"answers": [merged, compared]})
    if apart:
        model_replies = replies({"answers": [merged]}, {"answers": [compared | {"id": 0}]})
    result = [resolve_node(judge, request, model_replies[:count]) for count in range(len(model_replies) + 1)]
    assert [call_of(item).task for item in result[:-1]] == calls
    assert result[-1].answers == ({"duplicate_of": 0}, {"answers": ["same", "independent"]})  # type: ignore[union-attr]


def test_a_model_without_prompts_gets_the_complete_request() -> None:
    """The rules and a script answer a request at once; their readings are grounded, too."""
    result = extract_episode(RulesExtractor(shipped()), shipped(), READING, ())
    assert result == NextCall("extract", "team", 7, READING.request)
    request = QuestionRequest(episode=EPISODE, questions=QUESTIONS[:1])
    assert resolve_node(RulesJudge(), request, ()) == NextCall("judge", "team", 7, request)


async def test_the_loop_holds_a_place_during_each_call_and_sums_the_costs() -> None:
    model_replies = iter(replies("no object", {"entities": NAMES, "facts": [FACT]}))
    events: list[str] = []

    @asynccontextmanager
    async def place() -> AsyncIterator[None]:
        events.append("in")
        yield
        events.append("out")

    async def step(reading: Reading, so_far: Sequence[Any]) -> Any:
        assert events.count("in") == events.count("out"), "no step runs in a place at the model"
        return extract_episode(EXTRACTOR, shipped(), reading, so_far)

    async def answer(_: NextCall) -> ModelReply:
        return next(model_replies)

    result = await Stepping(step, answer).carry_out(READING, place)
    assert result.cost == Cost(2, 20, 4)
    assert events == ["in", "out"] * 2


async def test_an_error_includes_the_cost_of_earlier_calls() -> None:
    model_replies = iter(replies("no object"))

    async def step(reading: Reading, so_far: Sequence[Any]) -> Any:
        return extract_episode(EXTRACTOR, shipped(), reading, so_far)

    async def answer(_: NextCall) -> ModelReply:
        try:
            return next(model_replies)
        except StopIteration:
            error = Unavailable("away")
            error.spent = Cost(1, 5, 0)
            raise error from None

    with pytest.raises(Unavailable) as caught:
        await Stepping(step, answer).carry_out(READING)
    assert caught.value.spent == Cost(2, 15, 2)


def test_the_rules_extractor_runs_in_the_same_loop() -> None:
    result = asyncio.run(local_extracting(RulesExtractor(shipped()), shipped()).carry_out(READING))
    assert [fact.text for fact in result.facts] == ["Alice works at Acme"]
