"""add, retry, failures, status: accepted, refused and ingested episodes, and exit codes."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.doors.shell import JOBS, triple, triples_row

REPORT = {"accepted", "duplicate", "refused", "committed", "failed", "refusals"}


def counts(report: dict) -> tuple[int, ...]:
    return tuple(report[name] for name in ("accepted", "duplicate", "refused", "committed", "failed"))


def test_add_accepts_and_ingests_and_a_second_add_changes_nothing(kgray):
    file = kgray.write("a.jsonl", *JOBS)
    first = kgray("add", file, "--json")
    assert first.code == 0
    assert set(first.json) >= REPORT
    assert counts(first.json) == (3, 0, 0, 3, 0)
    assert first.json["refusals"] == []
    hashed = kgray("dump", "--group", "team", "--hash").out
    repeated = kgray("add", file, "--json")
    assert (repeated.code, counts(repeated.json)) == (0, (0, 3, 0, 0, 0))
    assert kgray("dump", "--group", "team", "--hash").out == hashed


def test_refusals_name_file_line_field_and_reason_and_exit_1_with_the_count_last(kgray):
    file = kgray.write("a.jsonl", b'{"text": "x"}\nnot json\n' + json.dumps(JOBS[0]).encode() + b"\n")
    answer = kgray("add", file, "--json")
    assert answer.code == 1
    assert counts(answer.json) == (1, 0, 2, 1, 0)
    assert answer.json["refusals"] == [
        {
            "file": "a.jsonl",
            "line": 1,
            "field": "group",
            "reason": "no group: name it in the row, or for all rows",
        },
        {
            "file": "a.jsonl",
            "line": 2,
            "field": None,
            "reason": "not valid JSON: Expecting value at character 1",
        },
    ]
    assert answer.err.splitlines()[-1] == "kgray: 2 refused"


def test_the_text_output_has_the_same_content(kgray):
    answer = kgray("add", kgray.write("a.jsonl", JOBS[0], {"text": "x"}))
    assert answer.code == 1
    assert answer.out == (
        "1 accepted, 0 duplicate, 1 refused, 1 committed, 0 failed\n"
        "a.jsonl:2: group: no group: name it in the row, or for all rows\n"
    )


def test_the_same_id_with_other_content_is_refused_unless_replaced(kgray):
    kgray("add", kgray.write("a.jsonl", *JOBS))
    edited = triples_row("t2", "2026-03-01", triple("Alice Nguyen", "WORKS_AT", "Gama"), source="crm")
    file = kgray.write("b.jsonl", edited)
    refused = kgray("add", file, "--json")
    assert (refused.code, counts(refused.json)) == (1, (0, 0, 1, 0, 0))
    (refusal,) = refused.json["refusals"]
    assert (refusal["file"], refusal["line"], refusal["field"]) == ("b.jsonl", 1, "id")
    replaced = kgray("add", file, "--replace", "--json")
    assert (replaced.code, counts(replaced.json)) == (0, (1, 0, 0, 1, 0))
    facts = kgray("history", "Alice Nguyen", "--group", "team", "--json").json["facts"]
    assert [(f["target"], f["valid_at"][:10], (f["invalid_at"] or "-")[:10]) for f in facts] == [
        ("Acme", "2026-01-01", "2026-03-01"), ("Gama", "2026-03-01", "-"),
    ]  # fmt: skip
    repeated = kgray("add", file, "--replace", "--json")
    assert (repeated.code, counts(repeated.json)) == (0, (0, 1, 0, 0, 0))


def test_on_error_stop_accepts_nothing_and_exits_2(kgray):
    good = kgray.write("a.jsonl", *JOBS)
    bad = kgray.write("b.jsonl", {"text": "x", "group": "team"}, {"group": "team"})
    answer = kgray("add", good, bad, "--on-error", "stop", "--json")
    assert answer.code == 2
    assert counts(answer.json) == (0, 0, 1, 0, 0)
    assert kgray("status", "--json").json["groups"] == {}
    assert kgray("add", "-", "--on-error", "stop", stdin='{"group": "team"}\n').code == 2
    assert kgray("add", "-", "--on-error", "stop", stdin=json.dumps(JOBS[0])).code == 0
    conflict = triples_row("t1", "2026-01-01", triple("A", "KNOWS", "B"))
    answer = kgray("add", kgray.write("c.jsonl", JOBS[1], conflict), "--on-error", "stop", "--json")
    assert (answer.code, answer.json["refusals"][0]["field"], answer.json["refusals"][0]["line"]) == (
        2,
        "id",
        2,
    )
    twice = [triples_row("n1", "2026-01-01", triple("A", "KNOWS", name)) for name in "BC"]
    assert kgray("add", kgray.write("d.jsonl", *twice), "--on-error", "stop").code == 2
    assert kgray("status", "--json").json["groups"]["team"]["committed"] == 1


def test_accept_only_appends_and_a_later_add_ingests_the_pending_episodes(kgray):
    file = kgray.write("a.jsonl", *JOBS)
    answer = kgray("add", file, "--accept-only", "--json")
    assert (answer.code, counts(answer.json)) == (0, (3, 0, 0, 0, 0))
    assert kgray("status", "--json").json["groups"]["team"] == {
        "accepted": 3, "extracted": 0, "committed": 0, "failed": 0, "held": 0,
    }  # fmt: skip
    later = kgray(
        "add", kgray.write("b.jsonl", triples_row("t9", "2026-04-01", triple("A", "KNOWS", "B"))), "--json"
    )
    assert (later.code, counts(later.json)) == (0, (1, 0, 0, 4, 0))


def test_a_dry_run_prints_the_changes_and_accepts_nothing(kgray):
    kgray("init")
    file = kgray.write("a.jsonl", JOBS[0])
    answer = kgray("add", file, "--dry-run", "--json")
    assert answer.code == 0
    changes = answer.json["changes"]
    assert {row["op"] for row in changes} == {"add"}
    assert [row["type"] for row in changes if row["type"] in ("episode", "fact")] == ["episode", "fact"]
    assert kgray("status", "--json").json["groups"] == {}
    people = kgray("add", file, "--dry-run")
    assert people.code == 0
    assert "text=Alice Nguyen works at Acme" in people.out
    kgray("add", file)
    assert kgray("add", file, "--dry-run", "--json").json == {"changes": []}
    unread = {"id": "m", "group": "team", "at": 0, "text": "not in the script"}
    faulty = kgray("add", kgray.write("bad.jsonl", {}, unread, JOBS[1]), "--dry-run", "--json")
    assert faulty.code == 1
    assert faulty.json["changes"][0]["client_id"] == "t2"
    assert faulty.err.splitlines()[-1] == "kgray: 2 would be refused or fail"


def test_a_dry_run_refuses_a_taken_id_like_add(kgray):
    kgray("add", kgray.write("a.jsonl", *JOBS))
    moved = triples_row("t1", "2026-01-01", triple("Alice Nguyen", "WORKS_AT", "Delta"), source="crm")
    new_row = triples_row("n1", "2026-01-01", triple("Ann", "KNOWS", "Bob"))
    conflict = triples_row("n1", "2026-01-01", triple("Ann", "KNOWS", "Cid"))
    file = kgray.write("b.jsonl", moved, new_row, conflict, new_row | {"id": "n2"}, new_row)
    dry = kgray("add", file, "--dry-run", "--json")
    refused = [line for line in dry.err.splitlines() if line.startswith("kgray: refused: ")]
    assert (dry.code, len(refused), dry.err.splitlines()[-1]) == (1, 2, "kgray: 2 would be refused or fail")
    added = [row for row in dry.json["changes"] if row["type"] == "episode"]
    assert [(row["client_id"], row["sequence"], row["op"]) for row in added] == [
        ("n1", 4, "add"),
        ("n2", 5, "add"),
    ]
    real = kgray("add", file, "--json")
    assert [
        f"kgray: refused: b.jsonl:{r['line']}: id: {r['reason']}" for r in real.json["refusals"]
    ] == refused
    assert (real.code, counts(real.json)) == (1, (2, 1, 2, 2, 0))
    rows = map(json.loads, kgray("dump", "--group", "team").out.splitlines())
    sequences = {row["client_id"]: row["sequence"] for row in rows if row["type"] == "episode"}
    assert (sequences["n1"], sequences["n2"]) == (4, 5), "the predicted sequences"


def test_a_dry_run_with_replace_shows_removed_and_added_rows(kgray):
    kgray("add", kgray.write("a.jsonl", *JOBS))
    lines_before = kgray("dump", "--group", "team").out.splitlines()
    moved = triples_row("t2", "2026-03-01", triple("Alice Nguyen", "WORKS_AT", "Delta"), source="crm")
    file = kgray.write("b.jsonl", moved)
    dry = kgray("add", file, "--replace", "--dry-run", "--json")
    assert (dry.code, dry.err) == (0, "")
    assert kgray("dump", "--group", "team").out.splitlines() == lines_before
    real = kgray("add", file, "--replace", "--json")
    assert counts(real.json) == (1, 0, 0, 1, 0)
    lines_after = kgray("dump", "--group", "team").out.splitlines()
    come = {line for line in lines_after if line not in lines_before}
    ops: dict[str, set[str]] = {"add": set(), "change": set(), "remove": set()}
    for row in dry.json["changes"]:
        op = row.pop("op")
        ops[op].add(json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
    assert ops["add"] | ops["change"] == come
    assert ops["remove"] <= {line for line in lines_before if line not in lines_after}
    assert any("Beta" in line for line in ops["remove"])


def test_attempts_count_the_retries_of_an_episode(kgray):
    """R24: the ledger counts the attempts of an episode across its sequences."""
    kgray.write("a.jsonl", {"id": "m1", "group": "g", "at": 0, "text": "x"})
    kgray("add", "a.jsonl")
    for attempt in (1, 2, 3):
        (failure,) = kgray("failures", "--json").json["failures"]
        assert failure["attempts"] == attempt
        assert kgray("retry", "--json").json["failed"] == 1
    kgray("retract", "--group", "g", "--episode", "m1", "--yes")
    kgray("add", "a.jsonl", "--again")
    assert kgray("failures", "--json").json["failures"][0]["attempts"] == 1, "accepted again"


def test_options_are_the_defaults_of_rows(kgray):
    row = {"triples": [triple("A", "KNOWS", "B")], "id": "x"}
    file = kgray.write("a.jsonl", row)
    kgray("add", file, "--group", "g1", "--source", "s1", "--kind", "triples", "--at", "2026-02-03")
    (episode,) = (
        r for r in kgray("show", "x", "--group", "g1", "--json").json["records"] if r["type"] == "episode"
    )
    assert (episode["source"], episode["kind"], episode["reference_time"]) == (
        "s1", "triples", "2026-02-03T00:00:00.000000Z",
    )  # fmt: skip


def test_episodes_without_a_time_get_a_single_warning(kgray):
    rows = [{"id": str(i), "group": "g", "triples": [triple("A", "KNOWS", f"B{i}")]} for i in range(3)]
    answer = kgray("add", kgray.write("a.jsonl", *rows))
    assert answer.code == 0
    assert (
        answer.err
        == 'kgray: 3 episodes without a time got the time of acceptance; give "at" to say when it was\n'
    )


@pytest.mark.parametrize("form", ["json", "csv", "parquet", "stdin"])
def test_every_format_gives_the_same_graph(kgray, form):
    kgray("add", kgray.write("a.jsonl", *JOBS), "--data", "reference")
    rows = [{**row, "triples": json.dumps(row["triples"])} for row in JOBS]
    names = list(rows[0])
    if form == "json":
        answer = kgray("add", kgray.write("a.json", json.dumps(list(JOBS), indent=2)))
    elif form == "csv":
        quoted = ['"' + value.replace('"', '""') + '"' for row in rows for value in row.values()]
        lines = [",".join(names), *(",".join(quoted[i : i + 5]) for i in range(0, 15, 5))]
        answer = kgray("add", kgray.write("a.csv", "\n".join(lines)))
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), kgray.folder / "a.parquet")
        answer = kgray("add", "a.parquet")
    else:
        answer = kgray("add", "-", stdin="\n".join(map(json.dumps, JOBS)))
    assert answer.code == 0
    hashes = [
        kgray("dump", "--group", "team", "--hash", "--data", d).out for d in ("reference", "kgray-data")
    ]
    assert hashes[0] == hashes[1]


# -------------------------------------------------------------------------------------- texts


def paragraphs(*starts: str) -> str:
    return "\n\n".join(f"{start}. " + "Some more words here. " * 45 for start in starts)


def scripted_texts(kgray, *ids: str) -> None:
    kgray.script(*({"episode": i, "extraction": {"entities": [], "facts": []}} for i in ids))


def test_a_text_file_is_one_source_of_ordered_episodes(kgray):
    scripted_texts(kgray, *(f"notes.md#{n}" for n in range(1, 9)))
    file = kgray.write("notes.md", paragraphs("One", "Two", "Three"))
    answer = kgray("add", file, "--group", "g", "--at", "2026-01-01", "--json")
    assert (answer.code, counts(answer.json)) == (0, (3, 0, 0, 3, 0))
    rows = [json.loads(line) for line in kgray("dump", "--group", "g").out.splitlines()]
    assert [(r["client_id"], r["source"], r["kind"], r["sequence"]) for r in rows] == [
        (f"notes.md#{n}", "notes.md", "text", n) for n in (1, 2, 3)
    ]
    repeated = kgray("add", file, "--group", "g", "--at", "2026-01-01", "--json")
    assert (repeated.code, counts(repeated.json)) == (0, (0, 3, 0, 0, 0))


def test_replacing_an_edited_text_file_retracts_its_missing_paragraphs(kgray):
    scripted_texts(kgray, *(f"notes.md#{n}" for n in range(1, 9)))
    add = ("add", "notes.md", "--group", "g", "--at", "2026-01-01", "--json")
    kgray.write("notes.md", paragraphs("One", "Two", "Three", "Four"))
    kgray(*add)
    kgray.write("notes.md", paragraphs("One", "Zwei"))
    refused = kgray(*add)
    assert (refused.code, counts(refused.json)) == (1, (0, 1, 1, 0, 0))
    replaced = kgray(*add, "--replace")
    assert (replaced.code, counts(replaced.json), replaced.json["retracted"]) == (0, (1, 1, 0, 1, 0), 2)
    rows = [json.loads(line) for line in kgray("dump", "--group", "g").out.splitlines()]
    assert sorted((r["client_id"], r["state"]) for r in rows) == [
        ("notes.md#1", "committed"), ("notes.md#2", "committed"),
    ]  # fmt: skip
    repeated = kgray(*add, "--replace")
    assert (repeated.code, counts(repeated.json), repeated.json["retracted"]) == (0, (0, 2, 0, 0, 0), 0)


@pytest.mark.parametrize("verb", ["add", "backfill"])
def test_retracted_episodes_stay_retracted_without_the_option_again(kgray, verb):
    """R19: a retracted row of an added file is a duplicate, reported once; a removed row is accepted."""
    file = kgray.write("a.jsonl", *JOBS)
    kgray("add", file)
    kgray("retract", "--group", "team", "--source", "crm", "--yes")
    kgray("remove", "--group", "team", "--source", "shop", "--yes")
    planned = kgray(verb, file, "--dry-run", "--json").json
    if verb == "backfill":
        assert (planned["accepted"], planned["duplicate"]) == (1, 2)
    else:
        assert {row["client_id"] for row in planned["changes"] if row["type"] == "episode"} == {"t3"}
    answer = kgray(verb, file, "--json")
    assert (answer.code, counts(answer.json), answer.json["still_retracted"]) == (0, (1, 2, 0, 1, 0), 2)
    notice = "2 duplicates retracted before, so still retracted; --again accepts what was retracted"
    assert answer.err.count(notice) == 1
    repeated = kgray(verb, file, "--json", "--again")
    assert (repeated.code, counts(repeated.json), repeated.json["still_retracted"]) == (0, (2, 1, 0, 2, 0), 0)
    assert "--again" not in repeated.err


def test_a_text_file_regains_paragraphs_that_a_replacement_retracted(kgray):
    """R19: a retraction by --replace does not count."""
    scripted_texts(kgray, *(f"notes.md#{n}" for n in range(1, 9)))
    add = ("add", "notes.md", "--group", "g", "--at", "2026-01-01", "--json", "--replace")
    for texts, accepted in ((("One", "Two"), 2), (("One",), 0), (("One", "Two"), 1)):
        kgray.write("notes.md", paragraphs(*texts))
        assert kgray(*add).json["accepted"] == accepted
    assert kgray("status", "--json").json["groups"]["g"]["committed"] == 2


def test_a_partly_unreadable_text_file_retracts_nothing(kgray):
    scripted_texts(kgray, *(f"notes.md#{n}" for n in range(1, 9)))
    add = ("add", "notes.md", "--group", "g", "--at", "2026-01-01", "--replace", "--json")
    text = paragraphs("One", "Two", *("word " * 1000 for _ in range(20)), "Last")
    kgray.script(
        *({"episode": f"notes.md#{n}", "extraction": {"entities": [], "facts": []}} for n in range(1, 99))
    )
    count = kgray("add", kgray.write("notes.md", text), *add[2:]).json["accepted"]
    kgray.write("notes.md", text.encode()[:70_000] + b"\xff")
    answer = kgray(*add)
    assert (answer.code, answer.json["refused"], answer.json["retracted"]) == (1, 1, 0)
    assert kgray("status", "--json").json["groups"]["g"]["committed"] == count


# ----------------------------------------------------------------------------------- failures


def test_a_failed_episode_exits_1_is_listed_and_only_retry_ingests_it(kgray):
    rows = [{"id": "m1", "at": "2026-01-01", "group": "g", "speaker": "Ann", "text": "I know Bob"}, JOBS[0]]
    file = kgray.write("a.jsonl", *rows)
    answer = kgray("add", file, "--json")
    assert (answer.code, counts(answer.json)) == (1, (2, 0, 0, 1, 1))
    assert answer.err.splitlines()[-1] == "kgray: 1 failed (`kgray failures` says why)"
    (failure,) = kgray("failures", "--json").json["failures"]
    assert set(failure) >= {"id", "client_id", "class", "message", "attempts"}
    assert (failure["client_id"], failure["class"], failure["attempts"]) == ("m1", "InvalidAnswer", 1)
    assert kgray("failures", "--group", "other", "--json").json == {"failures": []}
    assert "m1" in kgray("failures").out
    reply = {
        "entities": [{"name": "Bob"}],
        "facts": [{"source": "Ann", "target": "Bob", "relation": "KNOWS", "fact": "Ann knows Bob"}],
    }
    kgray.script({"episode": "m1", "extraction": reply})
    repeated = kgray("add", file, "--json")
    assert (repeated.code, counts(repeated.json)) == (0, (0, 2, 0, 0, 0))
    assert kgray("retry", "--group", "team", "--json").json["accepted"] == 0
    retried = kgray("retry", "--episode", "m1", "--json")
    assert (retried.code, counts(retried.json)) == (0, (1, 0, 0, 1, 0))
    assert kgray("status", "--group", "g", "--json").json["groups"]["g"]["committed"] == 1
    assert kgray("failures").out == "No failed episodes.\n"


def test_a_model_out_of_reach_exits_75_and_accepted_episodes_remain(kgray):
    kgray.script({"episode": "m1", "error": "unavailable"})
    kgray.env["KGRAY_MODEL_PATIENCE_S"] = "1"
    file = kgray.write("a.jsonl", {"id": "m1", "at": 0, "group": "g", "text": "Hello"})
    answer = kgray("add", file, "--json")
    assert (answer.code, counts(answer.json)) == (75, (1, 0, 0, 0, 0))
    assert "run it again" in answer.err
    assert kgray("status", "--json").json["groups"]["g"]["accepted"] == 1
    kgray.script({"episode": "m1", "extraction": {"entities": [], "facts": []}})
    assert kgray("add", file).code == 0


def test_the_rules_model_warns_that_it_has_demo_quality(kgray):
    kgray.env["KGRAY_MODEL_BACKEND"] = "rules"
    answer = kgray(
        "add", kgray.write("a.jsonl", {"text": "I work at Acme", "speaker": "Alice", "group": "g", "at": 0})
    )
    assert answer.code == 0
    assert "demo quality" in answer.err
    assert "demo quality" not in answer.out


# -------------------------------------------------------------------------------- wrong usage


@pytest.mark.parametrize(
    "arguments",
    [
        ["add"],
        ["add", "missing.jsonl"],
        ["add", "."],
        ["add", "a.jsonl", "--group", "a b"],
        ["add", "a.jsonl", "--group", ""],
        ["add", "a.jsonl", "--group", "g" * 129],
        ["add", "a.jsonl", "--at", "soon"],
        ["add", "a.jsonl", "--kind", "mail"],
        ["add", "a.jsonl", "--on-error", "explode"],
        ["add", "a.jsonl", "--nonsense"],
        ["--data", "x", "add", "a.jsonl"],
        ["frobnicate"],
        ["backfill", "a.jsonl", "--window", "3"],
    ],
)
def test_wrong_usage_exits_2_and_changes_nothing(kgray, arguments):
    kgray.write("a.jsonl", *JOBS)
    answer = kgray(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err
    assert not (kgray.folder / "kgray-data").exists()


def test_options_end_at_two_dashes(kgray):
    kgray.write("-odd.jsonl", *JOBS)
    assert kgray("add", "--json", "--", "-odd.jsonl").json["accepted"] == 3


def test_many_refusals_are_summarised_and_written_to_a_file(kgray):
    bad = [*({"id": str(n), "at": f"x{n}"} for n in range(30)), *({"speaker": "Bob"} for _ in range(5))]
    file = kgray.write("mixed.jsonl", JOBS[0], *bad)
    answer = kgray("add", file, "--group", "team")

    lines = answer.out.splitlines()
    assert (answer.code, lines[0]) == (1, "1 accepted, 0 duplicate, 35 refused, 1 committed, 0 failed")
    assert lines[1] == (
        "mixed.jsonl:2: at: 'x0' is not a time: use ISO 8601 (2026-03-01T09:00:00Z) or epoch seconds"
    )
    assert [line.split(":")[1] for line in lines[1:11]] == [str(n) for n in range(2, 12)]
    assert lines[11:-1] == [
        "... and 25 more. By reason, with the first message of each:",
        "        30  at: 'x0' is not a time: use ISO 8601 (2026-03-01T09:00:00Z) or epoch seconds",
        '         5  text is missing; if the row is a record, set kind to "json"',
    ]
    refusals_file = kgray.folder / lines[-1].removeprefix("All of them: ")
    json_answer = kgray("add", file, "--group", "team", "--json")
    assert [json.loads(line) for line in refusals_file.read_text().splitlines()] == json_answer.json[
        "refusals"
    ]
    assert kgray("remove", "--group", "team", "--all", "--yes").code == 0
    assert not refusals_file.exists()


def test_one_object_over_several_lines_is_one_record(kgray):
    kgray.env["KGRAY_MODEL_BACKEND"] = "rules"
    record = {"id": "ACC-1", "name": "Nordlicht GmbH", "owner": "Dana Reyes", "updated_at": "2026-01-05"}
    file = kgray.write("account.json", json.dumps(record, indent=2))
    first = kgray("add", file, "--group", "crm", "--json")
    repeated = kgray("add", "-", "--group", "crm", "--json", stdin=json.dumps(record, indent=4))

    assert (counts(first.json), counts(repeated.json)) == ((1, 0, 0, 1, 0), (0, 1, 0, 0, 0))
    facts = [json.loads(line) for line in kgray("dump", "--group", "crm").out.splitlines()]
    assert [row["text"] for row in facts if row["type"] == "fact"] == [
        "Nordlicht GmbH is owned by Dana Reyes"
    ]


def test_omitted_items_are_reported_at_the_end(kgray):
    kgray.env["KGRAY_MODEL_BACKEND"] = "rules"
    file = kgray.write(
        "rows.jsonl", {"kind": "json", "at": 0, "arr": 5, "contacts": [{"name": "Bob", "age": 4}]}
    )
    answer = kgray("add", file, "--group", "crm")

    assert answer.code == 0
    assert answer.err.splitlines()[-2:] == [
        "kgray: left out: rows: it has no key and no name, so this was not read: arr",
        "kgray: 1 item not understood and left out",
    ]


@pytest.mark.parametrize("command", [["add"], pytest.param(["backfill"], marks=pytest.mark.slow)])
def test_a_dry_run_needs_no_store_and_writes_no_files(kgray, command):
    """It runs on an empty store in a temporary folder."""
    files = kgray.write("a.jsonl", *JOBS)
    (kgray.folder / "tmp").mkdir()
    kgray.env["TMPDIR"] = str(kgray.folder / "tmp")
    files_before = sorted(path.name for path in kgray.folder.iterdir())
    answer = kgray.process(*command, files, "--dry-run", "--json")
    assert (answer.code, answer.err.count("Traceback")) == (0, 0), answer.err
    if command == ["add"]:
        facts = [row["text"] for row in answer.json["changes"] if (row["op"], row["type"]) == ("add", "fact")]
        assert "Mug costs 9.5 EUR" in facts
    else:
        assert (answer.json["accepted"], answer.json["refused"]) == (3, 0)
    assert sorted(path.name for path in kgray.folder.iterdir()) == files_before
    assert list((kgray.folder / "tmp").iterdir()) == []
