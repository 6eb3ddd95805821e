"""search, context, history, show, dump, groups: fields, moments, exit codes."""

from __future__ import annotations

import hashlib
import json

import pytest

from kgray.search import count_tokens
from tests.doors.shell import JOBS

HIT = {"scope", "id", "text", "score", "group", "methods"}
FACT = {
    "event",
    "source_id",
    "source",
    "relation",
    "target_id",
    "target",
    "valid_at",
    "invalid_at",
    "created_at",
    "expired_at",
    "episodes",
}


def facts_found(answer) -> list[str]:
    return [hit["text"] for hit in answer.json["hits"] if hit["scope"] == "fact"]


def test_search_returns_hits_with_every_documented_field(team):
    answer = team("search", "Where does Alice work?", "--group", "team", "--json")
    assert answer.code == 0
    document = answer.json
    assert set(document) == {"hits", "took_ms"}
    # A fact and the messages that support it count once, so the test also searches for facts only.
    ask = ("search", "Alice works, the cable costs", "--group", "team", "--scope", "fact")
    facts = team(*ask, "--json").json
    hits = [*document["hits"], *facts["hits"]]
    assert {hit["scope"] for hit in hits} == {"fact", "entity", "episode"}
    for hit in hits:
        assert set(hit) >= HIT
        assert hit["group"] == "team"
        assert all(isinstance(rank, int) and rank >= 1 for rank in hit["methods"].values())
        if hit["scope"] == "fact":
            assert set(hit) >= FACT
        if hit["scope"] == "episode":
            assert hit["client_id"] in {"t1", "t2", "t3"}
    fact = next(hit for hit in hits if hit["text"] == "Alice Nguyen works at Beta")
    assert (fact["source"], fact["relation"], fact["target"]) == ("Alice Nguyen", "WORKS_AT", "Beta")
    assert (fact["valid_at"], fact["invalid_at"]) == ("2026-03-01T00:00:00.000000Z", None)
    assert [episode["client_id"] for episode in fact["episodes"]] == ["t2"]
    price = next(hit for hit in hits if hit.get("relation") == "COSTS")
    assert (price["target"], price["target_id"]) == ("9.5 EUR", None)


def test_explain_shows_the_signals_of_hits_and_the_omitted_hits(team):
    ask = ("search", "Where does Alice work?", "--group", "team", "--explain")
    document = team(*ask, "--json").json
    assert set(document) == {"hits", "said_above", "took_ms"}
    assert all(hit["signals"] for hit in document["hits"])
    assert document["hits"][0]["signals"]["words"] > 0
    omitted = document["said_above"]
    assert {row["scope"] for row in omitted} == {"episode"}
    assert {row["id"] for row in omitted}.isdisjoint(hit["id"] for hit in document["hits"])
    people = team(*ask).out
    assert "1: score 0." in people
    assert f"left out, a hit above says it: episode {omitted[0]['id'][:4]}" in people
    named = team("search", "Alice", "--group", "team", "--recipe", "lexical", "--explain", "--json").json
    assert all("vectors" not in hit["signals"] for hit in named["hits"])
    assert team("search", "Alice", "--group", "team", "--recipe", "best").code == 2


@pytest.mark.parametrize(
    ("as_of", "facts"),
    [
        ("2025-12-31", []),
        ("2026-02-01", ["Alice Nguyen works at Acme"]),
        ("2026-03-02", ["Alice Nguyen works at Beta"]),
    ],
)
def test_search_as_of_a_moment_returns_the_facts_of_that_moment(team, as_of, facts):
    answer = team("search", "Alice works", "--group", "team", "--as-of", as_of, "--scope", "fact", "--json")
    assert facts_found(answer) == facts


