"""`kgray backup` and `kgray restore` from the outside."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.shell import JOBS, Answer, Shell, triple, triples_row
from tests.stand_in.s3 import Bucket, served

PAGE = Path(__file__).resolve().parents[2] / "docs" / "backup.md"
ROWS = "rows-000001.jsonl.gz"
SETTINGS = r"""
model = { api_key = "hush-1" , timeout_s = 7.5 }
[store]
backend = "sqlite"
password = "hush-2"
[embedder]
dimensions = 64
"api_key" = 'hush-3'
[ontology.relations.HUMS_TO]
description = "Ä \"tune\" \u0001\n, or two"
excludes = ["SINGS_TO"]
symmetric = true
[ontology.relations.SINGS_TO]
"""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Serve objects to a client that has a key in its environment, and does not try again for long."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    with served() as server:
        yield server


def files(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(answer: Answer) -> str:
    """Return the error line of a command that changed nothing."""
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1), answer
    return answer.err


def hashes(kgray: Shell, *data: str) -> set[str]:
    """Return the hashes of the group's graph in these folders."""
    return {kgray("dump", "--group", "team", "--hash", "--data", folder).out for folder in data}


def test_a_backup_is_a_data_folder_and_is_restored_to_another(team):
    assert team("keys", "add", "--groups", "team", "--scopes", "read").code == 0

    backup = team("backup", "backup", "--json")
    assert (backup.code, backup.json["groups"].keys()) == (0, {"team", "kgray/own"})
    assert backup.json["rows"] == sum(entry["rows"] for entry in backup.json["groups"].values())
    back = team("restore", "backup", "--data", "back", "--json")

    assert (back.code, back.json) == (0, backup.json)
    assert len(hashes(team, "kgray-data", "backup", "back")) == 1
    assert team("keys", "list", "--data", "back").out == team("keys", "list").out
    assert {path.name for path in (team.folder / "backup").iterdir()} >= {"backup.json", "kgray.sqlite3"}
    assert team("restore", "backup", "--data", "back", "--json").json == backup.json, "it is compared"


def test_a_backup_of_a_group_has_a_file_that_other_programs_can_verify(team):
    row = triples_row("m1", "2026-02-01", triple("Bo", "KNOWS", "Cy"), group="other")
    assert team("add", team.write("more.jsonl", row)).code == 0

    reply = team("backup", "backup", "--group", "team", "--json").json

    text = gzip.decompress((team.folder / "backup" / ROWS).read_bytes())
    first, *lines = map(json.loads, text.splitlines())
    assert (first["group"], first["last"]) == ("team", 3)
    assert sum(isinstance(line, list) for line in lines) == reply["rows"] == reply["groups"]["team"]["rows"]
    document = json.loads((team.folder / "backup" / "backup.json").read_bytes())
    assert document["groups"] == {"team": reply["groups"]["team"] | {"file": ROWS}}
    assert team("restore", "backup", "--data", "back", "--json").json == reply
    assert team("groups", "--data", "back", "--json").json["groups"][0]["group"] == "team"
    assert len(hashes(team, "kgray-data", "back")) == 1


@pytest.mark.parametrize("groups", [(), ("--group", "team")])
def test_only_the_owner_can_read_a_backup(team, groups):
    assert team("backup", "backup", *groups).code == 0
    results = [team.folder / "backup", *(team.folder / "backup").rglob("*")]
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in results if path.is_dir()} == {"0o700"}
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in results if path.is_file()} == {"0o600"}


def test_a_backup_contains_the_settings_without_secrets(kgray):
    (kgray.folder / "kgray-data").mkdir()
    kgray.write("kgray-data/kgray.toml", SETTINGS)
    assert kgray("add", kgray.write("jobs.jsonl", *JOBS)).code == 0
    assert kgray("backup", "backup").code == 0

    content = (kgray.folder / "backup" / "kgray.toml").read_text(encoding="utf-8")
    reply = tomllib.loads(SETTINGS)
    assert "hush" not in content
    assert tomllib.loads(content) == {
        "model": {"timeout_s": 7.5}, "embedder": {"dimensions": 64}, "ontology": reply["ontology"],
    }  # fmt: skip
    assert kgray("restore", "backup", "--data", "back").code == 0
    assert (kgray.folder / "back" / "kgray.toml").read_text(encoding="utf-8") == content
    assert len(hashes(kgray, "kgray-data", "backup", "back")) == 1
    kgray.write("other.toml", "[embedder]\ndimensions = 32\n")
    line = refusal(kgray("restore", "backup", "--data", "no", "--config", "other.toml"))
    assert "was embedded with 'hashing-1/64' (64 numbers a text), and the settings are for" in line
    assert not (kgray.folder / "no").exists()


