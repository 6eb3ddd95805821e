"""A group has one owner, through Ray too (R23): what takes the store from the actors unseen loses nothing.

The model never answers the same twice, so that a decision on anything but stored rows is noticed at
once: the stored graph then differs from the derivation of its records.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import kgray
from kgray.domain.records import Draft
from kgray.errors import StaleWriter, StoreError
from kgray.graph.repair import differences
from kgray.ingest.runner import Runner
from kgray.schema.kinds import COMMITTED
from kgray.schema.reads import EPISODE_HEADS
from kgray.storage.transactions import slot_of
from kgray.system.locks import INGEST_LOCK
from tests.doors.chat_server import Asked, ChatServer, Say, as_json
from tests.neo4j_server import driver_of
from tests.ray_session import over_ray
from tests.runtime.test_ray_neo4j import on_server

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
GROUPS, EPISODES = ("red", "blue"), 24
PEOPLE, FIRMS = ("Ada", "Bo", "Cy", "Dee"), ("Acme", "Beta", "Gama", "Delta", "Omega")
TEXT = f"{', '.join(PEOPLE)} talked of {', '.join(FIRMS)}"


def fickle(request: Asked) -> Say:
    """Read something else, and judge otherwise, each time that it is asked."""
    chance = random.Random()
    if request.task == "batched":
        return as_json({"answers": [judged(question, chance) for question in request.sections["QUESTIONS"]]})
    person, firm = chance.choice(PEOPLE), chance.choice(FIRMS)
    entities = [{"name": person, "type": "Person"}, {"name": firm, "type": "Organization"}]
    fact = {"source": 0, "target": 1, "relation": "WORKS_AT", "fact": f"{person} works at {firm}"}
    return as_json({"entities": entities, "facts": [fact]})


def judged(question: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    ids = [item["id"] for item in question.get("candidates", ())]
    answers: dict[str, dict[str, Any]] = {
        "relation": {"same_as": False, "inverse_of": False, "excludes": chance.random() < 0.5},
        "cardinality": {"cardinality": chance.choice(["single", "single_object", "many", "depends"])},
        "verdict": {"reason": "", "contradicts": [item for item in ids if chance.random() < 0.5]},
    }
    duplicate = {"duplicate_of": chance.choice([*ids, None])}
    return {"id": question["id"], **answers.get(question["kind"], duplicate)}


def drafts() -> list[Draft]:
    return [
        Draft(
            group=GROUPS[n % 2],
            source="s",
            kind="text",
            text=f"{TEXT} {n}",
            reference_time=n,
            client_id=f"{n}",
        )
        for n in range(EPISODES)
    ]


async def beside_others(
    folder: Path, take: Callable[[], None], *, shards: int = 1, new_shards: int | None = None, **settings: Any
) -> None:
    """Ingest through Ray; then let a local run with the same model take the store.

    shards: of the actors; new_shards: of the deployment that replaces them; None = a local run
    """
    server = ChatServer(fickle)
    model = {"model_backend": "openai", "model_name": "m", "model_base_url": server.url, "runtime_window": 8}
    commits: list[tuple[str, int]] = []
    begun = asyncio.Event()

    def on_step(group: str, sequence: int, outcome: str) -> None:
        if outcome == "committed":
            commits.append((group, sequence))
        if len(commits) >= EPISODES // 4:
            begun.set()

    def locally() -> None:
        with closing(kgray.open_async(folder, create=True, settings={**model, **settings})) as memory:
            take()
            for shard in range(new_shards or 1):
                groups = [group for group in GROUPS if slot_of(group) % (new_shards or 1) == shard]
                with memory.store.writing(shard=shard, shards=new_shards):
                    asyncio.run(Runner(memory.parts).run(groups=groups, on_step=on_step))

    try:
        with over_ray(folder, shards=shards, **model, **settings) as memory:
            going = asyncio.create_task(memory.add_many(drafts(), on_step=on_step))
            await asyncio.wait(
                (going, asyncio.ensure_future(begun.wait())), return_when=asyncio.FIRST_COMPLETED
            )
            with suppress(StaleWriter):
                await asyncio.to_thread(locally)
            try:
                report = await going
            except StoreError as refused:  # while the others held their shards
                if "this deployment has" not in str(refused):
                    raise
                report = await memory.ingest()
            assert (report.failed, report.stopped) == (0, False)
            for group in GROUPS:
                rows = memory.store.rows(EPISODE_HEADS, group)
                committed = {row.sequence for row in rows if row.state == COMMITTED}
                assert {sequence for name, sequence in commits if name == group} == committed
                assert len(committed) == EPISODES // 2
                assert differences(memory.store, group) == []
    finally:
        server.close()


@pytest.mark.slow  # test_one_owner has two owners in each default run
@pytest.mark.parametrize(("shards", "new_shards"), [(1, None), (2, None), (2, 3)])
async def test_others_that_take_the_folder_from_ray(
    tmp_path: Path, shards: int, new_shards: int | None
) -> None:
    """Its lock is gone, as on a file system without locks: one of the two is stale, and takes it back."""
    for run in range(10):
        folder = tmp_path / str(run)
        await beside_others(folder, (folder / INGEST_LOCK).unlink, shards=shards, new_shards=new_shards)


@pytest.mark.slow
@pytest.mark.parametrize("new_shards", [None, 3])
async def test_others_that_take_the_server_from_ray(
    tmp_path: Path, own_neo4j: Any, new_shards: int | None
) -> None:
    """The leases have run out, as when a process stood still."""
    with driver_of(own_neo4j) as driver:

        def take() -> None:
            (folder / INGEST_LOCK).unlink()
            driver.execute_query("MATCH (o:KgrayShard) REMOVE o.holder, o.beat")

        for run in range(5):
            driver.execute_query("MATCH (n) WHERE NOT n:KgrayMeta DETACH DELETE n")
            folder = tmp_path / str(run)
            folder.mkdir()
            await beside_others(folder, take, shards=2, new_shards=new_shards, **on_server(own_neo4j, folder))
