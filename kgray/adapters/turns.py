"""What the turns of an agent do with a memory; knows no framework."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from kgray.errors import InputError, KgrayError, Unavailable
from kgray.memory.face import Blocking, BothWays

SPEAKERS: Mapping[str, str] = {"user": "user", "assistant": "assistant"}  # by role; others are not kept
_log = logging.getLogger("kgray.adapters")


class Turns:
    """One group of a memory, as an agent uses it. The verbs run in threads, and the agent's loop goes on.

    memory      of `kgray.open` or `kgray.connect`, as it is or within `with`
    tokens      of what is recalled, at most
    patience_s  how long a turn waits; what is not done by then goes on behind it
    strict      raise what goes wrong with the memory; else it is logged, and the turn goes on without it
    """

    def __init__(
        self, memory: BothWays | Blocking, group: str, *,
        tokens: int = 1500, patience_s: float = 10.0, strict: bool = False,
    ) -> None:  # fmt: skip
        self.group, self._verbs = group, Blocking(memory)
        self._tokens, self._patience_s, self._strict = tokens, patience_s, strict
        self._working: set[asyncio.Future[Any]] = set()

    async def recall(self, query: str, **asked: Any) -> str:  # noqa: ANN401 - what `context` takes
        """Return what is known about a query, to put into a prompt; "" = nothing. asked: as_of, ..."""
        return str(await self._spared(self._known(query, asked)))

    async def keep(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep messages, rows of `Memory.add_many`, and wait until they are in the graph."""
        await self._spared(self._kept([*rows]))

    async def retract(self, ids: Sequence[str]) -> None:
        """Take messages back."""
        await self._spared(self._do("retract", episodes=ids))

    def tools(self) -> list[Callable[..., Coroutine[Any, Any, str]]]:
        """Return `remember` and `recall` as functions, which each framework makes tools of."""

        async def remember(text: str, speaker: str | None = None) -> str:
            """Keep a decision, preference, fact or date for later conversations, in the user's words."""
            row = {"text": text} | ({"speaker": speaker} if speaker else {})
            return await self._spared(self._kept([row]), tells=True) or "Kept."

        async def recall(query: str, as_of: str | None = None) -> str:
            """Look up what is known, each line dated. as_of (ISO 8601): what was true then."""
            known = await self._spared(self._known(query, {"as_of": as_of}), tells=True)
            return known or "Nothing is known of that."

        return [remember, recall]

    async def _known(self, query: str, asked: Mapping[str, Any]) -> str:
        if not query.strip():
            return ""
        found = await self._do("context", query, tokens=self._tokens, **asked)
        return str(found.text) if found.hits else ""

    async def _kept(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for refusal in (await self._do("add_many", rows)).refusals:
            raise InputError(f"a message was not kept: {refusal.reason}", field=refusal.field)

    async def _do(self, verb: str, *args: Any, **how: Any) -> Any:  # noqa: ANN401 - the verb's own
        call = asyncio.to_thread(getattr(self._verbs, verb), *args, group=self.group, **how)
        work = asyncio.ensure_future(call)
        self._working.add(work)
        work.add_done_callback(self._working.discard)
        await asyncio.wait({work}, timeout=self._patience_s)  # which does not cancel it
        if work.done():
            return work.result()
        work.add_done_callback(_late)
        raise Unavailable(f"the memory did not end {verb!r} within {self._patience_s:g} s; it goes on")

    async def _spared(self, work: Coroutine[Any, Any, Any], *, tells: bool = False) -> Any:  # noqa: ANN401
        """Return what the work returns, else "". tells: the error instead, for a model to read."""
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
