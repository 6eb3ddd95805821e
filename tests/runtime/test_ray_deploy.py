"""Deployments, epochs, `up` and `down`: access to actors, the right to write, and the place of secrets."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import runpy
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest

import kgray
from kgray.domain import times
from kgray.domain.records import Operation
from kgray.errors import Locked, SettingsError, StaleWriter, StoreError
from kgray.ingest.outbox import refusal_change
from kgray.memory import AsyncMemory
from kgray.ports import Judged
from kgray.ports.ingest import Totals
from kgray.runtime import session as heads
from kgray.runtime.spec import differences, spec_of
from kgray.settings import Settings, load
from kgray.storage.ledger import accept, request, result
from tests import make
from tests.board import asked
from tests.doors.shell import Answer, Shell
from tests.ray_session import Samples, deployment_of, over_ray, samples
from tests.waiting import HANGS_S, wait_for

pytestmark = pytest.mark.ray
KEY = "sk-nobody-may-read-this"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("KGRAY_", "RAY_"))]:
        monkeypatch.delenv(name)
    return Shell(tmp_path, {"KGRAY_RUNTIME_BACKEND": "ray"})


@pytest.mark.usefixtures("ray_session")
def test_an_actor_without_a_node_stays_unreachable_for_repeated_calls(tmp_path: Path) -> None:
    """A bounded queue of calls fills before a node joins: the wait for the actor continues."""
    import ray

    from kgray.runtime.actors import actor_of
    from kgray.runtime.deploy import Deployment
    from kgray.runtime.writer import GraphWriter

    spec = spec_of(Settings(), tmp_path, {})
    writer = actor_of(GraphWriter).options(num_cpus=10_000, max_pending_calls=2).remote(spec, "writer-0")
    deployment = Deployment(spec, {"writer-0": writer})
    reasons = [deployment.status(0.1, "describe")["writer-0"]["reason"] for _ in range(4)]
    ray.kill(writer)

    assert "GetTimeoutError" in reasons[0]
    assert "PendingCallsLimitExceeded" in reasons[-1]


def test_a_spec_contains_no_secret_and_restores_the_settings(tmp_path: Path) -> None:
    """Actors read secrets from their environment, and report missing secrets."""
    settings = load(
        None,
        environ={},
        overrides={
            "model.backend": "openai",
            "model.base_url": "http://localhost:1/v1",
            "model.name": "m",
            "model.api_key": KEY,
            "relations": {"WORKS_AT": {"cardinality": "many", "excludes": ["LEFT"]}},
        },
    )
    spec = spec_of(settings, tmp_path, {})

    packed = pickle.dumps(spec)
    assert KEY.encode() not in packed
    back = pickle.loads(packed)  # noqa: S301 - packed two lines above
    assert back.secrets == ("model.api_key",)
    assert back.settings({"KGRAY_MODEL_API_KEY": KEY}) == settings
    with pytest.raises(SettingsError, match="KGRAY_MODEL_API_KEY is not set where Ray's processes run"):
        back.settings({})


def test_differences_of_specs_are_named_without_the_address_of_ray() -> None:
    ours = spec_of(load(None, environ={}, overrides={"runtime.window": 8}), Path("/srv/a"), {"name": "a"})
    theirs = spec_of(
        load(None, environ={}, overrides={"model.name": "m", "runtime.address": "far:1"}),
        Path("/srv/b"),
        {"name": "b"},
    )

    assert differences(ours, theirs) == [
        "model.name is not set here and m there",
        "profile name is a here and b there",
        "runtime.window is 8 here and 128 there",
        "the data folder is /srv/a here and /srv/b there",
    ]
    assert differences(ours, ours) == []
    assert ours.namespace != theirs.namespace


@pytest.mark.usefixtures("ray_session")
def test_a_restarted_writer_continues_and_an_older_run_is_stale(tmp_path: Path) -> None:
    """R23: a repeated batch changes nothing; a batch of an older run changes nothing.

    The writer also serves a second shard, which has its own runs.
    """
    from kgray.runtime.writer import GraphWriter

    memory = kgray.open_async(tmp_path, create=True)
    operation = Operation(group="g", kind="undo", target=1)
    sequence = request(memory.store, operation)
    batch = [refusal_change(replace(operation, sequence=sequence), "no such merge", 5)]
    spec = spec_of(Settings(), tmp_path, {"sequencer": {"shards": 2}})  # "g" is of shard 0
    first = GraphWriter(spec, "writer-0")
    epoch, other_epoch = first.begin(0), first.begin(1)
    assert isinstance(epoch, int)
    assert isinstance(other_epoch, int)

    assert first.write(0, epoch, batch) is None
    assert first.write(0, epoch, batch) is None
    second_operation = replace(operation, sequence=request(memory.store, operation))
    assert first.write(0, epoch, [refusal_change(second_operation, "no such merge", 6)]) is None
    assert result(memory.store, "g", second_operation.sequence) is not None
    locked = GraphWriter(spec, "writer-0").begin(0)
    assert isinstance(locked, Locked)
    assert str(os.getpid()) in str(locked)
    for shard in (1, 0):
        first._release(shard)
    second = GraphWriter(spec, "writer-0")  # a restarted process takes over the epochs of the runs
    assert second.write(0, epoch, batch) is None
    assert second.write(1, other_epoch, []) is None
    newer = second.begin(0)
    assert newer > other_epoch
    assert second.write(1, other_epoch, []) is None, "the run of the other shard continues"
    assert isinstance(second.write(0, epoch, batch), StaleWriter)
    locked = GraphWriter(spec, "writer-0").begin(0)
    assert isinstance(locked, Locked), "an older run's batch does not take the store from the newest"
    for shard in (0, 1):
        second._release(shard)
    assert result(memory.store, "g", sequence) == {"error": "no such merge"}
    memory.close()


def test_a_command_with_other_settings_is_refused(traced: tuple[AsyncMemory, Samples]) -> None:
    """The error names the different setting."""
    from kgray.runtime.deploy import ensure

    settings = load(None, environ={}, overrides={"runtime.window": 9, "runtime.backend": "ray"})
    memory, _ = traced
    profile = deployment_of(memory).spec.profile
    with pytest.raises(SettingsError) as refused:
        ensure(spec_of(settings, memory.store.folder, profile), detached=False, chosen=True)
    assert "runtime.window is 9 here and 128 there" in str(refused.value)
    assert str(refused.value).endswith("kgray up")


@pytest.mark.slow  # by default a spec reports missing secrets
@pytest.mark.usefixtures("ray_session")
async def test_a_missing_secret_of_the_actors_is_named(tmp_path: Path) -> None:
    lacking = "KGRAY_MODEL_API_KEY is not set where Ray's processes run"
    with over_ray(tmp_path, model_api_key=KEY) as memory, pytest.raises(SettingsError, match=lacking):
        await memory.add("Alice works at Beta", group="g", id="2")


def test_a_note_of_an_ended_ray_is_ignored(tmp_path: Path) -> None:
    """A later process may have the same id; an unreadable note is reported."""
    me = heads.started_at(os.getpid())
    assert me is not None
    head = heads.Head(address="a:1", jobs="", pid=os.getpid(), started=me, token="t", folder="f")  # noqa: S106
    heads.write_head(tmp_path, head)
    assert heads.read_head(tmp_path) == head
    heads.write_head(tmp_path, heads.Head(**{**vars_of(head), "started": me - 1}))
    assert heads.read_head(tmp_path) is None
    (tmp_path / heads.HEAD_FILE).write_text("{")
    with pytest.raises(StoreError, match="cannot be used"):
        heads.read_head(tmp_path)
    (tmp_path / heads.HEAD_FILE).unlink()
    assert heads.read_head(tmp_path) is None


def arguments_of_processes() -> bytes:
    """Return the command lines of all processes of this machine."""
    results = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            results.append(path.read_bytes())
    return b"\n".join(results)


def vars_of(head: heads.Head) -> dict[str, object]:
    return {name: getattr(head, name) for name in head.__slots__}


def run(shell: Shell, *words: str) -> Answer:
    """Run a command to its end: a start of Ray is slow on a busy machine."""
    running = shell.start(*words, stdin=subprocess.DEVNULL)
    out, err = running.communicate(timeout=HANGS_S)
    return Answer(running.returncode, out.decode(), err.decode())


def reachable_from_outside(parent: psutil.Process) -> dict[str, str]:
    """Return the sockets of a process and its children that other machines can reach, with their names."""
    results = {}
    for process in (everyone := [parent, *parent.children(recursive=True)]):
        with suppress(psutil.NoSuchProcess):
            for connection in process.net_connections(kind="inet"):
                address = ip_address(connection.laddr.ip)
                ipv4 = getattr(address, "ipv4_mapped", None) or address
                if not (connection.raddr or ipv4.is_loopback):
                    results[f"{ipv4}:{connection.laddr.port}"] = process.name()
    assert len(everyone) > 3, "a Ray has more than three processes"
    return results


def processes_of_tasks(head: heads.Head) -> set[int]:
    """Return the ids of the task processes of the Ray of `kgray up`, including idle processes."""
    results = set()
    for process in psutil.Process(head.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name().startswith(("ray::IDLE", "ray::extract", "ray::resolve")):
                results.add(process.pid)
    return results


def test_up_starts_a_deployment_that_other_commands_use_until_down(shell: Shell) -> None:
    """All steps are commands, each in its own process; only processes of this Ray are ended.

    The demo reports the work of the actors in words.
    """
    shell.write(
        "profile.toml",
        "[extraction]\nworkers = 1\n[embedding]\nworkers = 0\n[tasks]\nat_once = 1\n"
        '[refresh]\ndue = "0 3 * * *"\nfull = "0 4 * * 0"\n',
    )
    shell.env["KGRAY_MODEL_API_KEY"] = KEY
    try:
        up = run(shell, "up", "--profile", "profile.toml", "--json")
        assert (up.code, up.json["actors"]) == (0, ["sequencer-0", "writer-0", "models-0", "scheduler-0"]), (
            up.err
        )
        assert up.json["schedules"] == ["refresh-due", "refresh-full"]
        head = heads.read_head(shell.folder / "kgray-data")
        assert head is not None
        first, second, third, fourth, *_, last = up.err.splitlines()
        assert first == "kgray: starting a Ray that stays, which takes 15 to 40 s"
        assert second.startswith(f"kgray: Ray listens at {head.address} after ")
        assert third == "kgray: connecting to it, which waits for Ray's own services"
        assert fourth == "kgray: starting 4 actors: models-0, writer-0, sequencer-0, scheduler-0"
        assert last.startswith("kgray: 4 of 4 actors have started after ")
        assert KEY.encode() not in arguments_of_processes()
        assert stat.S_IMODE(Path(head.token).stat().st_mode) == 0o600
        assert reachable_from_outside(psutil.Process(head.pid)) == {}
        with pytest.raises(HTTPError, match="401"):  # a request without a token is refused
            urlopen(f"{head.jobs}/api/jobs/", timeout=HANGS_S)  # noqa: S310 - of this machine
        shell.write("in.jsonl", {"id": "1", "text": "Alice works at Acme", "group": "g", "at": "2026-01-01"})
        added = run(shell, "add", "in.jsonl", "--json")
        assert (added.code, added.json["committed"]) == (0, 1), added.err
        task_processes = processes_of_tasks(head)
        reply = run(shell, "status", "--json").json["runtime"]
        # The job of `kgray up` has ended, and Ray ends idle processes of ended jobs: here not within seconds.
        assert task_processes
        assert task_processes <= processes_of_tasks(head)
        assert (reply["state"], reply["epochs"]) == ("up", [1])
        assert reply["lag"] in {0, 1}  # measured every half second
        assert reply["actors"]["sequencer-0"]["totals"]["committed"] == 1
        deeds = runpy.run_path(str(ROOT / "examples" / "demo.py"))["deeds"]
        reports = {name: deeds(name, row) for name, row in reply["actors"].items()}
        assert reports["models-0"] == "read 1 episodes, answered 0 questions"
        assert reports["sequencer-0"] == "decided 1 episodes, each group's in order; 0 failed"
        assert re.fullmatch(r"carried out \d+ writes in \d+ transactions, as epoch 1", reports["writer-0"])
        assert sorted(reports) == ["models-0", "scheduler-0", "sequencer-0", "writer-0"]
    finally:
        down = run(shell, "down", "--json")
    assert (down.code, down.json["actors"], down.json["processes"] > 3) == (0, 4, True), down.err
    scaled = shell("scale", "--shards", "3")
    assert (scaled.code, len(scaled.err.splitlines())) == (2, 1)
    assert "no deployment runs for" in scaled.err
    assert (heads.started_at(head.pid), Path(head.folder).exists()) == (None, False)
    assert shell("down").out == "Nothing is up.\n"
    assert shell("status", "--json").json["runtime"] == {"backend": "ray"}


@pytest.mark.slow
def test_scale_and_a_second_up_change_a_running_deployment(shell: Shell) -> None:
    """By commands: the shards, then a setting; the error for other settings names `kgray up`."""
    shell.write("profile.toml", "[extraction]\nworkers = 1\n[embedding]\nworkers = 0\n")
    try:
        up = run(shell, "up", "--profile", "profile.toml", "--json")
        assert up.code == 0, up.err
        scaled = run(shell, "scale", "--shards", "2", "--json")
        assert (scaled.code, scaled.json) == (0, {"from": 1, "to": 2, "moved": 512}), scaled.err
        shell.env["KGRAY_RUNTIME_WINDOW"] = "7"
        shell.write("more.jsonl", {"id": "2", "text": "Bo works at Acme", "group": "g", "at": "2026-01-02"})
        other_outcome = run(shell, "add", "more.jsonl")
        assert (other_outcome.code, "runtime.window is 7 here and 128 there" in other_outcome.err) == (
            2,
            True,
        )
        assert other_outcome.err.endswith("Use the same, or have the actors use these: kgray up\n")
        up = run(shell, "up", "--profile", "profile.toml", "--json")
        deciding = ("sequencer-0", "sequencer-1", "writer-0", "scheduler-0")
        assert up.json["replaced"] == {name: ["runtime.window"] for name in deciding}, up.err
        assert "there are 2 shards, and the profile has sequencer.shards = 1: their number stays" in up.err
        reply = run(shell, "status", "--json").json["runtime"]
        assert (reply["slots"], reply["window"]) == ([512, 512], 14)
        shell.write("more.jsonl", {"id": "3", "text": "Cy works at Acme", "group": "g", "at": "2026-01-03"})
        added = run(shell, "add", "more.jsonl", "--json")
        assert (added.code, added.json["accepted"]) == (0, 1), added.err
    finally:
        down = run(shell, "down", "--json")
    assert (down.code, down.json["actors"]) == (0, 5), down.err


@pytest.mark.slow
def test_the_ray_of_a_single_command_listens_only_on_loopback(tmp_path: Path) -> None:
    """In a new process: this process may have imported Ray before."""
    script = f"""
