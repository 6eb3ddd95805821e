"""A group with contradictory records: other groups work, its commands name the remedy, and repair helps."""

from __future__ import annotations

import apsw
import msgpack
import pytest

from kgray.storage.sqlite.schema import FILE

ALICE = {"source": "Alice", "relation": "WORKS_AT", "target": "Acme"}
BOB = {"source": "Bob", "relation": "KNOWS", "target": "Acme"}
CARL = {"source": "Carl", "relation": "KNOWS", "target": "Acme"}
BROKEN = "(SELECT no FROM groups WHERE name = 'broken')"
STRAY = """
INSERT INTO records (no, sequence, statements, packed, search) VALUES ({broken}, 99, '[]', x'c1', ?)
"""


def triple_row(group, triple):
    return {"triples": [triple], "group": group, "at": "2026-01-01T00:00:00Z", "id": triple["source"]}


def damage(folder, statement, values=(), **names):
    """Change rows of the group `broken` in the database itself; return the rows that the statement reads."""
    database = apsw.Connection(str(folder / "kgray-data" / FILE))
    results = list(database.execute(statement.format(broken=BROKEN, **names), values))
    database.close()
    return results


@pytest.fixture
def folder(kgray):
    """Return a folder with the groups `whole` and `broken`, which has unreadable records."""
    rows = [triple_row(group, triple) for group in ("broken", "whole") for triple in (ALICE, BOB)]
    assert kgray("add", kgray.write("rows.jsonl", *rows)).code == 0
    kgray.dumped = kgray("dump", "--group", "broken").out
    damage(kgray.folder, STRAY, [msgpack.packb([1, 0, [], [], [], None])])
    return kgray


def test_an_underivable_group_does_not_affect_other_groups(folder):
    """R24: the rest of the folder works; new rows of the group are stored."""
    dump = folder("dump", "--group", "whole", "--hash")
    assert dump.code == 0
    assert [g["group"] for g in folder("groups", "--json").json["groups"]] == ["broken", "whole"]
    assert folder("status").code == 0
    assert folder("search", "Alice", "--group", "whole", "--json").json["hits"] != []

    row = triple_row("whole", CARL)
    added = folder("add", folder.write("more.jsonl", row), "--json")
    assert (added.code, added.json["committed"]) == (0, 1)
    assert folder("remove", "--group", "whole", "--episode", "Carl", "--yes").code == 0
    assert folder("dump", "--group", "whole", "--hash").out == dump.out


@pytest.mark.parametrize("command", ["dump", "merge", "export"])
def test_commands_of_an_underivable_group_name_the_remedy(folder, command):
    reply = folder("search", "Alice", "--group", "broken", "--json").json["hits"]
    ids = [hit["id"] for hit in reply if hit["scope"] == "entity"]
    arguments = {"merge": list(dict.fromkeys([*ids, *folder_ids(folder)]))[:2]}
    arguments["export"] = ["--to", "jsonl", str(folder.folder / "out.jsonl")]
    damage(folder.folder, "UPDATE records SET packed = x'c1' WHERE no = {broken}")  # a merge reads but some

    answer = folder(command, *arguments.get(command, ()), "--group", "broken")

    assert answer.code in {2, 75}
    [line] = [line for line in answer.err.splitlines() if "cannot be derived" in line]
    assert "`kgray doctor --repair --group broken`" in line


def folder_ids(folder):
    """Return the ids of the entities as the store has them."""
    database = apsw.Connection(str(folder.folder / "kgray-data" / FILE))
    results = [row[0] for row in database.execute("SELECT id FROM entities")]
    database.close()
    return results


