"""The command line in a folder of its own."""

from __future__ import annotations

import os

import pytest

from tests.doors.shell import Shell


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
