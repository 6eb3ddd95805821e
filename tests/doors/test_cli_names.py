"""Entities and facts are addressed by name, id, or prefix of an id; a mistyped name gets a suggestion."""

from __future__ import annotations

import json

import pytest

from tests.doors.shell import JOBS, triple, triples_row

SMITHS = (
    triples_row("s1", "2026-01-01", triple("Bob Smith", "WORKS_AT", "Acme")),
    triples_row("s2", "2026-01-02", triple("Robert Smith", "LIKES", "tea")),
)


@pytest.fixture
def team(kgray):
    assert kgray("add", kgray.write("a.jsonl", *JOBS, *SMITHS)).code == 0
    return kgray


def entities(kgray, *words: str) -> dict[str, str]:
    """Return name -> id."""
    reply = kgray("entities", *words, "--group", "team", "--json").json["entities"]
    return {row["name"]: row["id"] for row in reply}


def test_entities_with_most_facts_come_first_and_a_query_selects_entities(team):
    reply = team("entities", "--group", "team", "--json").json["entities"]
    assert [(row["name"], row["facts"]) for row in reply] == [
        ("Acme", 2), ("Alice Nguyen", 2), ("Beta", 1), ("Bob Smith", 1), ("Mug", 1), ("Robert Smith", 1),
        ("tea", 1),
    ]  # fmt: skip
    assert reply[1].keys() == {"id", "name", "aliases", "labels", "facts", "summary", "profile"}
    assert reply[2]["summary"] == "Alice Nguyen works at Beta."
    assert list(entities(team, "smith")) == ["Bob Smith", "Robert Smith"]
    assert list(entities(team, "ROBERT  smith")) == ["Robert Smith"]
    assert next(iter(entities(team, "Robret Smith"))) == "Robert Smith"
    assert list(entities(team, "--limit", "1")) == ["Acme"]
    assert entities(team, "zzz") == {}
    people = team("entities", "alice", "--group", "team")
    assert people.out.split() == [
        "id", "name", "type", "facts", "also", "known", "as",
        entities(team)["Alice Nguyen"][:8], "Alice", "Nguyen", "2",
    ]  # fmt: skip
    assert team("entities", "--group", "team", "--limit", "0").code == 2


@pytest.mark.parametrize("called", ["alice  NGUYEN", "id", "beginning"])
def test_history_and_show_accept_a_name_an_id_and_an_id_prefix(team, called):
    id_ = entities(team)["Alice Nguyen"]
    response = {"id": id_, "beginning": id_[:4]}.get(called, called)
    history = team("history", response, "--group", "team", "--json").json
    assert (history["entity"]["id"], len(history["facts"])) == (id_, 2)
    reply = team("show", response, "--group", "team", "--json").json["records"]
    assert [row["id"] for row in reply if row["type"] == "entity" and row["name"] == "Alice Nguyen"] == [id_]


def test_show_accepts_id_prefixes_of_episodes_and_facts(team):
    for scope in ("episode", "fact"):
        hits = team("search", "Alice works", "--group", "team", "--scope", scope, "--json").json["hits"]
        id_ = hits[0]["id"]
        full_reply = team("show", id_, "--group", "team", "--json").json
        assert team("show", id_[:8], "--group", "team", "--json").json == full_reply
        assert full_reply["records"] != []


def test_merge_and_split_accept_names_and_id_prefixes(team):
    ids = entities(team)
    merged = team("merge", "bob smith", ids["Robert Smith"][:8], "--group", "team", "--json")
    assert (merged.code, merged.json["sequence"] > 0) == (0, True)
    (reply,) = team("entities", "smith", "--group", "team", "--json").json["entities"]
    assert (reply["id"], reply["name"], reply["aliases"]) == (ids["Bob Smith"], "Bob Smith", ["Robert Smith"])
    split = team("split", "Robert Smith", "--surface", "Robert Smith", "--group", "team", "--json")
    assert split.code == 0
    assert set(entities(team, "smith")) == {"Bob Smith", "Robert Smith"}


