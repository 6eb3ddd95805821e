"""merge, split, undo, retract, remove: what they print, what they undo, what they refuse."""

from __future__ import annotations

import json

import pytest

from tests.doors.shell import JOBS, Shell, told, triple

TAKEN = {"episodes", "statements", "facts_closed", "facts_reopened", "entities"}


@pytest.fixture
def team(kgray) -> Shell:
    assert kgray("add", kgray.write("a.jsonl", *JOBS)).code == 0
    return kgray


def rows(kgray, kind: str, *extra: str) -> list[dict]:
    found = map(json.loads, kgray("dump", "--group", "team", *extra).out.splitlines())
    return [row for row in found if row["type"] == kind]


def ids(kgray) -> dict[str, str]:
    return {row["name"]: row["id"] for row in rows(kgray, "entity")}


def hashed(kgray) -> str:
    return kgray("dump", "--group", "team", "--hash").out


def test_merge_and_undo_are_timed_and_leave_the_graph_as_it_was(kgray):
    kgray(
        "add",
        kgray.write(
            "a.jsonl",
            told(
                "a", "2026-01-01", triple("Bob Smith", "KNOWS", "Ann"), triple("Robert Smith", "LIKES", "Tea")
            ),
        ),
    )
    before, known = hashed(kgray), ids(kgray)
    merged = kgray("merge", known["Robert Smith"], known["Bob Smith"], "--group", "team", "--json")
    assert (merged.code, merged.json["sequence"]) == (0, 2)
    (shown,) = (row for row in rows(kgray, "entity") if "Smith" in row["name"])
    assert (shown["name"], shown["aliases"], shown["id"]) == (
        "Bob Smith",
        ["Robert Smith"],
        known["Bob Smith"],
    )
    undone = kgray("undo", "2", "--group", "team", "--json")
    assert (undone.code, undone.json["sequence"]) == (0, 3)
    assert hashed(kgray) == before
    assert kgray("doctor", "--json").json["checks"][-1]["ok"] is True


def test_split_gives_the_mentions_of_a_surface_to_another_entity(kgray):
    told_of = [triple("Bob Smith", "KNOWS", "Ann"), triple("Robert Smith", "LIKES", "Tea")]
    kgray("add", kgray.write("a.jsonl", told("a", "2026-01-01", *told_of)))
    known = ids(kgray)
    kgray("merge", known["Robert Smith"], known["Bob Smith"], "--group", "team")
    split = kgray("split", known["Bob Smith"], "--surface", "Robert Smith", "--group", "team", "--json")
    assert (split.code, split.json["sequence"]) == (0, 3)
    assert {row["name"] for row in rows(kgray, "entity")} == {"Bob Smith", "Robert Smith", "Ann", "Tea"}