def test_rows_added_to_an_underivable_group_are_committed_after_the_repair(folder):
    file = folder.write("both.jsonl", triple_row("broken", CARL), triple_row("whole", CARL))

    waits = folder("add", file, "--json")

    assert (waits.code, waits.json["accepted"], waits.json["committed"]) == (1, 2, 1)
    assert list(waits.json["held"]) == ["broken"]
    assert "doctor --repair --group broken" in waits.err
    assert waits.err.splitlines()[-1].endswith("1 group held")
    status = folder("status", "--json").json["groups"]
    assert (status["broken"]["accepted"] + status["broken"]["extracted"], status["broken"]["held"]) == (1, 1)
    assert status["whole"]["held"] == 0
    [failure] = folder("failures", "--json").json["failures"]
    assert (failure["client_id"], failure["class"], failure["attempts"]) == ("Carl", "Held", 1)
    assert folder("retry").code == 1  # tried again, in vain
    assert folder("failures", "--group", "broken", "--json").json["failures"][0]["attempts"] == 2
    repaired = folder("doctor", "--repair", "--group", "broken", "--json")
    assert repaired.code == 0
    assert list(repaired.json["repaired"]) == ["broken"]
    assert folder("dump", "--group", "broken").out == folder.dumped
    assert folder("add", file, "--json").json["committed"] == 1
    assert folder("doctor").code == 0


def test_repair_stores_the_derived_graph_and_reports_differences(folder):
    assert folder("doctor", "--repair").code == 0
    damage(folder.folder, "DELETE FROM facts WHERE no = {broken}")
    assert "WRONG  graph of broken" in folder("doctor").out

    repaired = folder("doctor", "--repair")

    assert repaired.code == 0
    assert "repaired broken: facts: 2 written anew" in repaired.out
    assert "repaired whole: nothing differed from what its records derive" in repaired.out
    assert folder("dump", "--group", "broken").out == folder.dumped


def test_repair_sets_aside_contradictory_records(folder):
    read = "SELECT packed FROM records WHERE no = {broken} AND sequence = 2"
    [(packed,)] = damage(folder.folder, read)
    layout, recorded_at, [_, *mentions], *remaining = msgpack.unpackb(packed)
    put = "UPDATE records SET packed = ? WHERE no = {broken} AND sequence = 2"
    damage(folder.folder, put, [msgpack.packb([layout, recorded_at, mentions, *remaining])])

    repaired = folder("doctor", "--repair", "--group", "broken", "--json")

    assert repaired.code == 0
    reply = repaired.json["repaired"]["broken"]
    assert "set aside records 99: its entry is not stored" in reply
    assert "set aside evidence 2.0: a mention that it names is not stored" in reply
    assert "Bob" not in " ".join(reply)
    expected = [line for line in folder.dumped.splitlines() if '"type":"fact"' in line and "Alice" in line]
    assert [
        line for line in folder("dump", "--group", "broken").out.splitlines() if '"fact"' in line
    ] == expected


@pytest.mark.parametrize("column", ["packed", "judged", "search", "names"])
def test_repair_sets_aside_records_with_any_unreadable_column(folder, column):
    put = "UPDATE records SET timed = 1, {column} = x'c1' WHERE no = {broken} AND sequence = 2"
    damage(folder.folder, put, column=column)

    repaired = folder("doctor", "--repair", "--group", "broken", "--json")

    assert repaired.code == 0
    assert "set aside records 2: its content cannot be read" in repaired.json["repaired"]["broken"]
    assert "KNOWS" not in folder("dump", "--group", "broken").out
    assert folder("search", "Alice", "--group", "broken", "--json").json["hits"] != []


def test_a_search_of_unreadable_records_names_the_remedy(folder):
    damage(folder.folder, "UPDATE records SET search = x'c1' WHERE no = {broken} AND sequence = 2")

    answer = folder("search", "Alice", "--group", "broken")

    assert answer.code in {2, 75}
    assert "`kgray doctor --repair --group broken`" in answer.err


def test_doctor_accepts_a_group_only_with_repair(folder):
    assert folder("doctor", "--group", "broken").code == 2


def test_the_repair_of_an_unknown_group_is_refused(folder):
    answer = folder("doctor", "--repair", "--group", "brken")
    assert (answer.code, answer.out) == (2, "")
    assert "there is no group brken: did you mean 'broken'?" in answer.err
