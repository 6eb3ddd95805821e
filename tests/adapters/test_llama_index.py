"""LlamaIndex itself, without a model: its AsyncMemory with our block."""

from __future__ import annotations

import pytest

pytest.importorskip("llama_index.core", reason="not installed: llama-index-core; run by `make test-adapters`")

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import AsyncMemory
from llama_index.core.tools import FunctionTool

from kgray.adapters.llama_index import KgrayBlock
from kgray.adapters.turns import Turns


def chat(session: str, turns: Turns, limit: int = 60) -> AsyncMemory:
    block = KgrayBlock(turns=turns, speakers={"user": "Alice"}, priority=1)
    return AsyncMemory.from_defaults(
        session_id=session, token_limit=limit, token_flush_size=5, memory_blocks=[block]
    )


async def test_flushed_messages_of_a_chat_are_known_in_the_next_chat(memory):
    turns = Turns(memory, "team", patience_s=120, strict=True)
    first = chat("chat-1", turns, limit=20)
    for sentence in ("I work at Acme.", "I live in Berlin."):
        await first.aput(ChatMessage(role="user", content=sentence))
        await first.aput(ChatMessage(role="assistant", content="I work at Nowhere, noted with thanks."))
    stored_turns = {row.text: (row.speaker, row.source) for row in (await memory.log(group="team")).episodes}
    assert stored_turns == {"I work at Acme.": ("Alice", "chat-1")}  # the last turn is still in the queue
    second = chat("chat-2", turns, limit=1000)
    await second.aput(ChatMessage(role="user", content="Where does Alice work?"))
    system, question = await second.aget()
    assert (system.role.value, question.content) == ("system", "Where does Alice work?")
    assert "Alice works at Acme" in system.content


async def test_the_tools_are_functions_of_the_framework(memory):
    remember, recall = (FunctionTool.from_defaults(async_fn=tool) for tool in Turns(memory, "team").tools())
    assert (await remember.acall(text="I work at Acme.", speaker="Alice")).content == "Kept."
    assert "Alice works at Acme" in (await recall.acall(query="Where does Alice work?")).content
    assert "as_of (ISO 8601)" in recall.metadata.description
