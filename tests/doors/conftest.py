"""The command line in a folder of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.doors.shell import Bench, Shell


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


@pytest.fixture
def bench(kgray) -> Bench:
    """`python -m bench` in the same folder."""
    checkout = Path(__file__).resolve().parents[2]
    return Bench(kgray.folder, {**kgray.env, "PYTHONPATH": str(checkout)})
