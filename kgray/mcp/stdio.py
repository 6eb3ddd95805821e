"""MCP on standard input and output: the process's folder is the boundary, so there is no key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from anyio import to_thread

from kgray import times
from kgray.intake.drafts import Defaults, draft_from
from kgray.ledger import Acceptance, accept
from kgray.mcp.server import Seat, build
from kgray.memory import Memory
from kgray.memory.background import Background
from kgray.records import check_group


async def serve_stdio(memory: Memory, group: str, *, read_only: bool = False) -> None:
    """Serve one group until standard input ends; what is added is ingested meanwhile. Raises InputError."""
    background = Background(memory)

    async def run(verb: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **how: Any) -> Any:  # noqa: ANN401
        return await to_thread.run_sync(lambda: asyncio.run(verb(*args, **how)))

    async def append(row: Mapping[str, Any]) -> Acceptance:
        draft = draft_from(dict(row), Defaults(group=group))
        taken = await to_thread.run_sync(lambda: accept(memory.store, [draft], now=times.now()))
        background.appended(1)
        return taken[0]

    seat = Seat(
        memory=memory, group=check_group(group), read=run, change=run, background=background,
        append=append, call=to_thread.run_sync,
    )  # fmt: skip
    background.start()
    try:
        await build(lambda _: seat, adds=not read_only, forgets=not read_only).run_stdio_async()
    finally:
        await to_thread.run_sync(background.stop)