def test_search_as_of_a_moment_shows_facts_instead_of_later_messages(kgray):
    sold = {
        "id": "s",
        "speaker": "Bob Stone",
        "at": "2026-05-02",
        "text": "I sold my house in Munich in April.",
    }
    kgray.env = {"KGRAY_MODEL_BACKEND": "rules"}
    assert kgray("add", kgray.write("s.jsonl", sold), "--group", "team").code == 0

    def texts(*options):
        hits = kgray("search", "house", "--group", "team", "--json", *options).json["hits"]
        return [hit["text"] for hit in hits if hit["scope"] != "entity"]

    assert texts() == [sold["text"]]
    assert texts("--as-of", "2026-03-10") == ["Bob Stone owns house in Munich"]
    assert texts("--as-of", "2026-06-10") == ["Bob Stone sold their house in Munich"]


def test_search_known_at_a_moment_returns_the_knowledge_of_that_moment(kgray):
    kgray("add", kgray.write("a.jsonl", JOBS[0]))
    first = kgray("dump", "--group", "team", "--hash").out
    (fact,) = kgray("history", "Alice Nguyen", "--group", "team", "--json").json["facts"]
    moment = fact["created_at"]
    kgray("add", kgray.write("b.jsonl", JOBS[1]))
    ask = ("search", "Alice works", "--group", "team", "--scope", "fact", "--json")
    assert facts_found(kgray(*ask)) == ["Alice Nguyen works at Beta"]
    assert facts_found(kgray(*ask, "--known-at", moment)) == ["Alice Nguyen works at Acme"]
    assert facts_found(kgray(*ask, "--known-at", "2020-01-01")) == []
    context = kgray("context", "Alice works", "--group", "team", "--known-at", moment).out
    assert "Acme" in context
    assert "Beta" not in context
    assert kgray("dump", "--group", "team", "--known-at", moment, "--hash").out == first
    assert kgray("dump", "--group", "team", "--hash").out != first


def test_scopes_and_limit_narrow_the_list(team):
    answer = team(
        "search",
        "Alice",
        "--group",
        "team",
        "--scope",
        "entity",
        "--scope",
        "episode",
        "--limit",
        "2",
        "--json",
    )
    assert len(answer.json["hits"]) == 2
    assert {hit["scope"] for hit in answer.json["hits"]} <= {"entity", "episode"}


def test_an_entity_hit_has_its_summary_as_of_the_requested_moment(team):
    ask = ("search", "Alice Nguyen", "--group", "team", "--scope", "entity", "--json")
    (current,) = (hit["summary"] for hit in team(*ask).json["hits"] if hit["text"] == "Alice Nguyen")
    (past,) = (
        hit["summary"]
        for hit in team(*ask, "--as-of", "2026-02-01").json["hits"]
        if hit["text"] == "Alice Nguyen"
    )
    assert ("works at Beta." in current, "works at Acme." in current) == (True, False)
    assert ("works at Beta." in past, "works at Acme." in past) == (False, True)


def test_the_query_may_come_from_standard_input_or_after_two_dashes(team):
    ask = ("--group", "team", "--scope", "fact", "--limit", "1", "--json")
    assert facts_found(team("search", "-", *ask, stdin="Alice works\n")) == ["Alice Nguyen works at Beta"]
    assert team("search", *ask, "--", "--as-of").code == 0
    assert team("search", "-", *ask, stdin=b"\xff\xfe").code == 2


@pytest.mark.parametrize(
    "query",
    [
        '"',
        "a AND (",
        "NEAR(a b)",
        "*",
        "col:x",
        "'; DROP TABLE facts; --",
        "\u202e",
        "日本語",
        "🙂",
        "^",
        "a" * 100_000,
    ],
)
def test_a_query_can_be_any_text(team, query):
    assert team("search", "--group", "team", "--json", "--", query).code == 0
    assert team("context", "-", "--group", "team", stdin=query).code == 0


def test_the_text_output_is_a_table_with_the_count_on_standard_error(team):
    answer = team("search", "Alice works", "--group", "team", "--scope", "fact", "--limit", "1")
    assert answer.code == 0
    number, scope, short, *words = answer.out.split()
    assert (number, scope, words) == ("1", "fact", "2026-03-01 .. now Alice Nguyen works at Beta".split())
    assert team("show", short, "--group", "team", "--json").json["records"] != []
    assert answer.err.startswith("kgray: 1 hit in ")
    assert "\x1b" not in answer.out


