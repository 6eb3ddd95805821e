"""LlamaIndex: a block of its `Memory` that keeps what leaves the queue, and recalls what is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import Field
from llama_index.core.memory.memory import BaseMemoryBlock

from kgray.adapters.turns import SPEAKERS, Turns


class KgrayBlock(BaseMemoryBlock[str]):
    """`Memory.from_defaults(..., memory_blocks=[KgrayBlock(turns=Turns(memory, "team"), priority=1)])`.

    speakers    the names of those who speak, by role; a role that is not named is not kept
    """

    name: str = "memory"
    turns: Turns = Field(exclude=True)
    speakers: Mapping[str, str] = Field(default=SPEAKERS)

    async def _aget(self, messages: Sequence[ChatMessage] | None = None, **_: Any) -> str:  # noqa: ANN401
        """Return what is known about the last thing that the user said."""
        asked = [one.content for one in messages or () if one.role.value == "user" and one.content]
        return await self.turns.recall(asked[-1]) if asked else ""

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Keep messages; those of one chat are one source."""
        await self.turns.keep(
            {
                "text": one.content,
                "speaker": self.speakers[one.role.value],
                "source": one.additional_kwargs.get("session_id"),
            }
            for one in messages
            if one.role.value in self.speakers and (one.content or "").strip()
        )
