"""Killed at any instant while a model server answers: the same graph, no answer asked for twice (R19-R24)."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WORLD = ("--episodes", "80", "--entities", "40", "--seed", "5")
STREAMS = 4  # calls at the server at once: what a kill can catch on the way to the journal
KILLS = 6


def start(*words: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start the command, as a user's shell would."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KGRAY_")}
    command = [sys.executable, "-m", "kgray", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, env=clean | (env or {}))


def answer(*words: str, env: dict[str, str] | None = None) -> str:
    """Run the command to its end and return its stdout."""
    process = start(*words, env=env)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    return out.decode()


@contextmanager
def serving() -> Iterator[str]:
    """Serve the world, 30 ms an answer; yield the address."""
    slow = ("--streams", str(STREAMS), "--first-token-s", "0.03", "--tokens-per-s", "0", "--idle-s", "60")
    server = start("bench", "model-server", *WORLD, *slow, "--json")
    try:
        assert server.stdout is not None
        yield str(json.loads(server.stdout.readline())["base_url"])
    finally:
        server.terminate()
        server.communicate(timeout=20)


def stats(base_url: str) -> dict[str, Any]:
    """Return what the server counted."""
    connection = http.client.HTTPConnection(base_url.split("/")[2], timeout=10)
    connection.request("GET", "/v1/stats")
    counted: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return counted


def settings(base_url: str) -> dict[str, str]:
    """Return the settings: no response cache, so that what is not asked again was journaled."""
    return {
        "KGRAY_MODEL_BACKEND": "openai",
        "KGRAY_MODEL_NAME": "world",
        "KGRAY_MODEL_BASE_URL": base_url,
        "KGRAY_MODEL_MAX_CONCURRENCY": str(STREAMS),
        "KGRAY_MODEL_CACHE_MB": "0",
    }


def once(counted: dict[str, Any]) -> int:
    """Return how many episodes were read, each counted once."""
    return int(counted["by_task"].get("combined", 0)) - int(counted["repeated"].get("combined", 0))


def journaled(data: str) -> int:
    """Return how many episodes' answers the store keeps; none where the kill came before the store."""
    if not (Path(data) / "kgray.sqlite3").exists():
        return 0
    groups = json.loads(answer("status", "--data", data, "--json"))["groups"]
    return sum(row["extracted"] + row["committed"] for row in groups.values())


def asked(counted: dict[str, Any]) -> int:
    return sum(count for task, count in counted["by_task"].items() if task != "probe")


def ingest_under_fire(base_url: str, world: str, data: str) -> tuple[list[int], int]:
    """Kill the command at random instants of its work, KILLS times.

    Returns what was asked by each kill, and how many answers were on their way to the journal at the kills:
    those alone may be asked for again.
    """
    rng = random.Random(11)
    seen: list[int] = []
    lost = 0
    while len(seen) < KILLS:
        before = asked(stats(base_url))
        process = start("add", world, "--data", data, env=settings(base_url))
        while process.poll() is None and asked(stats(base_url)) < before + 3:
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 0.1))
        assert process.poll() is None, "killed in the middle, not after the end"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kept = journaled(data)  # meanwhile the server has counted what it was still answering
        counted = stats(base_url)
        lost += once(counted) - kept
        seen.append(asked(counted))
    return seen, lost


def test_six_kills_leave_the_graph_of_an_undisturbed_run_and_no_journaled_answer_is_asked_again(
    tmp_path: Path,
) -> None:
    world, calm, killed = (str(tmp_path / name) for name in ("world.jsonl", "calm", "killed"))
    answer("bench", "world", *WORLD, "--out", world)
    with serving() as base_url:
        answer("add", world, "--data", calm, env=settings(base_url))
        undisturbed = stats(base_url)
    with serving() as base_url:
        seen, lost = ingest_under_fire(base_url, world, killed)
        answer("add", world, "--data", killed, env=settings(base_url))
        disturbed = stats(base_url)

    group = ("dump", "--group", "world-0", "--hash", "--data")
    assert answer(*group, killed) == answer(*group, calm)
    ledger = json.loads(answer("status", "--data", killed, "--json"))["groups"]["world-0"]
    assert ledger == {"accepted": 0, "extracted": 0, "committed": 80, "failed": 0}
    assert 0 < seen[0] < seen[-1] < asked(disturbed)
    assert once(undisturbed) == once(disturbed) == 80
    assert undisturbed["repeated"].get("combined", 0) == 0
    assert disturbed["repeated"].get("combined", 0) <= lost
    assert asked(disturbed) <= asked(undisturbed) + 2 * KILLS * STREAMS
