"""A refresh through Ray killed at any instant: each group has the complete previous run or the new run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kgray
from kgray.ports import at_one_moment
from kgray.schema import kinds
from tests.doors.chat_server import ChatServer, as_json, at
from tests.runtime.test_ray_neo4j import on_server
from tests.waiting import HANGS_S

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
GROUPS = ("one", "two", "three")
KILLS = 20
CIRCLES = (("Ann", "Bob", "Cara", "Dan", "Eve", "Finn"), ("Gus", "Hana", "Ivo", "Jon", "Kim", "Lea"))
Rows = dict[str, dict[int, list[Any]]]  # group -> run -> its communities


def episodes_of(cycle: int) -> Iterator[dict[str, Any]]:
    """Yield each group's messages before a refresh: at first acquaintances, then a newcomer."""
    for group in GROUPS:
        pairs = [(a, b) for circle in CIRCLES for a in circle for b in circle if a < b]
        pairs = pairs if not cycle else [(f"Newcomer {cycle}", circle) for circle in CIRCLES[cycle % 2][:3]]
        triples = [{"source": a, "relation": "KNOWS", "target": b} for a, b in pairs]
        yield {"group": group, "id": f"c{cycle}", "at": "2026-01-01", "triples": triples}


def stored_runs(memory: Any) -> Rows:
    """Return the communities of each stored run, as a reader sees them, also during a publication."""

    def read(group: str) -> list[list[Any]]:
        return [
            list(memory.store.rows(kind.all, group)) for kind in (kinds.COMMUNITY_RUNS, kinds.COMMUNITIES)
        ]

    results: Rows = {}
    for group in GROUPS:
        runs, communities = at_one_moment(memory.store, partial(read, group))
        results[group] = {row[0]: [] for row in runs}
        for row in communities:
            results[group][row[0]].append(row)  # fails for a row without a stored run
    return results


class Refreshes:
    """Refreshes of a store, each in a process; some are killed, and the store is checked after each."""

    def __init__(self, memory: Any, data: Path, environ: dict[str, str]) -> None:
        self.memory, self.kills = memory, 0
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KGRAY_")}
        self._environ = clean | environ
        self._command = [sys.executable, "-m", "kgray", "communities", "refresh", "--data", str(data)]

    def run(self, kill_after_s: float | None = None, *, from_publication: bool = False) -> bool:
        """Run one; whether it came to its end. from_publication: time from its first publication on."""
        pipe, runs_before = subprocess.PIPE, stored_runs(self.memory)
        process = subprocess.Popen(self._command, env=self._environ, stdout=pipe, stderr=pipe)
        while from_publication and process.poll() is None and stored_runs(self.memory) == runs_before:
            time.sleep(0.02)  # a look costs as much processor time as the refresh has in it
        try:
            _, err = process.communicate(timeout=HANGS_S if kill_after_s is None else kill_after_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            self.kills += 1
            return False
        assert process.returncode == 0, err.decode()
        return True

    def look(self, runs_before: Rows, expected: Rows) -> int:
        """Return the number of groups with the new run; the others have the complete previous run."""
        new = 0
        for group, runs in stored_runs(self.memory).items():
            if runs.keys() == runs_before[group].keys():
                assert runs == runs_before[group]
            else:
                assert runs == expected[group]
                new += 1
        return new


@pytest.fixture
def model() -> Iterator[dict[str, str]]:
    """Serve a slow model that replies with the names of the members."""

    def answer(call: Any) -> Any:
        time.sleep(0.05)
        return as_json({"name": ", ".join(call.sections["MEMBERS"][:2]), "summary": call.data})

    server = ChatServer(answer)
    yield at(server.url)
    server.close()


@pytest.mark.slow  # the default run kills a refresh that is a job: test_ray_deployment
@pytest.mark.parametrize("store", ["sqlite", pytest.param("neo4j", marks=pytest.mark.neo4j)])
def test_a_killed_refresh_publishes_only_complete_runs(
    tmp_path: Path, ray_session: Any, model: dict[str, str], request: Any, store: str
) -> None:
    settings: dict[str, Any] = {"embedder_dimensions": 64}
    if store == "neo4j":
        settings = on_server(request.getfixturevalue("own_neo4j"), tmp_path)
    environ = model | {f"KGRAY_{name.upper()}": str(value) for name, value in settings.items()}
    environ |= {"KGRAY_RUNTIME_BACKEND": "ray", "KGRAY_RUNTIME_ADDRESS": ray_session.address}
    model_here = {name.removeprefix("KGRAY_").lower(): value for name, value in model.items()}
    dice, landed = random.Random(KILLS), []
    with (
        kgray.open(tmp_path / "calm", create=True, settings={"embedder_dimensions": 64}) as calm,
        kgray.open(
            tmp_path / "calm", create=True, settings={"embedder_dimensions": 64, **model_here}
        ) as calm_model,
        kgray.open(tmp_path / "killed", create=True, settings=settings) as memory,
    ):
        refreshes, cycle, took = Refreshes(memory, tmp_path / "killed", environ), 0, 0.0
        while refreshes.kills < KILLS:
            for item in (calm, memory):
                assert item.add_many(episodes_of(cycle)).committed == len(GROUPS)
            calm_model.communities.refresh()
            expected, runs_before = stored_runs(calm), stored_runs(memory)
            while cycle and refreshes.kills < KILLS and (not landed or landed[-1] < len(GROUPS)):
                late = dice.random() < 0.6  # between two publications; else anywhere before the first
                after_s = dice.uniform(0, 0.02) if late else dice.uniform(0.1, 0.9) * took
                if refreshes.run(after_s, from_publication=late):
                    break
                landed.append(refreshes.look(runs_before, expected))
            began = time.monotonic()
            refreshes.run()
            took = min(took or HANGS_S, time.monotonic() - began)
            landed.append(-1)  # the end of a cycle
            assert refreshes.look(runs_before, expected) == len(GROUPS)
            cycle += 1
    landed = [new for new in landed if new >= 0]
    print(f"{KILLS} kills, new groups after each: {landed}")  # noqa: T201 - the output of a slow run