import kgray
with kgray.open({str(tmp_path)!r}, settings={{"runtime.backend": "ray"}}, create=True) as memory:
    memory.add("Alice works at Acme", group="g")
    input("up")
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert driver.stdout.read(2) == b"up"
        result = reachable_from_outside(psutil.Process(driver.pid))
        driver.communicate(b"\n", timeout=HANGS_S)
    assert (result, driver.returncode) == ({}, 0)


@pytest.mark.slow
def test_after_the_death_of_a_head_without_redis_another_up_resumes(shell: Shell) -> None:
    """All processes of Ray end with the head, and `status` reports this; rows accepted later are ingested."""
    shell.write(
        "profile.toml", "[extraction]\nworkers = 1\n[embedding]\nworkers = 0\n[ray]\ndashboard = false\n"
    )
    data = shell.folder / "kgray-data"
    try:
        assert run(shell, "up", "--profile", "profile.toml").code == 0
        head = heads.read_head(data)
        assert head is not None
        started = psutil.Process(head.pid).children(recursive=True)
        (server,) = (process for process in started if "gcs_server" in process.name())
        server.kill()
        wait_for(lambda: heads.read_head(data) is None and not any(map(psutil.Process.is_running, started)))
        assert run(shell, "status", "--json").json["runtime"] == {"backend": "ray"}
        message = make.draft("Alice works at Acme", at=1)
        with closing(kgray.open_async(data, create=True)) as memory:
            accept(memory.store, [message], now=times.now())
            assert run(shell, "up", "--profile", "profile.toml").code == 0
            wait_for(lambda: memory.store.counts("g")["g"].committed == 1)
    finally:
        run(shell, "down")


