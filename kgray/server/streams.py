"""Server-sent events: the response of every route that streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent

_GRACE_S = 5  # for a stream to end by itself when the server stops


def event(name: str, data: Any, id_: str | None = None) -> ServerSentEvent:  # noqa: ANN401 - JSON
    """Return an event with JSON data on one line."""
    return ServerSentEvent(json.dumps(data), event=name, id=id_)


def streamed(events: AsyncIterator[ServerSentEvent]) -> EventSourceResponse:
    """Return the response that sends events, and comments while there are none."""
    return EventSourceResponse(events, sep="\n", shutdown_grace_period=_GRACE_S)
