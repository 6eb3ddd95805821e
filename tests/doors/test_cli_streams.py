"""Closed or full streams, folders without permission, full disks: a one-line error and an exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import kgray as kgray_library
from tests.doors.shell import Shell, triple, triples_row
from tests.waiting import HANGS_S

KGRAY = f"{sys.executable} -c 'from kgray.cli import main; main()'"


def shell(kgray: Shell, line: str) -> tuple[int, str, str]:
    """Run a shell command; `$K` in it means `kgray`."""
    environ = {**os.environ, **kgray.env, "K": KGRAY}
    outcome = subprocess.run(
        ["/bin/bash", "-c", line.replace("$K", KGRAY)],
        cwd=kgray.folder,
        env=environ,
        check=False,
        capture_output=True,
        timeout=HANGS_S,
    )
    return outcome.returncode, outcome.stdout.decode(), outcome.stderr.decode()


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        ("--help", "1"),
        pytest.param("status", "", marks=pytest.mark.slow),  # the next test covers this, without a message
        pytest.param("status --json", "1", marks=pytest.mark.slow),
        pytest.param("dump --group team", "", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_unwritable_output_is_a_one_line_error_with_exit_code_2(team, monkeypatch, command, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    assert shell(team, f"$K {command} > /dev/full") == (
        2, "", "kgray: standard output cannot be written: No space left on device\n",
    )  # fmt: skip


@pytest.mark.slow  # test_unwritable_output_is_a_one_line_error_with_exit_code_2 has a full stream by default
def test_the_exit_code_reports_an_error_without_any_output_stream(team):
    assert shell(team, "$K status > /dev/full 2>&1") == (2, "", "")
    assert shell(team, "$K add nowhere.jsonl 2> /dev/full") == (2, "", "")
    assert shell(team, "$K add a.jsonl --json 2>&-")[0] == 0


def test_a_closed_output_is_refused_before_any_change(team):
    closed = (2, "", "kgray: standard output is closed: send it to /dev/null if you do not need it\n")
    team.write("b.jsonl", triples_row("t9", "2026-01-01", triple("Ann", "KNOWS", "Bob")))
    assert shell(team, "$K status >&-") == closed
    assert shell(team, "$K add b.jsonl >&-") == closed
    assert team("status", "--json").json["groups"]["team"]["committed"] == 3


def test_a_closed_input_is_reported(team):
    assert shell(team, "$K add - --group g <&-") == (
        2, "", "kgray: - is standard input, and that is closed\n",
    )  # fmt: skip
    assert shell(team, "$K search - --group team <&-") == (
        2, "", "kgray: the query is to be read from standard input, which is closed\n",
    )  # fmt: skip
    code, _, err = shell(team, "$K remove --group team --all <&-")
    assert (code, err.count("\n"), "needs --yes" in err) == (2, 1, True)


def test_a_too_long_path_is_reported(kgray):
    long = "x" * 5000
    for argument in (["--data", long], ["--config", long]):
        for command in ("init", "status"):
            answer = kgray(command, *argument)
            assert (answer.code, answer.out) == (2, "")
            assert answer.err.endswith("cannot be opened: File name too long.\n")
            assert answer.err.count("\n") == 1
            assert len(answer.err) < 300


ALL_IN_ONE = """
import json, shlex, sys
from click.testing import CliRunner
from kgray.cli import cli
answers = [CliRunner().invoke(cli, shlex.split(line)) for line in sys.argv[1:]]
print(json.dumps([(answer.exit_code, answer.stdout, answer.stderr) for answer in answers]))
"""


def all_in_one(kgray: Shell, prefix: str, commands: Sequence[str]) -> list[tuple[int, str, str]]:
    """Run commands in sequence in one process; the command `prefix` takes rights from it."""
    words = [*prefix.split(), sys.executable, "-c", ALL_IN_ONE, *commands]
    environ = {**os.environ, **kgray.env}
    outcome = subprocess.run(words, cwd=kgray.folder, env=environ, check=True, stdout=subprocess.PIPE)
    return [(code, out, err) for code, out, err in json.loads(outcome.stdout)]


@pytest.fixture
def weak(team) -> str:
    """Return a command prefix with which the folder `shut` cannot be entered."""
    folder = team.folder / "shut"
    folder.mkdir()
    (folder / "kgray.toml").touch()
    if os.geteuid():
        folder.chmod(0)
        return ""
    if shutil.which("setpriv") is None:
        pytest.skip("root enters every folder, and there is no setpriv to give that up")
    os.chown(folder, 65534, 65534)
    folder.chmod(0o700)
    return "setpriv --bounding-set -dac_override,-dac_read_search"


SHUT = (
    "status --data shut", "status --data shut/in", "init --data shut/in", "add a.jsonl --data shut/in",
    "status --config shut/kgray.toml", "status --data shut/in --config open.toml",
    "init --data shut/in --config open.toml", "add shut/a.jsonl --group g",
)  # fmt: skip
DOCTORS = ("doctor --data shut --json", "doctor --data shut --config open.toml --json")


@pytest.mark.slow  # test_data_folder has permissions by default
def test_a_forbidden_folder_is_a_one_line_error_and_doctor_reports_it(team, weak):
    team.write("open.toml", "")
    answers = all_in_one(team, weak, [*SHUT, *DOCTORS])
    for command, (code, out, err) in zip(SHUT, answers, strict=False):
        assert (code, out, err.count("\n")) == (2, "", 1), (command, err)
        assert err.startswith("kgray: "), command
        assert "shut" in err, command
        assert "Permission denied" in err, command
    for code, out, _ in answers[len(SHUT) :]:
        wrong = [check["detail"] for check in json.loads(out)["checks"] if not check["ok"]]
        assert (code, len(wrong)) == (2, 1)
        assert "Permission denied" in wrong[0]


@pytest.fixture
def sealed(team):
    """Return a command prefix with which the data folder is read-only."""
    prefix = ""
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root writes everywhere, and there is no setpriv to give that up")
        prefix = "setpriv --bounding-set -dac_override"
    folder = team.folder / "kgray-data"
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    yield prefix
    folder.chmod(0o755)


READS = (
    "groups", "status", "failures", "search Alice --group team --scope fact --json",
    "context Alice --group team", "entities --group team", "history 'Alice Nguyen' --group team",
    "show t1 --group team", "dump --group team",
)  # fmt: skip


def test_a_read_only_folder_is_read_and_unchanged(team, sealed):
    folder = team.folder / "kgray-data"
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    writes = ("remove --group team --all --yes", "add a.jsonl --replace")
    *read, removed, added = all_in_one(team, sealed, [*READS, *writes])
    assert [(code, out != "") for code, out, _ in read] == [(0, True)] * len(READS), read
    assert json.loads(read[3][1])["hits"][0]["text"] == "Alice Nguyen works at Beta"
    for code, out, err in (removed, added):
        assert (code, out, err.count("\n"), "cannot be" in err) == (2, "", 1, True), err
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == files


@pytest.mark.slow  # test_data_folder has permissions by default
def test_a_read_only_folder_is_read_while_another_process_writes(team, sealed):
    """The write-ahead log is read too: the latest commit is visible."""
    with kgray_library.open(
        team.folder / "kgray-data", settings={"model_backend": "rules"}, create=True
    ) as memory:
        row = {"source": "Alice Nguyen", "relation": "WORKS_AT", "target": "Gama"}
        memory.add([row], kind="triples", group="team", at="2026-05-01")
        [(code, out, err)] = all_in_one(team, sealed, [READS[3]])
    assert (code, json.loads(out)["hits"][0]["text"]) == (0, "Alice Nguyen works at Gama"), err


# ------------------------------------------------------------------------------- a full disk


@pytest.fixture
def disk(tmp_path):
    """Return a small disk, which is unmounted at the end."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() or not mounted("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)):
        pytest.skip("a small disk cannot be mounted here")
    yield place
    assert mounted("umount", "-l", str(place))