TEXT = "Alice works at Acme"
# The metrics that Ray exports, and their labels; labels of all metrics of Ray are omitted.
METRICS = {
    "ray_kgray_batch_size": {"of"},
    "ray_kgray_commit_seconds": set(),
    "ray_kgray_community_texts_total": {"how"},
    "ray_kgray_engine": {"worker", "of"},
    "ray_kgray_episodes_total": {"state"},
    "ray_kgray_in_flight": {"shard"},
    "ray_kgray_log_lag": {"shard"},
    "ray_kgray_loop_lag_seconds": set(),
    "ray_kgray_model_calls_total": {"stage", "outcome"},
    "ray_kgray_model_tokens_total": {"kind"},
    "ray_kgray_quarantined": {"worker"},
    "ray_kgray_rows_written_total": {"kind"},
    "ray_kgray_seats": {"shard"},
    "ray_kgray_stage_busy_seconds_total": {"stage"},
    "ray_kgray_stage_seconds": {"stage"},
    "ray_kgray_stalls_total": set(),
    "ray_kgray_wasted_tokens_total": set(),
    "ray_kgray_writer_epoch": {"shard"},
}
NUMBERS = (
    ("ray_kgray_episodes_total", {"state": "committed"}, 1.0),
    ("ray_kgray_model_calls_total", {"stage": "extract", "outcome": "ok"}, 1.0),
    ("ray_kgray_stage_seconds", {"stage": "extract"}, 1.0),
    ("ray_kgray_batch_size", {"of": "chunk"}, 1.0),
    ("ray_kgray_writer_epoch", {"shard": "0"}, 1.0),
    ("ray_kgray_rows_written_total", {"kind": "extractions"}, 1.0),
    ("ray_kgray_log_lag", {"shard": "0"}, 0.0),
    ("ray_kgray_in_flight", {"shard": "0"}, 0.0),
    ("ray_kgray_model_tokens_total", {"kind": "prompt"}, 7.0),
    ("ray_kgray_stalls_total", {}, 1.0),
    ("ray_kgray_wasted_tokens_total", {}, 2.0),
    ("ray_kgray_engine", {"worker": "extract-0", "of": "calls"}, 2.0),
    ("ray_kgray_quarantined", {"worker": "models-9"}, 1.0),
    ("ray_kgray_community_texts_total", {"how": "kept"}, 3.0),
    ("ray_kgray_log_lag", {"shard": "9"}, 3.0),
    ("ray_kgray_seats", {"shard": "9"}, 5.0),
    ("ray_kgray_in_flight", {"shard": "9"}, 4.0),
)


