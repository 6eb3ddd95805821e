"""An engine in Ray's workers, with the stand-in for vLLM: it dies, comes back, and ends before its actor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import kgray

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
STAND_IN = Path(__file__).parent.parent / "stand_in"
PROFILE = """
[extraction]
workers = 1
cpus = 0.1
env = {{ PYTHONPATH = "{path}", KGRAY_TEST_ENGINE_LOG = "{log}" }}

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


def test_an_engine_that_dies_is_started_anew_and_ends_before_its_actor(tmp_path):
    log = tmp_path / "engine.log"
    profile = tmp_path / "cards.toml"
    paths = f"{Path(__file__).parents[2]}:{STAND_IN}"
    profile.write_text(PROFILE.format(path=paths, log=log), encoding="utf-8")
    how = {"model_backend": "vllm", "model_name": "m", "runtime_backend": "ray", "runtime_profile": profile}
    with kgray.open(tmp_path / "d", **how) as memory:
        rows = [{"text": f"I like tea {n}.", "group": "g", "at": "2026-03-01"} for n in range(6)]
        report = memory.add_many([*rows, {"text": "[[DIE ONCE]]", "group": "g", "at": "2026-03-02"}])
        assert (report.committed, report.failed) == (7, 0)

    assert "vllm" not in sys.modules  # nothing but the workers imports it
    did = [line.split() for line in log.read_text().splitlines()]
    started, ended = ([pid for what, pid in did if what == name] for name in ("start", "stop"))
    assert [what for what, _ in did].count("die") == 1
    assert len(set(started)) == 3  # one that reads, one that judges, and the one that came back
    died = next(pid for what, pid in did if what == "die")
    assert sorted(ended) == sorted(set(started) - {died})
