"""A client of one connection on loopback that costs little, and what it has seen."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Seen:
    """Times of answers in seconds, and how often each status came."""

    times: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def at(self, share: float) -> float:
        """Return a quantile, in milliseconds."""
        return round(sorted(self.times)[int(len(self.times) * share)] * 1000, 1) if self.times else 0.0


class Client:
    """One connection that asks again and again; nothing of a client library is measured with it."""

    def __init__(self, port: int, seen: Seen) -> None:
        """Connect at the first request."""
        self._port, self._seen = port, seen
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: object = None) -> str:
        """Return the status of an answer, and note the time it took."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        sent = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        began = time.perf_counter()
        writer.write(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        await reader.readexactly(length)
        self._seen.times.append(time.perf_counter() - began)
        status = lines[0].split()[1]
        self._seen.statuses[status] += 1
        return status