def test_stored_text_cannot_steer_the_terminal(kgray):
    text = "Ann\u202e says \x1b[31mhello"
    kgray.script({"episode": "m", "extraction": {"entities": [], "facts": []}})
    kgray("add", kgray.write("a.jsonl", {"id": "m", "text": text, "at": 0, "group": "g"}))
    output = kgray("search", "hello", "--group", "g").out
    assert "hello" in output
    assert "\x1b" not in output
    assert "\u202e" not in output


def test_a_context_fits_its_budget_and_names_its_hits(team):
    answer = team("context", "Where does Alice work?", "--group", "team", "--tokens", "120", "--json").json
    assert set(answer) == {"text", "tokens", "hits", "citations"}
    assert answer["tokens"] == count_tokens(answer["text"]) <= 120
    assert "Alice Nguyen works at Beta (Date range: 2026-03-01 - present)" in answer["text"]
    assert set(answer["hits"][0]) >= HIT
    people = team("context", "Where does Alice work?", "--group", "team", "--tokens", "120")
    assert people.out == answer["text"] + "\n"
    assert team("context", "x", "--group", "team", "--tokens", "0").code == 2
    limited = team("context", "Where does Alice work?", "--group", "team", "--limit", "1", "--json").json
    assert len(limited["hits"]) == len(limited["citations"]) == 1
    assert team("context", "x", "--group", "team", "--limit", "0").code == 2


def test_history_shows_every_span_with_supporters_and_ends(team):
    by_name = team("history", "alice  nguyen", "--group", "team", "--json")
    assert by_name.code == 0
    document = by_name.json
    assert set(document["entity"]) == {
        "id", "name", "aliases", "labels", "summary", "profile", "profile_sources",
    }  # fmt: skip
    assert document["entity"]["name"] == "Alice Nguyen"
    summary = document["entity"]["summary"]
    assert "Alice Nguyen works at Beta." in summary
    assert "Acme" not in summary
    assert f"  {summary}\n" in team("history", "alice nguyen", "--group", "team").out
    past = team("history", "alice nguyen", "--group", "team", "--as-of", "2026-02-01", "--json").json
    assert "Alice Nguyen works at Acme." in past["entity"]["summary"]
    first, second = document["facts"]
    assert set(first) == (HIT - {"score", "methods"}) | FACT | {"statement", "ended_by"}
    assert (first["target"], first["valid_at"], first["invalid_at"]) == (
        "Acme",
        "2026-01-01T00:00:00.000000Z",
        "2026-03-01T00:00:00.000000Z",
    )
    assert first["ended_by"] == [second["episodes"][0]["id"], 0]
    assert (second["target"], second["invalid_at"], second["ended_by"]) == ("Beta", None, None)
    assert team("history", document["entity"]["id"], "--group", "team", "--json").json == document
    people = team("history", "Alice Nguyen", "--group", "team").out
    first = "2026-01-01 .. 2026-03-01  Alice Nguyen  WORKS_AT  Acme  said in t1  ended by t2  learned 2"
    assert first in people


def test_an_ambiguous_name_exits_2_and_lists_the_ids(kgray):
    person, place = ({"name": "Jordan", "type": kind} for kind in ("Person", "Place"))
    ann = {"name": "Ann Lee", "type": "Person"}
    knows = {"source": 0, "target": 1, "relation": "KNOWS", "fact": "Jordan knows Ann Lee"}
    visited = {"source": 1, "target": 0, "relation": "VISITED", "fact": "Ann Lee visited Jordan"}
    kgray.script(
        {"episode": "a", "extraction": {"entities": [person, ann], "facts": [knows]}},
        {"episode": "b", "extraction": {"entities": [place, ann], "facts": [visited]}},
        {"question": {"kind": "entity", "items": ["Jordan", ["Jordan"]]}, "answer": {"duplicate_of": None}},
        {"question": {"kind": "entity", "items": ["Ann Lee", ["Ann Lee"]]}, "answer": {"duplicate_of": 0}},
    )
    rows = [
        {"id": i, "text": text, "at": 0, "group": "g"}
        for i, text in (("a", knows["fact"]), ("b", visited["fact"]))
    ]
    assert kgray("add", kgray.write("a.jsonl", *rows)).code == 0
    answer = kgray("history", "jordan", "--group", "g")
    assert (answer.code, answer.out) == (2, "")
    results = [json.loads(line) for line in kgray("dump", "--group", "g").out.splitlines()]
    ids = [row["id"] for row in results if row.get("name") == "Jordan"]
    assert len(ids) == 2
    assert all(i in answer.err for i in ids)
    assert {kgray("history", i, "--group", "g", "--json").json["facts"][0]["text"] for i in ids} == {
        "Jordan knows Ann Lee",
        "Ann Lee visited Jordan",
    }


