"""backfill: files and folders in bulk, resumed, bounded, reported; the graph of `add`."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgray.errors import StoreError
from kgray.memory.backfill import run
from kgray.memory.backfill.manifest import RunFolder
from kgray.storage.ledger import pending_groups
from kgray.storage.sqlite.store import SqliteStore
from tests.doors.shell import JOBS, Shell, triple, triples_row
from tests.waiting import HANGS_S, wait_for

COUNTS = (
    "accepted",
    "duplicate",
    "refused",
    "committed",
    "failed",
    "retracted",
    "still_retracted",
    "left_out",
)
ADD = {*COUNTS, "refusals", "held"}
REPORT = {
    "run", "attempt", "state", "reason", "files", "rows", "skipped", "failures",
    "reasons", "calls", "prompt_tokens",
    "completion_tokens", "requests", "stalls", "wasted", "wasted_tokens", "seconds", "elapsed_s",
    "episodes_per_s",
}  # fmt: skip
ROWS = 200
PEOPLE = ("Ann", "Bob", "Cid", "Dee", "Eve")


STOP = "stop"  # the client id of an episode that no model can read yet


def many(count: int, start: int = 0, *, stops_at: int | None = None) -> list[dict]:
    """Return episodes; only the episode at `stops_at` needs a model, and later episodes wait for it."""
    rows = [
        triples_row(
            f"m{i}", str(1_700_000_000 + 3600 * i), triple(PEOPLE[i % 5], "WORKS_AT", f"Firm {i % 17}")
        )
        for i in range(start, start + count)
    ]
    if stops_at is not None:
        rows[stops_at] = {"id": STOP, "at": rows[stops_at]["at"], "group": "team", "text": "Hello"}
    return rows


def counts(report: dict) -> tuple[int, ...]:
    return tuple(report[name] for name in ("accepted", "duplicate", "refused", "committed", "failed"))


def manifest(kgray: Shell, data: str = "kgray-data") -> dict:
    (path,) = (kgray.folder / data / "runs").glob("*/manifest.json")
    return json.loads(path.read_text())


def dump(kgray: Shell, data: str = "kgray-data", group: str = "team") -> str:
    return kgray("dump", "--group", group, "--data", data).out


def added(kgray: Shell, *files: str) -> str:
    """Return the dump that `kgray add` makes of these files, in this order."""
    assert kgray("add", *files, "--data", "reference").code == 0
    return dump(kgray, "reference")


def committed(kgray: Shell) -> int:
    groups = kgray("status", "--json").json["groups"]
    return groups["team"]["committed"] if groups else 0


# ------------------------------------------------------------------------------ the same as add


def test_backfill_makes_the_graph_of_add_and_adds_a_report(kgray):
    file = kgray.write("a.jsonl", *JOBS)
    answer = kgray("backfill", file, "--json")
    assert (answer.code, counts(answer.json)) == (0, (3, 0, 0, 3, 0))
    assert set(answer.json) == ADD | {"report"}
    report = answer.json["report"]
    assert set(report) == REPORT
    assert (report["attempt"], report["state"], report["files"], report["rows"]) == (1, "done", 1, 3)
    assert set(report["seconds"]) == {"extract", "judge", "embed", "decide", "write"}
    assert report["episodes_per_s"] > 0
    reply = json.loads((kgray.folder / "kgray-data/runs" / report["run"] / "report.json").read_text())
    assert reply == answer.json
    assert dump(kgray) == added(kgray, file)


def test_a_second_backfill_reads_nothing_and_changes_nothing(kgray):
    file = kgray.write("a.jsonl", *JOBS)
    kgray("backfill", file)
    dump_before = dump(kgray)
    repeated = kgray("backfill", file, "--json")
    assert (repeated.code, counts(repeated.json)) == (0, (0, 3, 0, 0, 0))
    report = repeated.json["report"]
    assert (report["attempt"], report["state"], report["skipped"]) == (2, "done", 3)
    assert dump(kgray) == dump_before


def test_the_text_output_has_the_same_content(kgray):
    kgray.script({"episode": "x", "error": "refused"})
    row = {"id": "x", "text": "no", "group": "team", "at": 0}
    answer = kgray("backfill", kgray.write("a.jsonl", *JOBS, row, {"text": "y"}), "--run", "first")
    assert answer.code == 1
    lines = answer.out.splitlines()
    assert lines[:2] == [
        "4 accepted, 0 duplicate, 1 refused, 3 committed, 1 failed",
        "a.jsonl:5: group: no group: name it in the row, or for all rows",
    ]
    assert lines[2] == "run      first, attempt 1: done"
    assert "failed   1 Refused" in lines
    assert lines[-1].startswith("  team x: Refused: ")
    assert answer.err.splitlines()[-1] == "kgray: 1 refused, 1 failed (`kgray failures` says why)"


def test_a_folder_is_searched_in_order_and_every_format_is_read(kgray):
    """Files are sorted by path; hidden files, other formats and the data folder are not read."""
    folder = kgray.folder / "archive"
    (folder / "deep" / ".git").mkdir(parents=True)
    rows = many(8)
    kgray.write("archive/b.jsonl", *rows[:2])
    kgray.write("archive/c.json", json.dumps(rows[2:4]))
    with (folder / "d.csv").open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["id", "at", "group", "triples"])
        writer.writerows([r["id"], r["at"], r["group"], json.dumps(r["triples"])] for r in rows[4:6])
    table = pa.table({name: [r[name] for r in rows[6:]] for name in ("id", "at", "group", "triples")})
    pq.write_table(table, folder / "deep/e.parquet")
    kgray.write("archive/notes.md", "One paragraph.\n")
    kgray.write("archive/deep/.git/x.jsonl", "not JSON")
    kgray.write("archive/.hidden.jsonl", "not JSON")
    kgray.write("archive/picture.png", b"\x89PNG")
    kgray.script({"episode": "notes.md#1", "extraction": {"entities": [], "facts": []}})
    args = ("backfill", "archive", "--group", "team", "--at", "0", "--data", "archive/kgray-data", "--json")
    answer = kgray(*args)
    assert (answer.code, counts(answer.json)) == (0, (9, 0, 0, 9, 0)), answer.err
    document = manifest(kgray, "archive/kgray-data")
    names = [row["name"].removeprefix("archive/") for row in document["files"]]
    assert names == ["b.jsonl", "c.json", "d.csv", "deep/e.parquet", "notes.md"]
    assert [row["rows"] for row in document["files"]] == [2, 2, 2, 2, 1]
    files = [f"archive/{name}" for name in names]
    assert kgray("add", *files, "--group", "team", "--at", "0", "--data", "reference").code == 0
    assert dump(kgray, "archive/kgray-data") == dump(kgray, "reference")
    kgray.write("archive/f.jsonl", *many(3, start=8))
    assert counts(kgray(*args).json) == (3, 9, 0, 3, 0), "the same run: the folder's new file is read"


def test_a_text_file_is_one_source_and_replace_retracts_missing_paragraphs(kgray):
    """R25 soft: also if an earlier attempt has read the file."""
    kgray.env["KGRAY_MODEL_BACKEND"] = "rules"
    long = "x" * 1400
    kgray.write("notes.txt", f"Ann works at Acme. {long}\n\nBob works at Beta. {long}\n")
    first = kgray("backfill", "notes.txt", "--group", "g", "--replace", "--json")
    assert counts(first.json) == (2, 0, 0, 2, 0)
    repeated = kgray("backfill", "notes.txt", "--group", "g", "--replace", "--json")
    assert (counts(repeated.json), repeated.json["retracted"]) == ((0, 2, 0, 0, 0), 0)
    kgray.write("notes.txt", f"Ann works at Acme. {long}\n")
    shorter = kgray("backfill", "notes.txt", "--group", "g", "--replace", "--json")
    assert (counts(shorter.json), shorter.json["retracted"]) == ((0, 1, 0, 0, 0), 1)
    assert kgray("groups", "--json").json["groups"][0]["episodes"] == 1


# -------------------------------------------------------------------------------- wrong usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jsonl"], "missing.jsonl cannot be read"),
        (["a.jsonl", "archiv/"], "archiv/ cannot be read"),
        (["empty"], "empty holds no file to read"),
        (["-"], "kgray add -"),
        (["a.jsonl", "--run", "../x"], "is no run's name"),
        (["a.jsonl", "--limit", "0"], "--limit"),
        (["a.jsonl", "--order", "random"], "--order"),
        (["a.jsonl", "--submit"], "--submit"),
        (["a", "b", "--replace"], "are one source"),
    ],
)
def test_wrong_usage_exits_2_and_changes_nothing(kgray, arguments, message):
    kgray.write("a.jsonl", *JOBS)
    for name in ("empty", "a", "b"):
        (kgray.folder / name).mkdir()
    kgray.write("a/notes.md", "One.")
    kgray.write("b/notes.md", "Two.")
    answer = kgray("backfill", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert not (kgray.folder / "kgray-data" / "runs").exists() or not manifests(kgray)


def manifests(kgray: Shell) -> list[Path]:
    return list((kgray.folder / "kgray-data" / "runs").glob("*/manifest.json"))


def test_refused_rows_are_stored_with_their_place_and_a_corrected_file_is_read_again(kgray):
    good = kgray.write("a.jsonl", *JOBS)
    bad = kgray.write("b.jsonl", *many(2), {"text": "x"})
    answer = kgray("backfill", good, bad, "--json")
    assert (answer.code, counts(answer.json)) == (1, (5, 0, 1, 5, 0))
    refusal = {
        "file": "b.jsonl", "line": 3, "field": "group",
        "reason": "no group: name it in the row, or for all rows",
    }  # fmt: skip
    assert answer.json["refusals"] == [refusal]
    assert answer.err.splitlines()[-1] == "kgray: 1 refused"
    (paths,) = (kgray.folder / "kgray-data/runs").glob("*/refused.jsonl")
    assert json.loads(paths.read_text()).items() >= refusal.items()
    repeated = kgray("backfill", good, bad, "--json")
    assert (repeated.code, counts(repeated.json)) == (1, (0, 5, 1, 0, 0)), "the run still has it"
    assert repeated.json["refusals"] == [refusal]
    kgray.write("b.jsonl", *many(3))
    right = kgray("backfill", good, bad, "--json")
    assert (right.code, counts(right.json), right.json["refusals"]) == (0, (1, 5, 0, 1, 0), [])


def test_other_options_read_every_file_again(kgray):
    rows = [{"id": "a", "text": "x", "at": 0}, *JOBS]
    kgray.script({"episode": "a", "extraction": {"entities": [], "facts": []}})
    file = kgray.write("a.jsonl", *rows)
    assert counts(kgray("backfill", file, "--json").json) == (3, 0, 1, 3, 0)
    assert counts(kgray("backfill", file, "--group", "team", "--json").json) == (1, 3, 0, 1, 0)


def test_on_error_stop_accepts_nothing_and_exits_2(kgray):
    """Conflicts with the store and inside the input are seen before anything is accepted."""
    good = kgray.write("a.jsonl", *JOBS)
    bad = kgray.write("b.jsonl", {"text": "x"}, triples_row("t1", "2026-01-01", triple("A", "KNOWS", "B")))
    answer = kgray("backfill", good, bad, "--on-error", "stop", "--json")
    assert (answer.code, counts(answer.json)) == (2, (0, 0, 2, 0, 0))
    assert [(r["file"], r["line"], r["field"]) for r in answer.json["refusals"]] == [
        ("b.jsonl", 1, "group"), ("b.jsonl", 2, "id"),
    ]  # fmt: skip
    assert kgray("status", "--json").json["groups"] == {}
    assert kgray("backfill", good, "--on-error", "stop").code == 0


def test_a_dry_run_counts_outcomes_and_accepts_nothing(kgray):
    kgray("add", kgray.write("a.jsonl", *JOBS))
    dump_before = dump(kgray)
    changed = triples_row("t2", "2026-03-01", triple("Alice Nguyen", "WORKS_AT", "Gamma"))
    new = many(2)
    conflict = triples_row("m0", "2026-01-01", triple("A", "KNOWS", "B"))
    file = kgray.write("b.jsonl", JOBS[0], changed, *new, new[0], conflict, {"text": "x"})
    answer = kgray("backfill", file, "--dry-run", "--json")
    assert (answer.code, counts(answer.json)) == (1, (2, 2, 3, 0, 0))
    assert [(r["line"], r["field"]) for r in answer.json["refusals"]] == [(2, "id"), (6, "id"), (7, "group")]
    assert (answer.json["dry_run"], answer.json["plan"]) == (True, None)
    replaced = kgray("backfill", file, "--dry-run", "--replace", "--json")
    assert counts(replaced.json) == (4, 2, 1, 0, 0)
    assert dump(kgray) == dump_before
    assert not (kgray.folder / "kgray-data" / "runs").exists()
    assert "Nothing is accepted" in kgray("backfill", file, "--dry-run").out


def test_a_dry_run_estimates_the_calls_of_a_language_model_and_makes_none(kgray):
    kgray.env |= {"KGRAY_MODEL_BACKEND": "openai", "KGRAY_MODEL_NAME": "m"}
    kgray.env |= {"KGRAY_MODEL_BASE_URL": "http://127.0.0.1:9/v1"}
    kgray("init")
    rows = [{"id": f"r{i}", "text": f"Ann met Bob {i} times.", "group": "g", "at": i} for i in range(20)]
    file = kgray.write("a.jsonl", *rows)
    plan = kgray("backfill", file, "--dry-run", "--json").json["plan"]
    assert plan["calls"] >= 20
    output = kgray("backfill", file, "--dry-run").out
    assert f"about {plan['calls']} model calls" in output


# ---------------------------------------------------------------------------- bounds and order


def test_a_limit_takes_the_next_rows_each_time(kgray):
    rows = many(5)
    file = kgray.write("a.jsonl", *rows[:2], {"text": "x"}, *rows[2:])
    first = kgray("backfill", file, "--limit", "3", "--json")
    assert (first.code, counts(first.json), first.json["report"]["state"]) == (1, (3, 0, 1, 3, 0), "limited")
    second = kgray("backfill", file, "--limit", "1", "--json")
    assert (counts(second.json), second.json["report"]["state"]) == ((1, 3, 1, 1, 0), "limited")
    third = kgray("backfill", file, "--limit", "1", "--json")
    assert (counts(third.json), third.json["report"]["state"]) == ((1, 4, 1, 1, 0), "done")


def test_a_spent_budget_of_calls_ends_with_75_and_accepts_no_further_rows(kgray):
    count = 40
    nothing = {"entities": [], "facts": []}
    kgray.script(*({"episode": f"r{i}", "extraction": nothing} for i in range(count)))
    rows = [{"id": f"r{i}", "text": f"text {i}", "group": "team", "at": i} for i in range(count)]
    file = kgray.write("a.jsonl", *rows)
    answer = kgray("backfill", file, "--max-calls", "10", "--json")
    assert answer.code == 75
    assert counts(answer.json) == (10, 0, 0, 10, 0)
    report = answer.json["report"]
    assert (report["calls"], report["state"]) == (10, "stopped")
    assert report["reason"] == "--max-calls 10 is spent: 10 calls were made"
    assert "run it again" in answer.err
    remaining = kgray("backfill", file, "--max-calls", "30", "--json")
    assert (remaining.code, counts(remaining.json), remaining.json["report"]["state"]) == (
        0,
        (30, 10, 0, 30, 0),
        "done",
    )
    assert kgray("status", "--json").json["model"]["calls"] == count, "nothing was asked twice"


def test_a_spent_budget_of_tokens_ends_with_75(kgray, monkeypatch):
    """The scripted model counts no tokens, so the test sets 100 tokens a call in the ledger."""
    plain = SqliteStore.counts

    def counted(self, group=None):
        from dataclasses import replace

        result = plain(self, group)
        return {name: replace(c, prompt_tokens=100 * c.calls) for name, c in result.items()}

    monkeypatch.setattr(SqliteStore, "counts", counted)
    rows = [{"id": f"r{i}", "text": f"text {i}", "group": "team", "at": i} for i in range(20)]
    kgray.script(*({"episode": row["id"], "extraction": {"entities": [], "facts": []}} for row in rows))
    answer = kgray("backfill", kgray.write("a.jsonl", *rows), "--max-tokens", "500", "--json")
    assert (answer.code, answer.json["report"]["calls"]) == (75, 5)
    assert answer.json["report"]["reason"] == "--max-tokens 500 is spent: 500 tokens were used"


def test_a_backfill_in_the_order_of_times_equals_a_sorted_add(kgray):
    """Ties by file and row; rows without a time last."""
    rows = many(60)
    for row in rows[::7]:
        row["at"] = "2023-11-20"
    first, second = rows[::2][::-1], rows[1::2]
    kgray.write("a.jsonl", *first)
    kgray.write("b.jsonl", *second)
    in_order = sorted([*first, *second], key=lambda row: _time(row["at"]))
    assert in_order != [*first, *second]
    answer = kgray("backfill", "a.jsonl", "b.jsonl", "--order", "reference-time", "--json")
    assert counts(answer.json) == (60, 0, 0, 60, 0)
    assert dump(kgray) == added(kgray, kgray.write("sorted.jsonl", *in_order))
    (run,) = (kgray.folder / "kgray-data/runs").iterdir()
    assert {path.name for path in run.iterdir()} == {"lock", "manifest.json", "refused.jsonl", "report.json"}


def _time(at: str) -> float:
    return float(at) if at.isdigit() else 1_700_438_400.0


def test_an_ordered_backfill_resumes_and_restarts_after_a_file_changes(kgray):
    rows = many(20)
    kgray.write("a.jsonl", *rows[::-1], {"text": "x"})
    args = ("backfill", "a.jsonl", "--order", "reference-time", "--json")
    assert counts(kgray(*args, "--limit", "8").json) == (8, 0, 1, 8, 0)
    assert counts(kgray(*args, "--limit", "8").json) == (8, 8, 1, 8, 0)
    kgray.write("a.jsonl", *rows[::-1])
    full = kgray(*args)
    assert (counts(full.json), full.json["report"]["skipped"]) == ((4, 16, 0, 4, 0), 0)
    assert dump(kgray) == added(kgray, kgray.write("sorted.jsonl", *rows))
    assert counts(kgray(*args).json) == (0, 20, 0, 0, 0)


def test_removed_texts_are_deleted_from_run_folders(kgray):
    """R25: also if a run in the order of times was stopped between its rows."""
    kgray.write("a.jsonl", *many(9))
    args = ("backfill", "a.jsonl", "--order", "reference-time", "--json")
    kgray(*args, "--limit", "5")
    (run,) = (kgray.folder / "kgray-data/runs").iterdir()
    word = many(1)[0]["triples"][0]["source"].encode()
    (run / "sorted").mkdir()  # as in versions that kept the order between attempts
    (run / "sorted/rows.jsonl").write_bytes(word)
    assert kgray("remove", "--group", "team", "--all", "--yes").code == 0
    assert [path for path in run.rglob("*") if path.is_file() and word in path.read_bytes()] == []
    assert counts(kgray(*args).json) == (4, 5, 0, 4, 0)


def test_a_removal_deletes_ids_and_hashes_from_refusals(kgray):
    """R25: `refused.jsonl` still records a taken id; other refusals stay complete, and the run continues."""
    kgray("add", kgray.write("a.jsonl", triples_row("Quillon", "2026-01-01", triple("A", "KNOWS", "B"))))
    row = triples_row("Quillon", "2026-01-01", triple("A", "KNOWS", "C"))
    args = ("backfill", kgray.write("b.jsonl", row, {"group": "team", "text": ""}), "--json")
    refused = kgray(*args).json
    assert [refusal["field"] for refusal in refused["refusals"]] == ["id", "text"]
    (path,) = (kgray.folder / "kgray-data/runs").glob("*/refused.jsonl")
    content_before = path.read_text()
    stored = content_before.split("stored sha256 ")[1][:64]
    assert kgray("remove", "--group", "team", "--all", "--yes").code == 0
    quoted = "id 'Quillon' is taken"
    assert path.read_text() == content_before.replace(quoted, "-" * len(quoted)).replace(stored, "-" * 64)
    assert kgray(*args).json["refused"] == 2


# ---------------------------------------------------------------------------- traces of earlier attempts


def test_a_changed_file_is_read_again_and_an_unchanged_file_is_resumed(kgray, monkeypatch):
    a, b = kgray.write("a.jsonl", *many(4)), kgray.write("b.jsonl", *many(4, start=4))
    assert counts(kgray("backfill", a, b, "--limit", "6", "--json").json) == (6, 0, 0, 6, 0)
    kgray.write("a.jsonl", *many(4), *many(1, start=100))
    answer = kgray("backfill", a, b, "--json")
    assert (counts(answer.json), answer.json["report"]["skipped"]) == ((3, 6, 0, 3, 0), 2)
    files = manifest(kgray)["files"]
    assert [(f["rows"], f["accepted"], f["duplicate"], f["complete"]) for f in files] == [
        (5, 1, 4, True), (4, 4, 0, True),
    ]  # fmt: skip


def test_an_unreadable_manifest_only_costs_another_read(kgray):
    file = kgray.write("a.jsonl", *JOBS)
    kgray("backfill", file)
    dump_before = dump(kgray)
    (path,) = manifests(kgray)
    path.write_text("{")
    answer = kgray("backfill", file, "--json")
    assert (counts(answer.json), answer.json["report"]["attempt"]) == ((0, 3, 0, 0, 0), 1)
    assert dump(kgray) == dump_before


def test_a_running_backfill_cannot_be_started_again(kgray):
    file = kgray.write("a.jsonl", *JOBS)
    kgray("init")
    with RunFolder(kgray.folder / "kgray-data", "busy").locked():
        answer = kgray("backfill", file, "--run", "busy")
    assert (answer.code, answer.out) == (2, "")
    assert f"run busy goes on already (process {os.getpid()} on " in answer.err
    assert kgray("backfill", file, "--run", "busy").code == 0


def test_pending_rows_and_batches_are_bounded(kgray, monkeypatch):
    """The input is much longer than the bound on pending rows."""
    monkeypatch.setattr(run, "WAITING", 60)
    monkeypatch.setattr(run, "BATCH", 20)
    sizes: list[tuple[int, int]] = []
    plain = SqliteStore.append

    def append(self, groups, work):
        answers = plain(self, groups, work)
        sizes.append((len(answers), self.pending_count()))
        assert not any(pending_groups(self).values()), "in the backfill lane"
        return answers

    monkeypatch.setattr(SqliteStore, "append", append)
    file = kgray.write("a.jsonl", *many(200))
    answer = kgray("backfill", file, "--json")
    assert counts(answer.json) == (200, 0, 0, 200, 0)
    assert max(size for size, _ in sizes) <= 20
    assert max(waiting for _, waiting in sizes) <= 60
    assert len(sizes) >= 10


# ------------------------------------------------------------------------- killed and stopped


@pytest.mark.slow  # a kill is resumed by default, and test_cli_process has the signal
def test_a_signal_drains_and_exits_75_and_the_same_command_resumes(kgray):
    """SIGTERM; test_cli_process has both signals."""
    file = kgray.write("a.jsonl", *many(ROWS, stops_at=120))
    kgray.script({"episode": STOP, "error": "unavailable"})
    kgray("init")
    running = kgray.start("backfill", file, "--json")
    wait_for(lambda: committed(kgray) > 5, running)
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=HANGS_S)
    assert running.returncode == 75, err
    report = json.loads(out)
    assert 5 < report["committed"] <= 120
    assert report["report"]["state"] == manifest(kgray)["state"] == "stopped"
    assert b"run it again" in err
    assert b"Traceback" not in err
    kgray.script({"episode": STOP, "extraction": {"entities": [], "facts": []}})
    repeated = kgray("backfill", file, "--json")
    assert (repeated.code, repeated.json["accepted"] + repeated.json["duplicate"]) == (0, ROWS)
    assert repeated.json["committed"] == ROWS - report["committed"]
    assert dump(kgray) == added(kgray, file)


def test_a_killed_backfill_resumes_to_the_graph_of_an_undisturbed_run(kgray):
    """Promise 2; rows that the manifest does not record are duplicates."""
    file = kgray.write("a.jsonl", *many(ROWS))
    kgray("init")
    for minimum in (5, 80):
        running = kgray.start("backfill", file)
        wait_for(lambda minimum=minimum: committed(kgray) > minimum)
        running.kill()
        running.communicate()
    last = kgray("backfill", file, "--json")
    assert last.code == 0
    assert last.json["accepted"] + last.json["duplicate"] == ROWS
    assert last.json["report"]["attempt"] == 3
    status = kgray("status", "--json").json["groups"]["team"]
    assert status == {"accepted": 0, "extracted": 0, "committed": ROWS, "failed": 0, "held": 0}
    assert dump(kgray) == added(kgray, file)


def test_an_input_error_ends_the_run_before_pending_rows_are_ingested(kgray, monkeypatch):
    kgray("add", kgray.write("a.jsonl", *many(400)), "--accept-only")

    def full(*_):
        raise StoreError("refused.jsonl cannot be written: it is read-only")

    monkeypatch.setattr(RunFolder, "refuse", full)
    answer = kgray("backfill", kgray.write("b.jsonl", {"text": ""}))
    assert answer.code == 2
    assert answer.err.splitlines()[-1] == "kgray: refused.jsonl cannot be written: it is read-only"
    assert committed(kgray) < 400
    assert manifest(kgray)["state"] == "stopped"


def test_a_long_outage_ends_with_75_and_a_reason_in_the_manifest(kgray):
    kgray.env |= {"KGRAY_MODEL_BACKEND": "openai", "KGRAY_MODEL_NAME": "m", "KGRAY_MODEL_PATIENCE_S": "1"}
    kgray.env |= {"KGRAY_MODEL_BASE_URL": "http://127.0.0.1:9/v1"}
    file = kgray.write("a.jsonl", {"id": "a", "text": "x", "group": "team", "at": 0}, *JOBS)
    answer = kgray("backfill", file, "--json")
    assert answer.code == 75
    assert (answer.json["accepted"], answer.json["failed"]) == (4, 0)
    document = manifest(kgray)
    assert (document["state"], document["reason"]) == ("stopped", answer.json["report"]["reason"])
    assert "127.0.0.1:9" in document["reason"]


def test_the_job_script_ingests_like_the_command(kgray):
    kgray.write("a.jsonl", *JOBS)
    script = Path(__file__).resolve().parents[2] / "jobs" / "backfill.py"
    outcome = subprocess.run(
        [sys.executable, str(script), "a.jsonl", "--json"],
        cwd=kgray.folder, env={**os.environ, **kgray.env}, capture_output=True, check=True,
    )  # fmt: skip
    assert counts(json.loads(outcome.stdout)) == (3, 0, 0, 3, 0)
