"""The table of routes; method, path, scope of the key, handler, shape of the answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, NamedTuple

from fastapi import APIRouter, Response

from kgray.client import VERBS
from kgray.http import handlers, managing, models
from kgray.http.door import needs
from kgray.http.handlers import TAGGED, reads

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


class Route(NamedTuple):
    """One route. gives: the shape or the media type of its answer; more: statuses besides 200 and 304."""

    method: str
    path: str
    scope: str
    does: Callable[..., Any]
    gives: str = ""
    more: tuple[int, ...] = ()
    body: dict[str, Any] | None = None


_G = "/groups/{group}"
_NAMED = re.compile(r"\{(identifier|name_or_id)\}")  # what users name may hold a slash, sent as %2F
_SHAPES = {"neighbourhood": "Neighbourhood"}  # of the client's verbs
ROUTES = (
    Route("POST", f"{_G}/episodes", "add", handlers.append, "Accepted", (202,), _ROWS),
    Route("POST", f"{_G}/backfill", "add", handlers.backfill, more=(202,), body=_STREAM),
    Route("POST", f"{_G}/search", "read", handlers.search, "Hits"),
    Route("POST", f"{_G}/context", "read", handlers.context, "Context"),
    Route("GET", f"{_G}/search", "read", reads("search", gives="hits")),
    Route("GET", f"{_G}/context", "read", reads("context"), "Context"),
    Route("GET", f"{_G}/entities", "read", reads("entities", gives="entities"), "Entities"),
    Route("GET", f"{_G}/entities/{{name_or_id}}/history", "read", reads("history"), "History"),
    *(
        Route("GET", f"{_G}/{path}", "read", reads(verb, gives=gives), _SHAPES.get(verb, ""))
        for verb, (method, path, gives) in VERBS.items()
        if method == "GET" and verb != "status"
    ),
    Route("GET", f"{_G}/status", "read", handlers.status),
    Route("GET", f"{_G}/events", "read", handlers.events, "text/event-stream"),
    Route("GET", f"{_G}/dump", "read", handlers.dump, "application/x-ndjson"),
    Route("POST", f"{_G}/retry", "add", handlers.retry, more=(202,)),
    *(
        Route("POST", f"{_G}/{kind}", "correct", getattr(handlers, kind), more=(202,))
        for kind in ("merge", "distinct", "split", "undo")
    ),
    Route("POST", f"{_G}/retract", "correct", handlers.retract),
    Route("POST", f"{_G}/remove", "remove", handlers.remove),
    Route("DELETE", f"{_G}/episodes/{{identifier}}", "remove", handlers.remove_episode),
    Route("DELETE", _G, "remove", handlers.remove_group),
    Route("GET", "/groups", "read", handlers.groups),
    Route("GET", "/audit", "admin", managing.audit),
    Route("GET", "/keys", "admin", managing.keys),
    Route("POST", "/keys", "admin", managing.add_key),
    Route("DELETE", "/keys/{name}", "admin", managing.revoke_key),
    Route("GET", f"{_G}/webhooks", "admin", managing.webhooks),
    Route("POST", f"{_G}/webhooks", "admin", managing.add_webhook),
    Route("DELETE", f"{_G}/webhooks/{{name}}", "admin", managing.drop_webhook),
    Route("GET", f"{_G}/webhooks/{{name}}/deliveries", "admin", managing.deliveries),
    Route("POST", f"{_G}/webhooks/{{name}}/resend", "admin", managing.resend, more=(202,)),
)
_PROBLEM = {"content": {"application/problem+json": {"schema": models.ref("Problem")}}}


def router() -> APIRouter:
    """Return the routes under /v1."""
    made = APIRouter(prefix="/v1")
    for route in ROUTES:
        said = cleandoc(route.does.__doc__ or "")
        shape = models.ref(route.gives) if route.gives else {"type": "object"}
        shaped: dict[str, Any] = {"content": {"application/json": {"schema": shape}}}
        if "/" in route.gives:
            shaped = {"content": {route.gives: {"schema": _TEXT}}}
        made.add_api_route(
            _NAMED.sub(r"{\1:path}", route.path),
            route.does,
            methods=[route.method],
            dependencies=[needs(route.scope)],
            response_model=None,
            response_class=Response,
            summary=said.splitlines()[0].partition(";")[0].rstrip("."),
            description=f"{said}\n\nScope of the key: `{route.scope}`.",
            openapi_extra=route.body,
            responses={
                200: {"description": "Done", **shaped},
                **{
                    n: {"description": "See the page on serving", **(shaped if n < 300 else {})}
                    for n in (*route.more, *[304] * (route.does.__name__ in TAGGED))
                },
                "4XX": {"description": "The request is at fault", **_PROBLEM},
                "5XX": {"description": "Try again, or the server is at fault", **_PROBLEM},
            },
        )
    return made
