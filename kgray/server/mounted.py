"""MCP by streamable HTTP at /mcp/GROUP: the same tools, keys and bounds as the routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import product
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import Receive, Scope, Send

from kgray.domain.records import Draft, check_group
from kgray.errors import InputError
from kgray.memory.access import AccessKey
from kgray.server.asking import answered
from kgray.server.door import Door, check_scope
from kgray.server.mcp import Connection, build
from kgray.storage.ledger import Acceptance


class Mounted:
    """An ASGI app: a server for each set of tools, without sessions, so any replica can answer."""

    def __init__(self, door: Door) -> None:
        self._door = door

        def connection_of(ctx: Context[Any]) -> Any:  # noqa: ANN401 - a Connection
            request: Any = ctx.request_context.request
            return request.scope["state"]["connection"]

        self._servers = {
            (adds, forgets): build(connection_of, adds=adds, forgets=forgets, asks=door.memory.can_answer)
            for adds, forgets in product((True, False), repeat=2)
        }
        # `Front` has checked Host and Origin.
        options: dict[str, Any] = {"streamable_http_path": "/", "json_response": True, "stateless_http": True}
        options["transport_security"] = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._apps = {tools: server.streamable_http_app(**options) for tools, server in self._servers.items()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the servers; a mounted app's own lifespan is never entered."""
        async with AsyncExitStack() as stack:
            for server in self._servers.values():
                await stack.enter_async_context(server.session_manager.run())
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request at /mcp/GROUP, or at /mcp with a key that is bound to one group."""
        key: AccessKey | None = scope["state"].get("key")
        if named := scope["path"].removeprefix("/mcp").strip("/"):
            group = check_group(named)
        elif key is not None and len(key.groups) == 1 and key.groups[0][-1:] != "*":
            group = key.groups[0]
        else:
            message = (
                "name the group: /mcp/GROUP; only a key that is bound to a single group may leave it out"
            )
            raise InputError(message)
        check_scope(key, "read", group)
        door = self._door

        async def accept(drafts: list[Draft]) -> list[Acceptance]:
            door.check_room()
            return await door.appends.accept(drafts)

        scope["state"]["connection"] = Connection(
            memory=door.memory, group=group, read=door.read, change=door.change, call=door.call,
            ask=partial(answered, door),
            background=door.ingesting, accept=accept, key=key.id if key else "",
            count=lambda *labels: door.metrics.mcp_calls.labels(*labels).inc(),
        )  # fmt: skip
        tools = (key is None or key.allows("add"), key is None or key.allows("remove"))
        inner = {**scope, "path": "/", "raw_path": b"/", "root_path": ""}
        await self._apps[tools](inner, receive, send)
