"""The app factory: middleware in front of the routes, problems for errors, health, metrics, MCP at /mcp."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kgray import __version__
from kgray.errors import InputError, KgrayError, Unavailable
from kgray.http.door import Bounds, Door, check_known
from kgray.http.guard import OPEN
from kgray.http.models import SHAPES, schema
from kgray.http.problems import PROBLEMS, Problem, TooLarge, answer, id_of, told
from kgray.http.routes import router
from kgray.http.writing import append
from kgray.memory import Memory

_APPEND = "/v1/groups/{group}/episodes"
_BODY_S = 60.0  # for a whole body to arrive; of a backfill, between two pieces
_READY_S = 2.0
_log = logging.getLogger("kgray.http")


def create_app(
    memory: Memory,
    *,
    host: str = "127.0.0.1",
    names: Collection[str] = (),
    bounds: Bounds | None = None,
    ingests: bool = True,
    mcp: bool = True,
    webhook_key: bytes | None = None,
    private_webhooks: bool = False,
) -> FastAPI:
    """Return the ASGI app of a memory, which its owner closes after the app has shut down.

    host, names     see `Guard`: the address that is served, further names of the server
    ingests         False: another process ingests what is added here
    mcp             serve MCP at /mcp too, where its package is installed
    webhook_key     secrets of webhooks are derived with it; None: there are none
    `app.state.door.ending = True` ends the open streams, before a server waits for its connections.
    """
    door = Door(
        memory, host=host, names=names, bounds=bounds or Bounds(), ingests=ingests,
        webhook_key=webhook_key, private_webhooks=private_webhooks,
    )  # fmt: skip
    mounted: Any = None
    if mcp and find_spec("mcp"):
        mounted = import_module("kgray.http.mounted").Mounted(door)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if mounted is not None:
                await stack.enter_async_context(mounted.running())
            await stack.enter_async_context(door.opened())
            yield

    app = FastAPI(
        title="kgray", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url=None, redirect_slashes=False, exception_handlers=dict(_ON_ERROR),
    )  # fmt: skip
    app.state.door = door
    # In front of the same route of the document: FastAPI's way to it costs half of an append.
    app.router.routes.append(Route(_APPEND, append, methods=["POST"]))
    app.include_router(router(), dependencies=[Depends(only_known)])
    _add_health(app, door)
    if mounted is not None:
        app.add_route("/mcp", mounted)  # an ASGI app is an endpoint too
        app.mount("/mcp", mounted)
    app.add_middleware(Front, door=door)
    return app


def _add_health(app: FastAPI, door: Door) -> None:
    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/readyz", include_in_schema=False)
    async def readyz(request: Request) -> Response:
        try:
            async with asyncio.timeout(_READY_S):
                await door.call(door.access.changes)
        except TimeoutError:
            return answer(request, Unavailable(f"the store gave no answer within {_READY_S:.0f} s"))
        return JSONResponse({"ready": True, "ingesting": door.ingesting.fault or None})

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(generate_latest(door.metrics.registry), media_type="text/plain; version=0.0.4")

    @app.get("/openapi.json", include_in_schema=False)
    async def document() -> Response:
        return JSONResponse(openapi(app))


async def only_known(request: Request) -> None:
    """Raise Malformed for a parameter that the route does not know."""
    check_known(request, [one.alias for one in request.scope["route"].dependant.query_params])


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


# ------------------------------------------------------------------------------------- errors


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, KgrayError)  # noqa: S101 - registered for these alone
    return answer(request, error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    """Answer what a model of a request refused: which fields, and why, without the values."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for these alone
    faults = [
        {"pointer": "/" + "/".join(str(part) for part in one["loc"][1:]), "detail": str(one["msg"])}
        for one in error.errors()
    ]
    broken = any(one["type"] == "json_invalid" for one in error.errors())
    detail = f"{faults[0]['pointer']}: {faults[0]['detail']}" if faults else "the request cannot be used"
    if broken:
        return told(request, Problem(400, "The request cannot be read"), "malformed", detail, faults=faults)
    return told(request, PROBLEMS[InputError], "input_error", detail, faults=faults)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for these alone
    names = {404: "not_found", 405: "method_not_allowed", 408: "too_slow", 413: "too_large", 400: "malformed"}
    titles = {404: "There is no such address", 405: "The address does not take this method"}
    title = titles.get(error.status_code, "The request cannot be used")
    code = names.get(error.status_code, "http")
    headers = dict(error.headers or {})
    return told(request, Problem(error.status_code, title), code, str(error.detail), headers=headers)


async def _on_fault(request: Request, error: Exception) -> Response:
    """Answer a defect of kgray: its class alone; the log has the rest, by the request's id."""
    _log.error("request %s met a fault", id_of(request), exc_info=error)
    detail = f"a fault in kgray ({type(error).__name__}); the server's log has it under the request's id"
    return told(request, PROBLEMS[KgrayError], "kgray_error", detail)


# ------------------------------------------------------------------------------------- in front


class Front:
    """In front of every route: request id, names, key, bounds of the body, metrics."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        """Stand in front of an app."""
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
                self._count(scope, message["status"], time.perf_counter() - began)
            await send(message)

        try:
            self._check(request)
        except KgrayError as error:
            await answer(request, error)(scope, receive, sent)
            return
        await self._app(scope, self._bounded(scope, receive), sent)

    def _check(self, request: Request) -> None:
        guard, headers = self._door.guard, request.headers
        if request.scope["path"] in OPEN:
            return
        guard.check_names(headers.get("host"), headers.get("origin"))
        request.scope["state"]["key"] = guard.caller(headers.get("authorization"))
        declared, most = headers.get("content-length", "0"), self._door.bounds.max_body
        if declared.isdecimal() and int(declared) > most and not _is_stream(request.scope):
            raise TooLarge(f"the body has {declared} bytes: at most {most}")

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """Return `receive` with bounds: of the body's size, and of the time in which it arrives."""
        taken, whole, until = 0, False, time.monotonic() + _BODY_S
        stream, most = _is_stream(scope), self._door.bounds.max_body

        async def bounded() -> Message:
            nonlocal taken, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout(_BODY_S if stream else until - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the body came too slowly") from None
            taken += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if taken > most and not stream:
                raise HTTPException(413, f"the body has more than {most} bytes")
            return message

        return bounded

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path_format", None)
        if route is None:
            other = "/mcp" if scope["path"].startswith("/mcp") else "none"
            route = _APPEND if scope.get("endpoint") is append else other
        self._door.metrics.answered(route, scope["method"], status, seconds)


def _is_stream(scope: Scope) -> bool:
    return str(scope["path"]).endswith("/backfill")


_ON_ERROR: Mapping[Any, Any] = {
    KgrayError: _on_error,
    RequestValidationError: _on_invalid,
    HTTPException: _on_http,
    Exception: _on_fault,
}
