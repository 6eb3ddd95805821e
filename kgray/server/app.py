"""The app: the routes and their middleware, health, metrics, MCP at /mcp."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kgray import __version__
from kgray.errors import KgrayError, Unavailable
from kgray.memory import AsyncMemory
from kgray.server import exports, page_files, replies
from kgray.server.door import OPEN, Door
from kgray.server.handlers import append
from kgray.server.problems import ON_ERROR, TooLarge, answer, id_of
from kgray.server.routes import GROUP, api_routes

_ROOT = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json", "/mcp", "/", "/page/{name}"})
BODY_S = 60.0  # for a whole body to arrive; of a backfill, between two pieces
_READY_S = 2.0


def create_app(memory: AsyncMemory, **options: Any) -> FastAPI:  # noqa: ANN401 - of `Door`
    """Return the ASGI app of a memory, which its owner closes after the app has shut down.

    options of `Door`: host, names, bounds, ingests, webhook_key, private_webhooks
    `app.state.door.ending = True` ends the open streams, before a server waits for its connections.
    """
    door = Door(memory, **options)
    mounted: Any = import_module("kgray.server.mounted").Mounted(door) if find_spec("mcp") else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if mounted is not None:
                await stack.enter_async_context(mounted.running())
            await stack.enter_async_context(door.opened())
            await stack.enter_async_context(app.state.exports.opened())
            yield

    app = FastAPI(
        title="kgray", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url=None, redirect_slashes=False, exception_handlers=dict(ON_ERROR),
    )  # fmt: skip
    app.state.door, app.state.exports = door, exports.Exports(memory)
    # Before the same route of the OpenAPI document: FastAPI's processing costs half of an append.
    app.router.routes.append(StarletteRoute(f"/v1{GROUP}/episodes", append, methods=["POST"]))
    app.router.routes.extend(api_routes())
    _add_health(app, door)
    if mounted is not None:
        app.add_route("/mcp", mounted)  # an ASGI app is an endpoint too
        app.mount("/mcp", mounted)
    page_files.add(app)
    app.add_middleware(Front, door=door)
    return app


def _add_health(app: FastAPI, door: Door) -> None:
    """Add the routes at the root, which are not in the OpenAPI document."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        try:
            async with asyncio.timeout(_READY_S):
                await door.call(door.access.changes)
        except TimeoutError:
            return await answer(request, Unavailable(f"the store gave no answer within {_READY_S:.0f} s"))
        return JSONResponse({"ready": True, "ingesting": door.ingesting.fault or None})

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(door.metrics.registry), media_type="text/plain; version=0.0.4")

    async def document(_: Request) -> Response:
        if app.openapi_schema is None:
            document_parts = get_openapi(title=app.title, version=app.version, routes=app.routes)
            parts = document_parts.setdefault("components", {})
            parts["schemas"]["Problem"] = replies.Problem.model_json_schema()
            parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            app.openapi_schema = document_parts | {"security": [{"key": []}, {}]}
        return JSONResponse(app.openapi_schema)

    handlers_by_name = {"healthz": healthz, "readyz": readyz, "metrics": metrics, "openapi.json": document}
    for name, does in handlers_by_name.items():
        app.add_route(f"/{name}", does)


class Front:
    """The middleware of every route: request id, host names, key, bounds of the body, metrics."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, pass it on, and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        request, began = Request(scope), time.perf_counter()

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", id_of(request).encode())]
                path = "/mcp" if scope["path"].startswith("/mcp") else scope["path"]
                path = "/page/{name}" if path.startswith("/page/") else path
                default = path if path in _ROOT else "none"
                route = getattr(scope.get("route"), "path_format", None) or default  # its template
                route = f"/v1{GROUP}/episodes" if scope.get("endpoint") is append else route
                seconds = time.perf_counter() - began
                self._door.metrics.answered(route, scope["method"], message["status"], seconds)
            await send(message)

        guard, headers = self._door.guard, request.headers
        max_bytes = None if scope["path"].endswith("/backfill") else self._door.bounds.max_body
        declared = headers.get("content-length", "0")
        try:
            if not (scope["path"] in OPEN or scope["path"].startswith("/page/")):
                guard.check_names(headers.get("host"), headers.get("origin"))
                scope["state"]["key"] = guard.caller(headers.get("authorization"))
            if max_bytes is not None and declared.isdecimal() and int(declared) > max_bytes:
                raise TooLarge(f"the body has {declared} bytes: at most {max_bytes}")
        except KgrayError as error:
            await (await answer(request, error))(scope, receive, sent)
            return
        await self._app(scope, _bounded(receive, max_bytes), sent)


def _bounded(receive: Receive, max_bytes: int | None) -> Receive:
    """Return `receive` with bounds on the body's size and on the time of its arrival.

    max_bytes: None = any size, if each piece arrives in time
    """
    received, is_complete, deadline = 0, False, time.monotonic() + BODY_S

    async def bounded() -> Message:
        nonlocal received, is_complete
        if is_complete:
            return await receive()
        try:
            async with asyncio.timeout(BODY_S if max_bytes is None else deadline - time.monotonic()):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "the body came too slowly") from None
        received += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        if max_bytes is not None and received > max_bytes:
            raise HTTPException(413, f"the body has more than {max_bytes} bytes")
        return message

    return bounded
