"""The text output of show and history: marked words, names with ids, both clocks; filters of searches."""

from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest

from tests.doors.shell import triple, triples_row
from tests.doors.test_cli_terminal import screen
from tests.waiting import HANGS_S

ANN, ACME, OSLO = ({"name": name, "type": kind} for name, kind in (
    ("Ann Lee", "Person"), ("Acme", "Organization"), ("Oslo", "Place"),
))  # fmt: skip
CHAT = (
    {"id": "m1", "at": "2026-03-01T09:30:00Z", "group": "g", "source": "chat", "speaker": "Ann Lee",
     "text": "Hi all!\nI work at Acme now. The rest is later."},
    {"id": "m2", "at": "2026-04-01", "group": "g", "source": "mail", "speaker": "Bob",
     "text": "Ann Lee lives in Oslo."},
)  # fmt: skip


@pytest.fixture
def chat(kgray):
    works = {"source": 0, "target": 1, "relation": "WORKS_AT", "fact": "I work at Acme now"}
    lives = {"source": 0, "target": 1, "relation": "LIVES_IN", "fact": "Ann Lee has her home in Oslo"}
    kgray.script(
        {"episode": "m1", "extraction": {"entities": [ANN, ACME], "facts": [works]}},
        {"episode": "m2", "extraction": {"entities": [{"name": "Bob", "type": "Person"}, ANN, OSLO],
                                         "facts": [lives | {"source": 1, "target": 2}]}},
        {"question": {"kind": "entity", "items": ["Ann Lee", ["Ann Lee"]]}, "answer": {"duplicate_of": 0}},
    )  # fmt: skip
    assert kgray("add", kgray.write("a.jsonl", *CHAT)).code == 0
    return kgray


def test_show_prints_the_message_with_marked_facts_and_both_clocks(chat):
    people = chat("show", "m1", "--group", "g").out
    lines = people.splitlines()
    assert re.fullmatch(r"m1  [0-9a-f]{8}", lines[0])
    assert lines[1] == "  said   2026-03-01T09:30Z by Ann Lee in source chat"
    assert re.fullmatch(
        r"  state  committed, recorded \d{4}-\d\d-\d\dT\d\d:\d\dZ, message 1 of the group", lines[2]
    )
    assert lines[3:5] == ["  | Hi all!", "  | [I work at Acme now]1. The rest is later."]
    (fact,) = (line for line in lines if line.startswith("1  2026-03-01T09:30Z .. now"))
    assert re.search(r"said in m1 +learned \d{4}-\d\d-\d\dT\d\d:\d\dZ  [0-9a-f]{8}$", fact)
    assert re.search(
        r"^  episode [0-9a-f]{8} \(m1\).* entity [0-9a-f]{8} \(Ann Lee\), surface Ann Lee$",
        people,
        re.MULTILINE,
    )


def test_names_are_marked_if_the_sentence_is_not_in_the_message(chat):
    assert "  | [Ann Lee]1 lives in [Oslo]1.\n" in chat("show", "m2", "--group", "g").out


def test_show_of_an_episode_lists_omitted_items(kgray):
    """`add` reports them, too."""
    loop = {"source": 0, "target": "ACME", "relation": "KNOWS", "fact": "Acme knows ACME"}
    kgray.script({"episode": "m1", "extraction": {"entities": [ACME], "facts": [loop]}})
    added = kgray("add", kgray.write("a.jsonl", {**CHAT[0], "text": "Acme is ACME."}))
    line = "facts[0]: it connects 'Acme' with itself"

    assert added.code == 0
    assert f"left out: {line}" in added.err
    assert f"reason {line}" in kgray("show", "m1", "--group", "g").out
    records = kgray("show", "m1", "--group", "g", "--json").json["records"]
    (left_out,) = (row for row in records if row["type"] == "left_out")
    (episode,) = (row for row in records if row["type"] == "episode")
    assert left_out == {"type": "left_out", "episode": episode["id"], "reason": line}


