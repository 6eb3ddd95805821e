"""Answers of a model: each is written in a thread with its own event loop, until the client disconnects."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from anyio import to_thread
from fastapi import Request
from starlette.responses import Response

from kgray.domain.records import check_group
from kgray.errors import KgrayError
from kgray.search.answering import Answered
from kgray.server import models
from kgray.server.door import At, Door
from kgray.server.models import Group
from kgray.server.problems import Overloaded, answer
from kgray.server.streams import Events, event, streamed

_LONGEST_S = 900.0  # for an answer with all its calls
_LOOK_S = 1.0  # between two checks that the client is connected
Part = str | Answered  # a piece of the text, "" while nothing arrives; the complete answer at the end


class _Writing:
    """A call of `Memory.ask` in a thread; its parts, or its error, arrive in a queue of this loop."""

    def __init__(self, door: Door, question: str, arguments: dict[str, Any]) -> None:
        self._door, self._question, self._arguments = door, question, arguments
        self._loop = asyncio.get_running_loop()
        self.parts: asyncio.Queue[Part | Exception] = asyncio.Queue()
        self._inner: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._is_cancelled = False

    def run(self) -> None:
        """Write the answer; blocks."""

        async def work() -> Answered:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - asyncio.run makes one
            self._inner = asyncio.get_running_loop(), task
            if self._is_cancelled:
                raise asyncio.CancelledError
            return await self._door.memory.ask(self._question, on_text=self._send, **self._arguments)

        outcome: Answered | Exception
        try:
            outcome = asyncio.run(work())
            self._door.metrics.called("answer", "ok", outcome.cost)
        except asyncio.CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - it is the answer of the request
            if isinstance(error, KgrayError):
                self._door.metrics.called("answer", type(error).__name__, error.spent)
            outcome = error
        self._send(outcome)

    def _send(self, part: Part | Exception) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.parts.put_nowait, part)

    def cancel(self) -> None:
        """End the running calls of the model."""
        self._is_cancelled = True
        if self._inner is not None and not self._inner[0].is_closed():
            self._inner[0].call_soon_threadsafe(self._inner[1].cancel)


async def parts_of(door: Door, question: str, **arguments: Any) -> AsyncIterator[Part]:  # noqa: ANN401
    """Yield the parts of an answer, "" after each second without a part; closing it ends the model's calls.

    arguments: of `Memory.ask`. Raises its errors, and Overloaded if too many answers are being written.
    """
    if door.answers.available_tokens < 1:
        raise Overloaded(f"{door.bounds.max_answers} answers are being written: try again", wait_s=5)
    writing = _Writing(door, question, arguments)
    thread = asyncio.create_task(to_thread.run_sync(writing.run, limiter=door.answers))
    deadline = time.monotonic() + _LONGEST_S
    try:
        while True:
            try:
                part = await asyncio.wait_for(writing.parts.get(), _LOOK_S)
            except TimeoutError:
                if door.ending or time.monotonic() > deadline:
                    raise Overloaded("the answer was not written in time: ask again") from None
                part = ""
            if isinstance(part, Exception):
                raise part
            yield part
            if isinstance(part, Answered):
                return
    finally:
        writing.cancel()
        thread.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


async def answered(door: Door, question: str, **arguments: Any) -> Answered:  # noqa: ANN401 - of `Memory.ask`
    """Return an answer when it is complete."""
    async with aclosing(parts_of(door, question, **arguments)) as parts:  # type: ignore[type-var]
        async for part in parts:
            if isinstance(part, Answered):
                return part
    raise Overloaded("no answer was written: ask again")


async def ask(door: At, request: Request, group: Group, body: models.AskOf) -> Any:  # noqa: ANN401 - as below
    """Return a model's answer with its sources; with `stream`, as server-sent events.

    Events: `text` {"text"}, pieces of the answer; at the end `answer` with the complete document, or `error`
    with a problem.
    """
    check_group(group)
    parts = parts_of(door, body.query, group=group, **body.arguments())
    streams = body.stream or "text/event-stream" in request.headers.get("accept", "")
    if streams:
        first = await anext(parts)  # a faulty request gets its own status
        return streamed(_events(request, first, parts))
    async with aclosing(parts):  # type: ignore[type-var]
        async for part in parts:
            if isinstance(part, Answered):
                return part.as_dict()
            if await request.is_disconnected():
                break
    return Response(status_code=499)  # the client has disconnected


async def _events(request: Request, first: Part, parts: AsyncIterator[Part]) -> Events:
    """Yield the events of an answer; the end of the response ends the model's calls."""
    async with aclosing(parts):  # type: ignore[type-var]
        try:
            part = first
            while not isinstance(part, Answered):
                if part:
                    yield event("text", {"text": part})
                part = await anext(parts)
            yield event("answer", part.as_dict())
        except KgrayError as error:
            problem = bytes((await answer(request, error)).body)
            yield event("error", json.loads(problem))
