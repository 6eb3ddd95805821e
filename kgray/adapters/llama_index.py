"""LlamaIndex: a block of its `Memory` that stores messages that leave the queue, and recalls context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import Field
from llama_index.core.memory.memory import BaseMemoryBlock

from kgray.adapters.turns import SPEAKERS, Turns


class KgrayBlock(BaseMemoryBlock[str]):
    """`Memory.from_defaults(..., memory_blocks=[KgrayBlock(turns=Turns(memory, "team"), priority=1)])`.

    speakers    role -> name of the speaker; messages of other roles are not stored
    """

    name: str = "memory"
    turns: Turns = Field(exclude=True)
    speakers: Mapping[str, str] = Field(default=SPEAKERS)

    async def _aget(self, messages: Sequence[ChatMessage] | None = None, **_: Any) -> str:  # noqa: ANN401
        """Return the context for the user's last message."""
        texts = [row.content for row in messages or () if row.role.value == "user" and row.content]
        return await self.turns.recall(texts[-1]) if texts else ""

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Store messages; the source is the chat."""
        await self.turns.keep(
            {
                "text": row.content,
                "speaker": self.speakers[row.role.value],
                "source": row.additional_kwargs.get("session_id"),
            }
            for row in messages
            if row.role.value in self.speakers and (row.content or "").strip()
        )
