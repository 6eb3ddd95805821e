"""`kgray copy` and `kgray import` from the outside."""

from __future__ import annotations

import json
import socket

import pytest

from tests.doors.shell import JOBS

WRONG = "hush-hush"  # no line may contain it


@pytest.fixture
def full(kgray):
    """Fill a folder with a group."""
    answer = kgray("add", kgray.write("jobs.jsonl", *JOBS))
    assert answer.code == 0
    return kgray


def test_a_group_is_copied_and_a_second_copy_compares_it(full):
    answer = full("copy", "--group", "team", "--to-data", "there", "--json")

    assert answer.code == 0
    assert (answer.json["group"], answer.json["to"], answer.json["already"]) == ("team", "there", False)
    assert answer.json["rows"]["episodes"] == 3
    assert answer.json["moments"] == 4
    assert "the source is as it was" in answer.err
    dumps = [full("dump", "--group", "team", "--data", data).out for data in ("kgray-data", "there")]
    assert dumps[0] == dumps[1] != ""
    repeated = full("copy", "--group", "team", "--to-data", "there")
    assert repeated.code == 0
    assert repeated.out.startswith("team was there already, in there: ")
    assert full("search", "Alice", "--group", "team", "--data", "there").out.count("Beta") > 0


def test_an_import_without_the_driver_is_a_one_line_error_with_exit_code_2(full):
    """An unimportable module with the driver's name simulates a missing installation."""
    (full.folder / "lacking" / "neo4j").mkdir(parents=True)
    full.write("lacking/neo4j/__init__.py", "raise ModuleNotFoundError('no neo4j', name='neo4j')\n")
    full.env |= {"PYTHONPATH": str(full.folder / "lacking"), "NEO4J_PASSWORD": WRONG}
    answer = full.process("import", "graphiti", "bolt://localhost:7687", "--group", "team")
    assert (answer.code, answer.out, answer.err) == (
        2,
        "",
        (
            "kgray: kgray import graphiti needs the package neo4j, which is not installed: "
            "pip install 'kgray[neo4j]'.\n"
        ),
    )


def test_an_impossible_copy_is_a_one_line_error(full):
    lines = {
        ("--group", "team"): "no target: name its folder by --to-data",
        ("--group", "absent", "--to-data", "x"): "no group 'absent'",
        ("--group", "team", "--to-data", "kgray-data"): "are one store, kgray-data",
        ("--group", "team", "--to-data", "x", "--to-config", "no.toml"): "No such file",
        ("--group", "no name", "--to-data", "x"): "group 'no name' is not a name",
    }
    for words, line in lines.items():
        answer = full("copy", *words)
        assert (answer.code, line in answer.err) == (2, True), answer.err
        assert not (full.folder / "x").exists(), "a refused copy leaves nothing"
    full.write("small.toml", "[embedder]\ndimensions = 64\n")
    answer = full("copy", "--group", "team", "--to-data", "y", "--to-config", "small.toml")
    assert answer.code == 2
    assert "set the same embedder for both" in answer.err
    assert not (full.folder / "y").exists()


def test_a_copy_does_not_change_a_different_group_at_the_target(full):
    row = {
        "id": "o",
        "at": "2026-01-01",
        "group": "team",
        "triples": [{"source": "A", "relation": "KNOWS", "target": "B"}],
    }
    assert full("add", full.write("other.jsonl", row), "--data", "there").code == 0
    output_before = full("dump", "--group", "team", "--data", "there").out

    answer = full("copy", "--group", "team", "--to-data", "there")

    assert answer.code == 2
    assert "already, and not the same" in answer.err
    assert full("dump", "--group", "team", "--data", "there").out == output_before


def test_store_variables_apply_to_the_source_only(full):
    """A source on a server, named by the environment, must not become the target as well."""
    full.env |= {"KGRAY_STORE_BACKEND": "sqlite", "KGRAY_STORE_URI": "bolt://127.0.0.1:1"}
    full.write("neo.toml", '[store]\nbackend = "neo4j"\nuri = "bolt://user:hush@127.0.0.1:1"\n')

    answer = full("copy", "--group", "team", "--to-config", "neo.toml")

    assert answer.code == 2
    assert "store.uri = *** in neo.toml: an address such as bolt:" in answer.err
    assert "hush" not in answer.err


