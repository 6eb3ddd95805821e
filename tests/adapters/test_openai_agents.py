"""OpenAI's Agents SDK itself: its runner, with a model that only repeats given replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("agents", reason="not installed: openai-agents; run by `make test-adapters`")

from agents import Agent, ModelResponse, Runner, SQLiteSession, Usage, function_tool, set_tracing_disabled
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from kgray.adapters.openai_agents import KgraySession, instructions
from kgray.adapters.turns import Turns

set_tracing_disabled(disabled=True)


class Says(Model):
    """Replies with the given texts in turn, and records the instructions that it gets."""

    def __init__(self, *replies: Any) -> None:
        self.replies, self.instructions, self.inputs = list(replies), [], []

    async def get_response(self, system_instructions, input, *_, **__):  # noqa: A002 - the SDK's names
        self.instructions.append(system_instructions)
        self.inputs.append(input)
        return ModelResponse(output=[self.replies.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


def text(content_text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(text=content_text, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id="m", content=[content], role="assistant", status="completed", type="message"
    )


def call(name: str, **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        arguments=json.dumps(arguments), call_id=name, name=name, type="function_call"
    )


async def test_messages_of_a_session_are_known_in_the_next_session(memory):
    turns = Turns(memory, "team", patience_s=120, strict=True)
    model = Says(text("Noted."), text("At Acme."))
    agent = Agent(name="helper", instructions=instructions(turns, "Be brief."), model=model)
    speakers = {"user": "Alice"}
    first = KgraySession(SQLiteSession("chat-1"), turns, speakers)
    await Runner.run(agent, "I work at Acme.", session=first)
    second = KgraySession(SQLiteSession("chat-2"), turns, speakers)
    run = await Runner.run(agent, [{"role": "user", "content": "Where does Alice work?"}], session=second)
    assert run.final_output == "At Acme."
    assert model.instructions[0].startswith("Be brief.\n\n")
    assert "Alice works at Acme" in model.instructions[1]
    assert model.inputs[1] == [{"role": "user", "content": "Where does Alice work?"}]
    assert [item["role"] for item in await first.get_items()] == ["user", "assistant"]
    assert (first.session_id, second.session_id) == ("chat-1", "chat-2")


async def test_a_popped_message_is_retracted_and_a_cleared_session_is_remembered(memory):
    turns = Turns(memory, "team", patience_s=120, strict=True)
    session = KgraySession(SQLiteSession("chat-1"), turns, {"user": "Alice"})
    messages = [{"role": "user", "content": [{"type": "input_text", "text": f"I work at {firm}."}]}
            for firm in ("Acme", "Beta Labs")]  # fmt: skip
    await session.add_items(
        [*messages, {"type": "function_call", "name": "x", "call_id": "1", "arguments": ""}]
    )
    assert "Beta Labs" in await turns.recall("Where does Alice work?")
    assert (await session.pop_item())["type"] == "function_call"
    assert await session.pop_item() == messages[1]
    assert "Beta Labs" not in await turns.recall("Where does Alice work?")
    assert await session.get_items() == messages[:1]
    await session.clear_session()
    assert await session.get_items() == []
    assert "Acme" in await turns.recall("Where does Alice work?")


async def test_an_agent_calls_the_tools(memory):
    turns = Turns(memory, "team", patience_s=120)
    model = Says(
        call("remember", text="I work at Acme.", speaker="Alice"),
        call("recall", query="Where does Alice work?", as_of=None),
        text("Done."),
    )
    agent = Agent(name="helper", tools=[function_tool(tool) for tool in turns.tools()], model=model)
    run = await Runner.run(agent, "Remember it.")
    answers = [item["output"] for item in run.to_input_list() if item.get("type") == "function_call_output"]
    assert answers[0] == "Kept."
    assert "Alice works at Acme" in answers[1]