def test_show_of_an_entity_begins_with_its_summary_and_numbers_its_facts(chat):
    people = chat("show", "ann lee", "--group", "g").out
    summary = "Ann Lee has her home in Oslo. Ann Lee works at Acme."
    assert re.match(rf"Ann Lee  [0-9a-f]{{8}}\n  Person\n  {re.escape(summary)}\nm1  [0-9a-f]{{8}}\n", people)
    reply = chat("show", "ann lee", "--group", "g", "--json").json
    assert (reply["summary"], reply["profile"], reply["profile_sources"]) == (summary, "", [])
    assert chat("show", "m1", "--group", "g", "--json").json["summary"] == ""
    assert "[I work at Acme now]1. The" in people
    assert "[Ann Lee]2 lives in [Oslo]2." in people


def test_lines_fit_the_terminal_and_no_color_removes_colours(chat):
    """test_cli_terminal tests the colours."""
    chat.env["NO_COLOR"] = "1"
    master, slave = pty.openpty()
    running = chat.start("search", "Ann Lee", "--group", "g", stdout=slave, stderr=subprocess.DEVNULL)
    os.close(slave)
    output = screen(master).decode()
    assert running.wait(timeout=HANGS_S) == 0
    assert "Ann Lee" in output
    assert "\x1b[" not in output
    assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(["--source", "chat"], {"m1", "Ann Lee works at Acme"}, id="source"),
        pytest.param(["--speaker", "bob"], {"m2", "Ann Lee has her home in Oslo"}, id="speaker"),
        pytest.param(["--relation", "lives in"], {"Ann Lee has her home in Oslo"}, id="relation"),
        pytest.param(["--type", "Place"], {"Oslo", "Ann Lee has her home in Oslo"}, id="type"),
        pytest.param(["--scope", "episode", "--said-after", "2026-04-01"], {"m2"}, id="said-after"),
        pytest.param(["--scope", "episode", "--said-before", "2026-04-01"], {"m1"}, id="said-before"),
        pytest.param(["--scope", "episode", "--as-of", "2020-01-01"], {"m1", "m2"}, id="as-of-hides-none"),
        pytest.param(["--source", "none"], set(), id="of-nothing"),
    ],
)
def test_search_and_context_accept_filters(chat, options, expected):
    for command in ("search", "context"):
        hits = chat(command, "Ann Lee", "--group", "g", *options, "--json").json["hits"]
        names = {hit["client_id"] if hit["scope"] == "episode" else hit["text"] for hit in hits}
        assert names <= expected, "a fact and the message that says it count once"
        assert bool(names) == bool(expected)


def test_an_empty_range_of_times_exits_2(chat):
    answer = chat("search", "x", "--group", "g", "--said-after", "2026-02-01", "--said-before", "2026-01-01")
    assert (answer.code, answer.out) == (2, "")
    assert "the range of said is empty" in answer.err


def test_history_has_both_clocks_and_the_names_of_the_moment(kgray):
    smiths = (
        triples_row("s1", "2026-01-01", triple("Bob Smith", "WORKS_AT", "Acme")),
        triples_row("s2", "2026-02-01", triple("Bob Smith", "WORKS_AT", "Beta")),
        triples_row("s3", "2026-02-01", triple("Robert Smith", "LIKES", "tea")),
    )
    kgray("add", kgray.write("a.jsonl", *smiths))

    def targets(name: str, *options: str) -> list[str]:
        answer = kgray("history", name, "--group", "team", "--json", *options)
        assert answer.code == 0, answer.err
        return [fact["target"] for fact in answer.json["facts"]]

    assert targets("Bob Smith") == ["Acme", "Beta"]
    assert targets("Bob Smith", "--as-of", "2026-01-15") == ["Acme"]
    assert targets("Bob Smith", "--as-of", "2025-01-15") == []
    moment = kgray("history", "Robert Smith", "--group", "team", "--json").json["facts"][0]["created_at"]
    kgray("merge", "Bob Smith", "Robert Smith", "--group", "team")
    assert targets("Robert Smith") == ["Acme", "tea", "Beta"]
    assert targets("Robert Smith", "--known-at", moment) == ["tea"]
    assert targets("Bob Smith", "--known-at", moment) == ["Acme", "Beta"]
    earlier = kgray("history", "Bob Smith", "--group", "team", "--known-at", "2020-01-01")
    assert (earlier.code, "as known then" in earlier.err) == (2, True)