def test_an_ambiguous_id_prefix_exits_2_and_lists_the_ids(kgray):
    """Ids are hashes, so among enough entities two share a prefix."""
    pairs = [triple(f"thing {n}", "LIKES", f"other {n}") for n in range(400)]
    assert kgray("add", kgray.write("a.jsonl", triples_row("t", "2026-01-01", *pairs))).code == 0
    dumped = map(json.loads, kgray("dump", "--group", "team").out.splitlines())
    beginnings: dict[str, list[str]] = {}
    for row in dumped:
        if row["type"] == "entity":
            beginnings.setdefault(row["id"][:4], []).append(row["id"])
    beginning, ids = max(beginnings.items(), key=lambda item: len(item[1]))
    assert len(ids) > 1
    for command in ("history", "show"):
        answer = kgray(command, beginning, "--group", "team")
        assert (answer.code, answer.out) == (2, "")
        assert all(id_ in answer.err for id_ in ids)


@pytest.mark.parametrize("command", [["history"], ["show"], ["merge", "Acme"]])
def test_a_mistyped_name_gets_a_suggestion_and_changes_nothing(team, command):
    output_before = team("dump", "--group", "team").out
    answer = team(*command, "Alice Nguyn", "--group", "team")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.endswith("'Alice Nguyn': did you mean 'Alice Nguyen'?\n")
    assert "'Alice Nguyen'" in team("history", "alice", "--group", "team").err
    assert team("dump", "--group", "team").out == output_before


def test_a_mistyped_group_reads_as_empty_and_gets_a_suggestion(team):
    for command in (["search", "x"], ["context", "x"], ["dump"], ["entities"], ["status"], ["failures"]):
        answer = team(*command, "--group", "taem")
        assert answer.code == 0
        assert "kgray: there is no group taem: did you mean 'team'?\n" in answer.err
    assert "there is no group nothing\n" in team("search", "x", "--group", "nothing").err
    for command in (["history", "Alice Nguyen"], ["show", "t1"], ["merge", "Acme", "Beta"]):
        answer = team(*command, "--group", "taem")
        message = "kgray: there is no group taem: did you mean 'team'?\n"
        assert (answer.code, answer.out, answer.err) == (2, "", message)


def test_reads_report_pending_entries(team):
    row = triples_row("p1", "2026-04-01", triple("Alice Nguyen", "WORKS_AT", "Gama"))
    team("add", team.write("b.jsonl", row), "--accept-only")
    for command in (["search", "Alice"], ["context", "Alice"], ["history", "Alice Nguyen"], ["entities"]):
        answer = team(*command, "--group", "team", "--json")
        assert answer.code == 0
        assert "1 entry of group team is pending" in answer.err
    assert team("search", "Alice", "--group", "team").out.count("Gama") == 0


def test_a_mistyped_filter_gets_a_suggestion(kgray):
    kgray.env["KGRAY_MODEL_BACKEND"] = "rules"
    row = {"speaker": "Alice Nguyen", "text": "I work at Acme.", "at": "2026-01-01", "source": "chat"}
    assert kgray("add", kgray.write("a.jsonl", row), "--group", "team").code == 0
    lines = {
        ("--relation", "works att"): "has no relation 'WORKS_ATT': did you mean 'WORKS_AT'?",
        ("--source", "caht"): "has no source 'caht': did you mean 'chat'?",
        ("--speaker", "Alice Nguyn"): "has no speaker 'Alice Nguyn': did you mean 'Alice Nguyen'?",
        ("--type", "Persn"): "has no type 'Persn': did you mean 'Person'?",
    }
    for words, line in lines.items():
        for command in ("search", "context"):
            answer = kgray(command, "Acme", "--group", "team", *words)
            assert (answer.code, f"group team {line}\n" in answer.err) == (0, True), answer.err
    for words in (["--relation", "works at"], ["--speaker", "alice  nguyen"], ["--type", "Person"]):
        assert "did you mean" not in kgray("search", "Acme", "--group", "team", *words).err
