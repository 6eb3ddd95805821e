"""A cluster profile is read strictly; the shipped profile lists every key with its default."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kgray.errors import SettingsError
from kgray.runtime.spec import (
    DeploymentSpec,
    Profile,
    changed_keys,
    differences,
    load_profile,
    profile_of,
    shipped,
    spec_of,
)
from kgray.settings import Settings, load
from kgray.settings import load as load_settings


def test_the_shipped_profile_lists_every_key_and_is_the_default():
    written = tomllib.loads(shipped().read_text(encoding="utf-8"))

    assert load_profile() == Profile()
    assert {"name": "laptop", **written} == Profile().values()


def test_sequencers_and_writers_request_separate_resources(tmp_path):
    """Their own CPUs, memory and labels, and no worker's; shards are in the order of their numbers."""
    pytest.importorskip("ray")
    from kgray.runtime.deploy import order, plan_of
    from kgray.runtime.spec import spec_of

    sequencer = {"shards": 12, "cpus": 0.5, "memory_mb": 64, "labels": {"role": "control"}}
    profile = profile_of({"sequencer": sequencer, "extraction": {"labels": {"role": "gpu"}}}, "here")
    settings = load_settings(None, environ={}, overrides={"store_backend": "neo4j"})
    plan = plan_of(spec_of(settings, tmp_path, profile.values()), detached=True)

    options_of = {name: options for name, (_, options, _) in plan.items()}
    place = {"num_cpus": 0.5, "memory": 64 << 20, "label_selector": {"role": "control"}}
    assert options_of["sequencer-11"] == place == options_of["scheduler-0"]
    assert options_of["writer-3"] == place | {"max_pending_calls": Profile().limits.pending_writes}
    assert options_of["models-0"]["label_selector"] == {"role": "gpu"}
    shards = [name for name in sorted(plan, key=order) if name.startswith("sequencer-")]
    assert shards == [f"sequencer-{number}" for number in range(12)]


def test_an_engine_worker_accepts_one_chunk_per_seat(tmp_path):
    """Else calls wait behind the longest calls of other chunks while the engine has free seats."""
    pytest.importorskip("ray")
    from kgray.runtime.deploy import plan_of
    from kgray.runtime.spec import spec_of

    profile = profile_of({"engine": {"max_num_seqs": 128}}, "here")
    chunks = {}
    for values in ({"model_backend": "rules"}, {"model_backend": "vllm", "model_name": "m"}):
        settings = load_settings(None, environ={}, overrides={"store_backend": "neo4j"} | values)
        plan = plan_of(spec_of(settings, tmp_path, profile.values()), detached=True)
        chunks[values["model_backend"]] = plan["models-0"][1]["max_concurrency"]
    assert chunks == {"rules": 64, "vllm": 256}


def test_the_write_deadline_is_longer_than_the_transaction_timeout():
    """Else a large removal would be begun again for ever."""
    connection = pytest.importorskip("kgray.storage.neo4j.connection")

    assert Profile().limits.write_deadline_s > connection._WRITE_S


def test_a_process_id_is_checked_only_in_the_same_pid_namespace():
    """Two pods may share a host's name, and count their processes each for itself."""
    fence = pytest.importorskip("kgray.storage.neo4j.fence")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert not fence._may_live(fence.HOST, ended.pid)
    assert fence._may_live(fence.HOST, os.getpid())
    assert fence._may_live(f"{socket.gethostname()} pid:[1]", ended.pid)


