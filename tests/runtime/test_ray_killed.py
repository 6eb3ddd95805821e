"""All of Ray is killed during a command: a one-line error; the same command resumes (R19-R24, promise 2)."""

from __future__ import annotations

import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import kgray
from tests.runtime.served import WORLD, answer, ledger, once, serving, settings, start, stats
from tests.waiting import HANGS_S, wait_for

EPISODES = 80
# A slow worker of a busy machine is not mistaken for a hanging worker: its work would be requested twice.
PROFILE = """
[ray]
dashboard = false
[extraction]
workers = 1
cpus = 0.1
[embedding]
workers = 0
"""
LAST_WORDS = "what was accepted is safe, run it again to go on"


def committed(data: Path) -> int:
    with closing(kgray.open_async(data, create=True)) as memory:
        return sum(counts.committed for counts in memory.store.counts().values())


def kill_ray(driver: subprocess.Popen[bytes]) -> None:
    """Kill all processes of the Ray that a command started, but not the command."""
    for process in psutil.Process(driver.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def starts_actors(driver: subprocess.Popen[bytes]) -> bool:
    """Return True once a process of the command's Ray is a writer, which starts before a sequencer."""
    for process in psutil.Process(driver.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "ray::GraphWriter" in " ".join(process.cmdline()):
                return True
    return False


def repeated(counted: dict[str, Any]) -> int:
    return int(counted["repeated"].get("combined", 0))


@pytest.mark.ray
@pytest.mark.slow  # by default the chaos run kills actors, nodes and drivers
def test_after_a_kill_of_all_of_ray_a_second_command_repeats_no_journaled_request(tmp_path: Path) -> None:
    """The command notices in seconds, names the remedy, exits 75; the next command makes the same graph."""
    world, data, calm, profile = (tmp_path / name for name in ("w.jsonl", "killed", "calm", "profile.toml"))
    answer("bench", "world", *WORLD, "--out", str(world))
    answer("init", "--data", str(data))
    profile.write_text(PROFILE)
    backfill = ("backfill", str(world), "--data", str(data), "--json")
    with serving() as base_url:
        environment = settings(base_url)
        ray = environment | {"KGRAY_RUNTIME_BACKEND": "ray", "KGRAY_RUNTIME_PROFILE": str(profile)}
        driver = start(*backfill, env=ray)
        wait_for(lambda: committed(data) >= 24, driver)
        kill_ray(driver)
        killed = time.monotonic()
        out, err = driver.communicate(timeout=HANGS_S)
        took = time.monotonic() - killed
        assert driver.returncode == 75, err.decode()
        assert took < 30, "noticed by a look, not by Ray's own deadline of a minute"
        assert out.startswith(b"{"), "nothing but the document"
        *_, last_line = err.decode().splitlines()
        assert last_line.startswith("kgray: stopped before the end (the Ray at ")
        assert last_line.endswith(LAST_WORDS)
        assert "Traceback" not in err.decode()

        counts_kept = ledger(data)
        stats_before = stats(base_url)
        lost = once(stats_before) - counts_kept["extracted"] - counts_kept["committed"]
        assert 24 <= counts_kept["committed"] < EPISODES
        answer(*backfill, env=ray)
        stats_after = stats(base_url)
        assert once(stats_after) == EPISODES
        assert repeated(stats_after) - repeated(stats_before) <= lost, (
            "only what was on its way to the journal"
        )
        answer("add", str(world), "--data", str(calm), env=environment)

    dump = ("dump", "--group", "world-0", "--hash", "--data")
    assert answer(*dump, str(data)) == answer(*dump, str(calm))
    assert ledger(data) == {"accepted": 0, "extracted": 0, "committed": EPISODES, "failed": 0}


@pytest.mark.ray
@pytest.mark.slow
def test_the_death_of_ray_during_the_start_of_actors_is_a_one_line_error(tmp_path: Path) -> None:
    """Otherwise Ray would end the process after a minute, with its own message and exit code 1."""
    world, profile = tmp_path / "world.jsonl", tmp_path / "profile.toml"
    answer("bench", "world", *WORLD, "--out", str(world))
    profile.write_text(PROFILE)
    ray = {"KGRAY_RUNTIME_BACKEND": "ray", "KGRAY_RUNTIME_PROFILE": str(profile)}
    driver = start("add", str(world), "--data", str(tmp_path / "data"), env=ray)
    wait_for(lambda: starts_actors(driver), driver)
    kill_ray(driver)
    _, err = driver.communicate(timeout=HANGS_S)
    assert driver.returncode == 75, err.decode()
    *_, line = err.decode().splitlines()
    assert "has ended" in line
    assert "what was accepted is safe, run it again" in line
