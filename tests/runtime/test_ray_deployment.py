"""A deployment that stays, in the default run: a job of its scheduler is killed, then a shard is added.

Both tests share its actors: a process of Ray needs seconds of processor time to start.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from kgray.domain import times
from kgray.memory import AsyncMemory
from kgray.runtime.spec import DeploymentSpec
from kgray.storage.ledger import accept
from kgray.storage.transactions import SLOTS
from tests import make
from tests.ray_session import samples
from tests.runtime.test_ray_jobs import job_client, jobs_of, process_of
from tests.runtime.test_ray_rolling import GROUPS, Feed, change, deployment, drafts, hashes, plain
from tests.waiting import HANGS_S, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
TEAMS = ("one", "two", "three")
PEOPLE = ("Ann", "Bob", "Cara", "Dan")


@pytest.fixture(scope="module")
def up(
    ray_session: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[AsyncMemory, DeploymentSpec]]:
    """Yield a memory and the spec of its deployment with one shard."""
    with deployment(tmp_path_factory.mktemp("up"), 1) as (memory, spec):
        yield memory, spec


def rows_of(spec: DeploymentSpec, method: str) -> dict[str, dict[str, Any]]:
    """Return the answer of each actor to a call."""
    from kgray.runtime.deploy import find

    there = find(spec.namespace)
    assert there is not None
    return there.status(HANGS_S, method)


async def test_a_tick_is_a_job_and_a_killed_job_is_submitted_again(
    up: tuple[AsyncMemory, DeploymentSpec],
) -> None:
    """A missed tick is caught up, on the node of the store; Ray lists both jobs, with their logs."""
    import ray

    memory, spec = up
    folder = memory.store.folder
    works = [
        make.draft(f"I work at {team.title()} Labs.", group=team, speaker=name, at=1)
        for team in TEAMS
        for name in PEOPLE
    ]
    accept(memory.store, works, now=times.now())
    wait_for(lambda: not memory.store.pending_count())
    schedules, made_at = memory.admin.schedules, times.now() - 5 * times.DAY
    schedules.add("nightly", "0 3 * * *", "Asia/Tokyo", made_at, full=True, groups=TEAMS[:2])
    process_of(folder).kill()
    wait_for(lambda: schedules.every()[0].ended_at is not None)
    (completed,) = schedules.every()
    outcome = "2 of 2 groups refreshed, 0 model calls; texts: 0 kept, 0 written, 2 offline"
    assert (completed.said, completed.tries) == (outcome, 2)
    assert completed.begun is not None
    assert completed.next(times.now()) > times.now() > completed.begun > times.now() - times.DAY
    assert [len(await memory.communities.list(group=team)) for team in TEAMS] == [1, 1, 0]
    jobs = jobs_of(folder)
    killed, followed = sorted(jobs)
    assert followed == f"{killed}-2"
    assert killed.endswith(f"-nightly-{times.to_datetime(completed.begun):%Y%m%dT%H%MZ}")
    assert [jobs[name].status for name in (killed, followed)] == ["FAILED", "SUCCEEDED"]
    assert jobs[followed].driver_node_id == ray.get_runtime_context().get_node_id()
    assert f"kgray: {outcome}" in job_client().get_job_logs(followed)
    wait_for(lambda: rows_of(spec, "stats")["scheduler-0"]["state"] == "waiting")
    counted = ("ray_kgray_community_texts_total", {"how": "offline"}, 2.0)
    wait_for(lambda: counted in samples())
    schedules.remove("nightly")


async def test_a_shard_comes_while_episodes_are_ingested(
    up: tuple[AsyncMemory, DeploymentSpec], tmp_path: Any
) -> None:
    """The actors that exist go on, and every actor knows the new number of shards."""
    from kgray.runtime.rolling import scale

    memory, spec = up
    pids = {name: row["pid"] for name, row in rows_of(spec, "describe").items()}
    with Feed(memory, drafts(400)) as feed:
        assert await change(scale, spec, 2) == {"from": 1, "to": 2, "moved": SLOTS // 2}
        owners = memory.store.shard_map().owners
        assert sorted(map(owners.count, range(2))) == [SLOTS // 2] * 2
        now = {name: row["pid"] for name, row in rows_of(spec, "describe").items()}
        assert {**now, **pids} == now
        assert now.keys() - pids.keys() == {"sequencer-1"}
        shards = lambda: rows_of(spec, "describe")["sequencer-0"]["spec"].cluster.sequencer.shards  # noqa: E731
        wait_for(lambda: shards() == 2)
        # Ray restarts an actor with the spec of its first start, and the store has the newer number.
        os.kill(now["sequencer-0"], signal.SIGKILL)
        wait_for(
            lambda: rows_of(spec, "describe")["sequencer-0"].get("pid") not in (None, now["sequencer-0"])
        )
        wait_for(lambda: shards() == 2)
    wait_for(lambda: not memory.store.pending_count())
    result = {group: digest for group, digest in (await hashes(memory)).items() if group in GROUPS}
    assert result == await plain(tmp_path, feed.accepted)
