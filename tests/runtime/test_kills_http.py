"""Killed at any instant while a model server answers: the same graph, no answer asked for twice (R19-R24)."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

from tests.runtime.served import (
    STREAMS,
    WORLD,
    answer,
    asked,
    journaled,
    once,
    serving,
    settings,
    start,
    stats,
)

KILLS = 6


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
        kept = journaled(Path(data))  # meanwhile the server has counted what it was still answering
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
    checks = json.loads(answer("doctor", "--data", killed, "--json"))["checks"]
    assert [check for check in checks if not check["ok"]] == []
    assert 0 < seen[0] < seen[-1] < asked(disturbed)
    assert once(undisturbed) == once(disturbed) == 80
    assert undisturbed["repeated"].get("combined", 0) == 0
    assert disturbed["repeated"].get("combined", 0) <= lost
    assert asked(disturbed) <= asked(undisturbed) + 2 * KILLS * STREAMS