def test_an_import_with_wrong_arguments_is_a_one_line_error(kgray, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"bolt://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.delenv("NEO4J_PASSWORD", raising=False)
    missing = kgray("import", "graphiti", nobody, "--group", "g")
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert "set NEO4J_PASSWORD" in missing.err
    kgray.env["NEO4J_PASSWORD"] = WRONG
    for uri in ("http://here:1", "bolt://ann:hush@here:1", "", "bolt://"):
        answer = kgray("import", "graphiti", uri, "--group", "g")
        assert (answer.code, answer.err.count("\n")) == (2, 1)
        assert "not an address" in answer.err
        assert "hush" not in answer.err
    pytest.importorskip("neo4j", reason="needs Neo4j's driver: install the extra `neo4j`")
    away = kgray("import", "graphiti", nobody, "--group", "g")
    assert (away.code, away.err.count("\n")) == (75, 1)
    assert "hush" not in away.err
    absent = kgray("import", "graphiti", nobody, "--group", "g", "--password-file", "absent")
    assert (absent.code, "absent" in absent.err) == (2, True)


def test_a_graphiti_import_counts_unmapped_items(kgray, own_neo4j, neo4j_driver):
    empty = kgray_import(kgray, own_neo4j)
    assert (empty.code, "no episode and no entity of Graphiti" in empty.err) == (2, True)
    neo4j_driver.execute_query(
        "CREATE (e:Episodic {uuid: 'e1', group_id: '', content: 'Hi', "
        "valid_at: datetime('2026-01-01T00:00:00Z')})"
        "CREATE (:Entity {uuid: 'a', group_id: '', name: 'Ann', summary: 'x'})-[:RELATES_TO {uuid: 'f', "
        "group_id: '', name: 'KNOWS', fact: 'Ann knows Bob', episodes: ['e1']}]->"
        "(:Entity {uuid: 'b', group_id: '', name: 'Bob'})"
    )
    trial = kgray_import(kgray, own_neo4j, "--json", "--dry-run")
    assert (trial.code, trial.json["episodes"], trial.json["taken"]) == (0, 1, 2)
    assert "accepted" not in trial.json
    answer = kgray_import(kgray, own_neo4j, "--json")
    wrong = kgray_import(kgray, own_neo4j, "--from-group", "main")
    kgray.env["NEO4J_PASSWORD"] = WRONG
    kgray.write("secret", own_neo4j.password + "\n")
    by_file = kgray_import(kgray, own_neo4j, "--password-file", "secret", password=WRONG)
    refused = kgray_import(kgray, own_neo4j, password=WRONG)
    assert answer.code == 0
    assert {k: answer.json[k] for k in ("accepted", "committed", "episodes", "facts", "unmapped")} == {
        "accepted": 1, "committed": 1, "episodes": 1, "facts": 1, "unmapped": {"entity summaries": 1}
    }  # fmt: skip
    assert (wrong.code, "it has the group_ids ''" in wrong.err) == (2, True)
    assert by_file.out.startswith("0 accepted, 1 duplicate")
    assert (refused.code, refused.err.count("\n"), "hush" in refused.err) == (2, 1, False)
    assert "check --user, NEO4J_PASSWORD" in refused.err
    rows = [json.loads(line) for line in kgray("dump", "--group", "g").out.splitlines()]
    assert [row["text"] for row in rows if row["type"] == "fact"] == ["Ann knows Bob"]


def kgray_import(kgray, server, *arguments, password=None):
    """Run an import from the server of the tests."""
    kgray.env["NEO4J_PASSWORD"] = password or server.password
    return kgray("import", "graphiti", server.uri, "--user", server.user, "--group", "g", *arguments)
