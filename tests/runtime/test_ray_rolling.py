"""The actors of a deployment are replaced, and shards added and dropped, while episodes are ingested.

The graph is the plain loop's each time, and every episode is committed once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kgray
from bench.plain_loop import Loop
from bench.world import World, WorldPlan
from kgray import times
from kgray.errors import SettingsError
from kgray.kinds import COMMITTED
from kgray.ledger import accept
from kgray.memory import Memory
from kgray.ports import SLOTS
from kgray.reads import EPISODE_HEADS
from kgray.records import Draft
from kgray.runtime.spec import DeploymentSpec, profile_of, spec_of
from kgray.settings import load
from tests.waiting import wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
GROUPS = [f"g{number}" for number in range(12)]
DIMENSIONS = 64


def spec_in(folder: Path, workers: int = 1, cpus: float = 0.1, **settings: Any) -> DeploymentSpec:
    """Return the spec of a deployment of two shards whose actors are few."""
    few = {"workers": workers, "cpus": cpus}
    values = {"sequencer": {"shards": 2}, "extraction": few, "embedding": {"workers": 0}}
    profile = profile_of({**values, "limits": {"health_every_s": 0.5}}, "the test")
    given = {"embedder.dimensions": DIMENSIONS, "runtime.backend": "ray", **settings}
    return spec_of(load(None, environ={}, overrides=given), folder, profile.values())


def drafts(number: int, seed: int = 5) -> list[Draft]:
    world = enumerate(World(plan=WorldPlan(seed=seed, episodes=number)))
    return [replace(episode.draft, group=GROUPS[n % len(GROUPS)]) for n, episode in world]


@contextmanager
def load_on(memory: Memory, rows: list[Draft]) -> Iterator[threading.Event]:
    """Accept rows a few at a time, in a thread, so that some are on their way all the time, until the end."""
    ended = threading.Event()

    def feed() -> None:
        for start in range(0, len(rows), 4):
            accept(memory.store, rows[start : start + 4], now=times.now())
            ended.wait(0.1)

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        yield ended
    finally:
        ended.set()
        feeding.join()


async def plain(folder: Path, rows: list[Draft]) -> dict[str, str]:
    with closing(kgray.open(folder, embedder_dimensions=DIMENSIONS)) as memory:
        accept(memory.store, rows, now=1)
        with memory.store.writing():
            await Loop(memory.parts).run()
        return await hashes(memory)


async def hashes(memory: Memory) -> dict[str, str]:
    return {group: await memory.dump_hash(group=group) for group in memory.store.heads()}


async def test_shards_come_and_go_and_settings_change_under_load(tmp_path: Path) -> None:
    """From 2 shards to 3, back to 2, then another window and other workers: nothing lost, nothing twice."""
    from kgray.runtime.actors import answer
    from kgray.runtime.deploy import ensure, find
    from kgray.runtime.rolling import roll, scale

    rows = drafts(1200)
    expected = await plain(tmp_path / "plain", rows)
    folder = tmp_path / "ray"
    with closing(kgray.open(folder, embedder_dimensions=DIMENSIONS)) as memory:
        spec = spec_in(folder)
        ensure(spec, detached=True, chosen=True)
        try:
            said: list[str] = []
            t0 = time.monotonic()
            tells = lambda line: said.append(f"{time.monotonic() - t0:.1f} {line}\n")
            with load_on(memory, rows):
                began = time.monotonic()
                grown = await asyncio.to_thread(scale, spec, 3, tell=tells)
                print("grown", time.monotonic() - began, memory.store.pending_count())
                assert grown == {"from": 2, "to": 3, "moved": SLOTS // 3}
                owners = memory.store.shard_map().owners
                assert sorted(map(owners.count, range(3))) == [341, 341, 342]
                there = find(spec.namespace)
                assert there is not None
                assert len(there.sequencers) == 3
                shrunk = await asyncio.to_thread(scale, there.spec, 2, tell=tells)
                print("shrunk", time.monotonic() - began, memory.store.pending_count())
                assert shrunk == {"from": 3, "to": 2, "moved": SLOTS // 3}
                other = spec_in(folder, workers=2, cpus=0.2, **{"runtime.window": 9})
                rolled = await asyncio.to_thread(roll, other, None, chosen=True, tell=tells)
                print("rolled", time.monotonic() - began, memory.store.pending_count(), rolled.replaced, said)
                every = ["profile extraction.cpus", "profile extraction.workers", "runtime.window"]
                deciding = ("sequencer-0", "sequencer-1", "writer-0", "scheduler-0")
                assert rolled.replaced == {**dict.fromkeys(deciding, every), "models-0": every[:1]}
                assert rolled.ended == []
            there = find(spec.namespace)
            assert there is not None
            assert [name for name in there.actors if name.startswith("models")] == ["models-0", "models-1"]
            assert all(answer(h.describe.remote())["spec"] == other for h in there.actors.values())
            again = roll(other, None, chosen=True, tell=tells)
            assert (again.replaced, again.ended) == ({}, [])
            with pytest.raises(SettingsError, match=r"embedder.dimensions is 32 here and 64 there.*kgray down"):
                roll(spec_in(folder, **{"embedder.dimensions": 32}), None, chosen=True, tell=tells)
            wait_for(lambda: not memory.store.pending_count())
        finally:
            left = find(spec.namespace)
            assert left is not None
            left.stop(0)
        assert await hashes(memory) == expected
        for group in GROUPS:
            assert {row.state for row in memory.store.rows(EPISODE_HEADS, group)} == {COMMITTED}
