"""Rows of version 0.1 to values of this version; `tests/graph/test_upgrade.py` has whole stores."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kgray.domain.ontology import shipped
from kgray.maintenance.upgrade.content import GroupContent
from kgray.maintenance.upgrade.convert import content_of
from kgray.maintenance.upgrade.rulings import Converted, convert_rulings
from kgray.ports import GroupHead
from kgray.schema.kinds import COMMITTED, DONE, PENDING
from kgray.storage.earlier import OLD_KINDS, OldRow

ALICE, ACME, BOB = "alice", "acme", "bob"
WORKS, EMPLOYS = "works", "employs"


def row(kind: str, /, **values: Any) -> OldRow:
    """Return a row of an earlier version with these columns; the others have their defaults."""
    columns = OLD_KINDS[kind].columns
    assert values.keys() <= {column.name for column in columns}
    return OLD_KINDS[kind].make(*(values.get(column.name, column.default) for column in columns))


def episode(sequence: int, **values: Any) -> OldRow:
    columns = {
        "reference_time": sequence * 100,
        "ended_at": sequence * 1_000,
        "state": COMMITTED,
        "kind": "message",
        "source": "chat",
    }
    return row("episodes", sequence=sequence, id=f"e{sequence}", **columns | values)


def mention(sequence: int, ordinal: int, surface: str, entity: str, **values: Any) -> OldRow:
    columns = {"type": "", "sentence": "", "key": False} | values
    return row("mentions", sequence=sequence, ordinal=ordinal, surface=surface, entity=entity, **columns)


def evidence(
    sequence: int, statement: str, relation: str, subject: int = 0, target: int = 1, **values: Any
) -> OldRow:
    columns = {
        "kind": "holds",
        "variant": 0,
        "text": "",
        "inferred": True,
        "every_variant": False,
        "ordinal": 0,
    }
    ends = {"subject": subject, "object": target, "valid_from": sequence * 100}
    return row(
        "evidence", sequence=sequence, statement=statement, relation=relation, **columns | ends | values
    )


def ruling(sequence: int, ordinal: int, name: str, aspect: str, value: str, **values: Any) -> OldRow:
    columns = {"judge": "ontology", "other": "", "reason": "", "recorded_at": sequence * 1_000} | values
    return row(
        "rulings", sequence=sequence, ordinal=ordinal, name=name, aspect=aspect, value=value, **columns
    )


def reading(sequence: int, entities: list[Any] = [], facts: list[Any] = []) -> OldRow:  # noqa: B006 - not changed
    cost = {"calls": 1, "prompt_tokens": 2, "completion_tokens": 3}
    body = json.dumps({"entities": entities, "facts": facts, "dropped": [], "model": "", "prompts": []})
    return row("extractions", sequence=sequence, body=body, **cost)


def converted(**rows: list[OldRow]) -> GroupContent:
    head = GroupHead(named=True, last=99, last_recorded=99_000)
    return content_of("team", head, lambda kind: list(rows.get(kind, [])), shipped(), is_first=True)


def births(*ids: str) -> list[OldRow]:
    return [row("births", id=id_, sequence=1, ordinal=number) for number, id_ in enumerate(ids)]


USE = [row("answer_uses", sequence=2, request="r")]
ANSWER = [row("answers", request="r", calls=1, prompt_tokens=0, completion_tokens=0, body="[]")]


@pytest.mark.parametrize(
    ("surface", "uses", "kind", "resolver"),
    [
        pytest.param("robert smith", USE, "message", "name", id="it bears this name"),
        pytest.param("Bob", USE, "message", "model", id="the episode used an answer"),
        pytest.param("Bob", [], "message", "code", id="nobody was asked"),
        pytest.param("Smith, Robert", USE, "message", "code", id="another spelling"),
        pytest.param("Bob", USE, "triples", "name", id="a triple asks nobody"),
    ],
)
def test_the_resolver_of_a_mention_is_recovered(surface, uses, kind, resolver):
    content = converted(
        episodes=[episode(1), episode(2, kind=kind)],
        mentions=[mention(1, 0, "Robert Smith", BOB), mention(2, 0, surface, BOB)],
        births=births(BOB),
        answers=ANSWER,
        answer_uses=uses,
    )

    assert [item.resolved_by for item in content.mentions] == ["name", resolver]


def test_evidence_under_an_inverse_name_is_reversed():
    content = converted(
        episodes=[episode(1), episode(2), episode(3)],
        mentions=[
            *(mention(sequence, 0, "Alice", ALICE) for sequence in (1, 2, 3)),
            *(mention(sequence, 1, "Acme", ACME) for sequence in (1, 2, 3)),
        ],
        births=births(ALICE, ACME, WORKS),
        evidence=[
            evidence(1, WORKS, "WORKS_AT"),
            evidence(2, WORKS, "EMPLOYS", subject=1, target=0),
            evidence(3, WORKS, "WORKS_AT"),
        ],
    )

    assert [item.is_reversed for item in content.evidence] == [False, True, False]


def test_evidence_is_a_field_if_the_extraction_says_so():
    fact = [
        0,
        "HAS_STAGE",
        "The deal is open",
        "holds",
        None,
        ["text", "open", None],
        1,
        None,
        None,
        None,
        True,
    ]
    content = converted(
        episodes=[episode(1)],
        extractions=[reading(1, facts=[[*fact, True], ["0", "HAS_NOTE", "other", *fact[3:], False]])],
        mentions=[mention(1, 0, "Deal", ACME)],
        births=births(ACME, WORKS, EMPLOYS),
        evidence=[
            evidence(
                1, WORKS, "HAS_STAGE", text="The deal is open", object=None, value_type="text", value="open"
            ),
            evidence(
                1, EMPLOYS, "HAS_NOTE", text="other", ordinal=1, object=None, value_type="text", value="x"
            ),
        ],
    )

    assert [item.is_field for item in content.evidence] == [True, False]


def test_ontology_rulings_become_declarations_of_the_main_name():
    content = converted(
        episodes=[episode(1), episode(2, retired_at=2_500), episode(3)],
        mentions=[mention(1, 0, "Alice", ALICE), mention(1, 1, "Acme", ACME)],
        births=births(ALICE, ACME, WORKS),
        evidence=[evidence(1, WORKS, "WORKS_FOR")],
        rulings=[
            ruling(1, 0, "WORKS_FOR", "pair", "same_as", other="WORKS_AT"),
            ruling(1, 1, "WORKS_AT", "cardinality", "single"),
            ruling(1, 2, "WORKS_AT", "pair", "same_as", other="WORKS_FOR"),
            ruling(1, 3, "WORKS_AT", "cardinality", "many", judge="some-model"),
            ruling(2, 0, "KNOWS", "cardinality", "many", retired_at=2_500),
            ruling(9, 0, "LIKES", "cardinality", "many", retired_at=9_500),
        ],
    )

    result = [
        (t.value.name, t.value.aspect, t.value.value, t.value.other, t.recorded_at)
        for t in content.declarations
    ]
    assert result == [
        ("WORKS_FOR", "pair", "same_as", "WORKS_AT", 1_000),
        ("WORKS_AT", "cardinality", "single", "", 1_000),
        ("WORKS_FOR", "listed", "yes", "", 1_000),
        ("WORKS_AT", "listed", "yes", "", 1_000),
        ("KNOWS", "cardinality", "many", "", 2_000),
        ("KNOWS", "listed", "yes", "", 2_000),
        ("LIKES", "cardinality", "many", "", 9_000),
        ("LIKES", "listed", "yes", "", 9_000),
    ]
    # A later episode is left of the first three; of the last, none.
    assert [t.retired_at for t in content.declarations] == [None] * 6 + [9_500, None]


def both_directions() -> GroupContent:
    """Return a group with the statements "Acme has Alice on its payroll" and "Alice works at Acme"."""
    return converted(
        episodes=[episode(1), episode(2), episode(3)],
        mentions=[
            *(mention(sequence, 0, "Alice", ALICE) for sequence in (1, 2, 3)),
            *(mention(sequence, 1, "Acme", ACME) for sequence in (1, 2, 3)),
        ],
        births=births(ALICE, ACME, WORKS, EMPLOYS),
        evidence=[
            evidence(1, WORKS, "WORKS_AT"),
            evidence(2, EMPLOYS, "HAS_ON_PAYROLL", subject=1, target=0),
            evidence(3, EMPLOYS, "HAS_ON_PAYROLL", subject=1, target=0),
        ],
        statement_vectors=[row("statement_vectors", id=id_, vector=b"") for id_ in (WORKS, EMPLOYS)],
    )


STATEMENTS = {(1, 0): WORKS, (2, 0): WORKS, (3, 0): WORKS}


def test_inverse_statements_are_merged_into_one_statement():
    content = both_directions()
    rulings = [ruling(2, 0, "HAS_ON_PAYROLL", "pair", "inverse_of", other="WORKS_AT", judge="some-model")]

    converted = convert_rulings(content, rulings, [], STATEMENTS)

    assert converted == Converted(verdicts=0, attached=2, had_rulings=True)
    assert [(item.statement, item.is_reversed) for item in content.evidence] == [
        (WORKS, False), (WORKS, True), (WORKS, True),
    ]  # fmt: skip
    assert (EMPLOYS in content.births, content.statements.keys()) == (False, {WORKS})


@pytest.mark.parametrize(
    "later",
    [
        pytest.param({"value": "independent"}, id="taken back"),
        pytest.param({"judge": "ontology"}, id="of a person"),
        pytest.param({"retired_at": 5_000}, id="retracted"),
    ],
)
def test_a_retired_or_personal_ruling_attaches_no_statement(later):
    content = both_directions()
    pair = {"value": "inverse_of", "other": "WORKS_AT", "judge": "some-model"} | later
    rulings = [ruling(2, 0, "HAS_ON_PAYROLL", "pair", **pair)]

    assert convert_rulings(content, rulings, [], STATEMENTS).attached == 0
    assert EMPLOYS in content.births


def test_a_removal_in_progress_is_completed():
    removal = {
        "kind": "remove",
        "payload": '{"source":"chat"}',
        "state": PENDING,
        "recorded_at": 5,
        "result": "{}",
    }
    content = converted(
        episodes=[episode(1), episode(2, source="mail"), episode(4)],
        operations=[row("operations", sequence=3, **removal)],
        extractions=[reading(1), reading(2)],
        mentions=[mention(1, 0, "Alice", ALICE), mention(2, 0, "Acme", ACME)],
        births=births(ALICE, ACME),
        answers=ANSWER,
        answer_uses=[row("answer_uses", sequence=1, request="r")],
        name_vectors=[
            row("name_vectors", entity=ALICE, surface="Alice", sequence=1, ordinal=0, vector=b""),
            row("name_vectors", entity=ACME, surface="Acme", sequence=2, ordinal=0, vector=b""),
        ],
    )

    assert [row.sequence for row in content.rows["episodes"]] == [2, 4]  # the last was accepted afterwards
    assert [row.sequence for row in content.rows["extractions"]] == [2]
    assert [(row.state, row.payload) for row in content.rows["operations"]] == [(DONE, "{}")]
    assert ([item.surface for item in content.mentions], content.answers) == (["Acme"], [])
    assert (content.births.keys(), [name.surface for name in content.names]) == ({ACME}, ["Acme"])


def test_converted_names_are_not_marked_as_previous_context():
    content = converted(episodes=[episode(1)], extractions=[reading(1, [["Bob", "Person", [0, 3], None]])],
                        mentions=[mention(1, 0, "Bob", BOB)], births=births(BOB))  # fmt: skip

    assert json.loads(content.rows["extractions"][0].body)["entities"] == [
        ["Bob", "Person", [0, 3], None, False]
    ]
