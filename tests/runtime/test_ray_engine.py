"""Engines in Ray's workers, with the stand-in for vLLM: their life, their number, and their cards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import kgray
from kgray.errors import SettingsError, Unavailable
from tests.ray_session import deployment_of
from tests.waiting import HANGS_S, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
STAND_IN = Path(__file__).parent.parent / "stand_in"
PROFILE = """
[extraction]
workers = 1
cpus = 0.1
env = {{ PYTHONPATH = "{path}", KGRAY_TEST_ENGINE_LOG = "{log}", HF_TOKEN = "hf_secret" }}

[judging]
workers = 1
cpus = 0.1
env = {{ PYTHONPATH = "{path}", KGRAY_TEST_ENGINE_LOG = "{log}" }}

[embedding]
workers = 0

[engine]
max_num_seqs = 4

[limits]
health_every_s = 0.2
"""
GROWS = """
[extraction]
workers = {{ min = 1, max = 2 }}
cpus = 0.1
env = {{ PYTHONPATH = "{path}", KGRAY_TEST_ENGINE_LOG = "{log}", KGRAY_TEST_ENGINE_STEP_S = "0.2" }}

[embedding]
workers = 0

[engine]
max_num_seqs = 2

[limits]
health_every_s = 0.2
idle_s = 5.0
"""
ON_CARDS = """
[extraction]
workers = {workers}
cpus = 0.1
gpus = {cards}
env = {{ PYTHONPATH = "{path}", KGRAY_TEST_ENGINE_LOG = "{log}" }}

[embedding]
workers = 0

[engine]
tensor_parallel = {cards}
placement = "{placement}"

[limits]
health_every_s = 0.2
start_deadline_s = {start_s}
"""
CARDS: dict[str, Any] = {"cards": 2, "workers": 2, "placement": "STRICT_PACK", "start_s": 120.0}


def settings(tmp_path: Path, profile: str, **shape: Any) -> tuple[dict[str, Any], Path]:
    """Return the settings of engines by this profile, and the file of their notes."""
    log, path = tmp_path / "engine.log", tmp_path / "cards.toml"
    paths = f"{Path(__file__).parents[2]}:{STAND_IN}"
    path.write_text(profile.format(path=paths, log=log, **shape), encoding="utf-8")
    options = {"model_backend": "vllm", "model_name": "m", "runtime_backend": "ray", "runtime_profile": path}
    return options, log


def did(log: Path) -> list[list[str]]:
    """Return the notes of the engines, in words, each with its process last."""
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def workers(memory: Any) -> set[str]:
    """Return the names of the workers that exist."""
    from kgray.runtime import deploy

    return set(deploy.workers(deployment_of(memory).spec, "models").actors)


@contextmanager
def node(cards: int) -> Iterator[None]:
    """Have a node with `cards` cards join the Ray of this process; the cards are claims in its books."""
    import ray

    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1"]
    # Ray would look for a head on loopback at the machine's address, unless the name is in upper case.
    address = ray.get_runtime_context().gcs_address.replace("127.0.0.1", "LOCALHOST")
    command += [f"--num-gpus={cards}", f"--address={address}"]
    joined = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:  # kill the node: an orderly end takes half a minute
        for process in [joined, *joined.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # it ended with the previous process
                process.kill()
        joined.wait(HANGS_S)


@pytest.mark.slow  # test_ray_quarantine has engines by default
def test_a_dead_engine_is_restarted_and_an_engine_ends_before_its_actor(tmp_path):
    (options, log), modules_before = settings(tmp_path, PROFILE), set(sys.modules)
    with kgray.open(tmp_path / "d", create=True, settings=options) as memory:
        with pytest.raises(SettingsError, match="none are up: run `kgray up --data"):
            memory.ask("Who?", group="g", general=True)
        assert not log.exists(), "a question starts no engine"
        rows = [{"text": f"I like tea {n}.", "group": "g", "at": "2026-03-01"} for n in range(6)]
        report = memory.add_many([*rows, {"text": "[[DIE ONCE]]", "group": "g", "at": "2026-03-02"}])
        assert (report.committed, report.failed) == (7, 0)
        assert memory.ask("Who?", group="g", general=True).text == "hello"

    assert "vllm" not in sys.modules.keys() - modules_before  # nothing but the workers imports it
    started, ended = ([pid for event, pid in did(log) if event == name] for name in ("start", "stop"))
    assert [event for event, _ in did(log)].count("die") == 1
    # No engine sees the secret of its worker; each exports vLLM's metrics through Ray.
    assert {event for event, _ in did(log)} >= {"secrets:none", "metrics"}
    assert not any(event.startswith("secrets:") and event != "secrets:none" for event, _ in did(log))
    assert len(set(started)) == 3  # a reader, a judge, and the replacement
    died = next(pid for event, pid in did(log) if event == "die")
    assert sorted(ended) == sorted(set(started) - {died})


@pytest.mark.slow
def test_a_question_uses_a_running_engine_and_starts_none(tmp_path):
    options, log = settings(tmp_path, PROFILE)
    with kgray.open(tmp_path / "d", create=True, settings=options) as memory:
        with pytest.raises(SettingsError, match="none are up: run `kgray up --data"):
            memory.ask("Who?", group="g", general=True)
        assert not log.exists()
        memory.add("I like tea.", group="g")
        pieces: list[str] = []
        answer = memory.ask("Who?", group="g", general=True, on_text=pieces.append)
        assert (pieces, answer.text, answer.cost.calls) == (["hel", "lo"], "hello", 1)
        with pytest.raises(Unavailable, match=r"kgray status|broke off|died in the middle"):
            memory.ask("[[DIE BETWEEN]]", group="g", general=True)


@pytest.mark.slow
def test_a_worker_that_dies_during_the_start_of_a_command_reloads_its_engine(tmp_path):
    """Ray restarts the worker, and the waiting command has it load: it got no work since."""
    from kgray.runtime.deploy import ensure

    options, log = settings(tmp_path, PROFILE)
    with kgray.open(tmp_path / "d", create=True, settings=options) as memory:
        memory.add("I like tea.", group="g")
        first = deployment_of(memory)
        died = first.status()["models-0"]["pid"]
        psutil.Process(died).kill()
        rows = ensure(first.spec, detached=False, chosen=True).status()
        assert rows["models-0"]["loaded"]
        assert rows["models-0"]["pid"] in {int(pid) for event, pid in did(log) if event == "start"} - {died}


@pytest.mark.slow
def test_a_pool_grows_with_full_engines_and_shrinks_with_idle_engines(tmp_path):
    """From one worker to the maximum and back; a surplus worker ended its engine before its actor."""
    options, log = settings(tmp_path, GROWS)
    rows = [{"text": f"I like tea {n}.", "group": "g", "at": "2026-03-01"} for n in range(60)]
    with kgray.open(tmp_path / "d", create=True, settings=options) as memory:
        report = memory.add_many(rows)
        assert (report.committed, report.failed) == (60, 0)
        wait_for(lambda: workers(memory) == {"models-0"})
        started = {pid for event, pid in did(log) if event == "start"}
        assert len(started) >= 2  # more if a busy machine delays the first work of an engine
        assert len({pid for event, pid in did(log) if event == "stop"}) == len(started) - 1
        memory.add("I like coffee.", group="g")  # the remaining worker works

    assert sorted(pid for event, pid in did(log) if event == "stop") == sorted(started)


@pytest.fixture(scope="module")
def nodes(ray_session: Any) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds nodes of two cards up to a count; they remain for the tests below."""
    import ray

    with ExitStack() as joined:
        joined_nodes: list[None] = []

        def have(count: int) -> None:
            while len(joined_nodes) < count:
                joined_nodes.append(joined.enter_context(node(2)))
            wait_for(lambda: ray.cluster_resources().get("GPU") == 2 * len(joined_nodes))

        yield have


