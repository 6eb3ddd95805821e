"""Kills at any instant while a model server answers: the same graph, no journaled request again (R19-R24)."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.runtime.served import PLAN, STREAMS, answer, dump_hash, journaled, ledger, settings, start
from tests.world import Latency, Oracle, World, WorldPlan
from tests.world.files import write
from tests.world.model_server import ModelServer, Service
from tests.world.model_server.service import HttpAnswer

ANSWER_S = 0.03
DICE = random.Random(11)


class Killing(Service):
    """Serves the world to one run, notes the requested readings, and kills the run soon after a request."""

    def __init__(self) -> None:
        latency = Latency(streams=STREAMS, first_token_s=ANSWER_S, tokens_per_s=0)
        super().__init__(Oracle(World(**PLAN)), latency=latency)
        self.victim: subprocess.Popen[bytes] | None = None
        self.reads_left = 0
        self.read: set[bytes] = set()

    async def chat(self, body: bytes) -> HttpAnswer:
        """Answer, even if no client waits for it any more."""
        if json.loads(body).get("response_format", {}).get("json_schema", {}).get("name") == "combined":
            self.read.add(body)
        self.reads_left -= 1
        if self.reads_left == 0 and self.victim is not None:
            asyncio.get_running_loop().call_later(DICE.uniform(0.0, ANSWER_S), self.victim.kill)
        return await super().chat(body)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Killing, dict[str, str]]]:
    """Serve the world; yield the service and the settings that name it."""
    service = Killing()
    async with ModelServer(service) as server:
        yield service, settings(server.base_url)


async def added(world: Path, data: Path) -> set[bytes]:
    """Run the command to its end; return its reads."""
    async with serving() as (service, env):
        await asyncio.to_thread(answer, "add", str(world), "--data", str(data), env=env)
    return service.read


async def killed_once(world: Path, data: Path) -> set[bytes]:
    """Kill the command in the middle of its work; return its reads. Each run has its own server."""
    async with serving() as (service, env):
        # The probe, a whole wave of the streams, and part of the next two: far fewer than 80.
        service.reads_left = DICE.randint(5, 9)
        process = service.victim = start("add", str(world), "--data", str(data), env=env)
        await asyncio.to_thread(process.communicate)
    assert process.returncode == -signal.SIGKILL, "killed in the middle, not after the end"
    return service.read


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.slow)])
async def test_killed_runs_end_in_the_undisturbed_graph_and_repeat_no_journaled_request(
    tmp_path: Path, kills: int
) -> None:
    """Only requests whose answers were not in the journal at the kill may be repeated."""
    world, calm, data = (tmp_path / name for name in ("world.jsonl", "calm", "killed"))
    write(WorldPlan(**PLAN), world, None)
    undisturbed = await added(world, calm)
    sequences_read: set[bytes] = set()
    journal_sizes, lost, read_again = [0], 0, 0
    for _ in range(kills):
        read = await killed_once(world, data)
        journal_sizes.append(await asyncio.to_thread(journaled, data))
        lost += len(read) - (journal_sizes[-1] - journal_sizes[-2])
        read_again += len(read & sequences_read)
        sequences_read |= read
    read = await added(world, data)
    read_again += len(read & sequences_read)

    assert await asyncio.to_thread(dump_hash, data) == await asyncio.to_thread(dump_hash, calm)
    states = await asyncio.to_thread(ledger, data)
    assert states == {"accepted": 0, "extracted": 0, "committed": 80, "failed": 0}
    checks = json.loads(answer("doctor", "--data", str(data), "--json"))["checks"]
    assert [check for check in checks if not check["ok"]] == []
    assert journal_sizes == sorted(journal_sizes)
    assert 0 < journal_sizes[-1] < 80
    assert len(undisturbed) == len(sequences_read | read) == 80
    assert read_again <= lost
