"""Bounds of a request's head, which uvicorn does not set: its size, and the time in which it arrives."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0  # also from the connection to the first request
MAX_HEAD = 64 << 10  # bytes


class Bounded(HttpToolsProtocol):
    """One connection."""

    _late: asyncio.TimerHandle | None = None
    _size = 0

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - uvicorn's own
        """Wait for a head."""
        super().connection_made(transport)
        self.on_head_begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self.on_head_end()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Wait for the rest of a head."""
        super().on_message_begin()
        self.on_head_begin()

    def on_headers_complete(self) -> None:
        """Wait no longer."""
        self.on_head_end()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Take what has arrived; refuse a head that is too long."""
        super().data_received(data)
        self._size += len(data)
        if self._late is not None and self._size > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_head_begin(self) -> None:
        """Close the connection where the head does not end in time."""
        self.on_head_end()
        self._size, self._late = 0, self.loop.call_later(HEAD_S, self.transport.close)

    def on_head_end(self) -> None:
        """Let it be."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
