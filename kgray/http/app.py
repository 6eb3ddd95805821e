"""The app factory: middleware in front of the routes, health, metrics, MCP at /mcp."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kgray import __version__
from kgray.errors import KgrayError, Unavailable
from kgray.http.door import Bounds, Door
from kgray.http.guard import OPEN
from kgray.http.handlers import append
from kgray.http.models import SHAPES, schema
from kgray.http.problems import ON_ERROR, TooLarge, answer, id_of
from kgray.http.routes import router
from kgray.memory import Memory

_APPEND = "/v1/groups/{group}/episodes"
_ROOT = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json", "/mcp"})
_BODY_S = 60.0  # for a whole body to arrive; of a backfill, between two pieces
_READY_S = 2.0


def create_app(
    memory: Memory, *, host: str = "127.0.0.1", names: Collection[str] = (), bounds: Bounds | None = None,
    ingests: bool = True, webhook_key: bytes | None = None, private_webhooks: bool = False,
) -> FastAPI:  # fmt: skip
    """Return the ASGI app of a memory, which its owner closes after the app has shut down.

    host, names     see `Guard`: the address that is served, further names of the server
    ingests         False: another process ingests what is added here
    webhook_key     secrets of webhooks are derived with it; None: there are none
    `app.state.door.ending = True` ends the open streams, before a server waits for its connections.
    """
    door = Door(
        memory, host=host, names=names, bounds=bounds or Bounds(), ingests=ingests,
        webhook_key=webhook_key, private_webhooks=private_webhooks,
    )  # fmt: skip
    mounted: Any = import_module("kgray.http.mounted").Mounted(door) if find_spec("mcp") else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if mounted is not None:
                await stack.enter_async_context(mounted.running())
            await stack.enter_async_context(door.opened())
            yield

    app = FastAPI(
        title="kgray", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url=None, redirect_slashes=False, exception_handlers=dict(ON_ERROR),
    )  # fmt: skip
    app.state.door = door
    # In front of the same route of the document: FastAPI's way to it costs half of an append.
    app.router.routes.append(Route(_APPEND, append, methods=["POST"]))
    app.include_router(router())
    _add_health(app, door)
    if mounted is not None:
        app.add_route("/mcp", mounted)  # an ASGI app is an endpoint too
        app.mount("/mcp", mounted)
    app.add_middleware(Front, door=door)
    return app


def _add_health(app: FastAPI, door: Door) -> None:
    """Add the routes at the root, which are no part of the document."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        try:
            async with asyncio.timeout(_READY_S):
                await door.call(door.access.changes)
        except TimeoutError:
            return answer(request, Unavailable(f"the store gave no answer within {_READY_S:.0f} s"))
        return JSONResponse({"ready": True, "ingesting": door.ingesting.fault or None})

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(door.metrics.registry), media_type="text/plain; version=0.0.4")

    async def document(_: Request) -> Response:
        return JSONResponse(openapi(app))

    found = {"healthz": healthz, "readyz": readyz, "metrics": metrics, "openapi.json": document}
    for name, does in found.items():
        app.add_route(f"/{name}", does)


def openapi(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, made once."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, routes=app.routes)
        parts = made.setdefault("components", {})
        parts["schemas"] |= {shape: schema(shape) for shape in SHAPES}
        parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}, {}]
        app.openapi_schema = made
    return app.openapi_schema


class Front:
    """In front of every route: request id, names, key, bounds of the body, metrics."""

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
                seconds = time.perf_counter() - began
                self._door.metrics.answered(_route_of(scope), scope["method"], message["status"], seconds)
            await send(message)

        guard, headers = self._door.guard, request.headers
        most = None if scope["path"].endswith("/backfill") else self._door.bounds.max_body
        declared = headers.get("content-length", "0")
        try:
            if scope["path"] not in OPEN:
                guard.check_names(headers.get("host"), headers.get("origin"))
                scope["state"]["key"] = guard.caller(headers.get("authorization"))
            if most is not None and declared.isdecimal() and int(declared) > most:
                raise TooLarge(f"the body has {declared} bytes: at most {most}")
        except KgrayError as error:
            await answer(request, error)(scope, receive, sent)
            return
        await self._app(scope, _bounded(receive, most), sent)


def _bounded(receive: Receive, most: int | None) -> Receive:
    """Return `receive` with bounds: of the body's size, and of the time in which it arrives.

    most: bytes; None = any number, where each piece comes in time
    """
    taken, whole, until = 0, False, time.monotonic() + _BODY_S

    async def bounded() -> Message:
        nonlocal taken, whole
        if whole:
            return await receive()
        try:
            async with asyncio.timeout(_BODY_S if most is None else until - time.monotonic()):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "the body came too slowly") from None
        taken += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if most is not None and taken > most:
            raise HTTPException(413, f"the body has more than {most} bytes")
        return message

    return bounded


def _route_of(scope: Scope) -> str:
    """Return the template of the route that a request has met."""
    if scope.get("endpoint") is append:
        return _APPEND
    path = "/mcp" if scope["path"].startswith("/mcp") else scope["path"]
    return getattr(scope.get("route"), "path_format", None) or (path if path in _ROOT else "none")
