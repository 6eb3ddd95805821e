"""The commands communities refresh, list and show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kgray.errors import InvalidAnswer
from kgray.models.openai_api.writing import parse_summary
from tests.doors.chat_server import ChatServer, as_json, at
from tests.doors.shell import triple, triples_row

JOB = Path(__file__).resolve().parents[2] / "jobs" / "refresh_communities.py"
PEOPLE = ("Alice Nguyen", "Bob Stone", "Cara Diaz", "Dan Okafor")
ROWS = [
    triples_row(f"t{n}", f"2026-01-0{n + 1}", triple(item, "WORKS_AT", "Acme"), triple(item, "KNOWS", other))
    for n, (item, other) in enumerate(zip(PEOPLE, PEOPLE[1:] + PEOPLE[:1], strict=True))
] + [{**triples_row("o1", "2026-01-01", triple("Mug", "MADE_BY", "Kiln")), "group": "shop"}]


@pytest.fixture
def filled(kgray):
    kgray.write("rows.jsonl", *ROWS)
    assert kgray("add", "rows.jsonl").code == 0
    return kgray


def test_refresh_list_and_show(filled):
    refreshed = filled("communities", "refresh", "--json").json
    row = refreshed["groups"]["team"]
    assert {"run", "levels", "communities", "kept", "written", "offline", "calls"} <= row.keys()
    assert (row["run"], row["communities"], row["offline"], row["calls"]) == (1, 1, 1, 0)
    assert refreshed["groups"]["shop"]["communities"] == 1

    (listed,) = filled("communities", "list", "--group", "team", "--json").json["communities"]
    assert {"id", "level", "name", "size", "parent"} <= listed.keys()
    assert (listed["level"], listed["size"], listed["parent"]) == (0, 5, None)
    assert "Acme" in listed["name"]

    reply = filled("communities", "show", listed["id"][:8], "--group", "team", "--json").json
    assert {"id", "level", "name", "summary", "parent", "children", "members"} <= reply.keys()
    assert [member["name"] for member in reply["members"]] == ["Acme", *PEOPLE]
    assert (reply["children"], reply["id"]) == ([], listed["id"])
    for person in ("Acme", "works at"):
        assert person in filled("communities", "show", listed["id"][:8], "--group", "team").out

    entity = filled("history", "Bob Stone", "--group", "team", "--json").json["entity"]
    assert (entity["profile"], entity["profile_sources"]) == ("", []), "no model has written a profile"
    assert "Bob Stone" in entity["summary"]
    assert entity["summary"] in filled("history", "Bob Stone", "--group", "team").out
    assert filled("show", "Bob Stone", "--group", "team", "--json").json["summary"] == entity["summary"]

    hits = filled("search", "Acme", "--group", "team", "--scope", "community", "--json").json["hits"]
    assert [hit["id"] for hit in hits] == [listed["id"]]
    assert "<COMMUNITIES>" in filled("context", "Acme", "--group", "team", "--scope", "community").out


def test_a_refresh_without_news_and_a_dry_run_change_nothing(filled):
    foreseen = filled("communities", "refresh", "--group", "team", "--dry-run")
    assert "nothing was changed" in foreseen.err
    assert filled("communities", "list", "--group", "team", "--json").json == {"communities": []}
    first = filled("communities", "refresh", "--group", "team", "--json").json
    second = filled("communities", "refresh", "--group", "team", "--json").json
    assert list(first["groups"]) == ["team"]
    assert (second["groups"]["team"]["news"], second["groups"]["team"]["run"]) == (False, 1)
    cold = filled("communities", "refresh", "--group", "team", "--cold", "--json").json
    assert (cold["groups"]["team"]["run"], cold["groups"]["team"]["kept"]) == (2, 1)


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("refresh", "--group", "nobody"), "nobody"),
        (("refresh", "--max-tokens", "0"), "max-tokens"),
        (("refresh", "--profiles"), "model.backend"),
        (("show", "ffffffff", "--group", "team"), "no community"),
        (("show", "x", "--group", "a b"), "group"),
        (("list",), "--group"),
    ],
)
def test_bad_input_is_a_one_line_error_with_exit_code_2(filled, args, line):
    answer = filled("communities", *args)
    assert (answer.code, answer.out) == (2, "")
    assert line in answer.err


def test_the_job_script_refreshes_like_the_command(filled):
    outcome = subprocess.run(
        [sys.executable, JOB, "--group", "team", "--json"],
        cwd=filled.folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '"communities": 1' in outcome.stdout


@pytest.fixture
def model(filled):
    """Serve a model that names communities by their members; its first reply has no name."""
    calls = []

    def answer(call):
        calls.append(call)
        members = call.sections["MEMBERS"]
        name = "" if len(calls) == 1 else f"Acme people, {len(members)}"
        return as_json({"name": name, "summary": f"{len(call.sections['FACTS'])} facts."})

    server = ChatServer(answer)
    filled.env = at(server.url)
    yield calls
    server.close()


def test_a_model_writes_missing_summaries(filled, model):
    foreseen = filled("communities", "refresh", "--group", "team", "--dry-run", "--json").json
    assert (foreseen["groups"]["team"]["calls"], model) == (1, [])

    first = filled("communities", "refresh", "--group", "team", "--json").json["groups"]["team"]
    assert (first["written"], first["offline"]) == (1, 0)
    assert [call.task for call in model] == ["community", "community"], "a reply without a name is repaired"
    assert first["calls"] >= 2
    (listed,) = filled("communities", "list", "--group", "team", "--json").json["communities"]
    assert listed["name"] == "Acme people, 5"

    spent = len(model)
    cold = filled("communities", "refresh", "--group", "team", "--cold", "--json").json["groups"]["team"]
    assert (cold["kept"], cold["calls"], len(model)) == (1, 0, spent)
    bounded = filled("communities", "refresh", "--group", "shop", "--max-tokens", "5", "--json").json
    assert (bounded["groups"]["shop"]["offline"], len(model)) == (1, spent)


def test_a_report_is_reduced_to_its_valid_fields():
    reply = {"name": " a,\tb ", "summary": "s", "rating": 7, "reason": "r", "findings": [
        {"summary": "one", "explanation": "why", "facts": [0, 9, True, 0]}, {"explanation": "none"}, 5,
    ]}  # fmt: skip
    assert parse_summary(reply, "community_report", 2) == {
        "name": "a, b", "summary": "s", "rating": 7, "reason": "r",
        "findings": [{"summary": "one", "explanation": "why", "facts": [0]}],
    }  # fmt: skip
    for fault in ({"rating": 11}, {"rating": "7"}, {"name": " "}, {"summary": None}):
        with pytest.raises(InvalidAnswer):
            parse_summary(reply | fault, "community_report", 2)


def test_a_search_without_a_scope_uses_the_scopes_of_its_recipe(filled):
    """Searches of the past return no current community, and every recipe has its scopes."""
    assert filled("communities", "refresh", "--group", "team").code == 0

    def scopes(*options):
        hits = filled("search", "Acme", "--group", "team", "--json", *options).json["hits"]
        return {hit["scope"] for hit in hits}

    assert "community" in scopes()
    assert "community" not in scopes("--as-of", "2026-01-02")
    assert scopes("--recipe", "naive") == {"episode"}
    assert scopes("--recipe", "paper") == {"fact", "entity"}
    assert "fact" in scopes("--recipe", "mentions")
    assert "<COMMUNITIES>" in filled("context", "Acme", "--group", "team").out
    assert "<COMMUNITIES>" not in filled("context", "Acme", "--group", "team", "--as-of", "2026-01-02").out
