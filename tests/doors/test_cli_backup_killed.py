"""Backups and restores that are killed: no partial backup is accepted, and the next attempt succeeds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kgray.maintenance.transfer.backups import backup
from kgray.maintenance.transfer.restoring import restore
from kgray.runtime.wiring import open_reader
from kgray.settings import Settings
from tests.doors.shell import Answer, Shell, triple, triples_row
from tests.stand_in.s3 import served
from tests.waiting import HANGS_S

# A process that makes or restores a backup, and kills itself when it has reported a number of rows.
KILLED = """
import os, signal, sys
from contextlib import closing
from pathlib import Path
from kgray.settings import load
from kgray.maintenance.transfer.backups import backup
from kgray.maintenance.transfer.restoring import restore
from kgray.runtime.wiring import open_reader
command, data, place, left = *sys.argv[1:4], int(sys.argv[4])
def row():
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
if command == "backup":
    with closing(open_reader(load(), Path(data))) as source:
        backup(source, place, sys.argv[5:], on_row=row)
else:
    restore(load(), Path(data), place, on_row=row)
print(-left)
"""
OTHERS = [
    triples_row(f"o{n}", "2026-02-01", triple("Bo", "KNOWS", f"Cy {n}"), group=f"other-{n % 3}")
    for n in range(9)
]


def run(kgray: Shell, *words: object) -> subprocess.CompletedProcess[str]:
    """Run KILLED in the folder of a shell, with its environment."""
    environ = os.environ | kgray.env | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, words)],
        cwd=kgray.folder, env=environ, capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip


def count_rows(kgray: Shell, command: str, data: str, place: str, *groups: str) -> int:
    """Return the number of rows that an undisturbed process reports."""
    rows: list[None] = []
    if command == "backup":
        with closing(open_reader(Settings(), kgray.folder / data)) as source:
            backup(source, place, groups, on_row=lambda: rows.append(None))
    else:
        restore(Settings(), kgray.folder / data, place, on_row=lambda: rows.append(None))
    return len(rows)


def refused(answer: Answer, line: str) -> None:
    """Check that a command ended with one line."""
    assert (answer.code, answer.err.count("\n"), line in answer.err) == (2, 1, True), answer


@pytest.mark.parametrize(
    "groups", [(), pytest.param(("team", "other-1"), marks=pytest.mark.slow)], ids=["file", "groups"]
)
def test_a_killed_backup_is_unusable_and_the_next_backup_is_complete(team, groups):
    assert team("add", team.write("others.jsonl", *OTHERS)).code == 0
    options = [word for group in groups for word in ("--group", group)]
    full_reply = team("backup", "whole", *options, "--json").json
    count = count_rows(team, "backup", "kgray-data", "counted", *groups)
    for number, remaining in enumerate((count // 2, count)):
        to = f"backup-{number}"
        assert run(team, "backup", "kgray-data", to, remaining, *groups).returncode == -signal.SIGKILL
        assert {path.name for path in (team.folder / to).iterdir()} == {"unfinished"}
        refused(team("restore", to, "--data", "new"), "it has no backup.json")

        backup = team("backup", to, *options, "--json")

        assert (backup.code, backup.json) == (0, full_reply)
        assert not (team.folder / to / "unfinished").exists()
        assert team("restore", to, "--data", f"back-{number}", "--json").json == full_reply


@pytest.mark.slow  # by default a backup to a file is killed, and a bucket is unavailable
def test_a_killed_backup_to_a_bucket_is_unusable(team, monkeypatch):
    team.env |= {
        "AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "a-secret-key", "AWS_MAX_ATTEMPTS": "1",
        "AWS_EC2_METADATA_DISABLED": "true", "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
    }  # fmt: skip
    for name, value in team.env.items():
        monkeypatch.setenv(name, value)  # this process's client reads no other
    assert team("add", team.write("others.jsonl", *OTHERS)).code == 0
    with served() as bucket:
        count = count_rows(team, "backup", "kgray-data", bucket.url("b/counted"))
        killed = run(team, "backup", "kgray-data", bucket.url("b/it"), count - 1)
        assert killed.returncode == -signal.SIGKILL
        names = {name for name in bucket.objects if name.startswith("b/it/")}
        assert names == {f"b/it/rows-{n:06}.jsonl.gz" for n in (1, 2, 3)}, "three of four"
        refused(team("restore", bucket.url("b/it"), "--data", "new"), "it has no backup.json")

        backup = team("backup", bucket.url("b/it"), "--json")

        assert team("restore", bucket.url("b/it"), "--data", "back", "--json").json == backup.json


@pytest.mark.parametrize(
    ("groups", "kills"),
    [
        pytest.param(("other-0", "other-1", "team"), (0, 0.5), id="groups"),
        pytest.param((), (0.5, 1), id="into another store", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow  # a killed backup is tested by default
def test_a_killed_restore_shows_only_complete_groups_and_resumes(team, groups, kills):
    """With a file for each group, and with the file of a store whose groups go into an existing store."""
    assert team("add", team.write("others.jsonl", *OTHERS)).code == 0
    options = [word for group in groups for word in ("--group", group)]
    full_reply = team("backup", "whole", *options, "--json").json
    assert team("init", "--data", "counted").code == 0
    count = count_rows(team, "restore", "counted", "whole")
    dumps = {group: team("dump", "--group", group).out for group in full_reply["groups"]}
    group_counts = set()
    for number, share in enumerate(kills):
        data = f"back-{number}"
        assert team("init", "--data", data).code == 0
        remaining = max(1, int(count * share))
        assert run(team, "restore", data, "whole", remaining).returncode == -signal.SIGKILL
        restored_groups = [row["group"] for row in team("groups", "--data", data, "--json").json["groups"]]
        group_counts.add(len(restored_groups))
        for group, dump in dumps.items():
            output = team("dump", "--group", group, "--data", data).out
            assert output == (dump if group in restored_groups else "")

        restored = team("restore", "whole", "--data", data, "--json")

        assert (restored.code, restored.json) == (0, full_reply)
        assert {group: team("dump", "--group", group, "--data", data).out for group in dumps} == dumps
        checks = json.loads(team("doctor", "--data", data, "--json").out)["checks"]
        assert [check for check in checks if not check["ok"]] == []
        assert not (team.folder / data / "restoring").exists()
    assert len(group_counts) == len(kills), "killed in another group each time"


def test_a_killed_restore_to_a_new_folder_leaves_no_partial_file(team):
    """The store's file gets its name after it is verified; remains of a killed process are deleted."""
    full_reply = team("backup", "whole", "--json").json
    (team.folder / "back" / "restoring").mkdir(parents=True)
    for name in ("kgray.sqlite3", "kgray.sqlite3-wal", "lock"):
        team.write(f"back/restoring/{name}", b"the first half of it")
    assert team("groups", "--data", "back").code == 2
    assert (
        run(team, "restore", "back", "whole", 1).returncode == -signal.SIGKILL
    )  # the file is complete before the kill
    assert team("dump", "--group", "team", "--data", "back").out == team("dump", "--group", "team").out

    assert team("restore", "whole", "--data", "back", "--json").json == full_reply

    assert not (team.folder / "back" / "restoring").exists()


def test_the_file_of_a_backup_is_used_by_one_process_at_a_time(team):
    """Two backups to one folder: the second ends with a line that names the first."""
    fcntl = pytest.importorskip("fcntl")
    (team.folder / "backup" / "unfinished").mkdir(parents=True)
    lock = os.open(team.folder / "backup" / "unfinished" / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    refused(team("backup", "backup"), "is writing to")
    os.close(lock)
    assert team("backup", "backup").code == 0
