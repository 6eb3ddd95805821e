"""Contradictions inside an extended ontology: the reports of `kgray ontology check`."""

from __future__ import annotations

import pytest

from kgray.domain.ontology import shipped
from kgray.memory.ontology_check import faults_of

R = "ontology.relations"


def reported(relations, entities=None):
    """Return (key, is_note) of each fault."""
    return [(item.key, item.is_note) for item in faults_of(shipped().extended(relations, entities))]


def test_the_shipped_ontology_has_no_fault():
    assert faults_of(shipped()) == []


@pytest.mark.parametrize(
    ("relations", "key", "words"),
    [
        pytest.param(
            {"FEEDER_OF": {"same_as": "FEEDS"}}, f"{R}.FEEDER_OF.same_as", "not listed", id="same-as-nothing"
        ),
        pytest.param(
            {"FED_BY": {"inverse_of": "FEEDS"}},
            f"{R}.FED_BY.inverse_of",
            "not listed",
            id="inverse-of-nothing",
        ),
        pytest.param(
            {"JOB_AT": {"same_as": "WORKS_AT", "cardinality": "many"}},
            f"{R}.JOB_AT.cardinality",
            'WORKS_AT, which is "single"',
            id="a-synonym-with-another-cardinality",
        ),
        pytest.param(
            {"CREW": {"same_as": "EMPLOYS", "cardinality": "single"}},
            f"{R}.CREW.cardinality",
            'CREW would be "single_object"',
            id="a-synonym-of-an-inverse-with-another-cardinality",
        ),
        pytest.param(
            {"EMPLOYS": {"cardinality": "single"}},
            f"{R}.EMPLOYS.cardinality",
            'EMPLOYS would be "single_object"',
            id="an-inverse-with-the-same-end-bound",
        ),
        pytest.param(
            {"PETS": {"same_as": "OWNS"}, "OWNS": {"excludes": ["PETS"]}},
            f"{R}.OWNS.excludes",
            "fold to one relation",
            id="excludes-its-synonym",
        ),
        pytest.param(
            {"FEEDS": {"independent": ["PAINTED"], "excludes": ["PAINTED"]}},
            f"{R}.FEEDS.independent",
            "keep one",
            id="independent-and-exclusive",
        ),
        pytest.param(
            {"LOVES": {"independent": ["HATES"]}},
            f"{R}.LOVES.independent",
            "excludes of HATES",
            id="independent-of-what-the-shipped-main-name-excludes",
        ),
        pytest.param(
            {"OWNS": {"independent": ["SOLD"]}},
            f"{R}.OWNS.independent",
            "may_end of SOLD",
            id="independent-of-what-may-end-it",
        ),
        pytest.param(
            {"FEEDS": {}, "FED_BY": {"inverse_of": "FEEDS", "symmetric": True}},
            f"{R}.FED_BY.symmetric",
            "use same_as",
            id="a-symmetric-inverse",
        ),
        pytest.param(
            {"SIB": {"inverse_of": "SIBLING_OF"}},
            f"{R}.SIB.inverse_of",
            "SIBLING_OF is symmetric",
            id="the-inverse-of-a-symmetric-relation",
        ),
        pytest.param(
            {"HOLDS": {"same_as": "OWNS", "symmetric": True}},
            f"{R}.HOLDS.symmetric",
            "not symmetric",
            id="a-symmetric-synonym",
        ),
        pytest.param(
            {"WORK_AT": {}}, f"{R}.WORK_AT", 'write same_as = "WORKS_AT"', id="a-name-like-a-shipped-one"
        ),
        pytest.param({"FEEDS": {}, "FEED": {}}, f"{R}.FEED", "looks like FEEDS", id="two-names-of-ones-own"),
    ],
)
def test_a_contradiction_is_named_by_its_key(relations, key, words):
    (item,) = faults_of(shipped().extended(relations))
    assert (item.key, item.is_note) == (key, False)
    assert words in item.message
    assert "\n" not in item.message


def test_an_unused_entity_type_is_reported_if_all_relations_declare_both_ends():
    types = {"Ship": {}, "Person": {}, "Port": {}}
    commands = {"subject_type": "Person", "object_type": "Ship"}
    assert reported({"COMMANDS": commands}, types) == [("ontology.entities.Port", False)]
    assert reported({"COMMANDS": commands, "CALLS_AT": {"subject_type": "Ship"}}, types) == []
    assert reported({}, types) == []


def test_a_relation_made_single_valued_is_reported_as_a_note_after_faults():
    assert reported({"LIKES": {"cardinality": "single"}, "WORK_AT": {}}) == [
        (f"{R}.WORK_AT", False),
        (f"{R}.LIKES.cardinality", True),
    ]


@pytest.mark.parametrize(
    "relations",
    [
        pytest.param({"FEEDS": {"cardinality": "many"}, "FED_BY": {"inverse_of": "FEEDS"}}, id="plain"),
        pytest.param({"OWNED_BY": {"cardinality": "single"}}, id="many-leaves-the-other-end-open"),
        pytest.param({"JOB_AT": {"same_as": "WORKS_AT", "cardinality": "single"}}, id="equal"),
        pytest.param({"EMPLOYS": {"cardinality": "single_object"}}, id="the-other-way-round"),
        pytest.param({"WORK_AT": {"same_as": "WORKS_AT"}}, id="a-like-name-that-is-a-synonym"),
        pytest.param({"WORK_AT": {"independent": ["WORKS_AT"]}}, id="a-like-name-that-is-none"),
        pytest.param({"MET": {"cardinality": "depends"}}, id="another-cardinality-than-the-shipped-one"),
    ],
)
def test_a_consistent_ontology_has_no_fault(relations):
    assert reported(relations) == []