def test_a_profile_file_overrides_only_its_keys(tmp_path):
    path = tmp_path / "room.toml"
    path.write_text("[extraction]\nworkers = 7\n\n[limits]\ngrace_s = 0\n")

    profile = load_profile(path)

    assert (profile.name, profile.extraction.workers, profile.limits.grace_s) == ("room", 7, 0.0)
    assert profile.embedding == Profile().embedding
    assert profile_of(profile.values(), "again") == profile


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[extraktion]\n",
            "extraktion in room.toml is not a key of a cluster profile. The nearest one is extraction.",
        ),
        ("[limits]\ngrace = 1\n", "The nearest one is limits.grace_s."),
        (
            "[extraction]\nworkers = 0\n",
            "extraction.workers = 0 in room.toml: a whole number from 1 to 100000",
        ),
        (
            "[extraction]\nworkers = true\n",
            "extraction.workers = True in room.toml: a whole number from 0 to 100000",
        ),
        (
            "[extraction]\nworkers = { min = 3, max = 2 }\n",
            "{'min': 3, 'max': 2} in room.toml: a whole number from 0 to 100000 is needed, or { min = 1, max",
        ),
        ("[embedding]\nworkers = { min = 0, max = 2 }\n", "max = 4 } with 1 <= min <= max."),
        ("[embedding]\nworkers = { min = 1, max = 2, usual = 2 }\n", "max = 4 } with 1 <= min <= max."),
        ('[engine]\nplacement = "ANY"\n', 'use one of "STRICT_PACK", "PACK", "SPREAD".'),
        (
            "[extraction]\ngpus = 0.8\n\n[engine]\ntensor_parallel = 2\n",
            "extraction.gpus = 0.8 in room.toml: engine.tensor_parallel = 2 needs 2.",
        ),
        (
            "[engine.args]\nmax_num_seqs = 8\n",
            "in room.toml: kgray sets max_num_seqs, because the seats of engines are counted by it",
        ),
        (
            "[engine.args.structured_outputs_config]\ndisable_any_whitespace = false\n",
            "kgray sets structured_outputs_config.disable_any_whitespace, because some models write blanks",
        ),
        ("[engine]\nargs = 3\n", "engine.args = 3 in room.toml: a table of arguments of vLLM is needed."),
        ('[engine.args]\nkv-cache-dtype = "fp8"\n', "write it with underscores, as kv_cache_dtype."),
        (
            "[extraction]\ngpus = 2\n\n[engine]\ntensor_parallel = 2\nargs.pipeline_parallel_size = 2\n",
            "engine.tensor_parallel = 2 with engine.args.pipeline_parallel_size = 2 needs 4.",
        ),
        ("[ray]\ndashboard = 1\n", "ray.dashboard = 1 in room.toml: use true or false."),
        ("ray = 1\n", "ray in room.toml is not a table: write [ray] and its keys below it."),
        ("[ray\n", "cluster profile room.toml is not valid TOML"),
    ],
)
def test_an_error_is_reported_with_its_key_and_file(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "room.toml").write_text(text)

    with pytest.raises(SettingsError) as caught:
        load_profile(tmp_path.joinpath("room.toml").relative_to(tmp_path))

    assert message in str(caught.value)


def test_a_pool_has_a_fixed_size_or_a_minimum_and_a_maximum():
    profile = profile_of(
        {"extraction": {"workers": {"min": 1, "max": 4}}, "judging": {"workers": 3}}, "room.toml"
    )

    counts = [
        (pool.minimum, pool.maximum) for pool in (profile.extraction, profile.judging, profile.reranking)
    ]
    assert counts == [(1, 4), (3, 3), (0, 0)]
    assert profile_of(profile.values(), "again") == profile


def test_a_missing_profile_is_reported(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        load_profile(tmp_path / "none.toml")


def test_actors_are_replaced_only_for_changed_keys_that_they_use(tmp_path: Path) -> None:
    """Deciding actors use all settings; a worker only the settings of its model, its nodes and its engine."""

    def spec(profile: dict[str, Any], **settings: Any) -> DeploymentSpec:
        values = profile_of(profile, "the test").values()
        return spec_of(load(None, environ={}, overrides=settings), tmp_path, values)

    spec_before = spec({})
    spec_after = spec(
        {"extraction": {"workers": 3}, "judging": {"workers": 0, "cpus": 2.0}, "limits": {"grace_s": 1.0}},
        **{"runtime.window": 9, "prompts.folder": tmp_path, "embedder.base_url": "http://h/v1"},
    )
    read = ["prompts.folder"]
    kinds = ("models", "judges", "embedder", "reranker")
    assert {kind: changed_keys(spec_after, spec_before, kind) for kind in kinds} == {
        "models": read,
        "judges": ["profile judging.cpus", *read],
        "embedder": ["embedder.base_url"],
        "reranker": [],
    }
    every = {"profile extraction.workers", "profile judging.cpus", "profile limits.grace_s", "runtime.window"}
    for kind in ("sequencer", "writer", "seats", "scheduler"):
        assert set(changed_keys(spec_after, spec_before, kind)) == every | {*read, "embedder.base_url"}


def test_the_number_of_shards_is_not_a_difference_between_specs(tmp_path: Path) -> None:
    spec = spec_of(Settings(), tmp_path, profile_of({"sequencer": {"cpus": 0.5}}, "the test").values())
    assert differences(spec.with_shards(5), spec) == []  # the store has their number
    assert spec_of(Settings(), tmp_path, {}).with_shards(5).cluster.sequencer.shards == 5
