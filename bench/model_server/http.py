"""HTTP/1.1 with keep-alive on the loopback address: as much of it as a model client needs, and bounded."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bench.model_server.service import Answer, Service

HOST = "127.0.0.1"
MAX_BODY = 16 << 20
MAX_HEADER = 64 << 10
MAX_CONNECTIONS = 512
_READ_S = 60.0  # for a head or a body once begun, and for the next request of a kept connection
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    411: "Length Required",
    413: "Content Too Large",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    body: bytes
    keep: bool


class _Bad(Exception):
    """A request that ends the connection."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ModelServer:
    """`async with ModelServer(service) as server:` serves at server.base_url until the block ends.

    idle_s: `wait` returns after so many seconds without a request, so that a forgotten server ends itself.
    """

    def __init__(self, service: Service, *, port: int = 0, idle_s: float = 600.0) -> None:
        """Keep the service; port 0 takes a free one."""
        self.service = service
        self.port = port
        self._idle_s = idle_s
        self._last = time.monotonic()
        self._busy = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def base_url(self) -> str:
        """What a client takes as its base URL."""
        return f"http://{HOST}:{self.port}/v1"

    async def __aenter__(self) -> Self:
        """Bind and serve. Raises OSError where the port is taken."""
        self._server = await asyncio.start_server(
            self._serve, HOST, self.port, limit=MAX_HEADER, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def wait(self) -> None:
        """Return once no request has come for idle_s seconds."""
        left = self._idle_s
        while left > 0 or self._busy:
            await asyncio.sleep(min(1.0, max(left, 0.05)))
            left = self._last + self._idle_s - time.monotonic()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this in a task
        self._connections.add(task)
        try:
            if len(self._connections) > MAX_CONNECTIONS:
                await _send(writer, _plain(503, "too many connections"), keep=False)
                return
            while await self._one(reader, writer):
                pass
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client is gone
        except asyncio.CancelledError:
            pass  # the server ends; asyncio's streams would report a cancelled task as a fault
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        try:
            request = await _read(reader)
        except _Bad as bad:
            await _send(writer, _plain(bad.status, str(bad)), keep=False)
            return False
        if request is None:
            return False
        self._last = time.monotonic()
        self._busy += 1
        try:
            answer = await self.service.answer(request.method, request.path, request.body)
            if answer.hang_s:
                await asyncio.sleep(answer.hang_s)
                return False
            await _send(writer, answer, keep=request.keep)
        finally:
            self._busy -= 1
            self._last = time.monotonic()
        return request.keep


async def _read(reader: asyncio.StreamReader) -> _Request | None:
    """Return the next request, None at the end of the connection."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _READ_S)
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise _Bad(400, "the head of the request is cut") from None
        return None
    except asyncio.LimitOverrunError:
        raise _Bad(400, f"the head of the request is longer than {MAX_HEADER} bytes") from None
    line, *lines = head.decode("latin-1").split("\r\n")
    parts = line.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise _Bad(400, "the request line is none of HTTP/1")
    headers = {}
    for text in lines:
        name, colon, value = text.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    if "transfer-encoding" in headers:
        raise _Bad(411, "give a Content-Length")
    length = headers.get("content-length", "0")
    if not length.isdigit():
        raise _Bad(400, "Content-Length is no number")
    if int(length) > MAX_BODY:
        raise _Bad(413, f"the body is longer than {MAX_BODY} bytes")
    body = await asyncio.wait_for(reader.readexactly(int(length)), _READ_S)
    keep = headers.get("connection", "").lower() != "close" and parts[2] == "HTTP/1.1"
    return _Request(parts[0], parts[1], body, keep)


async def _send(writer: asyncio.StreamWriter, answer: Answer, *, keep: bool) -> None:
    body = json.dumps(answer.body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    lines = [
        f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Error')}",
        "Content-Type: application/json; charset=utf-8",
        f"Content-Length: {len(body)}",
        f"Connection: {'keep-alive' if keep else 'close'}",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
    ]
    writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
    await writer.drain()


def _plain(status: int, message: str) -> Answer:
    return Answer(status, {"error": {"message": message, "type": "invalid_request_error", "code": None}})
