"""The latency of a simulated model: time to first token, tokens a second, parallel streams."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How fast a model answers; streams: answers at one time, further ones wait their turn."""

    streams: int = 32
    first_token_s: float = 0.15
    tokens_per_s: float = 100.0

    def seconds(self, completion_tokens: int) -> float:
        """Return how long one answer takes once it has a stream."""
        return self.first_token_s + (completion_tokens / self.tokens_per_s if self.tokens_per_s else 0.0)

    def ceiling(self, completion_tokens: float) -> float:
        """Return answers of this length a second with every stream busy; infinite where they take no time."""
        return (
            self.streams / duration if (duration := self.seconds(round(completion_tokens))) else float("inf")
        )


ZERO = Latency(streams=1 << 20, first_token_s=0.0, tokens_per_s=0.0)
DEFAULT = Latency()
PRESETS = {"zero": ZERO, "default": DEFAULT}


@dataclass(slots=True)
class Streams:
    """The streams of one server, in use."""

    latency: Latency
    busy: int = 0
    waiting: int = 0
    most_waiting: int = 0
    busy_s: float = 0.0
    _gate: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        """Open the gate."""
        self._gate = asyncio.Semaphore(self.latency.streams)

    async def take(self, completion_tokens: int) -> None:
        """Wait as long as an answer of this many tokens takes."""
        took = self.latency.seconds(completion_tokens)
        if not took:
            return
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            await self._gate.acquire()
        finally:
            self.waiting -= 1
        self.busy += 1
        try:
            await asyncio.sleep(took)
            self.busy_s += took
        finally:
            self.busy -= 1
            self._gate.release()


def tokens(text: str) -> int:
    """Return the estimated number of tokens of a text: a quarter of its characters."""
    return len(text) // 4
