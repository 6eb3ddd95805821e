"""init, doctor, help, settings: the output of these commands, and settings that are refused at the start."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from kgray.cli import cli
from kgray.cli.frame import COMMANDS
from tests.doors.shell import JOBS


def test_init_creates_the_folder_and_a_second_init_changes_nothing(kgray):
    first = kgray("init", "--data", "d", "--json")
    assert (first.code, first.json) == (
        0,
        {"data": "d", "store": "sqlite", "schema_version": first.json["schema_version"]},
    )
    assert isinstance(first.json["schema_version"], int)
    kgray("add", kgray.write("a.jsonl", *JOBS), "--data", "d")
    hashed = kgray("dump", "--group", "team", "--hash", "--data", "d").out
    repeated = kgray("init", "--data", "d", "--json")
    assert (repeated.code, repeated.json) == (0, first.json)
    assert kgray("dump", "--group", "team", "--hash", "--data", "d").out == hashed


def test_data_and_config_come_from_options_then_variables_then_folders(kgray):
    kgray.env["KGRAY_DATA"] = "from-variable"
    assert kgray("init", "--json").json["data"] == "from-variable"
    assert kgray("init", "--data", "from-option", "--json").json["data"] == "from-option"
    kgray.write("bad.toml", "[store]\nbackend = 'neo4j'\n")
    assert kgray("init", "--config", "bad.toml").code == 2
    kgray.env["KGRAY_CONFIG"] = "bad.toml"
    assert kgray("init").code == 2
    del kgray.env["KGRAY_CONFIG"]
    kgray.write("from-variable/kgray.toml", "[modle]\n")
    answer = kgray("init")
    assert (answer.code, answer.err) == (
        2, "kgray: modle in from-variable/kgray.toml is not a setting. The nearest one is model.\n",
    )  # fmt: skip
    assert kgray("init", "--config", "missing.toml").code == 2


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KGRAY_STORE_BACKEND", "neo4j"),
        ("KGRAY_MODEL_BACKEND", "openai"),
        ("KGRAY_MODEL_BACKEND", "vllm"),
        ("KGRAY_EMBEDDER_BACKEND", "bge"),
        ("KGRAY_RERANKER_BACKEND", "http"),
        ("KGRAY_RUNTIME_BACKEND", "rya"),
        ("KGRAY_PIPELINE_EXTRACTION", "separate"),
        ("KGRAY_PIPELINE_REFLECT_ROUNDS", "2"),
        ("KGRAY_EMBEDDER_BACKEND", "openai"),
        ("KGRAY_PIPELINE_JUDGING", "sometimes"),
        ("KGRAY_MODEL_TIMEOUT", "3"),
        ("KGRAY_MODEL_SCRIPT", "missing.jsonl"),
        ("KGRAY_ONTOLOGY_RELATIONS_OWNS_CARDINALITY", "few"),
    ],
)
def test_a_wrong_setting_exits_2_with_one_line_before_any_change(kgray, variable, value):
    kgray.env[variable] = value
    for command in (["init"], ["add", kgray.write("a.jsonl", *JOBS)]):
        answer = kgray(*command)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith("kgray: ")
        assert answer.err.count("\n") == 1
        assert not (kgray.folder / "kgray-data").exists()


def test_a_different_embedder_than_that_of_the_folder_is_refused(kgray):
    kgray("init")
    kgray.env["KGRAY_EMBEDDER_DIMENSIONS"] = "512"
    answer = kgray("add", kgray.write("a.jsonl", *JOBS))
    assert answer.code == 2
    assert "hashing-1/1024" in answer.err


def test_a_foreign_file_is_refused_and_unchanged(kgray):
    (kgray.folder / "kgray-data").mkdir()
    path = kgray.folder / "kgray-data" / "kgray.sqlite3"
    path.write_bytes(b"not a database" * 100)
    for command in (["init"], ["status"], ["add", kgray.write("a.jsonl", *JOBS)]):
        assert kgray(*command).code == 2
    assert path.read_bytes() == b"not a database" * 100
    checks = kgray("doctor", "--json")
    assert checks.code == 2
    assert {c["name"] for c in checks.json["checks"] if not c["ok"]} == {"store"}


def test_a_misspelt_command_gets_a_suggestion(kgray):
    answer = kgray("histroy", "Alice", "--group", "team")

    assert (answer.code, answer.out) == (2, "")
    assert "'histroy'" in answer.err
    assert "'history'" in answer.err


def test_doctor_checks_exactly_the_declared_dependencies(kgray):
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = [check["name"] for check in kgray("doctor", "--json").json["checks"]]

    assert names[1 : names.index("sqlite")] == [
        re.match(r"[\w-]+", item)[0] for item in declared["dependencies"]
    ]


def test_doctor_reports_the_parts_in_use_and_their_settings(kgray):
    empty_folder = kgray("doctor", "--json")
    assert empty_folder.code == 0
    assert all(
        set(check) == {"name", "ok", "detail"} and check["ok"] for check in empty_folder.json["checks"]
    )
    assert not (kgray.folder / "kgray-data").exists()
    kgray("add", kgray.write("a.jsonl", *JOBS))
    with_data = kgray("doctor", "--json")
    named = {check["name"]: check["detail"] for check in with_data.json["checks"]}
    assert {
        "python",
        "apsw",
        "sqlite",
        "settings",
        "data",
        "store",
        "model",
        "embedder",
    } <= set(named)
    assert {"reranker", "runtime", "optional parts"} <= set(named)
    assert named["graph of team"] == "the stored graph is what its records derive"
    assert named["model"].startswith("scripted: ")
    assert "KGRAY_MODEL_BACKEND" in named["settings"]
    kgray.env["KGRAY_MODEL_BACKEND"] = "vllm"
    broken = kgray("doctor", "--json")
    assert broken.code == 2
    faults = [check["detail"] for check in broken.json["checks"] if not check["ok"]]
    assert any("runs in actors of Ray" in detail for detail in faults)


def test_the_ontology_of_the_settings_is_used(kgray):
    kgray.write("kgray.toml", '[ontology.relations.WORKS_AT]\ncardinality = "many"\n')
    kgray("add", kgray.write("a.jsonl", *JOBS))
    facts = kgray("history", "Alice Nguyen", "--group", "team", "--json").json["facts"]
    assert [fact["invalid_at"] for fact in facts] == [None, None]


def test_declared_types_and_pairs_select_the_extracted_facts(kgray):
    """The policy of docs/models.md, from a settings file and a variable to the graph."""
    kgray.write("kgray.toml", "[ontology.entities.Ship]\n[ontology.entities.Person]\n"
                '[ontology.relations.COMMANDS]\nsubject_type = "Person"\n')  # fmt: skip
    kgray.env["KGRAY_ONTOLOGY_RELATIONS_COMMANDS_OBJECT_TYPE"] = "Ship"
    names = [("Ann Bell", "person"), ("Titanic", "Ship"), ("Kiel Harbour", "Quay")]
    pairs = [(0, 1), (1, 0), (0, 2)]
    facts = [
        {"source": a, "target": b, "relation": "COMMANDS", "fact": f"{names[a][0]} commands {names[b][0]}"}
        for a, b in pairs
    ]
    extraction = {"entities": [{"name": name, "type": kind} for name, kind in names], "facts": facts}
    kgray.script({"episode": "e", "extraction": extraction})
    kgray("init")
    row = {"id": "e", "kind": "text", "text": "Ann Bell, Titanic, Kiel Harbour"}
    file = kgray.write("a.jsonl", row | {"at": "2026-01-01", "group": "g"})

    previewed = kgray("add", file, "--dry-run", "--json").json["changes"]
    assert kgray("add", file, "--json").json["committed"] == 1

    rows = [json.loads(line) for line in kgray("dump", "--group", "g").out.splitlines()]
    expected = ["Ann Bell commands Kiel Harbour", "Ann Bell commands Titanic"]
    assert sorted(row["text"] for row in rows if row["type"] == "fact") == expected
    assert sorted(row["text"] for row in previewed if row["type"] == "fact") == expected
    labels = {row["name"]: row["labels"] for row in rows if row["type"] == "entity"}
    assert labels == {"Ann Bell": ["Person"], "Titanic": ["Ship"], "Kiel Harbour": []}


@pytest.mark.parametrize("name", [*COMMANDS])
def test_every_command_has_help_with_an_example_and_the_common_options(kgray, name):
    """If a command has subcommands, each of them is checked."""
    answer = kgray(name, "--help")
    assert answer.code == 0
    assert "Example" in answer.out
    assert f"  kgray {name}" in answer.out
    subcommands = getattr(cli.get_command(None, name), "commands", None)  # type: ignore[arg-type]
    for helped in [kgray(name, sub, "--help") for sub in subcommands] if subcommands else [answer]:
        assert helped.code == 0
        for option in ("--data", "--config", "--json", "--debug"):
            assert option in helped.out


def test_help_lists_every_command_in_the_order_of_use(kgray):
    listed = [line.split()[0] for line in kgray("--help").out.split("Commands:\n")[1].splitlines() if line]
    assert listed == list(COMMANDS) == cli.list_commands(None)  # type: ignore[arg-type]


def test_a_fault_shows_a_traceback_only_with_debug(kgray):
    kgray.script()
    answer = kgray.process("show", "nobody", "--group", "g", "--debug")
    assert "Traceback" in answer.err
    assert "Traceback" not in kgray("show", "nobody", "--group", "g").err


@pytest.mark.slow  # test_cli_terminal has a terminal by default
def test_json_is_utf_8_in_every_locale(kgray):
    kgray.env["PYTHONIOENCODING"] = "ascii"
    kgray.env["LC_ALL"] = "C"
    row = {
        "id": "x",
        "group": "g",
        "at": 0,
        "triples": [{"source": "Zoë", "relation": "KNOWS", "target": "日本"}],
    }
    kgray.write("a.jsonl", row)
    assert kgray("add", "a.jsonl", "--json").code == 0
    answer = kgray.process("history", "Zoë", "--group", "g", "--json")
    assert json.loads(answer.out)["facts"][0]["target"] == "日本"
    assert kgray.process("history", "Zoë", "--group", "g").code == 0
