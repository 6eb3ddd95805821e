"""uvicorn with bounds on the size and the time of everything outside bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0  # for a request's head, also from the connection to the first request
_MAX_HEAD = 64 << 10  # bytes


def server_of(
    app: FastAPI, host: str, port: int, ready: Callable[[str], None] = lambda _: None, grace_s: int = 10
) -> uvicorn.Server:
    """Return a server of an app of `create_app`.

    ready   called with the address when the server answers
    grace_s for requests in flight, after SIGTERM; streams end at once
    """

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:  # noqa: ANN401 - uvicorn's own
            await super().startup(sockets)
            if self.started:
                bound = self.servers[0].sockets[0].getsockname()[1]
                ready(f"http://{f'[{host}]' if ':' in host else host}:{bound}")

        async def shutdown(self, sockets: Any = None) -> None:  # noqa: ANN401 - uvicorn's own
            app.state.door.ending = True
            await super().shutdown(sockets)

    # Without proxy_headers: no code uses a client's address.
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
    options: dict[str, Any] = {"http": _Bounded, "proxy_headers": False, "timeout_keep_alive": 75}
    return Server(uvicorn.Config(app, host, port, timeout_graceful_shutdown=grace_s, **quiet, **options))


class _Bounded(HttpToolsProtocol):
    _late: asyncio.TimerHandle | None = None  # while a head is awaited, or an answered request sends more
    _size = 0  # bytes since the last head or body

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().connection_made(transport)
        self.on_message_begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await(HEAD_S)

    def on_headers_complete(self) -> None:
        self._size = 0
        self._await(None)
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._late is not None:  # lines after a body are not part of a head
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._size = 0  # the reader of the body bounds its size
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        self._size += len(data)
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        if self.transport.is_closing():
            return
        if self._size > _MAX_HEAD:
            self.send_400_response("The head of the request, or the data after its body, is too long.")
        elif self._late is None and cycle is not None and cycle.response_complete:
            self._await(HEAD_S)  # uvicorn's own bound covers only silent connections

    def _await(self, seconds: float | None) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None if seconds is None else self.loop.call_later(seconds, self.transport.close)
