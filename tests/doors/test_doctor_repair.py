"""A group whose records contradict each other: others go on, its commands say what to do, repair helps."""

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
    """Change rows of the group `broken` behind the store's back; return those that the statement reads."""
    database = apsw.Connection(str(folder / "kgray-data" / FILE))
    results = list(database.execute(statement.format(broken=BROKEN, **names), values))
    database.close()
    return results


@pytest.fixture
def folder(kgray):
    """Return a folder with the groups `whole` and `broken`, which has records that nobody can read."""
    rows = [triple_row(group, triple) for group in ("broken", "whole") for triple in (ALICE, BOB)]
    assert kgray("add", kgray.write("rows.jsonl", *rows)).code == 0
    kgray.dumped = kgray("dump", "--group", "broken").out
    damage(kgray.folder, STRAY, [msgpack.packb([1, 0, [], [], [], None])])
    return kgray


def test_a_group_that_cannot_be_derived_is_in_nobody_elses_way(folder):
    """R24: the rest of the folder works; what is meant for the group is kept."""
    before = folder("dump", "--group", "whole", "--hash")
    assert before.code == 0
    assert [g["group"] for g in folder("groups", "--json").json["groups"]] == ["broken", "whole"]
    assert folder("status").code == 0
    assert folder("search", "Alice", "--group", "whole", "--json").json["hits"] != []

    row = triple_row("whole", CARL)
    done = folder("add", folder.write("more.jsonl", row), "--json")
    assert (done.code, done.json["committed"]) == (0, 1)
    assert folder("remove", "--group", "whole", "--episode", "Carl", "--yes").code == 0
    assert folder("dump", "--group", "whole", "--hash").out == before.out


@pytest.mark.parametrize("command", ["dump", "merge", "export"])
def test_its_own_commands_end_with_one_line_that_says_what_to_do(folder, command):
    reply = folder("search", "Alice", "--group", "broken", "--json").json["hits"]
    ids = [hit["id"] for hit in reply if hit["scope"] == "entity"]
    arguments = {"merge": list(dict.fromkeys([*ids, *folder_ids(folder)]))[:2]}
    arguments["export"] = ["--to", "jsonl", str(folder.folder / "out.jsonl")]
    damage(folder.folder, "UPDATE records SET packed = x'c1' WHERE no = {broken}")  # a merge reads but some

    done = folder(command, *arguments.get(command, ()), "--group", "broken")

    assert done.code in {2, 75}
    [line] = [line for line in done.err.splitlines() if "cannot be derived" in line]
    assert "`kgray doctor --repair --group broken`" in line


def folder_ids(folder):
    """Return the ids of the entities as the store has them."""
    database = apsw.Connection(str(folder.folder / "kgray-data" / FILE))
    results = [row[0] for row in database.execute("SELECT id FROM entities")]
    database.close()
    return results


def test_what_is_added_to_it_waits_and_is_committed_after_the_repair(folder):
    more = folder.write("both.jsonl", triple_row("broken", CARL), triple_row("whole", CARL))

    waits = folder("add", more, "--json")

    assert (waits.code, waits.json["accepted"], waits.json["committed"]) == (1, 2, 1)
    assert list(waits.json["held"]) == ["broken"]
    assert "doctor --repair --group broken" in waits.err
    assert waits.err.splitlines()[-1].endswith("1 group held")
    status = folder("status", "--json").json["groups"]
    assert (status["broken"]["accepted"] + status["broken"]["extracted"], status["broken"]["held"]) == (1, 1)
    assert status["whole"]["held"] == 0
    [told] = folder("failures", "--json").json["failures"]
    assert (told["client_id"], told["class"], told["attempts"]) == ("Carl", "Held", 1)
    assert folder("retry").code == 1  # tried again, in vain
    assert folder("failures", "--group", "broken", "--json").json["failures"][0]["attempts"] == 2
    repaired = folder("doctor", "--repair", "--group", "broken", "--json")
    assert repaired.code == 0
    assert list(repaired.json["repaired"]) == ["broken"]
    assert folder("dump", "--group", "broken").out == folder.dumped
    assert folder("add", more, "--json").json["committed"] == 1
    assert folder("doctor").code == 0


def test_repair_stores_what_the_records_derive_and_says_what_differed(folder):
    assert folder("doctor", "--repair").code == 0
    damage(folder.folder, "DELETE FROM facts WHERE no = {broken}")
    assert "WRONG  graph of broken" in folder("doctor").out

    done = folder("doctor", "--repair")

    assert done.code == 0
    assert "repaired broken: facts: 2 written anew" in done.out
    assert "repaired whole: nothing differed from what its records derive" in done.out
    assert folder("dump", "--group", "broken").out == folder.dumped


def test_repair_sets_aside_records_that_contradict_each_other(folder):
    read = "SELECT packed FROM records WHERE no = {broken} AND sequence = 2"
    [(packed,)] = damage(folder.folder, read)
    layout, recorded_at, [_, *mentions], *rest = msgpack.unpackb(packed)
    put = "UPDATE records SET packed = ? WHERE no = {broken} AND sequence = 2"
    damage(folder.folder, put, [msgpack.packb([layout, recorded_at, mentions, *rest])])

    done = folder("doctor", "--repair", "--group", "broken", "--json")

    assert done.code == 0
    reply = done.json["repaired"]["broken"]
    assert "set aside records 99: its entry is not stored" in reply
    assert "set aside evidence 2.0: a mention that it names is not stored" in reply
    assert "Bob" not in " ".join(reply)
    left = [line for line in folder.dumped.splitlines() if '"type":"fact"' in line and "Alice" in line]
    assert [line for line in folder("dump", "--group", "broken").out.splitlines() if '"fact"' in line] == left


@pytest.mark.parametrize("column", ["packed", "judged", "search", "names"])
def test_records_that_cannot_be_read_are_set_aside_whichever_column_it_is(folder, column):
    put = "UPDATE records SET timed = 1, {column} = x'c1' WHERE no = {broken} AND sequence = 2"
    damage(folder.folder, put, column=column)

    done = folder("doctor", "--repair", "--group", "broken", "--json")

    assert done.code == 0
    assert "set aside records 2: its content cannot be read" in done.json["repaired"]["broken"]
    assert "KNOWS" not in folder("dump", "--group", "broken").out
    assert folder("search", "Alice", "--group", "broken", "--json").json["hits"] != []


def test_a_search_of_records_that_cannot_be_read_says_what_to_do(folder):
    damage(folder.folder, "UPDATE records SET search = x'c1' WHERE no = {broken} AND sequence = 2")

    done = folder("search", "Alice", "--group", "broken")

    assert done.code in {2, 75}
    assert "`kgray doctor --repair --group broken`" in done.err


def test_a_group_is_named_only_with_repair(folder):
    assert folder("doctor", "--group", "broken").code == 2


def test_a_group_that_is_not_there_is_not_repaired(folder):
    done = folder("doctor", "--repair", "--group", "brken")
    assert (done.code, done.out) == (2, "")
    assert "there is no group brken: did you mean 'broken'?" in done.err
