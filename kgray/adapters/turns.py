"""An agent's use of a memory in its turns, independent of a framework."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from kgray.errors import InputError, KgrayError, Unavailable
from kgray.memory import AsyncMemory, Memory

SPEAKERS: Mapping[str, str] = {"user": "user", "assistant": "assistant"}  # the stored roles -> names
_log = logging.getLogger("kgray.adapters")


class Turns:
    """One group of a memory for an agent. Calls run in threads, so they do not block the agent's loop.

    memory      the object of `kgray.open`, `kgray.connect` or their `_async` forms
    tokens      the most tokens of a recalled context
    patience_s  seconds that a turn waits for a call; a longer call continues in the background
    strict      raise errors of the memory; else they are logged, and the turn continues without memory
    """

    def __init__(
        self, memory: Memory | AsyncMemory, group: str, *,
        tokens: int = 1500, patience_s: float = 10.0, strict: bool = False,
    ) -> None:  # fmt: skip
        self.group, self._memory = group, Memory.over(memory)
        self._tokens, self._patience_s, self._strict = tokens, patience_s, strict
        self._working: set[asyncio.Future[Any]] = set()

    async def recall(self, query: str, **options: Any) -> str:  # noqa: ANN401 - what `context` takes
        """Return the context for a query, as text for a prompt; "" = no hits. options: as_of, ..."""
        return str(await self._guarded(self._context(query, options)))

    async def keep(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Store messages (rows of `Memory.add_many`), and wait until they are in the graph."""
        await self._guarded(self._store([*rows]))

    async def retract(self, ids: Sequence[str]) -> None:
        """Retract messages."""
        await self._guarded(self._do("retract", episodes=ids))

    def tools(self) -> list[Callable[..., Coroutine[Any, Any, str]]]:
        """Return the functions `remember` and `recall`, for a framework to make tools of."""

        async def remember(text: str, speaker: str | None = None) -> str:
            """Keep a decision, preference, fact or date for later conversations, in the user's words."""
            row = {"text": text} | ({"speaker": speaker} if speaker else {})
            return await self._guarded(self._store([row]), tells=True) or "Kept."

        async def recall(query: str, as_of: str | None = None) -> str:
            """Look up what is known, each line dated. as_of (ISO 8601): what was true then."""
            recalled = await self._guarded(self._context(query, {"as_of": as_of}), tells=True)
            return recalled or "Nothing is known of that."

        return [remember, recall]

    async def _context(self, query: str, options: Mapping[str, Any]) -> str:
        if not query.strip():
            return ""
        context = await self._do("context", query, tokens=self._tokens, **options)
        return str(context.text) if context.hits else ""

    async def _store(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for refusal in (await self._do("add_many", rows)).refusals:
            raise InputError(f"a message was not kept: {refusal.reason}", field=refusal.field)

    async def _do(self, verb: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - the verb's own
        call = asyncio.to_thread(getattr(self._memory, verb), *args, group=self.group, **options)
        work = asyncio.ensure_future(call)
        self._working.add(work)
        work.add_done_callback(self._working.discard)
        await asyncio.wait({work}, timeout=self._patience_s)  # a timeout does not cancel the work
        if work.done():
            return work.result()
        work.add_done_callback(_late)
        raise Unavailable(f"the memory did not end {verb!r} within {self._patience_s:g} s; it goes on")

    async def _guarded(self, work: Coroutine[Any, Any, Any], *, tells: bool = False) -> Any:  # noqa: ANN401
        """Return the result of the work, or "" after an error; tells: return the error's text for a model."""
        try:
            return await work
        except KgrayError as error:
            if self._strict and not tells:
                raise
            _log.warning("the agent goes on without its memory: %s", error)
            return f"The memory failed: {error}" if tells else ""


def _late(work: asyncio.Future[Any]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        _log.warning("what a turn did not wait for failed: %s", error)
