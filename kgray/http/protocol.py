"""Bounds of what stands around bodies, which uvicorn does not set: its size and its time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0  # also from the connection to the first request
MAX_HEAD = 64 << 10  # bytes


class Bounded(HttpToolsProtocol):
    """One connection."""

    _late: asyncio.TimerHandle | None = None  # while a head is awaited, or an answered request goes on
    _size = 0  # bytes since the last head or body

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - uvicorn's own
        """Await a head."""
        super().connection_made(transport)
        self.on_message_begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Await nothing."""
        self._await(None)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Await the rest of a head; close the connection where it does not come."""
        super().on_message_begin()
        self._await(HEAD_S)

    def on_headers_complete(self) -> None:
        """Await nothing."""
        self._size = 0
        self._await(None)
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of a head; what follows a body is no part of it."""
        if self._late is not None:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body, whose size is bounded where it is read."""
        self._size = 0
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        """Take what has arrived; refuse a head, or what follows a body, that is too long."""
        self._size += len(data)
        super().data_received(data)
        asked: Any = self.cycle  # None before the first request
        if self.transport.is_closing():
            return
        if self._size > MAX_HEAD:
            self.send_400_response("The head of the request, or what follows its body, is too long.")
        elif self._late is None and asked is not None and asked.response_complete:
            self._await(HEAD_S)  # uvicorn's own bound is for a connection on which nothing comes

    def _await(self, seconds: float | None) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None if seconds is None else self.loop.call_later(seconds, self.transport.close)
