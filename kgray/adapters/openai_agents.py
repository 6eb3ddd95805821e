"""OpenAI's Agents SDK: a session that stores its messages, and instructions that include context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

from agents import Agent, RunContextWrapper
from agents.memory import Session, SessionSettings

from kgray.adapters.turns import SPEAKERS, Turns


class KgraySession:
    """A session that wraps a session with the exact items, and also stores the messages in the memory.

        Runner.run(agent, text, session=KgraySession(SQLiteSession("chat-1"), Turns(memory, "team")))

    speakers    role -> name of the speaker; messages of other roles are not stored
    Popping a message retracts it, if this object added it. Clearing the session does not change the memory.
    """

    def __init__(self, session: Session, turns: Turns, speakers: Mapping[str, str] = SPEAKERS) -> None:
        self.session_id: str = session.session_id
        self.session_settings: SessionSettings | None = session.session_settings
        self._session, self._turns, self._speakers = session, turns, speakers
        self._added: list[str | None] = []  # the ids of the items at the session's end

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the latest items, as they were added."""
        return [*await self._session.get_items(limit)]

    async def add_items(self, items: list[Any]) -> None:
        """Add items, and store the messages among them."""
        await self._session.add_items(items)
        rows = [self._row(item) for item in items]
        self._added += [row["id"] if row else None for row in rows]
        await self._turns.keep(row for row in rows if row)

    async def pop_item(self) -> Any:  # noqa: ANN401 - an item
        """Remove the last item and return it."""
        item = await self._session.pop_item()
        if self._added and (id_ := self._added.pop()):
            await self._turns.retract([id_])
        return item

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._session.clear_session()
        self._added.clear()

    def _row(self, item: Mapping[str, Any]) -> dict[str, str] | None:
        speaker, text = self._speakers.get(item.get("role", "")), _text(item)
        named = {"source": self.session_id, "id": f"{self.session_id}:{uuid4()}"}
        return {"text": text, "speaker": speaker, **named} if speaker and text else None


def instructions(turns: Turns, prompt: str = "") -> Callable[[RunContextWrapper, Agent], Awaitable[str]]:
    """Return instructions for an Agent: `prompt`, then the context for the input of the turn."""

    async def instruct(context: RunContextWrapper, _: Agent) -> str:
        texts = [_text(item) for item in context.turn_input if item.get("role") == "user"]
        recalled = await turns.recall(texts[-1]) if texts else ""
        return "\n\n".join(part for part in (prompt, recalled) if part)

    return instruct


def _text(item: Mapping[str, Any]) -> str:
    content = item.get("content") or ""
    parts = [content] if isinstance(content, str) else [part.get("text") or "" for part in content]
    return "\n".join(filter(None, parts)).strip()
