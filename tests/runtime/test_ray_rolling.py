"""The actors of a deployment are replaced, and shards added and dropped, while episodes are ingested.

The graph is the plain loop's each time, and every episode is committed once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kgray
from bench.plain_loop import Loop
from kgray.domain import times
from kgray.domain.records import Draft
from kgray.errors import SettingsError
from kgray.memory import AsyncMemory
from kgray.ports.ingest import ignore
from kgray.runtime.spec import DeploymentSpec, profile_of, spec_of
from kgray.schema.kinds import COMMITTED
from kgray.schema.reads import EPISODE_HEADS
from kgray.settings import load
from kgray.storage.ledger import accept
from kgray.storage.transactions import SLOTS
from tests.doors.chat_server import NOTHING, ChatServer
from tests.waiting import HANGS_S, wait_for
from tests.world import World, WorldPlan

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
GROUPS = [f"g{number}" for number in range(12)]
DIMENSIONS = 64
NARROW = {"embedder.dimensions": DIMENSIONS}


def spec_in(
    folder: Path, workers: int = 1, cpus: float = 0.1, shards: int = 2, **settings: Any
) -> DeploymentSpec:
    """Return the spec of a deployment whose actors are few."""
    few = {"workers": workers, "cpus": cpus}
    values = {
        "sequencer": {"shards": shards},
        "extraction": few,
        "embedding": {"workers": 0},
        "tasks": {"at_once": 1},
    }
    profile = profile_of({**values, "limits": {"health_every_s": 0.5}}, "the test")
    given = {"embedder.dimensions": DIMENSIONS, "runtime.backend": "ray", **settings}
    return spec_of(load(None, environ={}, overrides=given), folder, profile.values())


def drafts(number: int, seed: int = 5) -> list[Draft]:
    world = enumerate(World(plan=WorldPlan(seed=seed, episodes=number)))
    return [replace(episode.draft, group=GROUPS[n % len(GROUPS)]) for n, episode in world]


class Feed:
    """Accepts rows a few at a time, in a thread, until it is told to stop: some are always on their way."""

    def __init__(self, memory: AsyncMemory, rows: list[Draft]) -> None:
        self.accepted: list[Draft] = []
        self._memory, self._rows = memory, rows
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go)

    def _go(self) -> None:
        for start in range(0, len(self._rows), 4):
            few = self._rows[start : start + 4]
            accept(self._memory.store, few, now=times.now())
            self.accepted += few
            if self._ended.wait(0.5):
                return

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


async def plain(folder: Path, rows: list[Draft]) -> dict[str, str]:
    with closing(kgray.open_async(folder, create=True, settings=NARROW)) as memory:
        accept(memory.store, rows, now=1)
        with memory.store.writing():
            await Loop(memory.parts).run()
        return await hashes(memory)


async def hashes(memory: AsyncMemory) -> dict[str, str]:
    return {group: await memory.dump_hash(group=group) for group in memory.store.heads()}


@contextmanager
def deployment(folder: Path, shards: int) -> Iterator[tuple[AsyncMemory, DeploymentSpec]]:
    """Yield a memory with a deployment; every episode is committed once at the end."""
    from kgray.runtime.deploy import ensure, find

    with closing(kgray.open_async(folder, create=True, settings=NARROW)) as memory:
        spec = spec_in(folder, shards=shards)
        ensure(spec, detached=True, chosen=True)
        try:
            yield memory, spec
            wait_for(lambda: not memory.store.pending_count())
        finally:
            there = find(spec.namespace)
            assert there is not None
            there.stop(0)
        states = {row.state for group in GROUPS for row in memory.store.rows(EPISODE_HEADS, group)}
        assert states == {COMMITTED}


def change(call: Callable[..., Any], *args: Any, **options: Any) -> Awaitable[Any]:
    return asyncio.to_thread(call, *args, **options, tell=ignore)


@pytest.mark.slow
async def test_shards_come_and_go_and_settings_change_under_load(tmp_path: Path) -> None:
    """From 2 shards to 3, back to 2, then another window and other workers: nothing lost, nothing twice."""
    from kgray.runtime.actors import answer
    from kgray.runtime.deploy import find
    from kgray.runtime.rolling import roll, scale

    folder = tmp_path / "ray"
    with deployment(folder, 2) as (memory, spec):
        with Feed(memory, drafts(6_000)) as feed:
            assert await change(scale, spec, 3) == {"from": 2, "to": 3, "moved": SLOTS // 3}
            owners = memory.store.shard_map().owners
            assert sorted(map(owners.count, range(3))) == [341, 341, 342]
            grown = find(spec.namespace)
            assert grown is not None
            rows = grown.status()
            assert [rows[f"sequencer-{n}"]["state"] for n in range(3)] == ["serving"] * 3
            assert await change(scale, grown.spec, 2) == {"from": 3, "to": 2, "moved": SLOTS // 3}
            other = spec_in(folder, workers=2, cpus=0.2, **{"runtime.window": 9})
            rolled = await change(roll, other, None, chosen=True)
        every = ["profile extraction.cpus", "profile extraction.workers", "runtime.window"]
        deciding = ("sequencer-0", "sequencer-1", "writer-0", "scheduler-0")
        assert rolled.replaced == {**dict.fromkeys(deciding, every), "models-0": every[:1]}
        there = find(spec.namespace)
        assert there is not None
        assert [name for name in there.actors if name.startswith("models")] == ["models-0", "models-1"]
        assert all(answer(handle.describe.remote())["spec"] == other for handle in there.actors.values())
        again = await change(roll, other, None, chosen=True)
        assert (again.replaced, again.ended) == ({}, [])
        fixed = spec_in(folder, **{"embedder.dimensions": 32})
        with pytest.raises(SettingsError, match=r"embedder.dimensions is 32 here and 64 .*kgray down"):
            await change(roll, fixed, None, chosen=True)
        wait_for(lambda: not memory.store.pending_count())
        result = await hashes(memory)
    assert result == await plain(tmp_path / "plain", feed.accepted)


EPISODES = 160  # eight a second: at the end of the node many are left


@contextmanager
def another_node() -> Iterator[subprocess.Popen[bytes]]:
    """Add a node to the Ray of the tests; SIGTERM gives it notice, and 10 s."""
    import ray

    here = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    address = ray.get_runtime_context().gcs_address
    command = [str(Path(sys.executable).with_name("ray")), "start", f"--address={address}", "--num-cpus=4"]
    node = subprocess.Popen(
        [*command, "--block", "--disable-usage-stats"],
        env=os.environ | {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "10"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: len([node for node in ray.nodes() if node["Alive"]]) > len(here))
        yield node
    finally:
        node.terminate()
        node.wait(HANGS_S)


@pytest.mark.slow
def test_a_node_that_ends_with_notice_costs_no_call_of_the_model(tmp_path: Path) -> None:
    """Its worker ends its calls, and takes no other; the other worker carries out the rest."""
    from kgray.runtime.deploy import ensure

    server = ChatServer(lambda _: replace(NOTHING, delay=1.0))
    model = {"backend": "openai", "name": "m", "base_url": server.url, "max_concurrency": 8}
    settings = {f"model.{key}": value for key, value in model.items()}
    world = [replace(row, text=f"{row.text} {n}") for n, row in enumerate(drafts(EPISODES))]
    with (
        closing(kgray.open_async(tmp_path, create=True, settings=NARROW)) as memory,
        another_node() as node,
    ):
        spec = spec_in(tmp_path, workers=2, cpus=3.0, **settings)  # no node has room for both
        deployment = ensure(spec, detached=True, chosen=True)
        try:
            accept(memory.store, world, now=times.now())
            wait_for(lambda: len(server.asked) > EPISODES // 8)
            rows = deployment.status()
            assert all(rows[f"models-{number}"]["running"] for number in range(2))
            node.send_signal(signal.SIGTERM)
            wait_for(lambda: not memory.store.pending_count())
            assert len(server.asked) == EPISODES  # none twice: no answer was lost
            node.wait(HANGS_S)
            rows = deployment.status()
            assert sorted("pid" in rows[f"models-{number}"] for number in range(2)) == [False, True]
        finally:
            server.close()
            deployment.stop(0)
        states = {row.state for group in GROUPS for row in memory.store.rows(EPISODE_HEADS, group)}
        assert states == {COMMITTED}
