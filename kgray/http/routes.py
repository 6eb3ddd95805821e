"""The table of routes; method, path, scope of the key, handler, shape of the answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, NamedTuple

from fastapi import APIRouter, Response

from kgray.http import managing, models, reading, writing
from kgray.http.door import needs
from kgray.http.reading import TAGGED, reads

_ROW = {"text": "I work at Acme now", "speaker": "Alice", "at": "2026-03-01T09:00:00Z", "id": "chat-17"}
_OBJECT = {"type": "object", "additionalProperties": True}
_TEXT, _BOOL = {"type": "string"}, {"type": "boolean"}
_ROWS = {
    "parameters": [
        {"in": "path", "name": "group", "required": True, "schema": _TEXT, "example": "team"},
        *({"in": "header", "name": name, "schema": _TEXT} for name in ("Prefer", "Idempotency-Key")),
        *({"in": "query", "name": name, "schema": _BOOL} for name in ("replace", "again", "dry_run")),
        {"in": "query", "name": "on_error", "schema": {"enum": ["skip", "stop"]}},
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"anyOf": [_OBJECT, {"type": "array", "items": _OBJECT}]},
                "example": [_ROW],
            },
            "application/x-ndjson": {
                "schema": _TEXT,
                "example": f'{{"text": "{_ROW["text"]}"}}\n',
            },
        },
    },
}
_LINES = {"requestBody": {"required": True, "content": {"application/x-ndjson": {"schema": _TEXT}}}}


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
ROUTES = (
    Route("POST", f"{_G}/episodes", "add", writing.append, "Accepted", (202,), _ROWS),
    Route("POST", f"{_G}/backfill", "add", writing.backfill, more=(202,), body=_LINES),
    Route("GET", f"{_G}/episodes", "read", reads("log")),
    Route("GET", f"{_G}/episodes/{{identifier}}", "read", reads("episode")),
    Route("POST", f"{_G}/search", "read", reading.search, "Hits"),
    Route("POST", f"{_G}/context", "read", reading.context, "Context"),
    Route("GET", f"{_G}/search", "read", reads("search", gives="hits")),
    Route("GET", f"{_G}/context", "read", reads("context"), "Context"),
    Route("GET", f"{_G}/entities", "read", reads("entities", gives="entities"), "Entities"),
    Route("GET", f"{_G}/entities/{{name_or_id}}/history", "read", reads("history"), "History"),
    Route("GET", f"{_G}/show/{{identifier}}", "read", reads("show", gives="records")),
    Route("GET", f"{_G}/communities", "read", reads("communities", gives="communities")),
    Route("GET", f"{_G}/communities/{{identifier}}", "read", reads("community")),
    Route("GET", f"{_G}/duplicates", "read", reads("duplicates", gives="pairs")),
    Route("GET", f"{_G}/graph", "read", reads("neighbourhood"), "Neighbourhood"),
    Route("GET", f"{_G}/diff", "read", reads("diff")),
    Route("GET", f"{_G}/changes", "read", reads("changes")),
    Route("GET", f"{_G}/events", "read", reading.events, "text/event-stream"),
    Route("GET", f"{_G}/dump", "read", reading.dump, "application/x-ndjson"),
    Route("GET", f"{_G}/status", "read", reading.status),
    Route("GET", f"{_G}/failures", "read", reads("failures", gives="failures")),
    Route("POST", f"{_G}/retry", "add", writing.retry, more=(202,)),
    Route("POST", f"{_G}/merge", "correct", writing.merge, more=(202,)),
    Route("POST", f"{_G}/distinct", "correct", writing.distinct, more=(202,)),
    Route("POST", f"{_G}/split", "correct", writing.split, more=(202,)),
    Route("POST", f"{_G}/undo", "correct", writing.undo, more=(202,)),
    Route("POST", f"{_G}/retract", "correct", writing.retract),
    Route("POST", f"{_G}/remove", "remove", writing.remove),
    Route("DELETE", f"{_G}/episodes/{{identifier}}", "remove", writing.remove_episode),
    Route("DELETE", _G, "remove", writing.remove_group),
    Route("GET", f"{_G}/operations/{{sequence}}", "read", reads("operation")),
    Route("GET", "/groups", "read", reading.groups),
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