def groups(namespace: str) -> list[dict[str, Any]]:
    """Return the placement groups of a deployment."""
    from ray.util import placement_group_table

    return [row for row in placement_group_table().values() if row["name"].startswith(namespace)]


def states(namespace: str) -> list[str]:
    return sorted(row["state"] for row in groups(namespace))


@pytest.mark.slow
def test_an_engine_with_more_cards_than_a_node_is_refused_with_a_remedy(tmp_path, nodes):
    nodes(1)
    options, log = settings(tmp_path, ON_CARDS, **CARDS | {"cards": 3, "workers": 1, "start_s": 5.0})
    with (
        kgray.open(tmp_path / "d", create=True, settings=options) as memory,
        pytest.raises(Unavailable) as refused,
    ):
        memory.add("I like tea.", group="g")

    assert str(refused.value).endswith(
        "engine.tensor_parallel = 3 needs 3 cards on one node, and the largest has 2: "
        'with engine.placement = "PACK" several nodes share one'
    )
    assert did(log) == []


@pytest.mark.slow
def test_an_engine_with_several_cards_has_a_placement_group_until_its_end(tmp_path, nodes, monkeypatch):
    """Each of two engines uses two cards of a node. The second engine waits until a second node joins.

    Running workers work during the wait, and the missing workers are named.
    """
    from kgray.runtime import deploy

    monkeypatch.setattr(deploy, "JOIN_S", 1.0)  # the wait for the second engine is short
    nodes(1)
    options, log = settings(tmp_path, ON_CARDS, **CARDS)
    rows = [{"text": f"I like tea {n}.", "group": "g", "at": "2026-03-01"} for n in range(6)]
    lines: list[str] = []
    opened = kgray.open(tmp_path / "d", create=True, settings=options)
    opened.asynchronous.on_wait = lines.append
    with opened as memory:
        assert memory.add_many(rows).committed == 6
        assert [line for line in lines if line.startswith("not up yet: models-1;")]
        namespace = deployment_of(memory).spec.namespace
        assert states(namespace) == ["CREATED", "PENDING"]
        nodes(2)
        wait_for(lambda: len([1 for event, *_ in did(log) if event == "start"]) == 2)
        assert states(namespace) == ["CREATED", "CREATED"]
    wait_for(lambda: states(namespace) == ["REMOVED", "REMOVED"])
    assert [words[:2] for event, *words in did(log) if event == "cards"] == [["STRICT_PACK", "2"]] * 2
    assert len([1 for event, *_ in did(log) if event == "stop"]) == 2


@pytest.mark.slow
def test_an_engine_over_two_nodes_has_the_cards_of_both(tmp_path, nodes):
    """On each card of its group vLLM starts its own worker, through Ray."""
    nodes(2)
    options, log = settings(tmp_path, ON_CARDS, **CARDS | {"cards": 4, "workers": 1, "placement": "PACK"})
    with kgray.open(tmp_path / "d", create=True, settings=options) as memory:
        assert memory.add("I like tea.", group="g", at="2026-03-01").committed == 1
        (group,) = groups(deployment_of(memory).spec.namespace)
        assert len(set(group["bundles_to_node_id"].values())) == 2

    assert [words[:2] for event, *words in did(log) if event == "cards"] == [["PACK", "4"]]
