"""A cheap client with a single connection on loopback, and its responses."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Responses:
    """Seconds of the answers that were no errors, and how often each status came."""

    times: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def at(self, share: float) -> float:
        """Return a quantile, in milliseconds."""
        return round(sorted(self.times)[int(len(self.times) * share)] * 1000, 1) if self.times else 0.0


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run clients in a loop that takes little from the server beside it."""
    import uvloop

    return uvloop.run(work)


class Client:
    """One connection that asks again and again; nothing of a client library is measured with it."""

    def __init__(self, port: int, responses: Responses) -> None:
        """Connect at the first request."""
        self._port, self._responses = port, responses
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: object = None, *, obeys: bool = False) -> str:
        """Return the status of an answer, and note the time it took.

        obeys: wait as long as a 503 says
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        sent = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        began = time.perf_counter()
        writer.write(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(_header(answer, "content-length")))
        status = answer[9:12]
        self._responses.statuses[status] += 1
        if status < "400":
            self._responses.times.append(time.perf_counter() - began)
        elif obeys and status == "503":
            await asyncio.sleep(float(_header(answer, "retry-after")))
        return status


def _header(answer: str, name: str) -> str:
    return answer.partition(f"\r\n{name}: ")[2].partition("\r\n")[0]
