"""OpenAI's HTTP interface on the loopback address, served by Starlette and uvicorn."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.world.model_server.service import HttpAnswer, Service, refusal

HOST = "127.0.0.1"
_LOOK_S = 1.0  # how often the server asks whether it is still needed


class ModelServer:
    """`async with ModelServer(service) as server:` serves at server.base_url until the block ends.

    idle_s: `wait` returns after this number of seconds without a request, or when the parent process has
    ended, so that a forgotten server stops.
    """

    def __init__(self, service: Service, *, port: int = 0, idle_s: float = 600.0) -> None:
        """Keep the service; port 0 takes a free one."""
        self.service = service
        self.port = port
        self._idle_s = idle_s
        self._parent = os.getppid()
        self._busy = 0
        self._asked_at = time.monotonic()

    @property
    def base_url(self) -> str:
        """The base URL for clients."""
        return f"http://{HOST}:{self.port}/v1"

    async def __aenter__(self) -> Self:
        """Bind and serve. Raises OSError where the port is taken."""
        listener = socket.create_server((HOST, self.port), backlog=1024)
        # Inherited by its connections. Without it a reply, which is written as head and body, waits 40 ms for
        # the client's acknowledgement; asyncio sets it only for sockets that it has made itself.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = listener.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app(),
                access_log=False,
                date_header=False,
                http="h11",  # the same on every machine; it bounds the head of a request, too
                lifespan="off",
                log_config=None,
                loop="asyncio",
                log_level="critical",  # measurements kill clients on purpose
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=0,
                timeout_keep_alive=60,
                ws="none",
            )
        )
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection, including connections with unanswered requests."""
        self._server.should_exit = True
        await self._serving

    async def wait(self) -> None:
        """Return when the server is idle, its parent has ended, or it gets SIGTERM or SIGINT."""
        while os.getppid() == self._parent and not self._serving.done():
            remaining_s = self._asked_at + self._idle_s - time.monotonic()
            if remaining_s <= 0 and not self._busy:
                return
            await asyncio.wait({self._serving}, timeout=min(_LOOK_S, max(remaining_s, 0.05)))

    def _app(self) -> Starlette:
        service = self.service

        def posted(
            answer: Callable[[bytes], Awaitable[HttpAnswer]],
        ) -> Callable[[Request], Awaitable[Response]]:
            async def endpoint(request: Request) -> Response:
                self._busy += 1
                self._asked_at = time.monotonic()
                try:
                    return _response(await answer(await request.body()))
                finally:
                    self._busy -= 1
                    self._asked_at = time.monotonic()

            return endpoint

        async def models(_: Request) -> Response:
            return _response(service.models())

        async def stats(_: Request) -> Response:
            return _response(HttpAnswer(service.shown()))

        async def refused(request: Request, error: Exception) -> Response:
            status = error.status_code if isinstance(error, HTTPException) else 500
            return _response(refusal(status, f"{request.method} {request.url.path[:80]} is not served here"))

        return Starlette(
            routes=[
                Route("/v1/models", models),
                Route("/v1/stats", stats),
                Route("/v1/chat/completions", posted(service.chat), methods=["POST"]),
                Route("/v1/embeddings", posted(service.embeddings), methods=["POST"]),
            ],
            exception_handlers={HTTPException: refused},
        )


def _response(answer: HttpAnswer) -> Response:
    if answer.streams:
        events = b"".join(b"data: %b\n\n" % _bytes(event) for event in answer.events())
        return Response(events + b"data: [DONE]\n\n", headers={"Content-Type": "text/event-stream"})
    headers = {"Content-Type": "application/json; charset=utf-8", **answer.headers}
    return Response(_bytes(answer.body), answer.status, headers)


def _bytes(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
