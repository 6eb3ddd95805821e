"""The table of routes under /v1, and their entries in the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from inspect import cleandoc
from typing import Any, NamedTuple

from fastapi import APIRouter, Response
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute

from kgray.memory.remote import VERBS
from kgray.memory.results import NewKey, WithdrawalCounts
from kgray.server import asking, board, exports, handlers, managing, models, replies
from kgray.server.door import needs
from kgray.server.handlers import CORRECTIONS, TAGGED, append, corrects, reads
from kgray.server.replies import reply_of

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


GROUP = "/groups/{group}"
_NAMED = re.compile(r"\{(identifier|name_or_id)\}")  # users' names may contain a slash, sent as %2F
ROUTES = (
    Route("POST", f"{GROUP}/episodes", "add", append, replies.Accepted, (202,), _ROWS),
    Route("POST", f"{GROUP}/backfill", "add", handlers.backfill, replies.Uploaded, (202,), _STREAM),
    Route("POST", f"{GROUP}/search", "read", handlers.search, replies.Hits),
    Route("POST", f"{GROUP}/context", "read", handlers.context, replies.Context),
    Route("POST", f"{GROUP}/ask", "read", asking.ask, replies.Answer),
    *(
        Route("GET", f"{GROUP}/{path}", "read", reads(verb), reply_of(verb))
        for verb, (method, path, _, _) in VERBS.items()
        if verb in ("search", "context") or (method == "GET" and verb not in ("dump", "status"))
    ),
    Route("GET", f"{GROUP}/status", "read", handlers.status, replies.Status),
    Route("POST", f"{GROUP}/preview", "read", board.preview, replies.Previewed),
    Route("POST", f"{GROUP}/files", "add", board.upload, replies.Uploaded, (202,), _FILE),
    Route("GET", "/key", "", board.own_key, replies.Rights),
    Route("GET", "/status", "read", board.server_status, replies.Board),
    Route("GET", "/status/events", "read", board.status_events, "text/event-stream"),
    Route("GET", "/schedules", "read", board.schedules, replies.Schedules),
    Route("GET", f"{GROUP}/events", "read", handlers.events, "text/event-stream"),
    Route("GET", f"{GROUP}/dump", "read", handlers.dump, "application/x-ndjson"),
    Route("GET", f"{GROUP}/export", "read", exports.export, "application/octet-stream", (206,)),
    Route("POST", f"{GROUP}/retry", "add", handlers.retry, replies.Retried, (202,)),
    *(
        Route("POST", f"{GROUP}/{kind}", "correct", corrects(kind), replies.Requested, (202,))
        for kind in CORRECTIONS
    ),
    Route("POST", f"{GROUP}/retract", "correct", handlers.retract, WithdrawalCounts),
    Route("POST", f"{GROUP}/remove", "remove", handlers.remove, WithdrawalCounts),
    Route("DELETE", f"{GROUP}/episodes/{{identifier}}", "remove", handlers.remove_episode, WithdrawalCounts),
    Route("DELETE", GROUP, "remove", handlers.remove_group, WithdrawalCounts),
    Route("GET", "/groups", "read", handlers.groups, replies.Groups),
    Route("GET", "/audit", "admin", managing.audit, replies.Audit),
    Route("GET", "/keys", "admin", managing.keys, replies.Keys),
    Route("POST", "/keys", "admin", managing.add_key, NewKey),
    Route("DELETE", "/keys/{name}", "admin", managing.revoke_key, replies.Named),
    Route("GET", f"{GROUP}/webhooks", "admin", managing.webhooks, replies.Webhooks),
    Route("POST", f"{GROUP}/webhooks", "admin", managing.add_webhook, replies.NewWebhook),
    Route("DELETE", f"{GROUP}/webhooks/{{name}}", "admin", managing.drop_webhook, replies.Named),
    Route("GET", f"{GROUP}/webhooks/{{name}}/deliveries", "admin", managing.deliveries, replies.Deliveries),
    Route("POST", f"{GROUP}/webhooks/{{name}}/resend", "admin", managing.resend, replies.Named, (202,)),
)


@cache
def api_routes() -> Sequence[BaseRoute]:
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