@pytest.fixture(scope="module")
def traced(
    ray_session: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[AsyncMemory, Samples]]:
    """Yield a memory with running actors, and the metrics of Ray after they ingested the episode of `traced`.

    Ray's processes report at different moments, so all exported samples count. A new process
    reports our numbers, because the counters of this process may include those of earlier tests.
    """
    import ray

    with over_ray(tmp_path_factory.mktemp("traced"), embedders=1) as memory:
        asyncio.run(memory.add(TEXT, group="traced", id="1"))
        reporter = ray.remote(num_cpus=0)(Reporter).remote()  # it exports while it lives
        results: Samples = []

        def complete() -> bool:
            results.extend(row for row in samples() if row not in results)
            return not missing(results)  # names without numbers may come from processes of other tests

        try:
            wait_for(complete)  # each process reports every second
        except AssertionError:
            raise AssertionError(f"never exported: {missing(results)}; exported: {results}") from None
        yield memory, results
        ray.kill(reporter)


class Reporter:
    """A process that reports numbers which a run of the rules lacks, such as tokens and stalls."""

    def __init__(self) -> None:
        from kgray.runtime import telemetry

        telemetry.count_call("judge", 0.02, Judged(answers=(), prompt_tokens=7))
        telemetry.export(Totals(stalls=1, wasted_tokens=2), {})
        telemetry.measure("kgray_community_texts", 3, how="kept")
        telemetry.measure("kgray_engine", 2, worker="extract-0", of="calls")  # no engine runs here
        telemetry.measure("kgray_quarantined", 1, worker="models-9")
        telemetry.measure("kgray_log_lag", 3, shard=9)
        telemetry.measure("kgray_in_flight", 4, shard=9)
        telemetry.measure("kgray_seats", 5, shard=9)


