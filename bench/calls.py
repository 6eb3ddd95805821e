"""`python -m bench calls`: the CPU of the client for one call of a model's server."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

from bench.fixed_replies import PIECES, FixedReplies
from kgray.domain.ontology import shipped
from kgray.models.openai_api.client import Client, Endpoint, TokensSpent
from kgray.models.openai_api.dialects import Dialect
from kgray.models.prompting.prompts import Prompts
from kgray.models.prompting.reply_schemas import extraction_schemas

_TEXT = "I work at Acme since 2018, and I live in Bonn with Mia, who plays chess. " * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFigures:
    """Milliseconds of CPU of this process for a call, in each round after an uncounted round.

    streamed: of replies that come as a piece a token; a tenth of the calls
    """

    calls: int
    concurrency: int
    whole: list[float]
    streamed: list[float]


def run(calls: int, concurrency: int, rounds: int) -> CallFigures:
    """Measure calls of the prompt `combined`: their replies whole, then as streams."""
    prompt = Prompts(shipped())["combined"]
    body = Dialect().body(prompt, _TEXT, extraction_schemas()["combined"], room=1024)

    async def measured(client: Client, *, streams: bool) -> float:
        count = -(-calls // 10) if streams else calls
        turns = iter(range(count))

        async def worker() -> None:
            for _ in turns:
                await client.chat(body, TokensSpent(), (lambda _: None) if streams else None)

        start = time.process_time()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return round((time.process_time() - start) / count * 1000, 3)

    async def all_rounds(url: str) -> CallFigures:
        client = Client(Endpoint(base_url=url, name="m", max_concurrency=concurrency))
        complete = [await measured(client, streams=False) for _ in range(rounds + 1)]
        streamed = [await measured(client, streams=True) for _ in range(rounds + 1)]
        return CallFigures(calls=calls, concurrency=concurrency, whole=complete[1:], streamed=streamed[1:])

    with FixedReplies() as server:
        return asyncio.run(all_rounds(server.base_url))


def table(figures: CallFigures) -> str:
    """Return the figures for people."""
    rows = [("whole reply", figures.whole), (f"stream of {PIECES} pieces", figures.streamed)]
    return "\n".join(
        f"{name:22} median {statistics.median(ms):.2f} ms of CPU a call ({min(ms):.2f} to {max(ms):.2f})"
        for name, ms in rows
    )
