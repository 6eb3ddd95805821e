"""merge, split, undo, retract, remove: their output, their effects and their refusals."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import pytest

from kgray import open_async as kgray_open
from kgray.domain.records import Operation
from kgray.errors import Locked
from kgray.storage.ledger import request, result
from tests.doors.shell import JOBS, Shell, triple, triples_row
from tests.waiting import HANGS_S, wait_for

TAKEN = {"episodes", "statements", "facts_closed", "facts_reopened", "entities"}


def rows(kgray, kind: str, *extra: str) -> list[dict]:
    result = map(json.loads, kgray("dump", "--group", "team", *extra).out.splitlines())
    return [row for row in result if row["type"] == kind]


def ids(kgray) -> dict[str, str]:
    return {row["name"]: row["id"] for row in rows(kgray, "entity")}


def hashed(kgray) -> str:
    return kgray("dump", "--group", "team", "--hash").out


def test_undo_of_a_merge_restores_the_graph(kgray):
    kgray(
        "add",
        kgray.write(
            "a.jsonl",
            triples_row(
                "a", "2026-01-01", triple("Bob Smith", "KNOWS", "Ann"), triple("Robert Smith", "LIKES", "Tea")
            ),
        ),
    )
    initial, entity_ids = hashed(kgray), ids(kgray)
    merged = kgray("merge", entity_ids["Robert Smith"], entity_ids["Bob Smith"], "--group", "team", "--json")
    assert (merged.code, merged.json["sequence"]) == (0, 2)
    (smith,) = (row for row in rows(kgray, "entity") if "Smith" in row["name"])
    assert (smith["name"], smith["aliases"], smith["id"]) == (
        "Bob Smith",
        ["Robert Smith"],
        entity_ids["Bob Smith"],
    )
    undone = kgray("undo", "2", "--group", "team", "--json")
    assert (undone.code, undone.json["sequence"]) == (0, 3)
    assert hashed(kgray) == initial
    assert kgray("doctor", "--json").json["checks"][-1]["ok"] is True


def test_split_moves_the_mentions_of_a_surface_to_another_entity(kgray):
    triples = [triple("Bob Smith", "KNOWS", "Ann"), triple("Robert Smith", "LIKES", "Tea")]
    kgray("add", kgray.write("a.jsonl", triples_row("a", "2026-01-01", *triples)))
    entity_ids = ids(kgray)
    kgray("merge", entity_ids["Robert Smith"], entity_ids["Bob Smith"], "--group", "team")
    split = kgray("split", entity_ids["Bob Smith"], "--surface", "Robert Smith", "--group", "team", "--json")
    assert (split.code, split.json["sequence"]) == (0, 3)
    assert {row["name"] for row in rows(kgray, "entity")} == {"Bob Smith", "Robert Smith", "Ann", "Tea"}
    kgray("undo", "3", "--group", "team")
    repeated = kgray("split", entity_ids["Bob Smith"], "--surface", "Robert Smith", "--group", "team")
    assert repeated.out == f"sequence  5\nentities  {', '.join(split.json['entities'])}\n"


@pytest.mark.parametrize(
    "command",
    [["merge", "nobody", "noone"], ["split", "nobody", "--surface", "x"], ["undo", "99"], ["undo", "1"]],
)
def test_an_unknown_id_exits_2_and_changes_nothing(team, command):
    initial = hashed(team)
    answer = team(*command, "--group", "team", "--json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("kgray: ")
    assert hashed(team) == initial


def test_retract_reopens_closed_facts_and_known_at_still_shows_them_closed(team):
    moment = team("history", "Alice Nguyen", "--group", "team", "--json").json["facts"][1]["created_at"]
    earlier_dump = team("dump", "--group", "team", "--known-at", moment).out
    answer = team("retract", "t2", "--group", "team", "--yes", "--json")
    assert answer.code == 0
    assert set(answer.json) >= TAKEN
    assert answer.json["episodes"] == 1
    (fact,) = team("history", "Alice Nguyen", "--group", "team", "--json").json["facts"]
    assert (fact["target"], fact["invalid_at"]) == ("Acme", None)
    assert team("dump", "--group", "team", "--known-at", moment).out == earlier_dump
    repeated = team("add", "a.jsonl", "--json", "--again")
    assert (repeated.json["accepted"], repeated.json["duplicate"]) == (1, 2), (
        "retracted content, added with --again"
    )


def test_remove_of_the_last_episode_restores_the_earlier_graph(kgray):
    kgray("add", kgray.write("a.jsonl", *JOBS[:2]))
    initial = hashed(kgray)
    kgray("add", kgray.write("b.jsonl", JOBS[2]))
    answer = kgray("remove", "--group", "team", "--episode", "t3", "--yes", "--json")
    assert answer.code == 0
    assert set(answer.json) >= TAKEN
    assert (answer.json["episodes"], answer.json["compacted"]) == (1, True)
    assert hashed(kgray) == initial


def test_no_file_contains_text_of_a_removed_episode(kgray):
    secret = triples_row(
        "secret-id-zq", "2026-01-01", triple("Zanzibarov", "KNOWS", "Quixotelle", text="Xylophonium said so")
    )
    kgray("add", kgray.write("a.jsonl", secret | {"source": "vaultzz", "note": "margarinum"}, *JOBS))
    kgray("remove", "--group", "team", "--source", "vaultzz", "--yes")
    stored = b"".join(path.read_bytes() for path in (kgray.folder / "kgray-data").iterdir())
    for word in ("secret-id-zq", "anzibarov", "uixotelle", "ylophonium", "vaultzz", "argarinum"):
        assert word.encode() not in stored
    assert kgray("doctor").code == 0


def test_removing_a_group_leaves_no_trace(team):
    answer = team("remove", "--group", "team", "--all", "--yes", "--json")
    assert (answer.code, answer.json["episodes"]) == (0, 3)
    assert team("dump", "--group", "team").out == ""
    assert team("groups", "--json").json == {"groups": []}
    assert b"Nguyen" not in b"".join(p.read_bytes() for p in (team.folder / "kgray-data").iterdir())


@pytest.mark.parametrize("verb", ["retract", "remove"])
def test_a_removal_without_yes_and_without_a_terminal_is_refused(team, verb):
    initial = hashed(team)
    answer = team(verb, "--group", "team", "--all")
    assert (answer.code, answer.err) == (
        2, f"kgray: kgray {verb} needs --yes where standard input is no terminal; nothing was changed\n",
    )  # fmt: skip
    assert hashed(team) == initial


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


def test_a_merge_first_ingests_pending_episodes(team):
    row = triples_row("t4", "2026-04-01", triple("Alice Nguyen", "WORKS_AT", "Gamma"))
    entity_ids = ids(team)
    team("add", team.write("more.jsonl", row), "--accept-only")
    assert (
        team("merge", entity_ids["Acme"], entity_ids["Beta"], "--group", "team", "--json").json["sequence"]
        == 5
    )
    assert team("status", "--json").json["groups"]["team"]["committed"] == 4


# ------------------------------------------------------------------- traces of removed episodes (R25)


def stored_bytes(kgray) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((kgray.folder / "kgray-data").iterdir()))


SMITHS = (
    triples_row("a", "2026-01-01", triple("Bob Smith", "KNOWS", "Ann")),
    triples_row("b", "2026-01-02", triple("Zebulon Quark", "LIKES", "Tea")),
    triples_row("c", "2026-01-03", triple("Ann", "LIKES", "Tea")),
)


@pytest.mark.parametrize("undone", [False, True])
@pytest.mark.parametrize("surface", ["Zebulon Quark", "zebulon  QUARK"])
def test_a_removal_deletes_names_from_splits(kgray, undone, surface):
    """R25, R16: a split is deleted with the episode that has its only name."""
    kgray("add", kgray.write("a.jsonl", *SMITHS))
    entity_ids = ids(kgray)
    kgray("merge", entity_ids["Zebulon Quark"], entity_ids["Bob Smith"], "--group", "team")
    split = kgray("split", entity_ids["Bob Smith"], "--surface", surface, "--group", "team", "--json")
    assert (split.code, split.json["sequence"]) == (0, 5)
    (row,) = [row for row in rows(kgray, "merge") if row["kind"] == "split"]
    assert row["surfaces"] == ["Zebulon Quark"], "recorded as it is stored"
    if undone:
        assert kgray("undo", "5", "--group", "team").code == 0
    assert b"ebulon" in stored_bytes(kgray)
    removed = kgray("remove", "--group", "team", "--episode", "b", "--yes", "--json")
    assert (removed.code, removed.json["compacted"]) == (0, True)
    assert [row for row in rows(kgray, "merge") if row["kind"] == "split"] == []
    for word in (b"ebulon", b"ebulon".upper(), b"quark", b"Quark", b"QUARK"):
        assert word not in stored_bytes(kgray)
    assert {row["name"] for row in rows(kgray, "entity")} == {"Bob Smith", "Ann", "Tea"}
    assert kgray("doctor").code == 0


def test_a_removal_leaves_split_names_that_other_episodes_contain(kgray):
    extra = triples_row("d", "2026-01-04", triple("Zebulon Quark", "KNOWS", "Ann"))
    kgray("add", kgray.write("a.jsonl", *SMITHS, extra))
    entity_ids = ids(kgray)
    kgray("merge", entity_ids["Zebulon Quark"], entity_ids["Bob Smith"], "--group", "team")
    kgray("split", entity_ids["Bob Smith"], "--surface", "Zebulon Quark", "--group", "team")
    kgray("retract", "--group", "team", "--episode", "d", "--yes")
    kgray("remove", "--group", "team", "--episode", "b", "--yes")
    split = [row["surfaces"] for row in rows(kgray, "merge") if row["kind"] == "split"]
    assert split == [["Zebulon Quark"]], "a read with an earlier --known-at still needs it"
    kgray("remove", "--group", "team", "--episode", "d", "--yes")
    assert b"ebulon" not in stored_bytes(kgray)


def test_a_refused_operation_stores_no_name(kgray):
    """Also an operation that passes the first check and is refused at its place in the order."""
    kgray("add", kgray.write("a.jsonl", *SMITHS))
    entity_ids = ids(kgray)
    with closing(kgray_open("kgray-data", create=False)) as memory:
        for surfaces in (("Nobodaddy",), ("Bob Smith",), ("bob smith", "Bob Smith")):
            operation = Operation(
                group="team", kind="split", entities=(entity_ids["Bob Smith"],), surfaces=surfaces
            )
            sequence = request(memory.store, operation)
            asyncio.run(memory.ingest())
            (reason,) = result(memory.store, "team", sequence).values()
            assert entity_ids["Bob Smith"] in reason
            assert not any(name in reason for name in ("Smith", "smith", "Nobodaddy"))
    kgray("remove", "--group", "team", "--episode", "a", "--yes")
    for word in (b"Smith", b"smith", b"Nobodaddy"):
        assert word not in stored_bytes(kgray)


# --------------------------------------------------------- refused corrections take no sequence


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
def test_a_refused_correction_takes_no_sequence(kgray, command):
    kgray("add", kgray.write("a.jsonl", *SMITHS))
    entity_ids = ids(kgray)
    answer = kgray(*(part.format(**entity_ids) for part in command), "--group", "team")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert next_sequence(kgray) == 4


def test_a_repeated_merge_or_undo_takes_no_sequence(kgray):
    kgray("add", kgray.write("a.jsonl", *SMITHS))
    entity_ids = ids(kgray)
    two = (entity_ids["Bob Smith"], entity_ids["Zebulon Quark"])
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
def test_a_correction_does_not_create_a_missing_group(team, command):
    answer = team(*command, "--group", "ghost", "--json")
    assert answer.code == (1 if "--yes" in command else 2)
    assert [row["group"] for row in team("groups", "--json").json["groups"]] == ["team"]
    assert next_sequence(team, "ghost") == 1


@pytest.mark.parametrize("choice", [["--episode", "t3"], ["--source", "shop"], ["--all"]])
def test_retracted_episodes_are_not_retracted_again_and_can_be_removed(team, choice):
    assert team("retract", "--group", "team", *choice, "--yes", "--json").json["episodes"] > 0
    graph, sequence = hashed(team), next_sequence(team)
    repeated = team("retract", "--group", "team", *choice, "--yes", "--json")
    assert (repeated.code, {repeated.json[name] for name in TAKEN}, "sequence" in repeated.json) == (
        0,
        {0},
        False,
    )
    assert (hashed(team), next_sequence(team)) == (graph, sequence)
    assert team("remove", "--group", "team", *choice, "--yes", "--json").json["episodes"] > 0
    repeated = team("remove", "--group", "team", *choice, "--yes", "--json")
    assert repeated.code == 1
    assert ({repeated.json[name] for name in TAKEN}, "sequence" in repeated.json) == ({0}, False)
    assert next_sequence(team) == sequence + 1


# ------------------------------------------------------------------------------ outages in other groups


def test_a_correction_does_not_wait_for_an_outage_in_another_group(team):
    team.script({"episode": "slow", "error": "unavailable"})
    team(
        "add",
        team.write("slow.jsonl", {"id": "slow", "at": 0, "group": "other", "text": "Hi"}),
        "--accept-only",
    )
    row = triples_row("t4", "2026-04-01", triple("Alice Nguyen", "WORKS_AT", "Gamma"))
    team("add", team.write("more.jsonl", row), "--accept-only")
    entity_ids = ids(team)
    assert team("merge", entity_ids["Acme"], entity_ids["Beta"], "--group", "team").code == 0
    assert team("undo", "5", "--group", "team").code == 0
    assert team("retract", "--group", "team", "--episode", "t2", "--yes", "--json").json["episodes"] == 1
    removed = team("remove", "--group", "team", "--episode", "t1", "--yes", "--json")
    assert (removed.code, removed.json["episodes"]) == (0, 1)
    groups = team("status", "--json").json["groups"]
    assert (groups["team"]["committed"], groups["team"]["accepted"], groups["other"]["accepted"]) == (2, 0, 1)


def test_an_outage_in_the_same_group_ends_a_merge_with_75_before_its_request(team, monkeypatch):
    monkeypatch.setitem(team.env, "KGRAY_MODEL_PATIENCE_S", "1")
    team.script({"episode": "slow", "error": "unavailable"})
    entity_ids = ids(team)
    accept_slow(team)
    sequence = next_sequence(team)
    answer = team("merge", entity_ids["Acme"], entity_ids["Beta"], "--group", "team")
    *waits, last = answer.err.splitlines()
    assert (answer.code, answer.out) == (75, "")
    assert "stopped before the merge was asked for" in last
    assert all("waiting: " in line for line in waits), "a second of patience may be long enough for a report"
    assert next_sequence(team) == sequence
    team.script({"episode": "slow", "extraction": {"entities": [], "facts": []}})
    assert team("merge", entity_ids["Acme"], entity_ids["Beta"], "--group", "team").code == 0


# ------------------------------------------------------- retract and remove wait for no model (R25, R27)


def accept_slow(team) -> None:
    slow = {"id": "slow", "at": 0, "group": "team", "source": "chat", "text": "Hi from Quillon"}
    assert team("add", team.write("slow.jsonl", slow), "--accept-only").code == 0


def states(team) -> tuple[int, int]:
    """Return the numbers of pending and committed episodes."""
    row = team("status", "--json").json["groups"].get("team", {})
    return row.get("accepted", 0) + row.get("extracted", 0), row.get("committed", 0)


CLOSED = "http://127.0.0.1:9/v1"  # the discard port, without a listener
AWAY = {
    "scripted": {},
    "openai": {"KGRAY_MODEL_BACKEND": "openai", "KGRAY_MODEL_BASE_URL": CLOSED, "KGRAY_MODEL_NAME": "m"},
}


@pytest.mark.parametrize("model", AWAY)
@pytest.mark.parametrize("verb", ["retract", "remove"])
@pytest.mark.parametrize(
    ("choice", "episodes", "remaining"),
    [
        (["--episode", "t1"], 1, (1, 2)),
        (["--episode", "slow"], 1, (0, 3)),
        (["--episode", "slow", "t1"], 2, (0, 2)),
        (["--source", "crm"], 2, (1, 1)),
        (["--source", "chat"], 1, (0, 3)),
        (["--all"], 4, (0, 0)),
    ],
)
def test_withdrawals_take_effect_while_the_model_is_down(team, verb, model, choice, episodes, remaining):
    """The patience is 600 seconds, so a command that waited would exceed the limit of the test."""
    team.script({"episode": "slow", "error": "unavailable"})
    accept_slow(team)
    team.env |= AWAY[model]
    answer = team(verb, "--group", "team", *choice, "--yes", "--json")
    assert (answer.code, answer.err, answer.json["episodes"], answer.json["absent"]) == (0, "", episodes, [])
    assert states(team) == remaining
    assert team("doctor", "--json").json["checks"][-1]["ok"] is True


def test_pending_episodes_are_ingested_after_a_removal(team):
    """The pending episode t4 is removed from the log, without a trace."""
    graph = hashed(team)
    new_rows = [
        triples_row(f"t{n}", f"2026-0{n}-01", triple("Alice Nguyen", "WORKS_AT", f"F{n}")) for n in (4, 5)
    ]
    team("add", team.write("more.jsonl", *new_rows), "--accept-only")
    assert team("remove", "--group", "team", "--episode", "t4", "--yes", "--json").json["episodes"] == 1
    assert (states(team), hashed(team)) == ((1, 3), graph)
    assert team("add", team.write("none.jsonl", "")).code == 0
    assert states(team) == (0, 4)
    assert b"F4" not in stored_bytes(team)


def test_a_requested_removal_is_completed_first(team):
    """A process that died between the request and the removal leaves the request."""
    team.script({"episode": "slow", "error": "unavailable"})
    team.env["KGRAY_MODEL_PATIENCE_S"] = "1"
    accept_slow(team)
    with closing(kgray_open("kgray-data", create=False)) as memory:
        sequence = request(memory.store, Operation(group="team", kind="remove", source="crm"))
    assert team("add", team.write("none.jsonl", "")).code == 75
    assert states(team) == (1, 1)
    with closing(kgray_open("kgray-data", create=False)) as memory:
        told_of = result(memory.store, "team", sequence)
    assert (told_of["episodes"], told_of["after"]) == (2, 3)


@pytest.mark.parametrize("verb", [pytest.param("retract", marks=pytest.mark.slow), "remove"])
def test_a_process_that_waits_for_its_model_serves_a_removal(team, verb):
    """The process holds the folder; it serves the appended request and refills the window of the group."""
    team.script(*({"episode": name, "error": "unavailable"} for name in ("slow", "more")))
    accept_slow(team)
    row = {"id": "more", "at": 0, "group": "team", "text": "Ho"}
    running = team.start("add", team.write("more.jsonl", row))
    try:
        wait_for(lambda: states(team)[0] == 2 and held_by_another(team), running)
        answer = team(verb, "--group", "team", "--episode", "t1", "--yes", "--json")
        assert (answer.code, answer.json["episodes"]) == (0, 1)
        assert running.poll() is None
        assert states(team) == (2, 2)
    finally:
        running.terminate()
        running.communicate(timeout=HANGS_S)
    assert running.returncode == 75


def held_by_another(team) -> bool:
    """Return True if another process holds the folder for ingestion."""
    with closing(kgray_open("kgray-data", create=False)) as memory:
        try:
            with memory.store.writing():
                return False
        except Locked:
            return True


# ------------------------------------------------------------ episodes with a removed context


CHAT = [
    {"id": f"c{n}", "at": n * 60, "group": "team", "source": "chat", "speaker": "Ann", "text": text}
    for n, text in enumerate(["My boss is Quillon.", "He moved.", "To Oslo.", "Bye.", "See you.", "Yes."], 1)
]
NOTHING = {"entities": [], "facts": []}
MOVED = {
    "entities": [{"name": "Quillon"}, {"name": "Oslo"}],
    "facts": [
        {"source": "Quillon", "target": "Oslo", "relation": "LIVES_IN", "fact": "Quillon lives in Oslo"}
    ],
}


def write_script(kgray, **extractions) -> None:
    kgray.script(
        *(
            {"episode": f"c{n}", "extraction": extractions.get(f"c{n}", NOTHING)}
            for n in range(1, len(CHAT) + 1)
        )
    )


@pytest.fixture
def chat(kgray) -> Shell:
    write_script(kgray, c3=MOVED)
    kgray.env["KGRAY_PIPELINE_PREVIOUS_EPISODES"] = "2"
    assert kgray("add", kgray.write("chat.jsonl", *CHAT[:5])).code == 0
    row = CHAT[5] | {"source": "other"}
    assert kgray("add", kgray.write("more.jsonl", row), "--accept-only").code == 0
    return kgray


def test_episodes_with_a_removed_context_are_named_and_stay_unchanged(chat):
    """R25, R22: only the next two episodes of its source that are already read."""
    answer = chat("remove", "--group", "team", "--episode", "c1", "--yes", "--json")
    named = {row["id"]: row["client_id"] for row in rows(chat, "episode")}
    assert (answer.code, answer.json["context_of"]) == (
        0, [{"id": id_, "client_id": name} for name in ("c2", "c3") for id_ in named if named[id_] == name]
    )  # fmt: skip
    assert "reread" not in answer.json
    assert answer.err == (
        "kgray: 2 episodes read with what was removed as context: c2, c3; "
        "what was understood then is kept; --reread reads them anew\n"
    )
    assert "Quillon" in ids(chat)
    assert chat("remove", "--group", "team", "--episode", "c5", "--yes", "--json").json["context_of"] == []
    assert chat("remove", "--group", "team", "--source", "chat", "--yes", "--json").json["context_of"] == []


def test_reread_reads_episodes_with_a_removed_context_again(chat):
    """They get new places after all others; content that only the removed text supported is deleted."""
    write_script(chat)
    answer = chat("remove", "--group", "team", "--episode", "c1", "--reread", "--yes", "--json")
    assert (answer.code, answer.json["episodes"], answer.json["entities"]) == (0, 1, 2)
    assert answer.json["reread"] == {
        "accepted": 2, "committed": 2, "failed": 0, "stopped": False, "reason": ""
    }  # fmt: skip
    assert answer.err.endswith("as context: c2, c3; 2 read anew, 0 failed\n")
    assert b"Quillon" not in stored_bytes(chat)
    results = {row["client_id"]: row["sequence"] for row in rows(chat, "episode")}
    assert results == {"c4": 4, "c5": 5, "c6": 6, "c2": 8, "c3": 9}


def test_a_reread_waits_for_the_model_and_the_removal_does_not(chat):
    chat.script({"episode": "c2", "error": "unavailable"}, {"episode": "c6", "extraction": NOTHING})
    chat.env["KGRAY_MODEL_PATIENCE_S"] = "1"
    answer = chat("remove", "--group", "team", "--episode", "c1", "--reread", "--yes", "--json")
    assert (answer.code, answer.json["episodes"], answer.json["reread"]["committed"]) == (75, 1, 0)
    assert "stopped before all of it was read anew" in answer.err
    assert b"Quillon" not in stored_bytes(chat)
    write_script(chat)
    assert chat("add", chat.write("none.jsonl", "")).code == 0
    assert {row["client_id"] for row in rows(chat, "episode")} == {"c2", "c3", "c4", "c5", "c6"}


# --------------------------------------------------------------------- absent episodes are named


@pytest.mark.parametrize("verb", ["retract", "remove"])
@pytest.mark.parametrize(
    ("choice", "absent", "episodes"),
    [
        (["--episode", "t1", "nobody", "nobody", "none"], ["nobody", "none"], 1),
        (["--episode", "nobody"], ["nobody"], 0),
        (["--source", "nowhere"], ["nowhere"], 0),
    ],
)
def test_absent_episodes_are_named_with_exit_code_1(team, verb, choice, absent, episodes):
    answer = team(verb, "--group", "team", *choice, "--yes", "--json")
    assert (answer.code, answer.json["absent"], answer.json["episodes"]) == (1, absent, episodes)
    names = ", ".join(map(repr, absent))
    assert answer.err.splitlines()[-1] == f"kgray: not there, so nothing was done about it: {names}"
    assert next_sequence(team) == (5 if episodes else 4)


def test_a_second_retraction_succeeds_and_a_second_removal_exits_1(team):
    """R27: idempotent. A retracted episode still exists; a removed episode does not."""
    for code, verb in ((0, "retract"), (0, "retract"), (0, "remove"), (1, "remove")):
        assert team(verb, "--group", "team", "--episode", "t1", "--yes").code == code
