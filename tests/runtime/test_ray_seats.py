"""Seats of engines on the real Ray: two deciders lease them from the registry, which may die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

import kgray
from tests.ray_session import deployment_of
from tests.runtime.test_ray_engine import STAND_IN
from tests.waiting import wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
SEATS = 8
PROFILE = """
[sequencer]
shards = 2

[extraction]
workers = 2
cpus = 0.1
env = {{ PYTHONPATH = "{path}", KGRAY_TEST_ENGINE_STEP_S = "0.1" }}

[embedding]
workers = 0

[engine]
max_num_seqs = 4

[limits]
health_every_s = 0.5
"""


@pytest.mark.slow
def test_two_deciders_never_have_more_seats_than_the_engines(tmp_path: Path) -> None:
    """A lease ends with its holder, and a restarted registry learns the holders and their seats again."""
    import ray

    profile, paths = tmp_path / "profile.toml", f"{Path(__file__).parents[2]}:{STAND_IN}"
    profile.write_text(PROFILE.format(path=paths), encoding="utf-8")
    options = {
        "model_backend": "vllm",
        "model_name": "m",
        "runtime_backend": "ray",
        "runtime_profile": profile,
    }
    stats: list[dict[str, Any]] = []
    in_hand: list[int] = []
    with kgray.open(tmp_path / "d", create=True, settings=options) as memory:
        memory.add("I like tea.", group="first")
        actors = deployment_of(memory).actors
        registry, deciders = actors["seats-0"], [actors["sequencer-0"], actors["sequencer-1"]]

        def look(*_: object) -> None:
            stats.append(ray.get(registry.stats.remote()))
            rows = ray.get([decider.stats.remote() for decider in deciders])
            in_hand.append(sum(worker["in_flight"] for row in rows for worker in row["workers"]))

        rows = [{"text": f"I like tea {n}.", "group": f"g{n % 16}", "at": "2026-03-01"} for n in range(160)]
        report = memory.add_many(rows, on_step=look)
        assert (report.committed, report.failed) == (160, 0)
        assert max(row["seats"] for row in stats) == memory.asynchronous.runtime.seats() == SEATS

        def has_more() -> bool:
            ray.get(registry.resize.remote(SEATS + 4))  # as with another engine, until the next count
            return bool(memory.asynchronous.runtime.seats() == SEATS + 4)

        wait_for(has_more)
        assert max(sum(row["leased"].values()) for row in stats) == SEATS
        assert sorted(stats[-1]["leased"]) == ["sequencer-0", "sequencer-1"]
        assert SEATS / 2 < max(in_hand) <= SEATS

        psutil.Process(stats[-1]["pid"]).kill()

        def leased() -> dict[str, int]:
            return dict(ray.get(registry.stats.remote())["leased"])

        def is_back() -> bool:
            try:
                return len(leased()) == 2
            except ray.exceptions.RayError:  # Ray starts it again
                return False

        wait_for(is_back)
        ray.kill(deciders[1], no_restart=True)
        wait_for(lambda: list(leased()) == ["sequencer-0"])