@pytest.mark.parametrize("state", ["accepted", "failed"])
def test_show_of_a_pending_or_failed_episode_shows_its_row(kgray, state):
    row = {"id": "m1", "group": "g", "at": 0, "text": "Hello", "source": "chat"}
    kgray("add", kgray.write("a.jsonl", row), *(["--accept-only"] if state == "accepted" else []))
    episode, *why = kgray("show", "m1", "--group", "g", "--json").json["records"]
    assert [row["type"] for row in why] == ["failure"] * (state == "failed")
    assert (episode["type"], episode["client_id"], episode["source"], episode["state"]) == (
        "episode", "m1", "chat", state,
    )  # fmt: skip
    assert kgray("show", episode["id"], "--group", "g", "--json").json["records"] == [episode, *why]
    people = kgray("show", "m1", "--group", "g")
    assert (people.code, "state" in people.out) == (0, True)


def test_show_prints_an_episode_entity_or_fact_with_its_records(team):
    by_client = team("show", "t2", "--group", "team", "--json").json["records"]
    types = {row["type"] for row in by_client}
    assert types == {"episode", "mention", "entity", "statement", "relation", "evidence", "fact"}
    (episode,) = (row for row in by_client if row["type"] == "episode")
    assert episode["client_id"] == "t2"
    assert team("show", episode["id"], "--group", "team", "--json").json["records"] == by_client
    # The records include the fact that it ended.
    assert {row["text"] for row in by_client if row["type"] == "fact"} == {
        "Alice Nguyen works at Acme",
        "Alice Nguyen works at Beta",
    }
    fact = next(row for row in by_client if row["type"] == "fact" and row["text"].endswith("Beta"))
    of_fact = team("show", fact["id"], "--group", "team", "--json").json["records"]
    assert {row["client_id"] for row in of_fact if row["type"] == "episode"} == {"t2"}
    of_entity = team("show", fact["source"], "--group", "team", "--json").json["records"]
    assert {row["client_id"] for row in of_entity if row["type"] == "episode"} == {"t1", "t2"}
    assert [row["name"] for row in of_entity if row["type"] == "entity" and row["id"] == fact["source"]] == [
        "Alice Nguyen"
    ]
    dumped = [json.loads(line) for line in team("dump", "--group", "team").out.splitlines()]
    for row in (*by_client, *of_fact, *of_entity):
        assert row in dumped


@pytest.mark.parametrize("command", [("show", "nobody"), ("history", "nobody")])
def test_an_unknown_id_exits_2(team, command):
    answer = team(*command, "--group", "team")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("kgray: group team has no ")
    assert team(*command, "--group", "other").code == 2


def test_the_dump_is_sorted_canonical_json_lines_and_hash_prints_only_its_hash(team):
    dumped = team("dump", "--group", "team").out
    lines = dumped.splitlines()
    assert lines == sorted(lines)
    for line in lines:
        row = json.loads(line)
        assert line == json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    hashed = team("dump", "--group", "team", "--hash").out
    assert hashed == hashlib.sha256(dumped.encode()).hexdigest() + "\n"


