"""Killed at any instant while a model server answers: the same graph, no answer asked for twice (R19-R24)."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.model_server import ModelServer, Service
from bench.model_server.service import HttpAnswer
from bench.world import Latency, Oracle, World, WorldPlan
from bench.world.files import write
from tests.runtime.served import (
    PLAN,
    STREAMS,
    answer,
    asked,
    dump_hash,
    journaled,
    ledger,
    once,
    settings,
    start,
)

KILLS = 6
ANSWER_S = 0.03
DICE = random.Random(11)


class Killing(Service):
    """Serves the world, and kills whom it serves soon after the request that the test says."""

    def __init__(self) -> None:
        world = World(**PLAN)
        super().__init__(
            Oracle(world), latency=Latency(streams=STREAMS, first_token_s=ANSWER_S, tokens_per_s=0)
        )
        self.victim: subprocess.Popen[bytes] | None = None
        self.left, self._busy = 0, 0
        self.quiet = asyncio.Event()
        self.quiet.set()

    async def chat(self, body: bytes) -> HttpAnswer:
        """Answer, even where nobody waits for it any more."""
        self.left -= 1
        if self.left == 0 and self.victim is not None:
            asyncio.get_running_loop().call_later(DICE.uniform(0.0, ANSWER_S), self.victim.kill)
        self._busy += 1
        self.quiet.clear()
        try:
            return await super().chat(body)
        finally:
            self._busy -= 1
            if not self._busy:
                self.quiet.set()


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Killing, str]]:
    """Serve the world; yield the service and its address."""
    service = Killing()
    async with ModelServer(service) as server:
        yield service, server.base_url


async def told(*words: str, env: dict[str, str] | None = None) -> str:
    """Run the command to its end, while this process serves; return its stdout."""
    return await asyncio.to_thread(answer, *words, env=env)


async def ingest_under_fire(service: Killing, env: dict[str, str], world: Path, data: Path) -> list[int]:
    """Kill the command in the middle of its work, KILLS times.

    Returns what was asked by each kill, and last how many answers were on their way to the journal at the
    kills: those alone may be asked for again.
    """
    seen: list[int] = []
    lost = 0
    for _ in range(KILLS):
        # Five requests, and of each stream the next and the next but one: six times that are fewer than 80.
        service.left = DICE.randint(3, 5)
        process = service.victim = start("add", str(world), "--data", str(data), env=env)
        await asyncio.to_thread(process.communicate)
        assert process.returncode == -signal.SIGKILL, "killed in the middle, not after the end"
        kept = await asyncio.to_thread(journaled, data)
        await service.quiet.wait()  # what it was still answering counts, too
        lost += once(service.shown()) - kept
        seen.append(asked(service.shown()))
    service.victim = None
    return [*seen, lost]


async def test_six_kills_leave_the_graph_of_an_undisturbed_run_and_no_journaled_answer_is_asked_again(
    tmp_path: Path,
) -> None:
    world, calm, killed = (tmp_path / name for name in ("world.jsonl", "calm", "killed"))
    write(WorldPlan(**PLAN), world, None)
    async with serving() as (service, base_url):
        await told("add", str(world), "--data", str(calm), env=settings(base_url))
        undisturbed = service.shown()
    async with serving() as (service, base_url):
        *seen, lost = await ingest_under_fire(service, settings(base_url), world, killed)
        await told("add", str(world), "--data", str(killed), env=settings(base_url))
        disturbed = service.shown()

    assert await asyncio.to_thread(dump_hash, killed) == await asyncio.to_thread(dump_hash, calm)
    states = await asyncio.to_thread(ledger, killed)
    assert states == {"accepted": 0, "extracted": 0, "committed": 80, "failed": 0}
    checks = json.loads(answer("doctor", "--data", str(killed), "--json"))["checks"]
    assert [check for check in checks if not check["ok"]] == []
    assert 0 < seen[0] < seen[-1] < asked(disturbed)
    assert once(undisturbed) == once(disturbed) == 80
    assert undisturbed["repeated"].get("combined", 0) == 0
    assert disturbed["repeated"].get("combined", 0) <= lost
    assert asked(disturbed) <= asked(undisturbed) + 2 * KILLS * STREAMS
