"""Server-sent events: the response of every route that streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent

_LINE_END = "\n"
_GRACE_S = 5  # for a stream to end by itself when the server stops
Events = AsyncIterator[ServerSentEvent]


def event(name: str, data: Any, id_: str | None = None) -> ServerSentEvent:  # noqa: ANN401 - JSON
    """Return an event with JSON data on one line."""
    return ServerSentEvent(json.dumps(data), event=name, id=id_, sep=_LINE_END)


def comment(text: str) -> ServerSentEvent:
    """Return a comment, which clients ignore."""
    return ServerSentEvent(comment=text, sep=_LINE_END)


def streamed(events: Events) -> EventSourceResponse:
    """Return the response that sends events, and a comment after 15 seconds without one."""
    return EventSourceResponse(events, sep=_LINE_END, shutdown_grace_period=_GRACE_S)