@pytest.mark.parametrize(
    "command",
    [["merge", "nobody", "noone"], ["split", "nobody", "--surface", "x"], ["undo", "99"], ["undo", "1"]],
)
def test_an_unknown_id_exits_2_and_changes_nothing(team, command):
    before = hashed(team)
    answer = team(*command, "--group", "team", "--json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("kgray: ")
    assert hashed(team) == before


def test_retract_reopens_what_was_closed_and_known_at_still_sees_it(team):
    then = team("history", "Alice Nguyen", "--group", "team", "--json").json["facts"][1]["created_at"]
    known = team("dump", "--group", "team", "--known-at", then).out
    answer = team("retract", "--group", "team", "--episode", "t2", "--yes", "--json")
    assert answer.code == 0
    assert set(answer.json) >= TAKEN
    assert answer.json["episodes"] == 1
    (fact,) = team("history", "Alice Nguyen", "--group", "team", "--json").json["facts"]
    assert (fact["target"], fact["invalid_at"]) == ("Acme", None)
    assert team("dump", "--group", "team", "--known-at", then).out == known
    again = team("add", "a.jsonl", "--json")
    assert (again.json["accepted"], again.json["duplicate"]) == (1, 2), "retracted content is accepted anew"


def test_remove_of_the_last_episode_gives_the_graph_without_it(kgray):
    kgray("add", kgray.write("a.jsonl", *JOBS[:2]))
    before = hashed(kgray)
    kgray("add", kgray.write("b.jsonl", JOBS[2]))
    answer = kgray("remove", "--group", "team", "--episode", "t3", "--yes", "--json")
    assert answer.code == 0
    assert set(answer.json) >= TAKEN
    assert (answer.json["episodes"], answer.json["compacted"]) == (1, True)
    assert hashed(kgray) == before


def test_nothing_of_a_removed_episode_is_readable_in_the_files(kgray):
    secret = told(
        "secret-id-zq", "2026-01-01", triple("Zanzibarov", "KNOWS", "Quixotelle", text="Xylophonium said so")
    )
    kgray("add", kgray.write("a.jsonl", secret | {"source": "vaultzz", "note": "margarinum"}, *JOBS))
    kgray("remove", "--group", "team", "--source", "vaultzz", "--yes")
    held = b"".join(path.read_bytes() for path in (kgray.folder / "kgray-data").iterdir())
    for word in ("secret-id-zq", "anzibarov", "uixotelle", "ylophonium", "vaultzz", "argarinum"):
        assert word.encode() not in held
    assert kgray("doctor").code == 0


def test_removing_a_group_leaves_nothing_of_it(team):
    answer = team("remove", "--group", "team", "--all", "--yes", "--json")
    assert (answer.code, answer.json["episodes"]) == (0, 3)
    assert team("dump", "--group", "team").out == ""
    assert team("groups", "--json").json == {"groups": []}
    assert b"Nguyen" not in b"".join(p.read_bytes() for p in (team.folder / "kgray-data").iterdir())


@pytest.mark.parametrize("verb", ["retract", "remove"])
@pytest.mark.parametrize("choice", [["--episode", "nobody"], ["--source", "nothing"]])
def test_what_is_not_there_gives_zeros_and_exit_0(team, verb, choice):
    before = hashed(team)
    answer = team(verb, "--group", "team", *choice, "--yes", "--json")
    assert answer.code == 0
    assert {answer.json[name] for name in TAKEN} == {0}
    assert hashed(team) == before
    assert team(verb, "--group", "unknown", "--all", "--yes", "--json").json["episodes"] == 0


@pytest.mark.parametrize("verb", ["retract", "remove"])
def test_without_yes_and_without_a_terminal_nothing_is_taken_out(team, verb):
    before = hashed(team)
    answer = team(verb, "--group", "team", "--all")
    assert (answer.code, answer.err) == (
        2, f"kgray: kgray {verb} needs --yes where standard input is no terminal; nothing was changed\n",
    )  # fmt: skip
    assert hashed(team) == before


@pytest.mark.parametrize("choice", [[], ["--all", "--source", "x"], ["--episode", "a", "--all"]])
def test_exactly_one_choice_of_episodes_is_needed(team, choice):
    answer = team("remove", "--group", "team", "--yes", *choice)
    assert answer.code == 2


def test_several_episodes_may_be_named_at_once(team):
    answer = team("remove", "--group", "team", "--episode", "t1", "t2", "--yes", "--json")
    assert (answer.code, answer.json["episodes"]) == (0, 2)
    assert (
        team("remove", "--group", "team", "--episode", "t3", "--episode", "t1", "--yes", "--json").json[
            "episodes"
        ]
        == 1
    )


def test_corrections_first_ingest_what_is_pending(kgray):
    kgray("add", kgray.write("a.jsonl", *JOBS), "--accept-only")
    answer = kgray("remove", "--group", "team", "--episode", "t3", "--yes", "--json")
    assert answer.json["episodes"] == 1
    assert kgray("status", "--json").json["groups"]["team"]["committed"] == 2
