"""The policy of declared types: allowed names and facts under the settings (ingest/shape.py)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.domain.ontology import shipped
from kgray.domain.records import ExtractedEntity, ExtractedFact, Extraction, Value
from kgray.ingest.decide import shape
from tests import make

DRAFT = make.draft("x", at=5)
EPISODE = make.accepted(DRAFT)
COMMANDS = {"COMMANDS": {"subject_type": "Person", "object_type": "Ship"}}
TYPES = {"Person": {}, "Ship": {}}


def extraction(relation: str, *types: str, value: Value | None = None) -> Extraction:
    """Return names A, B, ... of these types and one fact from the first to the second, or to a value."""
    fact = ExtractedFact(
        source=0, relation=relation, text="t", target=None if value else 1, value=value, valid_from=5
    )
    names = (ExtractedEntity(name=chr(65 + n), type=kind) for n, kind in enumerate(types))
    return Extraction(entities=tuple(names), facts=(fact,))


def shaped(extraction: Extraction, relations=COMMANDS, types=TYPES) -> tuple[list[str], int]:
    """Return the types of the names, and how many facts are left."""
    result = shape(extraction, EPISODE, shipped().extended(relations, types))
    return [entity.type for entity in result.entities], len(result.facts)


@pytest.mark.parametrize(
    ("type_name", "expected_type"),
    [("Ship", "Ship"), ("ship", "Ship"), ("SHIP", "Ship"), ("Boat", ""), ("", "")],
)
def test_an_undeclared_type_becomes_unknown(type_name, expected_type):
    assert shaped(extraction("KNOWS", type_name, "Person")) == ([expected_type, "Person"], 1)


@pytest.mark.parametrize(
    ("source", "target", "facts"),
    [
        ("Person", "Ship", 1),
        ("Person", "", 1),
        ("", "Ship", 1),
        ("", "", 1),
        ("Officer", "Vessel", 1),
        ("Ship", "Ship", 0),
        ("Person", "Person", 0),
        ("Ship", "Person", 0),
        ("", "Person", 0),
        ("Ship", "", 0),
    ],
)
def test_a_fact_needs_the_declared_pair_or_unknown_types(source, target, facts):
    """The names of a dropped fact stay: they were mentioned."""
    types, fact_count = shaped(extraction("COMMANDS", source, target))

    assert (len(types), fact_count) == (2, facts)


def test_one_declared_end_restricts_only_that_end():
    relations = {"COMMANDS": {"object_type": "Ship"}}

    assert shaped(extraction("COMMANDS", "Ship", "Ship"), relations)[1] == 1
    assert shaped(extraction("COMMANDS", "Ship", "Person"), relations)[1] == 0


def test_the_ends_of_a_symmetric_relation_may_be_exchanged():
    relations = {"COMMANDS": {**COMMANDS["COMMANDS"], "symmetric": True}}

    assert shaped(extraction("COMMANDS", "Ship", "Person"), relations)[1] == 1
    assert shaped(extraction("COMMANDS", "Ship", "Ship"), relations)[1] == 0


def test_a_text_value_as_an_entity_needs_the_declared_type():
    text = Value("text", "Titanic")
    relations = {"COMMANDS": {**COMMANDS["COMMANDS"], "object": "entity"}}

    assert shaped(extraction("COMMANDS", "Person", value=text), relations) == (["Person", ""], 1)
    assert shaped(extraction("COMMANDS", "Ship", value=text), relations) == (["Ship"], 0)
    assert shaped(extraction("COMMANDS", "Person", value=Value("number", "3")))[1] == 1


def test_types_of_shipped_relations_do_not_restrict_facts():
    """WORKS_AT is shipped as Person to Organization: a hint for the reader, no rule of the settings."""
    types = {"Person": {}, "Organization": {}, "Company": {}}

    assert shaped(extraction("WORKS_AT", "Person", "Company"), {}, types)[1] == 1
    assert shaped(extraction("WORKS_AT", "Person", "Company"), {"WORKS_AT": {"description": "d"}}, types)[1]
    relations = {"WORKS_AT": {"object_type": "Company"}}
    assert shaped(extraction("WORKS_AT", "Person", "Company"), relations, types)[1] == 1
    assert shaped(extraction("WORKS_AT", "Person", "Organization"), relations, types)[1] == 0


LABELS = st.sampled_from(["", "Person", "Ship", "Boat"])
FACTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(["COMMANDS", "KNOWS", "WORKS_AT"])),
    max_size=6,
)


@given(types=st.lists(LABELS, min_size=4, max_size=4), facts=FACTS)
def test_without_declared_types_an_extraction_is_unchanged(types, facts):
    stated_facts = tuple(
        ExtractedFact(source=a, relation=name, text="t", target=b, valid_from=5)
        for a, b, name in facts
        if a != b
    )
    names = tuple(ExtractedEntity(name=chr(65 + n), type=kind) for n, kind in enumerate(types))
    result = Extraction(entities=names, facts=stated_facts)

    assert shape(result, EPISODE, shipped().extended(COMMANDS, {})) == shape(result, EPISODE, shipped())
    assert shape(result, EPISODE, shipped().extended(COMMANDS, {})) == result


@given(types=st.lists(LABELS, min_size=4, max_size=4), facts=FACTS)
def test_every_kept_fact_has_a_declared_pair_of_types(types, facts):
    stated_facts = tuple(
        ExtractedFact(source=a, relation=name, text="t", target=b, valid_from=5)
        for a, b, name in facts
        if a != b
    )
    names = tuple(ExtractedEntity(name=chr(65 + n), type=kind) for n, kind in enumerate(types))
    ontology = shipped().extended(COMMANDS, TYPES)

    result = shape(Extraction(entities=names, facts=stated_facts), EPISODE, ontology)

    assert {entity.type for entity in result.entities} <= {"", "Person", "Ship"}
    ends = [
        (result.entities[f.source].type, result.entities[f.target].type)
        for f in result.facts
        if f.relation == "COMMANDS" and f.target is not None
    ]
    assert all(a in ("", "Person") and b in ("", "Ship") for a, b in ends)
    kept_facts = [f for f in stated_facts if f.relation != "COMMANDS"]
    assert [f for f in result.facts if f.relation != "COMMANDS"] == kept_facts
    assert shape(result, EPISODE, ontology) == result
