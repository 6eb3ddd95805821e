"""Ray on a Neo4j server: with kills, and with several writers (promises 1 and 2; R20-R24)."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kgray
from bench.plain_loop import Loop
from kgray.domain.records import Draft
from kgray.memory import AsyncMemory
from kgray.settings import load
from kgray.storage.ledger import accept
from tests.ray_session import deployment_of, over_ray
from tests.world import World, WorldPlan

GROUPS = ("red", "green", "blue")
EACH = 8
DIMENSIONS = 64
NARROW = {"embedder.dimensions": DIMENSIONS}


@pytest.mark.ray
@pytest.mark.slow  # by default Ray writes to a folder, and this process to the server
@pytest.mark.parametrize("killed", [False, True])
async def test_two_shards_write_to_one_server_and_its_death_costs_time_and_nothing_else(
    tmp_path: Path, ray_session: Any, own_neo4j: Any, *, killed: bool
) -> None:
    """The graph equals the plain loop's graph in a folder; every episode is committed once.

    Each shard has a sequencer, a writer and an epoch, and the groups that are dealt to it by their names.
    """
    from kgray.storage.transactions import slot_of

    expected = await plain(tmp_path / "plain")
    ended: list[tuple[str, int, str]] = []
    outage: list[asyncio.Task[None]] = []

    def on_step(*step: Any) -> None:
        ended.append(step)
        if killed and len(ended) >= EACH and not outage:  # a third is committed, and the rest is on its way
            outage.append(asyncio.create_task(asyncio.to_thread(power_cut)))

    def power_cut() -> None:
        own_neo4j.kill()
        own_neo4j.start()

    settings = on_server(own_neo4j, tmp_path) | {"runtime_window": 8}
    with over_ray(tmp_path / "ray", shards=2, **settings) as memory:
        report = await memory.add_many(drafts(), on_step=on_step)
        status = deployment_of(
            memory, load(None, environ={}, overrides=on_server(own_neo4j, tmp_path))
        ).status()
        await asyncio.gather(*outage)
        assert (report.committed, report.failed, report.stopped) == (EACH * 3, 0, False)
        assert sorted(ended) == [
            (group, n, "committed") for group in sorted(GROUPS) for n in range(1, EACH + 1)
        ]
        assert await hashes(memory) == expected
    for shard in (0, 1):
        groups = [group for group in GROUPS if slot_of(group) % 2 == shard]
        sequencer, writer = status[f"sequencer-{shard}"], status[f"writer-{shard}"]
        assert sequencer["totals"]["committed"] == EACH * len(groups) > 0
        assert writer["epochs"] == {str(shard): sequencer["epoch"]}


def on_server(server: Any, folder: Path) -> dict[str, Any]:
    """Return the settings that name a server."""
    password = folder / "password"
    password.write_text(server.password)
    return {
        "store_backend": "neo4j",
        "store_uri": server.uri,
        "store_user": server.user,
        "store_password_file": password,
        "embedder_dimensions": DIMENSIONS,
    }


def drafts() -> list[Draft]:
    world = enumerate(World(plan=WorldPlan(seed=11, episodes=EACH * len(GROUPS))))
    return [replace(episode.draft, group=GROUPS[number % 3]) for number, episode in world]


async def plain(folder: Path) -> dict[str, str]:
    """Return the dump hashes of the plain loop's graph, on the embedded store."""
    with closing(kgray.open_async(folder, create=True, settings=NARROW)) as memory:
        accept(memory.store, drafts(), now=1)
        with memory.store.writing():
            await Loop(memory.parts).run()
        return await hashes(memory)


async def hashes(memory: AsyncMemory) -> dict[str, str]:
    return {group: await memory.dump_hash(group=group) for group in memory.store.heads()}
