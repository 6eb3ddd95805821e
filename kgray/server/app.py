"""The app: the table of routes, their middleware, health, metrics, MCP at /mcp."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kgray import __version__
from kgray.errors import KgrayError, Unavailable
from kgray.memory import AsyncMemory
from kgray.memory.remote import VERBS
from kgray.memory.results import NewKey, WithdrawalCounts
from kgray.server import asking, board, exports, handlers, managing, models, page_files, replies
from kgray.server.door import OPEN, Door, needs
from kgray.server.handlers import CORRECTIONS, TAGGED, append, corrects, reads
from kgray.server.problems import ON_ERROR, TooLarge, answer, id_of
from kgray.server.replies import reply_of

_ROOT = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json", "/mcp", "/", "/page/{name}"})
BODY_S = 60.0  # for a whole body to arrive; of a backfill, between two pieces
_READY_S = 2.0

_ROW = {"text": "I work at Acme now", "speaker": "Alice", "at": "2026-03-01T09:00:00Z", "id": "chat-17"}
_OBJECT = {"type": "object", "additionalProperties": True}
_TEXT = {"type": "string"}
_LINES = {"schema": _TEXT, "example": f'{{"text": "{_ROW["text"]}"}}\n'}
_ARRAY = {"anyOf": [_OBJECT, {"type": "array", "items": _OBJECT}]}
_ROWS = {
    "parameters": [
        {"in": "path", "name": "group", "required": True, "schema": _TEXT, "example": "team"},
        *({"in": "header", "name": name, "schema": _TEXT} for name in ("Prefer", "Idempotency-Key")),
        *(
            {"in": "query", "name": name, "schema": schema}
            for name, schema in models.Appending.model_json_schema()["properties"].items()
        ),
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _ARRAY, "example": [_ROW]},
            "application/x-ndjson": _LINES,
        },
    },
}
_STREAM = {"requestBody": {"required": True, "content": {"application/x-ndjson": _LINES}}}


_FILE = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": _TEXT}}}}


class Route(NamedTuple):
    """A route. gives: the shape or the media type of its answer; statuses: in addition to 200 and 304."""

    method: str
    path: str
    scope: str
    does: Callable[..., Any]
    gives: Any
    statuses: tuple[int, ...] = ()
    body: dict[str, Any] | None = None


_G = "/groups/{group}"
_NAMED = re.compile(r"\{(identifier|name_or_id)\}")  # users' names may contain a slash, sent as %2F
ROUTES = (
    Route("POST", f"{_G}/episodes", "add", append, replies.Accepted, (202,), _ROWS),
    Route("POST", f"{_G}/backfill", "add", handlers.backfill, replies.Uploaded, (202,), _STREAM),
    Route("POST", f"{_G}/search", "read", handlers.search, replies.Hits),
    Route("POST", f"{_G}/context", "read", handlers.context, replies.Context),
    Route("POST", f"{_G}/ask", "read", asking.ask, replies.Answer),
    *(
        Route("GET", f"{_G}/{path}", "read", reads(verb), reply_of(verb))
        for verb, (method, path, _, _) in VERBS.items()
        if verb in ("search", "context") or (method == "GET" and verb not in ("dump", "status"))
    ),
    Route("GET", f"{_G}/status", "read", handlers.status, replies.Status),
    Route("POST", f"{_G}/preview", "read", board.preview, replies.Previewed),
    Route("POST", f"{_G}/files", "add", board.upload, replies.Uploaded, (202,), _FILE),
    Route("GET", "/key", "", board.own_key, replies.Rights),
    Route("GET", "/status", "read", board.server_status, replies.Board),
    Route("GET", "/status/events", "read", board.status_events, "text/event-stream"),
    Route("GET", "/schedules", "read", board.schedules, replies.Schedules),
    Route("GET", f"{_G}/events", "read", handlers.events, "text/event-stream"),
    Route("GET", f"{_G}/dump", "read", handlers.dump, "application/x-ndjson"),
    Route("GET", f"{_G}/export", "read", exports.export, "application/octet-stream", (206,)),
    Route("POST", f"{_G}/retry", "add", handlers.retry, replies.Retried, (202,)),
    *(
        Route("POST", f"{_G}/{kind}", "correct", corrects(kind), replies.Requested, (202,))
        for kind in CORRECTIONS
    ),
    Route("POST", f"{_G}/retract", "correct", handlers.retract, WithdrawalCounts),
    Route("POST", f"{_G}/remove", "remove", handlers.remove, WithdrawalCounts),
    Route("DELETE", f"{_G}/episodes/{{identifier}}", "remove", handlers.remove_episode, WithdrawalCounts),
    Route("DELETE", _G, "remove", handlers.remove_group, WithdrawalCounts),
    Route("GET", "/groups", "read", handlers.groups, replies.Groups),
    Route("GET", "/audit", "admin", managing.audit, replies.Audit),
    Route("GET", "/keys", "admin", managing.keys, replies.Keys),
    Route("POST", "/keys", "admin", managing.add_key, NewKey),
    Route("DELETE", "/keys/{name}", "admin", managing.revoke_key, replies.Named),
    Route("GET", f"{_G}/webhooks", "admin", managing.webhooks, replies.Webhooks),
    Route("POST", f"{_G}/webhooks", "admin", managing.add_webhook, replies.NewWebhook),
    Route("DELETE", f"{_G}/webhooks/{{name}}", "admin", managing.drop_webhook, replies.Named),
    Route("GET", f"{_G}/webhooks/{{name}}/deliveries", "admin", managing.deliveries, replies.Deliveries),
    Route("POST", f"{_G}/webhooks/{{name}}/resend", "admin", managing.resend, replies.Named, (202,)),
)


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
    app.router.routes.append(StarletteRoute(f"/v1{_G}/episodes", append, methods=["POST"]))
    app.router.routes.extend(_api_routes())
    _add_health(app, door)
    if mounted is not None:
        app.add_route("/mcp", mounted)  # an ASGI app is an endpoint too
        app.mount("/mcp", mounted)
    page_files.add(app)
    app.add_middleware(Front, door=door)
    return app


@cache
def _api_routes() -> Sequence[BaseRoute]:
    """Return the routes of ROUTES, which are the same in every app: to build them takes 0.2 s."""
    router = APIRouter()
    for route in ROUTES:
        _add(router, route)
    return router.routes


def _add(router: APIRouter, route: Route) -> None:
    """Add a route under /v1 and to the OpenAPI document."""
    summary = cleandoc(route.does.__doc__ or "")
    is_media = isinstance(route.gives, str)
    shaped = {"content": {route.gives: {"schema": _TEXT}}} if is_media else {"model": route.gives}
    problem = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    router.add_api_route(
        "/v1" + _NAMED.sub(r"{\1:path}", route.path),
        route.does,
        methods=[route.method],
        dependencies=[needs(route.scope)],
        response_model=None if is_media else route.gives,
        response_class=Response if is_media else JSONResponse,
        summary=summary.splitlines()[0].partition(";")[0].rstrip("."),
        description=f"{summary}\n\nScope of the key: `{route.scope or 'any'}`.",
        openapi_extra=route.body,
        responses={
            200: {"description": "Done", **(shaped if is_media else {})},
            **{
                n: {"description": "See the page on serving", **(shaped if n < 300 else {})}
                for n in (*route.statuses, *[304] * (route.does.__name__ in TAGGED))
            },
            "4XX": {"description": "The request has a fault", **problem},
            "5XX": {"description": "Try again, or the server has a fault", **problem},
        },
    )


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
                route = f"/v1{_G}/episodes" if scope.get("endpoint") is append else route
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