def missing(results: Samples) -> Samples:
    """Return the rows of NUMBERS that were not exported."""
    return [row for row in NUMBERS if row not in results]


@pytest.fixture(scope="module")
def exported(traced: tuple[AsyncMemory, Samples]) -> Samples:
    """Return the metrics of Ray after a run of one episode."""
    return traced[1]


def test_ray_exports_the_documented_metrics_without_group_labels(exported: Samples) -> None:
    """The names and tags of docs/ray.md, including the numbers of this run."""
    assert {name: set(tags) for name, tags, _ in exported} == METRICS
    assert missing(exported) == []
    busy = [value for name, _, value in exported if name == "ray_kgray_stage_busy_seconds_total"]
    assert all(seconds > 0 for seconds in busy)


def test_every_metric_and_label_of_the_board_is_exported(exported: Samples) -> None:
    labels_by_name = {name: set(tags) for name, tags, _ in exported}
    for name, labels in asked("ray_kgray_").items():
        plain = name.removesuffix("_bucket")
        assert labels <= labels_by_name[plain] | ({"le"} if plain != name else set()), name
    assert {name.removesuffix("_bucket") for name in asked("ray_kgray_")} == set(METRICS)


@pytest.mark.usefixtures("exported")
def test_a_gauge_that_was_set_once_is_exported_repeatedly() -> None:
    """A Prometheus that starts later also needs the epoch of a writer."""
    gauge = ("ray_kgray_quarantined", {"worker": "models-9"}, 1.0)
    for _ in range(3):
        wait_for(lambda: gauge in samples())


@pytest.mark.usefixtures("exported")
def test_an_episode_has_one_trace_id_in_the_logs_of_all_processes(ray_session: Any) -> None:
    """JSON lines with stage, group and sequence; the trace id follows from these; no text of an episode."""
    from kgray.runtime.telemetry import trace_of

    results = [row for row in log_rows(ray_session.folder) if row.get("group") == "traced"]
    assert {(row["role"].split("-")[0], row["stage"], row["trace"]) for row in results} == {
        ("sequencer", "taken", trace_of("traced", 1)),
        ("models", "extract", trace_of("traced", 1)),
        ("tasks", "extract_episode", trace_of("traced", 1)),
        ("sequencer", "decide", trace_of("traced", 1)),
        ("writer", "committed", trace_of("traced", 1)),
    }
    assert TEXT not in json.dumps(results)


def log_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the JSON lines that the actors of a Ray wrote, whose files are in a folder."""
    paths = folder.glob("ray/session_*[0-9]/logs/worker-*.err")
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]
