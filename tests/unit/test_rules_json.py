"""JSON episodes are mapped by their structure."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgray.errors import InvalidAnswer
from kgray.models.rules.json_records import MAX_VALUE
from tests.tries import tries
from tests.unit.rules_reader import named, read


def mapped(content: object) -> list[tuple[str, str, str]]:
    extraction = read(json.dumps(content), speaker=None, kind="json")
    return [named(extraction, fact) for fact in extraction.facts]


def entities(content: object) -> list[tuple[str, str]]:
    return [(e.name, e.type) for e in read(json.dumps(content), speaker=None, kind="json").entities]


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        pytest.param(
            {"name": "Desk", "price": 499.0, "currency": "EUR"},
            [("Desk", "COSTS", "<499 EUR>")],
            id="currency",
        ),
        pytest.param(
            {"name": "Desk", "price_usd": 99.5}, [("Desk", "COSTS", "<99.5 USD>")], id="unit-in-the-key"
        ),
        pytest.param(
            {"name": "Desk", "price": "$1,299.00"}, [("Desk", "COSTS", "<1299 USD>")], id="price-as-text"
        ),
        pytest.param(
            {"name": "Desk", "price": {"amount": 5, "currency": "usd"}},
            [("Desk", "COSTS", "<5 USD>")],
            id="amount",
        ),
        pytest.param({"name": "Desk", "weight_kg": 30}, [("Desk", "HAS_WEIGHT", "<30 KG>")], id="measure"),
        pytest.param({"name": "Desk", "in_stock": True}, [("Desk", "IN_STOCK", "<true>")], id="boolean"),
        pytest.param(
            {"name": "Desk", "isActive": False}, [("Desk", "IS_ACTIVE", "<false>")], id="camel-case"
        ),
        pytest.param(
            {"name": "Desk", "released": "2025-03"}, [("Desk", "HAS_RELEASED", "<2025-03>")], id="date"
        ),
        pytest.param(
            {"name": "Desk", "status": "sold out"}, [("Desk", "HAS_STATUS", "<sold out>")], id="status"
        ),
        pytest.param(
            {"name": "Desk", "colors": ["blue", "red"]},
            [("Desk", "HAS_COLOR", "<blue>"), ("Desk", "HAS_COLOR", "<red>")],
            id="a-list-is-many",
        ),
        pytest.param(
            {"name": "Desk", "size": {"height_cm": 70, "width_cm": 120}},
            [("Desk", "HAS_SIZE_HEIGHT", "<70 CM>"), ("Desk", "HAS_SIZE_WIDTH", "<120 CM>")],
            id="a-nameless-object-is-part-of-the-outer-one",
        ),
        pytest.param(
            {"name": "Desk", "maker": {"name": "Oak Ltd"}}, [("Desk", "MADE_BY", "Oak Ltd")], id="nested"
        ),
        pytest.param({"name": "Desk", "brand": "Oak"}, [("Desk", "MADE_BY", "Oak")], id="a-name-of-another"),
        pytest.param(
            {
                "name": "Bob",
                "type": "person",
                "role": "engineer",
                "company": "Acme",
                "manager": "Carol",
                "city": "Rome",
            },
            [
                ("Bob", "HAS_ROLE", "<engineer>"),
                ("Bob", "WORKS_AT", "Acme"),
                ("Bob", "REPORTS_TO", "Carol"),
                ("Bob", "LIVES_IN", "Rome"),
            ],
            id="a-person",
        ),
        pytest.param(
            {"name": "Fair", "type": "event", "city": "Rome"},
            [("Fair", "LOCATED_IN", "Rome")],
            id="no-person",
        ),
        pytest.param(
            {"name": "Desk", "id": 7, "url": "http://x", "updated_at": "2026-01-01"}, [], id="no-facts"
        ),
        pytest.param({"name": "Desk", "color": None, "status": "", "tags": []}, [], id="nothing-said"),
        pytest.param({"name": "Desk", "part": {"name": "Desk"}}, [], id="a-loop"),
        pytest.param({"a": 1}, [], id="no-name"),
        pytest.param([1, "x", None], [], id="no-objects"),
    ],
)
def test_fields_become_facts(content, facts):
    assert mapped(content) == facts


def test_all_facts_hold_from_the_reference_time():
    extraction = read('{"name": "Desk", "price": 5}', speaker=None, kind="json", at="2026-03-01")
    fact = extraction.facts[0]
    assert (fact.text, fact.kind, fact.valid_from, fact.inferred) == (
        "Desk costs 5",
        "holds",
        1772323200000000,
        True,
    )


def test_types_come_from_the_object_or_the_key_above():
    assert entities({"name": "Aero 2", "@type": "smart phone"}) == [("Aero 2", "SmartPhone")]
    assert entities({"products": [{"name": "Desk"}, {"id": 2}]}) == [
        ("Desk", "Product"),
        ("Product 2", "Product"),
    ]
    assert entities([{"name": "Desk"}]) == [("Desk", "")]


def test_long_texts_are_dropped_and_reported():
    extraction = read(json.dumps({"name": "Desk", "about": "x" * (MAX_VALUE + 1)}), speaker=None, kind="json")
    assert (extraction.facts, extraction.dropped) == (
        (),
        ("about: a text of 201 characters is no value (at most 200)",),
    )


def test_invalid_json_fails_the_episode():
    """R24: by its own content."""
    with pytest.raises(InvalidAnswer, match="not JSON"):
        read("{", speaker=None, kind="json")
    with pytest.raises(InvalidAnswer, match="not JSON"):
        read("[" * 100_000, speaker=None, kind="json")


def test_deep_and_wide_values_are_truncated():
    deep: object = {"name": "X"}
    for level in range(300):
        deep = {"name": f"N{level}", "part": deep, "rest": [[[deep]]] if level == 0 else None}
    assert len(read(json.dumps(deep), speaker=None, kind="json").entities) < 20
    wide = {"name": "X", "tags": [f"t{i}" for i in range(5_000)]}
    extraction = read(json.dumps(wide), speaker=None, kind="json")
    assert len(extraction.facts) == 2_000
    assert extraction.dropped == ("more than 2000 facts: the rest was not read",)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
KEYS = st.sampled_from(["name", "id", "type", "price", "currency", "city", "colors", "amount", ""]) | st.text(
    max_size=12
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)


@settings(max_examples=tries(150))
@given(VALUES)
def test_any_json_gives_a_valid_extraction(content):
    extraction = read(json.dumps(content), speaker=None, kind="json")
    names = [entity.name for entity in extraction.entities]
    assert len(set(names)) == len(names)
    for fact in extraction.facts:
        assert (fact.target is None) != (fact.value is None)
        assert fact.source != fact.target
        assert 0 < len(fact.relation) <= 64
        assert fact.text
