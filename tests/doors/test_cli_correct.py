"""merge, split, undo, retract, remove: what they print, what they undo, what they refuse."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import pytest

from kgray import open as kgray_open
from kgray.ledger import request, result
from kgray.records import Operation
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


# ------------------------------------------------------------------- what a removal leaves (R25)


def held(kgray) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((kgray.folder / "kgray-data").iterdir()))


SMITHS = (
    told("a", "2026-01-01", triple("Bob Smith", "KNOWS", "Ann")),
    told("b", "2026-01-02", triple("Zebulon Quark", "LIKES", "Tea")),
    told("c", "2026-01-03", triple("Ann", "LIKES", "Tea")),
)


@pytest.mark.parametrize("undone", [False, True])
@pytest.mark.parametrize("surface", ["Zebulon Quark", "zebulon  QUARK"])
def test_a_split_keeps_no_name_that_only_a_removed_episode_bore(kgray, undone, surface):
    """R25: every trace; the split of what remains stands."""
    kgray("add", kgray.write("a.jsonl", *SMITHS))
    known = ids(kgray)
    kgray("merge", known["Zebulon Quark"], known["Bob Smith"], "--group", "team")
    split = kgray("split", known["Bob Smith"], "--surface", surface, "--group", "team", "--json")
    assert (split.code, split.json["sequence"]) == (0, 5)
    (row,) = [row for row in rows(kgray, "merge") if row["kind"] == "split"]
    assert row["surfaces"] == ["Zebulon Quark"], "recorded as it is stored"
    if undone:
        assert kgray("undo", "5", "--group", "team").code == 0
    assert b"ebulon" in held(kgray)
    taken = kgray("remove", "--group", "team", "--episode", "b", "--yes", "--json")
    assert (taken.code, taken.json["compacted"]) == (0, True)
    assert [row["surfaces"] for row in rows(kgray, "merge") if row["kind"] == "split"] == [[]] * (not undone)
    for word in (b"ebulon", b"ebulon".upper(), b"quark", b"Quark", b"QUARK"):
        assert word not in held(kgray)
    assert {row["name"] for row in rows(kgray, "entity")} == {"Bob Smith", "Ann", "Tea"}
    assert kgray("doctor").code == 0


def test_a_split_keeps_the_names_that_remaining_episodes_bear_retracted_ones_too(kgray):
    more = told("d", "2026-01-04", triple("Zebulon Quark", "KNOWS", "Ann"))
    kgray("add", kgray.write("a.jsonl", *SMITHS, more))
    known = ids(kgray)
    kgray("merge", known["Zebulon Quark"], known["Bob Smith"], "--group", "team")
    kgray("split", known["Bob Smith"], "--surface", "Zebulon Quark", "--group", "team")
    kgray("retract", "--group", "team", "--episode", "d", "--yes")
    kgray("remove", "--group", "team", "--episode", "b", "--yes")
    split = [row["surfaces"] for row in rows(kgray, "merge") if row["kind"] == "split"]
    assert split == [["Zebulon Quark"]], "a read with an earlier --known-at still needs it"
    kgray("remove", "--group", "team", "--episode", "d", "--yes")
    assert b"ebulon" not in held(kgray)


def test_a_refused_operation_keeps_no_name(kgray):
    """What its check could not see, because another correction came first, is refused in its turn."""
    kgray("add", kgray.write("a.jsonl", *SMITHS))
    known = ids(kgray)
    with closing(kgray_open("kgray-data", create=False)) as memory:
        for surfaces in (("Nobodaddy",), ("Bob Smith",), ("bob smith", "Bob Smith")):
            asked = Operation(group="team", kind="split", entities=(known["Bob Smith"],), surfaces=surfaces)
            sequence = request(memory.store, asked)
            asyncio.run(memory.ingest())
            (told_of,) = result(memory.store, "team", sequence).values()
            assert known["Bob Smith"] in told_of
            assert not any(name in told_of for name in ("Smith", "smith", "Nobodaddy"))
    kgray("remove", "--group", "team", "--episode", "a", "--yes")
    for word in (b"Smith", b"smith", b"Nobodaddy"):
        assert word not in held(kgray)


# --------------------------------------------------------- what cannot be done takes no sequence


def next_sequence(kgray, group: str = "team") -> int:
    with closing(kgray_open("kgray-data", create=False)) as memory:
        return memory.store.heads([group])[group].last + 1


@pytest.mark.parametrize(
    "command",
    [
        ["merge", "{Ann}", "{Ann}"],
        ["merge", "{Ann}", "nobody"],
        ["split", "{Ann}", "--surface", "Bob"],
        ["split", "{Ann}", "--surface", "Ann"],
        ["split", "nobody", "--surface", "Ann"],
        ["undo", "1"],
        ["undo", "99"],
    ],
)
def test_what_is_refused_takes_no_sequence(kgray, command):
    kgray("add", kgray.write("a.jsonl", *SMITHS))
    known = ids(kgray)
    answer = kgray(*(part.format(**known) for part in command), "--group", "team")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert next_sequence(kgray) == 4


def test_a_merge_of_what_is_one_already_takes_no_sequence(kgray):
    kgray("add", kgray.write("a.jsonl", *SMITHS))
    known = ids(kgray)
    two = (known["Bob Smith"], known["Zebulon Quark"])
    assert kgray("merge", *two, "--group", "team").code == 0
    assert kgray("merge", *two, "--group", "team").code == 2
    assert kgray("undo", "4", "--group", "team").code == 0
    assert kgray("undo", "4", "--group", "team").code == 2
    assert next_sequence(kgray) == 6


@pytest.mark.parametrize(
    "command",
    [
        ["undo", "1"],
        ["merge", "a", "b"],
        ["split", "a", "--surface", "x"],
        ["retract", "--all", "--yes"],
        ["remove", "--all", "--yes"],
        ["remove", "--episode", "x", "--yes"],
    ],
)
def test_a_group_that_is_not_there_is_not_made(team, command):
    answer = team(*command, "--group", "ghost", "--json")
    assert answer.code == (0 if "--yes" in command else 2)
    assert [row["group"] for row in team("groups", "--json").json["groups"]] == ["team"]
    assert next_sequence(team, "ghost") == 1


@pytest.mark.parametrize("choice", [["--episode", "t3"], ["--source", "shop"], ["--all"]])
def test_what_was_retracted_is_not_retracted_again_and_can_be_removed(team, choice):
    assert team("retract", "--group", "team", *choice, "--yes", "--json").json["episodes"] > 0
    before, after = hashed(team), next_sequence(team)
    again = team("retract", "--group", "team", *choice, "--yes", "--json")
    assert (again.code, {again.json[name] for name in TAKEN}, "sequence" in again.json) == (0, {0}, False)
    assert (hashed(team), next_sequence(team)) == (before, after)
    assert team("remove", "--group", "team", *choice, "--yes", "--json").json["episodes"] > 0
    again = team("remove", "--group", "team", *choice, "--yes", "--json")
    assert ({again.json[name] for name in TAKEN}, "sequence" in again.json) == ({0}, False)
    assert next_sequence(team) == after + 1


# ------------------------------------------------------------------------------ an outage elsewhere


def test_an_outage_in_another_group_is_no_reason_to_keep_a_correction_waiting(team):
    team.script({"episode": "slow", "error": "unavailable"})
    team(
        "add",
        team.write("slow.jsonl", {"id": "slow", "at": 0, "group": "other", "text": "Hi"}),
        "--accept-only",
    )
    more = told("t4", "2026-04-01", triple("Alice Nguyen", "WORKS_AT", "Gamma"))
    team("add", team.write("more.jsonl", more), "--accept-only")
    known = ids(team)
    assert team("merge", known["Acme"], known["Beta"], "--group", "team").code == 0
    assert team("undo", "5", "--group", "team").code == 0
    assert team("retract", "--group", "team", "--episode", "t2", "--yes", "--json").json["episodes"] == 1
    removed = team("remove", "--group", "team", "--episode", "t1", "--yes", "--json")
    assert (removed.code, removed.json["episodes"]) == (0, 1)
    groups = team("status", "--json").json["groups"]
    assert (groups["team"]["committed"], groups["team"]["accepted"], groups["other"]["accepted"]) == (2, 0, 1)


def test_an_outage_in_its_own_group_ends_a_correction_with_75_before_it_is_asked_for(team, monkeypatch):
    monkeypatch.setitem(team.env, "KGRAY_MODEL_PATIENCE_S", "1")
    team.script({"episode": "slow", "error": "unavailable"})
    team(
        "add",
        team.write("slow.jsonl", {"id": "slow", "at": 0, "group": "team", "text": "Hi"}),
        "--accept-only",
    )
    before = next_sequence(team)
    answer = team("remove", "--group", "team", "--episode", "t1", "--yes")
    assert (answer.code, answer.out, answer.err.count("\n")) == (75, "", 1)
    assert "stopped before the remove was asked for" in answer.err
    assert next_sequence(team) == before
    team.script({"episode": "slow", "extraction": {"entities": [], "facts": []}})
    assert team("remove", "--group", "team", "--episode", "t1", "--yes", "--json").json["episodes"] == 1
