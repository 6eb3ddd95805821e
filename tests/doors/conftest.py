"""The command line in its own folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.doors.shell import JOBS, Bench, Shell


@pytest.fixture
def kgray(tmp_path, monkeypatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("KGRAY_")]:
        monkeypatch.delenv(name)
    shell = Shell(
        tmp_path, {"KGRAY_MODEL_BACKEND": "scripted", "KGRAY_MODEL_SCRIPT": str(tmp_path / "script.jsonl")}
    )
    shell.script()
    return shell


@pytest.fixture(scope="session")
def jobs(tmp_path_factory) -> Path:
    """Return a data folder that contains JOBS."""
    shell = Shell(tmp_path_factory.mktemp("jobs"), {"KGRAY_MODEL_BACKEND": "rules"})
    with pytest.MonkeyPatch.context() as alone:
        for name in [name for name in os.environ if name.startswith("KGRAY_")]:
            alone.delenv(name)
        alone.chdir(shell.folder)
        assert shell("add", shell.write("a.jsonl", *JOBS)).code == 0
    return shell.folder / "kgray-data"


@pytest.fixture
def team(kgray, jobs) -> Shell:
    """Return a shell in its own folder, after `add` of a.jsonl, which contains JOBS."""
    kgray.write("a.jsonl", *JOBS)
    shutil.copytree(jobs, kgray.folder / "kgray-data")
    return kgray


@pytest.fixture
def bench(kgray) -> Bench:
    """`python -m bench` in the same folder."""
    checkout = Path(__file__).resolve().parents[2]
    return Bench(kgray.folder, {**kgray.env, "PYTHONPATH": str(checkout)})
