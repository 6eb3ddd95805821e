"""Ray's head is killed during a backfill: with Redis it restarts, and the backfill continues."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.served import WORLD, answer, dump_hash, ledger, settings, start
from tests.waiting import HANGS_S, wait_for

EPISODES = 80
AWAY_S = 15.0  # longer than a plain restart of the head takes
PROFILE = """
[ray]
dashboard = false
[extraction]
workers = 1
cpus = 1
[embedding]
workers = 0
"""
# In its own process: Ray reads the variables of its token and of Redis once.
CLUSTER = """
import json, sys
from bench.simulated import SimulatedCluster

cluster = SimulatedCluster(1, workers=1)
head = cluster._cluster.head_node
print(json.dumps({"address": cluster.address, "environ": dict(cluster.environ)}), flush=True)
for line in sys.stdin:
    head.kill_gcs_server() if line == "kill\\n" else head.start_gcs_server()
    print(line.strip(), flush=True)
cluster.close()
"""

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed"),
]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """Start a Redis; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    with (tmp_path / "redis.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(HANGS_S)


def test_a_backfill_continues_after_a_restart_of_the_head(tmp_path: Path, redis: str) -> None:
    """The command does not end and repeats no work; the graph is that of the plain loop."""
    world, data, calm, profile = (tmp_path / name for name in ("w.jsonl", "killed", "calm", "profile.toml"))
    answer("bench", "world", *WORLD, "--out", str(world))
    answer("init", "--data", str(data))
    profile.write_text(PROFILE)
    slow = ("--streams", "4", "--first-token-s", "2", "--tokens-per-s", "0", "--idle-s", "900")
    server = start("bench", "model-server", *WORLD, *slow, "--json")
    cluster = subprocess.Popen(
        [sys.executable, "-P", "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"RAY_REDIS_ADDRESS": redis, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert server.stdout is not None
    assert cluster.stdout is not None
    assert cluster.stdin is not None

    def head(command: str) -> None:
        print(command, file=cluster.stdin, flush=True)
        assert cluster.stdout.readline() == f"{command}\n"  # type: ignore[union-attr]

    try:
        environment = settings(str(json.loads(server.stdout.readline())["base_url"]))
        reply = json.loads(next(line for line in cluster.stdout if line.startswith("{")))
        ray = {"KGRAY_RUNTIME_BACKEND": "ray", "KGRAY_RUNTIME_ADDRESS": reply["address"]}
        ray |= {"KGRAY_RUNTIME_PROFILE": str(profile), **reply["environ"]}
        driver = start("backfill", str(world), "--data", str(data), "--json", env=environment | ray)
        wait_for(lambda: ledger(data).get("committed", 0) >= 12, driver)
        head("kill")
        with pytest.raises(subprocess.TimeoutExpired):
            driver.wait(AWAY_S)
        committed_before = ledger(data)["committed"]
        head("start")
        out, err = driver.communicate(timeout=HANGS_S)
        assert (driver.returncode, committed_before < EPISODES) == (0, True), err.decode()
        assert json.loads(out)["committed"] == EPISODES
        answer("add", str(world), "--data", str(calm), env=environment)
    finally:
        cluster.communicate(timeout=HANGS_S)
        server.terminate()
        server.communicate(timeout=HANGS_S)
    assert dump_hash(data) == dump_hash(calm)
