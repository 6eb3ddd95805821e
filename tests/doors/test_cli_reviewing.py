"""duplicates, distinct: likely duplicates, declared distinctions, and their effects (R16)."""

from __future__ import annotations

import json

import pytest

from tests.doors.shell import Shell, triple, triples_row

SMITHS = (
    triples_row("a", "2026-01-01", triple("Bob Smith", "KNOWS", "Ann"), triple("B. Smith", "LIKES", "Tea")),
    triples_row(
        "b",
        "2026-01-02",
        triple("International Business Machines", "KNOWS", "Zed"),
        triple("IBM", "OWNS", "Lot 7"),
    ),
    triples_row("c", "2026-01-03", triple("Lot 8", "KNOWS", "Quarry")),
)


@pytest.fixture
def team(kgray) -> Shell:
    assert kgray("add", kgray.write("a.jsonl", *SMITHS)).code == 0
    return kgray


def pairs(kgray) -> list[tuple[tuple[str, ...], str]]:
    reply = kgray("duplicates", "--group", "team", "--json").json["pairs"]
    assert all(set(pair) == {"a", "b", "names", "why", "score"} for pair in reply)
    assert [pair["score"] for pair in reply] == sorted((pair["score"] for pair in reply), reverse=True)
    return [(tuple(pair["names"]), pair["why"]) for pair in reply]


def merges(kgray, *extra: str) -> list[dict]:
    rows = map(json.loads, kgray("dump", "--group", "team", *extra).out.splitlines())
    return [row for row in rows if row["type"] == "merge"]


INITIALS = (("Bob Smith", "B. Smith"), "initials or short forms of the same words")
CODE = (("International Business Machines", "IBM"), "one name is a code for the other")


def test_likely_duplicates_are_listed_with_their_reasons(team):
    """Lots with different numbers are not duplicates (R15)."""
    assert pairs(team) == [INITIALS, CODE]
    people = team("duplicates", "--group", "team")
    assert "IBM" in people.out
    assert team("duplicates", "--group", "nobody", "--json").json == {"pairs": []}


def test_distinct_pairs_are_off_the_list_until_the_distinction_is_undone(team):
    output_before = team("dump", "--group", "team", "--hash").out

    distinct = team("distinct", "Bob Smith", "B. Smith", "--group", "team", "--json")

    assert (distinct.code, distinct.json) == (0, {"sequence": 4})
    assert pairs(team) == [CODE]
    [row] = merges(team)
    assert (row["kind"], row["sequence"], len(row["entities"]), row["surfaces"]) == ("distinct", 4, 2, [])
    undone = team("undo", "4", "--group", "team", "--json")
    assert (undone.code, undone.json) == (0, {"sequence": 5, "undone": 4, "kind": "distinct"})
    assert pairs(team) == [INITIALS, CODE]
    assert team("dump", "--group", "team", "--hash").out == output_before


def test_a_merge_of_distinct_entities_is_refused(team):
    assert team("distinct", "Bob Smith", "B. Smith", "--group", "team").code == 0

    for verb, todo in (("merge", "undo 4 first"), ("distinct", "nothing is left to say")):
        repeated = team(verb, "Bob Smith", "B. Smith", "--group", "team")
        assert (repeated.code, repeated.out) == (2, "")
        assert f"distinct 4 says that these two are not one: {todo}." in repeated.err
    assert team("distinct", "Ann", "Ann", "--group", "team").code == 2
    assert [row["kind"] for row in merges(team)] == ["distinct"]


def test_merged_pairs_are_off_the_list_and_inherit_distinctions(team):
    """A distinction of an entity holds for the entity into which it is merged."""
    assert team("distinct", "Bob Smith", "B. Smith", "--group", "team").code == 0
    assert team("merge", "B. Smith", "Zed", "--group", "team").code == 0

    assert pairs(team) == [CODE]
    assert team("merge", "Bob Smith", "Zed", "--group", "team").code == 2
    assert team("undo", "4", "--group", "team").code == 0
    assert [row["kind"] for row in merges(team)] == ["merge"]


def test_a_removal_deletes_distinctions_of_removed_entities(team):
    """R16, R25: a removal leaves no operation that names a removed entity."""
    assert team("distinct", "Bob Smith", "B. Smith", "--group", "team").code == 0
    assert team("distinct", "IBM", "Zed", "--group", "team").code == 0

    assert team("remove", "--group", "team", "--episode", "a", "--yes").code == 0

    assert [row["sequence"] for row in merges(team)] == [5]
