"""Bounds of a request's head, which uvicorn does not set: its size, and the time in which it arrives."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0  # also from the connection to the first request
MAX_HEAD = 64 << 10  # bytes


class Bounded(HttpToolsProtocol):
    """One connection."""

    _late: asyncio.TimerHandle | None = None  # while a head is awaited
    _size = 0

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - uvicorn's own
        """Await a head."""
        super().connection_made(transport)
        self.on_message_begin()

    def on_message_begin(self) -> None:
        """Await the rest of a head; close the connection where it does not come."""
        super().on_message_begin()
        if self._late is not None:
            self._late.cancel()
        self._size, self._late = 0, self.loop.call_later(HEAD_S, self.transport.close)

    def on_headers_complete(self) -> None:
        """Await nothing."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Take what has arrived; refuse a head that is too long."""
        super().data_received(data)
        self._size += len(data)
        if self._late is not None and self._size > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")
