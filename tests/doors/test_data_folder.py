"""The permissions of a data folder, which only its owner can read, and damaged or missing store files."""

from __future__ import annotations

import os
import random
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import kgray

LINES = [
    '{"id": "a", "text": "I work at Acme.", "speaker": "Al Ng", "at": "2026-03-01"}',
    '{"id": "b", "text": "I work at Beta Labs.", "speaker": "Al Ng", "at": "2026-04-01"}',
    '{"id": "c", "text": ""}',
]


def modes(folder: Path) -> dict[str, str]:
    """Return the permissions of a folder and of all in it."""
    results = {path.relative_to(folder).as_posix(): path for path in [folder, *folder.rglob("*")]}
    return {name: oct(stat.S_IMODE(path.stat().st_mode)) for name, path in results.items()}


def test_only_the_owner_can_read_a_data_folder(tmp_path):
    """The store, its log and index while it is open, the lock, and a run's reports.

    With a umask that lets everybody read, because other umasks only remove rights of others.
    """
    data, lines = tmp_path / "data", tmp_path / "lines.jsonl"
    lines.write_text("\n".join(LINES))
    umask = os.umask(0o000)
    try:
        for command in ("init", f"backfill {lines} --group g"):
            run = [sys.executable, "-m", "kgray", *command.split(), "--data", str(data)]
            assert subprocess.run(run, check=False).returncode == ("init" not in command)
        with kgray.open(data, create=True) as memory:
            memory.add("I live in Bonn.", group="g", speaker="Al Ng", at="2026-05-01")
            result = modes(data)
    finally:
        os.umask(umask)

    assert {mode for name, mode in result.items() if (data / name).is_dir()} == {"0o700"}
    assert {mode for name, mode in result.items() if not (data / name).is_dir()} == {"0o600"}
    files = {"kgray.sqlite3", "kgray.sqlite3-wal", "kgray.sqlite3-shm", "ingest.lock"}
    assert files <= set(result)
    assert {Path(name).name for name in result if name.startswith("runs/")} >= {
        "report.json",
        "refused.jsonl",
    }


COMMANDS = (
    "add lines.jsonl --group g",
    "add lines.jsonl --group g --accept-only",
    "backfill lines.jsonl --group g",
    "search Acme --group g",
    "init",
)


@pytest.mark.parametrize("loss", ["empty", "gone"])
def test_a_lost_store_is_not_replaced_by_an_empty_store(kgray, loss):
    kgray.write("lines.jsonl", *LINES[:1])
    assert kgray("add", "lines.jsonl", "--group", "g", "--accept-only").code == 0
    path = kgray.folder / "kgray-data" / "kgray.sqlite3"
    path.unlink()
    if loss == "empty":
        path.touch()
    for command in COMMANDS:
        answer = kgray(*command.split())
        assert answer.code == 2, command
        assert re.search(rf"kgray\.sqlite3 is {loss}.*restore it from a copy", answer.err), command
        assert path.exists() == (loss == "empty")


def test_a_damaged_store_accepts_no_messages(kgray):
    """64 KB of noise: without the check, a message is reported as committed, and reads refuse the file."""
    kgray.write("many.jsonl", *({"text": f"printer {n} " * 90, "at": 1.6e9 + n} for n in range(400)))
    kgray.write("lines.jsonl", *LINES[:1])
    assert kgray("add", "many.jsonl", "--group", "g", "--accept-only").code == 0
    path = kgray.folder / "kgray-data" / "kgray.sqlite3"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(random.Random(5).randbytes(65_536))
    content_before = path.read_bytes()
    for command in COMMANDS[:3]:
        answer = kgray(*command.split())
        assert answer.code == 2, command
        assert re.search(r"kgray\.sqlite3 is damaged \(.*\): restore it from a copy\n$", answer.err), command
    assert path.read_bytes() == content_before
