"""Refreshes and backfills as jobs of Ray: listed with log and outcome, and resumed after a kill."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import kgray
from kgray.runtime.spec import namespace_of, store_identity
from kgray.settings import Settings
from tests.doors.shell import Shell
from tests.ray_session import SMALL
from tests.waiting import HANGS_S, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
ROOT = Path(__file__).resolve().parents[2]
GROUPS = ("one", "two", "three")
PEOPLE = ("Ann", "Bob", "Cara", "Dan")


@contextmanager
def deployed(folder: Path) -> Iterator[Any]:
    """Start the actors of a store as `kgray up` does; they end with the block."""
    from kgray.runtime import deploy
    from kgray.runtime.spec import load_profile, spec_of

    folder.mkdir(exist_ok=True)
    (folder / "profile.toml").write_text(SMALL.format(workers=1, embedders=0, shards=1))
    spec = spec_of(Settings(), folder, load_profile(folder / "profile.toml").values())
    up = deploy.ensure(spec, detached=True, chosen=False)
    try:
        yield up
    finally:
        up.stop(0)


def process_of(folder: Path) -> psutil.Process:
    """Wait for the process of a job on a data folder; return it."""
    results: list[psutil.Process] = []

    def look() -> bool:
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if str(folder) in words and words[0] == sys.executable and "submit" not in words:
                results.append(process)
        return bool(results)

    wait_for(look)
    return results[0]


def job_client() -> Any:
    """Return Ray's client of the job server of the session's Ray."""
    import ray
    from ray.job_submission import JobSubmissionClient

    return JobSubmissionClient(ray.get_runtime_context().gcs_address)


def jobs_of(folder: Path) -> dict[str, Any]:
    """Return Ray's details of the jobs of a store, by id."""
    store = namespace_of(store_identity(Settings(), folder))
    jobs = job_client().list_jobs()
    return {job.submission_id: job for job in jobs if (job.submission_id or "").startswith(store)}


@pytest.mark.slow  # test_job_server follows a job that fails
def test_a_follower_gets_the_log_and_the_exit_code_of_a_failed_job(tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"KGRAY_DATA": str(tmp_path / "data")})
    with kgray.open(tmp_path / "data", create=True) as memory:
        memory.add("I work at Acme.", group="one", speaker="Ann", at="2026-01-01")
    server = job_client().get_address()

    answer = shell("communities", "refresh", "--group", "two", "--submit", "--job-server", server)

    (job,) = jobs_of(tmp_path / "data")
    assert (answer.code, answer.out) == (2, "")
    lines = answer.err.splitlines()
    assert lines[0] == f"kgray: job {job} is submitted"
    assert "kgray: there is no group two" in lines
    assert lines[-1] == f"kgray: job {job}: failed (kgray: there is no group two)"


def submission_of(
    folder: Path, data: Path, *, count: int
) -> tuple[list[dict[str, str]], list[str], dict[str, Any]]:
    """Write rows of five groups; return them, and the command and the environment of their backfill job."""
    rows = [
        {"id": f"{n}", "group": f"g{n % 5}", "speaker": PEOPLE[n % 4], "text": f"I work at Acme {n % 7}."}
        | {"at": "2026-01-01"}
        for n in range(count)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [sys.executable, ROOT / "jobs/backfill.py", folder / "rows.jsonl", "--data", data]
    return rows, list(map(str, words)), {"env_vars": {"KGRAY_RUNTIME_PROFILE": str(data / "profile.toml")}}


def assert_equals_one_run(data: Path, calm: Path, rows: Sequence[dict[str, str]]) -> None:
    """Check that each row is committed once, and that the graph is that of one undisturbed run."""
    with kgray.open(data, create=True) as memory, kgray.open(calm, create=True) as undisturbed:
        assert sum(count.committed for count in memory.store.counts().values()) == len(rows)
        undisturbed.add_many(rows)
        for group in (f"g{n}" for n in range(5)):
            assert memory.dump_hash(group=group) == undisturbed.dump_hash(group=group)


@pytest.mark.slow
def test_a_killed_job_of_the_documented_command_is_resubmitted_to_running_actors(tmp_path: Path) -> None:
    """The actors ingest the accepted rows; the second job accepts the rest, and no row is read twice."""
    data = tmp_path / "data"
    rows, words, environment = submission_of(tmp_path, data, count=1500)
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    head = [*ray, "job", "submit", "--address", job_client().get_address(), "--entrypoint-num-cpus", "0.1"]
    command = [*head, "--runtime-env-json", json.dumps(environment), "--", *words]
    with kgray.open(data, create=True) as memory, deployed(data) as up:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as first:
            process = process_of(data)
            wait_for(lambda: bool(memory.store.counts()))
            process.kill()
            first_log, _ = first.communicate(timeout=HANGS_S)
        counts = memory.store.counts().values()
        accepted = sum(count.accepted + count.extracted + count.committed for count in counts)
        second = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=False)
        totals = up.status()["sequencer-0"]["totals"]

        assert first.returncode != 0, first_log
        assert 0 < accepted < len(rows)
        assert second.returncode == 0, second.stdout + second.stderr
        assert "starting" not in second.stdout  # actors: it uses those that run
        assert (totals["committed"], totals["failed"]) == (len(rows), 0)
    assert_equals_one_run(data, tmp_path / "calm", rows)


@pytest.mark.slow
def test_a_backfill_job_uses_running_actors_and_is_resumed_after_a_kill(tmp_path: Path) -> None:
    """Without running actors the second job starts its own; the graph is that of an undisturbed run."""
    client, data = job_client(), tmp_path / "data"
    rows, words, environment = submission_of(tmp_path, data, count=300)
    submission = {
        "entrypoint": shlex.join(words), "entrypoint_num_cpus": 0.1, "runtime_env": environment,
    }  # fmt: skip
    with kgray.open(data, create=True) as memory, deployed(data) as up:
        first = client.submit_job(**submission)
        process = process_of(data)
        wait_for(lambda: bool(memory.store.counts()))
        process.kill()
        wait_for(lambda: client.get_job_status(first).is_terminal())
        wait_for(lambda: not memory.store.pending_count())
        committed = up.status()["sequencer-0"]["totals"]["committed"]
        assert committed == sum(count.committed for count in memory.store.counts().values()) > 0
    second = client.submit_job(**submission)
    wait_for(lambda: client.get_job_status(second).is_terminal())

    assert client.get_job_status(second) == "SUCCEEDED", client.get_job_logs(second)
    assert "starting 3 actors" in client.get_job_logs(second)
    assert_equals_one_run(data, tmp_path / "calm", rows)
