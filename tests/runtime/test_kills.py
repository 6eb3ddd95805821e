"""Killed at any instant, run again: the same graph as an undisturbed run (R19-R24, promise 2)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import HANGS_S
from tests.world import WorldPlan
from tests.world.files import write

EPISODES = 500


def kgray(data: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start the command, as a user's shell would."""
    command = [sys.executable, "-m", "kgray", *words, "--data", str(data)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KGRAY_")}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def answer(data: Path, *words: str) -> str:
    """Run the command to its end and return its stdout."""
    process = kgray(data, *words)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, err.decode()
    return out.decode()


def status(data: Path) -> dict[str, Any]:
    """Return the ledger of the group."""
    counts: dict[str, Any] = json.loads(answer(data, "status", "--json"))["groups"].get("world-0", {})
    return counts


def ingest_under_fire(file: Path, folder: Path, kills: int, expected: str, seed: int) -> None:
    """Kill `kgray add` at random instants, `kills` times in all, in as many folders as that takes."""
    rng = random.Random(seed)
    kill_count, number = 0, 0
    while kill_count < kills:
        number += 1
        data = folder / f"data-{number}"
        while kill_count < kills:
            process = kgray(data, "add", str(file))
            try:
                process.communicate(timeout=rng.uniform(0.05, 1.6))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                kill_count += 1
            else:
                assert process.returncode == 0
                break
        answer(data, "add", str(file))
        assert status(data) == {"accepted": 0, "extracted": 0, "committed": EPISODES, "failed": 0, "held": 0}
        assert answer(data, "dump", "--group", "world-0", "--hash") == expected, f"data-{number}"
    checks = json.loads(answer(data, "doctor", "--json"))["checks"]
    assert [check for check in checks if not check["ok"]] == []


def undisturbed(tmp_path: Path) -> tuple[Path, str]:
    """Return the input and the dump hash of a run that nothing disturbs."""
    file = tmp_path / "episodes.jsonl"
    write(WorldPlan(seed=7, episodes=EPISODES), file, None)
    data = tmp_path / "undisturbed"
    answer(data, "add", str(file))
    return file, answer(data, "dump", "--group", "world-0", "--hash")


@pytest.mark.slow
def test_two_hundred_kills_leave_the_graph_of_an_undisturbed_run(tmp_path: Path) -> None:
    """From the command's first instants on; test_kills_http is the short form. Ten minutes at most."""
    start = time.monotonic()
    file, expected = undisturbed(tmp_path)
    ingest_under_fire(file, tmp_path, 200, expected, seed=2)
    assert time.monotonic() - start < 600