def damaged_byte(file: Path) -> None:
    """Change one byte in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def cut_short(file: Path) -> None:
    """Truncate a file."""
    file.write_bytes(file.read_bytes()[:-100])


DAMAGE = {
    "a byte is another": damaged_byte,
    "it is cut short": cut_short,
    "it is empty": lambda file: file.write_bytes(b""),
    "it is gone": Path.unlink,
    "it is of another group": lambda file: file.write_bytes(
        gzip.compress(gzip.decompress(file.read_bytes()).replace(b"Alice Nguyen", b"Alina Nguyen"))
        if file.name == ROWS
        else file.read_bytes().replace(b"Alice", b"Alina")
    ),
}


@pytest.mark.parametrize("kind", ["kgray.sqlite3", ROWS])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_backup_is_not_restored(team, kind, damage):
    assert team("backup", "backup", *(("--group", "team") if kind == ROWS else ())).code == 0
    DAMAGE[damage](team.folder / "backup" / kind)
    shutil.copytree(team.folder / "kgray-data", team.folder / "there")
    assert team("remove", "--group", "team", "--all", "--yes", "--data", "there").code == 0
    files_before = files(team.folder / "there")

    for words in (("--dry-run",), ("--data", "new"), ("--data", "there")):
        line = refusal(team("restore", "backup", *words))
        assert f"{kind} is missing, damaged, or was changed since: restore from another backup" in line
    assert not (team.folder / "new").exists()
    assert files(team.folder / "there") == files_before


def test_an_invalid_backup_is_a_one_line_error_and_changes_nothing(team):
    assert team("backup", "backup", "--group", "team").code == 0
    manifest = team.folder / "backup" / "backup.json"
    reply = json.loads(manifest.read_bytes())
    lines = {
        "was written by a newer kgray (9.9): upgrade kgray": reply | {"format": 2, "version": "9.9"},
        "has rows of another schema, that of kgray 0.": reply | {"schema": reply["schema"] | {"notes": []}},
        "backup.json is missing, damaged": reply | {"rows": 1},
        "there is no group 'absent' in the backup": None,
    }
    for line, document in lines.items():
        manifest.write_text(json.dumps(document or reply))
        group = () if document else ("--group", "absent")
        assert line in refusal(team("restore", "backup", "--data", "new", *group))
        assert not (team.folder / "new").exists()
    manifest.write_text("{")
    assert "backup.json is missing, damaged" in refusal(team("restore", "backup", "--data", "new"))
    manifest.unlink()
    assert "it has no backup.json" in refusal(team("restore", "backup", "--data", "new"))
    assert "it has no backup.json" in refusal(team("restore", "nowhere", "--data", "new"))
    assert not (team.folder / "new").exists()


def test_a_restore_changes_no_group_if_one_differs(team):
    assert team("backup", "backup").code == 0
    assert (
        team("add", team.write("o.jsonl", triples_row("o", "2026-01-01", triple("A", "KNOWS", "B")))).code
        == 0
    )
    extra = triples_row("m1", "2026-02-01", triple("Bo", "KNOWS", "Cy"), group="another")
    assert team("add", team.write("more.jsonl", extra)).code == 0
    assert team("backup", "later").code == 0
    assert team("restore", "backup", "--data", "there").code == 0

    line = refusal(team("restore", "later", "--data", "there"))

    assert "group 'team' is in there already, and not the same (as in the backup at " in line
    assert [row["group"] for row in team("groups", "--data", "there", "--json").json["groups"]] == ["team"]
    assert len(hashes(team, "there", "backup")) == 1


def test_a_backup_needs_a_new_or_empty_folder(team):
    assert team("backup", "backup").code == 0
    files_before = files(team.folder / "backup")
    assert "there is a backup at" in refusal(team("backup", "backup"))
    assert files(team.folder / "backup") == files_before
    assert "kgray-data is not empty: name a new folder" in refusal(team("backup", "kgray-data"))
    assert "a.jsonl" in refusal(team("backup", "a.jsonl"))
    assert "no group 'absent' in kgray-data" in refusal(team("backup", "new", "--group", "absent"))
    assert "ftp:// is not read or written" in refusal(team("backup", "ftp://host/x"))
    assert not (team.folder / "new").exists()
    (team.folder / "empty").mkdir()
    assert team("backup", "empty").code == 0


def test_pending_episodes_are_restored_and_ingested(team):
    late = triples_row("t4", "2026-04-01", triple("Alice Nguyen", "WORKS_AT", "Gamma"))
    assert team("add", "--accept-only", team.write("late.jsonl", late)).code == 0
    assert team("backup", "backup").code == 0
    assert team("restore", "backup", "--data", "back").code == 0

    for data in ("kgray-data", "back"):
        assert (
            team("add", team.write("none.jsonl", *JOBS[:1]), "--data", data, "--json").json["committed"] == 1
        )

    assert len(hashes(team, "kgray-data", "back")) == 1


def test_a_file_url_is_a_path(team):
    url = (team.folder / "far away").as_uri()
    backup = team("backup", url, "--json")
    assert backup.code == 0
    assert (team.folder / "far away" / "kgray.sqlite3").exists()
    assert team("restore", url, "--data", "back", "--json").json == backup.json


def test_a_backup_in_a_bucket_is_restored(team, bucket):
    backup = team("backup", bucket.url("b/kgray/today"), "--json")
    assert (backup.code, set(bucket.objects)) == (0, {f"b/kgray/today/{ROWS}", "b/kgray/today/backup.json"})
    assert "at s3://b/kgray/today already" in refusal(team("backup", bucket.url("b/kgray/today")))

    back = team("restore", bucket.url("b/kgray/today"), "--data", "back", "--json")

    assert (back.code, back.json) == (0, backup.json)
    assert len(hashes(team, "kgray-data", "back")) == 1
    assert team("backup", "full").code == 0
    bucket.objects |= {f"b/full/{name}": content for name, content in files(team.folder / "full").items()}
    copied = team("restore", bucket.url("b/full"), "--data", "whole", "--json")
    assert copied.json == backup.json, "a folder that was copied to a bucket"
    bucket.objects[f"b/kgray/today/{ROWS}"] = bucket.objects[f"b/kgray/today/{ROWS}"][:-9]
    line = refusal(team("restore", bucket.url("b/kgray/today"), "--data", "new"))
    assert line.startswith(f"kgray: s3://b/kgray/today/{ROWS} is missing, damaged")


def test_an_outage_of_a_bucket_leaves_no_backup_and_the_next_attempt_succeeds(team, bucket):
    bucket.broken = 1

    stopped = team("backup", bucket.url("b/x"))

    assert (stopped.code, stopped.err.count("\n")) == (75, 1)
    assert re.search(r"s3://b/x/\S+ cannot be written now: ", stopped.err)
    assert not any(name.endswith("backup.json") for name in bucket.objects)
    bucket.broken = None
    assert "it has no backup.json" in refusal(team("restore", bucket.url("b/x"), "--data", "new"))
    assert team("backup", bucket.url("b/x")).code == 0
    assert team("restore", bucket.url("b/x"), "--data", "new").code == 0


def test_the_drill_of_the_page_runs_unchanged(kgray):
    """Each line that begins with a dollar sign is a command; the two hashes are equal."""
    block = PAGE.read_text(encoding="utf-8").split("```console")[1].split("```")[0]
    commands = [shlex.split(line[2:], comments=True) for line in block.splitlines() if line.startswith("$ ")]
    demo = [row | {"group": "demo"} for row in JOBS]
    assert kgray("add", kgray.write("demo.jsonl", *demo), "--data", "my-data").code == 0
    printed = []
    for program, *words in commands:
        if program == "rm":
            shutil.rmtree(kgray.folder / words[-1])
            continue
        answer = kgray(*words)
        assert (program, answer.code) == ("kgray", 0), (words, answer)
        printed.append(answer.out)

    (dumped, *restored) = [out for out in printed if re.fullmatch(r"[0-9a-f]{64}\n", out)]
    assert restored == [dumped]
    assert [words[0] for _, *words in commands if words].count("restore") == 2
