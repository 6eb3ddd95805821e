"""ontology suggest, check: suggested declarations of relation names, and contradictory settings."""

from __future__ import annotations

import asyncio
import json
import tomllib

import pytest

import kgray as library

NAMES, BARNS = ("Ann", "Bob", "Cid"), ("Oakhall", "Millfield", "Stonegate")


def row_and_reply(number: int, name: str, relation: str, target: str, at: str) -> tuple[dict, dict]:
    """Return an input row and the line of the script that reads it."""
    text = f"{name} {relation.lower()} {target}."
    entities = [{"name": name, "type": "Person"}, {"name": target, "type": "Other"}]
    fact = {"source": name, "relation": relation, "target": target, "fact": text, "kind": "holds"}
    row = {"id": f"m{number}", "at": at, "group": "team", "kind": "text", "text": text}
    return row, {"episode": f"m{number}", "extraction": {"entities": entities, "facts": [fact]}}


@pytest.fixture
def compared(kgray):
    """Three persons who each painted and sketched a thing; the model answered "independent"."""
    rows, script = [], []
    for number, name in enumerate(NAMES):
        for offset, (relation, day) in enumerate((("PAINTED", "01"), ("SKETCHED", "02"))):
            row, line = row_and_reply(2 * number + offset, name, relation, BARNS[number], f"2026-01-{day}")
            rows.append(row)
            script.append(line)
        items = [f"{name} sketched {BARNS[number]}.", [f"{name} painted {BARNS[number]}."]]
        script.append(
            {"question": {"kind": "compare", "items": items}, "answer": {"answers": ["independent"]}}
        )
    kgray.script(*script)
    added = kgray("add", kgray.write("rows.jsonl", *rows), "--json")
    assert (added.code, added.json["committed"]) == (0, 6), added.err
    return kgray


def test_names_that_a_model_judged_independent_are_suggested_with_their_lines(compared):
    answer = compared("ontology", "suggest", "--group", "team", "--json")
    (pair,) = answer.json["pairs"]
    assert answer.code == 0
    assert (pair["kind"], pair["names"], pair["value"]) == ("independent", ["PAINTED", "SKETCHED"], None)
    assert pair["counts"]["independent"] == 3
    assert pair["examples"] == ["Ann painted Oakhall.", "Ann sketched Oakhall."]

    text_answer = compared("ontology", "suggest", "--group", "team")
    assert "PAINTED: independent SKETCHED (3 independent)" in text_answer.out
    settings = text_answer.out[text_answer.out.index("[ontology") :]
    assert settings.strip() == pair["settings"].strip()
    assert tomllib.loads(settings)["ontology"]["relations"] == {"PAINTED": {"independent": ["SKETCHED"]}}

    compared.write("kgray.toml", settings)
    assert compared("ontology", "check").code == 0
    assert compared("ontology", "suggest", "--group", "team", "--json").json == {"pairs": []}
    assert "No suggestions" in compared("ontology", "suggest", "--group", "team").out


def test_the_python_methods_return_the_same_suggestions(compared):
    with library.open(
        compared.folder / "kgray-data", create=True, settings={"model_backend": "rules"}
    ) as memory:
        (item,) = memory.admin.relation_suggestions(group="team")
        assert memory.admin.ontology_faults() == []

    async def awaited():
        async with library.open_async(
            compared.folder / "kgray-data", create=True, settings={"model_backend": "rules"}
        ) as memory:
            return await memory.admin.relation_suggestions(group="team"), await memory.admin.ontology_faults()

    assert item.as_dict() == compared("ontology", "suggest", "--group", "team", "--json").json["pairs"][0]
    assert asyncio.run(awaited()) == ([item], [])


def test_an_unknown_group_has_no_suggestions_and_a_malformed_group_is_refused(kgray):
    kgray("init")
    unknown = kgray("ontology", "suggest", "--group", "nobody", "--json")
    assert (unknown.code, unknown.json) == (0, {"pairs": []})
    assert "nobody" in unknown.err
    assert kgray("ontology", "suggest", "--group", "a b").code == 2
    assert kgray("ontology", "suggest", "--group", "team", "--limit", "0").code == 2
    assert kgray("ontology", "suggest").code == 2


def test_check_names_file_and_key_exits_1_and_needs_no_store(kgray):
    kgray.write(
        "kgray.toml",
        "[ontology.relations.WORK_AT]\n"
        '[ontology.relations.FEEDER_OF]\nsame_as = "FEEDS"\n'
        '[ontology.relations.LIKES]\ncardinality = "single"\n',
    )
    answer = kgray("ontology", "check", "--json")
    assert answer.code == 1
    assert [(row["file"], row["key"]) for row in answer.json["faults"]] == [
        ("kgray.toml", "ontology.relations.FEEDER_OF.same_as"),
        ("kgray.toml", "ontology.relations.WORK_AT"),
    ]
    assert [row["key"] for row in answer.json["notes"]] == ["ontology.relations.LIKES.cardinality"]
    assert all(set(row) == {"file", "key", "message"} for row in answer.json["faults"])
    text_answer = kgray("ontology", "check")
    assert text_answer.code == 1
    assert "fault: kgray.toml: ontology.relations.WORK_AT: it looks like WORKS_AT" in text_answer.out
    assert "note: kgray.toml: ontology.relations.LIKES.cardinality" in text_answer.out
    assert text_answer.err.strip().splitlines()[-1] == "kgray: 2 faults in the ontology of the settings"
    assert not (kgray.folder / "kgray-data").exists()


def test_a_note_alone_exits_0(kgray):
    kgray.write("kgray.toml", '[ontology.relations.LIKES]\ncardinality = "single"\n')
    answer = kgray("ontology", "check", "--json")
    assert (answer.code, answer.json["faults"], len(answer.json["notes"])) == (0, [], 1)
    assert "No faults." in kgray("ontology", "check").out


def test_a_fault_from_a_variable_names_the_variable(kgray):
    kgray.env["KGRAY_ONTOLOGY_RELATIONS_OWNS_INDEPENDENT"] = "SOLD, PAINTED"
    answer = kgray("ontology", "check", "--json")
    assert answer.code == 1
    (fault,) = answer.json["faults"]
    assert (fault["file"], fault["key"]) == ("the environment", "KGRAY_ONTOLOGY_RELATIONS_OWNS_INDEPENDENT")


def test_unloadable_settings_are_a_one_line_error_with_exit_code_2(kgray):
    kgray.write(
        "kgray.toml", '[ontology.relations.A]\nsame_as = "B"\n[ontology.relations.B]\nsame_as = "A"\n'
    )
    answer = kgray("ontology", "check", "--json")
    assert (answer.code, answer.out) == (2, "")
    assert len(answer.err.splitlines()) == 1
    assert "lead from" in answer.err


def test_help_shows_examples(kgray):
    for args in (("ontology",), ("ontology", "suggest"), ("ontology", "check")):
        help_answer = kgray(*args, "--help")
        assert help_answer.code == 0
        assert "kgray ontology" in help_answer.out
    assert json.loads(kgray("ontology", "check", "--json").out) == {"faults": [], "notes": []}