DUMP_KEYS = {
    "episode": {
        "id",
        "client_id",
        "source",
        "kind",
        "speaker",
        "reference_time",
        "sequence",
        "content_sha256",
        "state",
    },
    "entity": {"id", "name", "aliases", "labels"},
    "mention": {"episode", "ordinal", "entity", "surface"},
    "relation": {"name", "same_as", "inverse_of", "excludes", "cardinality", "judge"},
    "statement": {"id", "subject", "relation", "object", "value", "variant"},
    "evidence": {
        "episode",
        "ordinal",
        "statement",
        "kind",
        "text",
        "valid_from",
        "valid_to",
        "from_precision",
        "to_precision",
        "inferred",
        "fact_group",
        "every_variant",
    },
    "fact": {
        "id",
        "statement",
        "source",
        "target",
        "relation",
        "value",
        "text",
        "valid_at",
        "invalid_at",
        "event",
        "episodes",
        "ended_by",
    },
}


def test_the_rows_of_the_dump_have_the_documented_keys(team):
    rows = [json.loads(line) for line in team("dump", "--group", "team").out.splitlines()]
    assert {row["type"] for row in rows} == set(DUMP_KEYS)
    for row in rows:
        assert set(row) == DUMP_KEYS[row["type"]] | {"type"}


def test_groups_and_status_count(team):
    assert team("groups", "--json").json == {
        "groups": [{"group": "team", "episodes": 3, "entities": 4, "facts": 3}]
    }
    status = team("status", "--json").json
    assert status == {
        "groups": {"team": {"accepted": 0, "extracted": 0, "committed": 3, "failed": 0, "held": 0}},
        "model": {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0},
        "outage": None,
        "runtime": {"backend": "local"},
        "embedder": {"name": "hashing-1/1024", "dimensions": 1024, "fault": None},
        "schedules": [],
    }
    assert team("groups").out.split() == "group episodes entities facts team 3 4 3".split()


def test_an_unknown_group_reads_as_empty(team):
    assert team("search", "x", "--group", "nobody", "--json").json["hits"] == []
    assert team("context", "x", "--group", "nobody", "--json").json["hits"] == []
    assert team("dump", "--group", "nobody").out == ""
    assert team("dump", "--group", "nobody", "--hash").out == hashlib.sha256(b"").hexdigest() + "\n"
    status = team("status", "--group", "nobody", "--json").json["groups"]
    assert {number for row in status.values() for number in row.values()} <= {0}
    assert team("failures", "--group", "nobody", "--json").json == {"failures": []}
    earlier_dump = team("dump", "--group", "nobody", "--known-at", "2026-01-01")
    assert (earlier_dump.code, earlier_dump.out) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        ["search", "x"],
        ["context", "x"],
        ["history", "x"],
        ["show", "x"],
        ["dump"],
        ["status"],
        ["failures"],
        ["retry"],
        ["merge", "a", "b"],
        ["split", "a", "--surface", "s"],
        ["undo", "1"],
        ["retract", "--all", "--yes"],
        ["remove", "--all", "--yes"],
        ["add", "a.jsonl"],
    ],
)
@pytest.mark.parametrize("group", ["a b", "", "../x", "ü", "g" * 129, "a\nb", "a'--"])
def test_a_malformed_group_name_exits_2(team, command, group):
    answer = team(*command, "--group", group)
    assert (answer.code, answer.out) == (2, "")


def test_without_communities_their_scope_is_empty(team):
    answer = team("search", "Acme", "--group", "team", "--scope", "community", "--json")
    assert (answer.code, json.loads(answer.out)["hits"]) == (0, [])


@pytest.mark.parametrize(
    "extra", [["--limit", "0"], ["--as-of", "later"], ["--scope", "world"], ["--known-at", "x"]]
)
def test_wrong_arguments_of_a_search_exit_2(team, extra):
    assert team("search", "x", "--group", "team", *extra).code == 2


def test_an_empty_query_exits_2(team):
    assert team("search", " ", "--group", "team").code == 2


@pytest.mark.parametrize(
    "command", [["status"], ["groups"], ["dump", "--group", "g"], ["search", "x", "--group", "g"]]
)
def test_reading_without_a_store_exits_2_and_names_init(kgray, command):
    answer = kgray(*command)
    assert answer.code == 2
    assert "kgray init" in answer.err
    assert not (kgray.folder / "kgray-data").exists()