def mounted(program: str, *arguments: str) -> bool:
    result = shutil.which(program)
    return (
        result is not None
        and not subprocess.run([result, *arguments], check=False, capture_output=True).returncode
    )


def grow(disk: Path) -> None:
    assert mounted("mount", "-o", "remount,size=64m", str(disk))


def notes(count: int) -> list[dict]:
    return [
        triples_row(
            f"n{i}",
            str(1_700_000_000 + i),
            triple(f"Person {i} {'x' * 60}", "KNOWS", f"Friend {i} {'y' * 60}"),
        )
        for i in range(count)
    ]


def fill(disk: Path, leave: int) -> Path:
    """Fill the disk, except for `leave` bytes."""
    ballast = disk / "ballast"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    ballast.write_bytes(b"0" * max(0, free - leave))
    return ballast


def test_a_full_disk_ends_ingestion_with_75_and_the_same_command_resumes(kgray, disk):
    file = kgray.write("a.jsonl", *notes(200))
    data = ("--data", str(disk / "data"))
    kgray("init", *data)
    assert kgray("add", file, "--accept-only", *data).code == 0
    ballast = fill(disk, 300_000)
    full = kgray.process("add", file, "--json", *data)
    report = json.loads(full.out)
    assert (full.code, report["duplicate"]) == (75, 200)
    assert report["committed"] < 200
    assert full.err.endswith("what was accepted is safe, run it again to go on\n")
    assert "no space left" in full.err
    assert "nothing was changed" not in full.err
    ballast.unlink()
    grow(disk)
    repeated = kgray("add", file, "--json", *data)
    assert (repeated.code, repeated.json["committed"]) == (0, 200 - report["committed"])
    assert kgray("dump", "--group", "team", *data).out == undisturbed(kgray, file)


def undisturbed(kgray: Shell, file: str) -> str:
    assert kgray("add", file, "--data", "reference").code == 0
    return kgray("dump", "--group", "team", "--data", "reference").out


@pytest.mark.slow  # by default the disk fills while ingesting
def test_a_full_disk_before_any_row_is_accepted_ends_with_2(kgray, disk):
    data = ("--data", str(disk / "data"))
    kgray("init", *data)
    fill(disk, 40_000)
    full = kgray.process("add", kgray.write("a.jsonl", *notes(300)), *data)
    assert (full.code, full.out) == (2, "")
    assert full.err.count("\n") == 1
    assert "no space left" in full.err


@pytest.mark.slow  # by default the disk fills while ingesting
def test_a_disk_that_fills_during_add_keeps_the_accepted_rows(kgray, disk):
    data = ("--data", str(disk / "data"))
    kgray("init", *data)
    full = kgray.process("add", kgray.write("a.jsonl", *notes(6000)), "--accept-only", "--json", *data)
    assert full.code == 75
    accepted = json.loads(full.out)["accepted"]
    assert 500 <= accepted < 6000
    grow(disk)
    assert kgray("status", "--json", *data).json["groups"]["team"]["accepted"] == accepted
