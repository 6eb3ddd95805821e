"""Replies of models: whole answers in, records out, item by item (R18, R24)."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgray.domain.records import ExtractedEntity, ExtractedFact, Extraction, Value, speaker_first
from kgray.domain.times import parse
from kgray.errors import InvalidAnswer
from kgray.models.prompting.replies import COMPARISONS, parse_answer, parse_extraction
from kgray.ports import Question
from tests import make
from tests.tries import tries

SAID_AT = parse("2026-03-10T12:00:00Z")[0]


def at(text: str) -> int:
    return parse(text)[0]


episode = partial(make.episode, at=SAID_AT)


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name} for name in names]


def checked_fact(fact: dict) -> ExtractedFact | str:
    """Return the outcome of a fact between Alice (0) and Acme (1): the fact, or the reason of its drop."""
    item = {"source": 0, "target": 1, "relation": "WORKS_AT", "fact": "Alice works at Acme"} | fact
    result = parse_extraction({"entities": named("Alice", "Acme"), "facts": [item]}, episode())
    (answer,) = (*result.facts, *result.dropped)
    return answer


def test_a_complete_reply_becomes_an_extraction():
    text = "I joined Acme in 2024. Malice aside, Acme pays 100 EUR."
    reply = {
        "entities": [{"name": "Acme", "type": "company"}, {"name": "Alice", "type": "Person"}],
        "facts": [
            {
                "source": 1,
                "target": 0,
                "relation": "works at",
                "fact": "Alice  joined Acme in 2024",
                "valid_at": "2024",
            },
            {"source": "Acme", "relation": "PAYS", "value": {"value": 100, "unit": "eur"}},
        ],
    }

    assert parse_extraction(reply, episode(text, "Alice")) == Extraction(
        entities=(
            ExtractedEntity(name="Alice", type="Person"),
            ExtractedEntity(name="Acme", type="Company", span=(9, 13)),
        ),
        facts=(
            ExtractedFact(
                source=0,
                target=1,
                relation="WORKS_AT",
                text="Alice joined Acme in 2024",
                valid_from=at("2024"),
                from_precision="year",
            ),
            ExtractedFact(
                source=1,
                relation="PAYS",
                text="Acme pays 100 EUR",
                value=Value("number", "100", "EUR"),
                valid_from=SAID_AT,
                from_precision="instant",
                inferred=True,
            ),
        ),
    )


def test_empty_lists_give_an_empty_extraction():
    assert parse_extraction({"entities": [], "facts": []}, episode()) == Extraction()


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (None, "the reply is missing or null, not an object"),
        ([], "the reply is a list, not an object"),
        ("{}", "the reply is a text, not an object"),
        ({"entities": []}, "'facts' of the reply is missing or null, not a list"),
        ({"entities": {}, "facts": []}, "'entities' of the reply is an object, not a list"),
    ],
)
def test_a_malformed_reply_is_an_invalid_answer(reply, reason):
    with pytest.raises(InvalidAnswer) as caught:
        parse_extraction(reply, episode())
    assert str(caught.value) == reason
    assert caught.value.raw != ""


@pytest.mark.parametrize(
    ("given_dates", "expected"),
    [
        pytest.param(
            {}, {"valid_from": SAID_AT, "from_precision": "instant", "inferred": True}, id="present tense"
        ),
        pytest.param({"valid_at": None}, {}, id="null is an unknown start"),
        pytest.param(
            {"valid_at": "2018-03"}, {"valid_from": at("2018-03"), "from_precision": "month"}, id="a month"
        ),
        pytest.param(
            {"valid_at": "2026-03-10T12:00:00Z"},
            {"valid_from": SAID_AT, "from_precision": "instant", "inferred": True},
            id="a start equal to the reference time is inferred",
        ),
        pytest.param(
            {"valid_at": "2018", "invalid_at": "2020-05-01"},
            {
                "valid_from": at("2018"),
                "from_precision": "year",
                "valid_to": at("2020-05-01"),
                "to_precision": "day",
            },
            id="both ends",
        ),
        pytest.param(
            {"invalid_at": "2027"},
            {
                "valid_from": SAID_AT,
                "from_precision": "instant",
                "inferred": True,
                "valid_to": at("2027"),
                "to_precision": "year",
            },
            id="until a coming year",
        ),
        pytest.param(
            {"invalid_at": "2020"},
            {"kind": "ended", "valid_to": at("2020"), "to_precision": "year"},
            id="until a past year and no start is an end only",
        ),
        pytest.param(
            {"valid_at": None, "invalid_at": "2027"},
            {"kind": "ended", "valid_to": at("2027"), "to_precision": "year"},
            id="an unknown start with an end is an end only",
        ),
        pytest.param(
            {"kind": "ended"},
            {"kind": "ended", "valid_to": SAID_AT, "to_precision": "instant", "inferred": True},
            id="ended without a date",
        ),
        pytest.param(
            {"kind": "ended", "valid_at": None, "invalid_at": "2026-03-01"},
            {"kind": "ended", "valid_to": at("2026-03-01"), "to_precision": "day"},
            id="ended on a day",
        ),
        pytest.param({"kind": "denied"}, {"kind": "denied"}, id="denied"),
        pytest.param(
            {"kind": "happened", "valid_at": "2026-03"},
            {"kind": "happened", "valid_from": at("2026-03"), "from_precision": "month"},
            id="happened in a month",
        ),
        pytest.param(
            {"kind": "happened"},
            {"kind": "happened", "valid_from": SAID_AT, "from_precision": "instant", "inferred": True},
            id="happened without a date",
        ),
    ],
)
def test_dates_and_kinds_of_a_fact_are_checked(given_dates, expected):
    """R3, and R8 for an end without a start."""
    base = {"source": 0, "target": 1, "relation": "WORKS_AT", "text": "Alice works at Acme"}

    assert checked_fact(given_dates) == ExtractedFact(**(base | expected))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"source": 2}, "no entity of the reply has the index 2"),
        ({"source": -1}, "no entity of the reply has the index -1"),
        ({"source": True}, "an endpoint is a boolean, not an index or a name"),
        ({"source": None}, "an endpoint is missing or null, not an index or a name"),
        ({"source": " "}, "a name is empty"),
        ({"source": "a\x07b"}, "the name 'a\\x07b' holds control characters"),
        ({"target": "x" * 300}, f"a name of 300 characters, above 256: {'x' * 40!r} ..."),
        ({"target": 0}, "it connects 'Alice' with itself"),
        ({"target": "alice"}, "it connects 'Alice' with itself"),
        ({"target": None}, "it has both a target and a value, or neither"),
        ({"value": 3}, "it has both a target and a value, or neither"),
        ({"target": None, "value": []}, "'[]' is no value of type text"),
        ({"target": None, "value": float("nan")}, "nan is not a finite number"),
        ({"relation": "***"}, "'***' names no relation: it has no letter"),
        ({"relation": "X" * 65}, f"{'X' * 65!r} is too long for a relation: at most 64 characters"),
        ({"relation": 1}, "its relation is a number, not a text"),
        ({"fact": ""}, "its sentence is not a text, or empty"),
        ({"kind": "maybe"}, "'maybe' is no kind: holds, ended, denied, happened"),
        ({"valid_at": 2018}, "valid_at is a number, not an ISO 8601 text"),
        ({"valid_at": "last May"}, "valid_at: 'last May' is not a date: use ISO 8601, such as 2026-03-01"),
        (
            {"valid_at": "1700000000"},
            "valid_at: '1700000000' is not a date: use ISO 8601, such as 2026-03-01",
        ),
        ({"valid_at": "2020", "invalid_at": "2020"}, "its end is not after its start"),
        ({"kind": "ended", "valid_at": "2020"}, '"ended" has no valid_at: say "holds" with both dates'),
        ({"kind": "happened", "invalid_at": "2020"}, "an event has one date: its valid_at"),
        ({"kind": "denied", "valid_at": "2020"}, "a denial has no dates: it denies a statement as a whole"),
    ],
)
def test_a_faulty_fact_is_dropped_with_its_reason(fault, reason):
    assert checked_fact(fault) == f"facts[0]: {reason}"


def test_faulty_items_do_not_affect_other_items():
    """R24: dropped one by one; indexes of the reply keep their meaning."""
    reply = {
        "entities": [{"name": ""}, "Bob", {"name": "Alice", "type": 7}, {"name": "Carol"}, {"name": "Acme"}],
        "facts": [
            "nothing",
            {"source": 2, "target": 4, "relation": "WORKS_AT"},
            {"source": 3, "target": 4, "relation": "WORKS_AT"},
        ],
    }

    result = parse_extraction(reply, episode())

    assert [entity.name for entity in result.entities] == ["Carol", "Acme"]
    assert [(fact.source, fact.target, fact.text) for fact in result.facts] == [(0, 1, "Carol works at Acme")]
    assert result.dropped == (
        "entities[0]: a name is empty",
        "entities[1]: the item is a text, not an object",
        "entities[2]: its type is a number, not a text",
        "facts[0]: the item is a text, not an object",
        "facts[1]: no entity of the reply has the index 2",
    )


def test_an_unlisted_name_becomes_an_entity():
    """R18; but not for the sake of a fact that is dropped."""
    facts = [
        {"source": "Alice", "target": "Dora", "relation": "KNOWS"},
        {"source": "Ghost", "target": "Alice", "relation": "!"},
        {"source": "dora", "target": "Acme", "relation": "WORKS_AT"},
    ]

    result = parse_extraction({"entities": named("Alice"), "facts": facts}, episode("Alice met Dora"))

    assert result.entities == (
        ExtractedEntity(name="Alice", span=(0, 5)),
        ExtractedEntity(name="Dora", span=(10, 14)),
        ExtractedEntity(name="Acme"),
    )
    assert [(fact.source, fact.target) for fact in result.facts] == [(0, 1), (1, 2)]


def test_a_name_listed_twice_is_one_entity():
    reply = {
        "entities": [{"name": "Acme"}, {"name": " Acme ", "type": "job board"}],
        "facts": [{"source": 1, "relation": "FOUNDED_IN", "value": {"type": "date", "value": "1999"}}],
    }

    result = parse_extraction(reply, episode())

    assert result.entities == (ExtractedEntity(name="Acme", type="JobBoard"),)
    assert [(fact.source, fact.value) for fact in result.facts] == [(0, Value("date", "1999"))]


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (99.50, Value("number", "99.5")),
        (1e21, Value("number", "1000000000000000000000")),
        (True, Value("boolean", "true")),
        ("  in   progress ", Value("text", "in progress")),
        ({"type": "number", "value": "1e2", "unit": " usd "}, Value("number", "100", "USD")),
        ({"type": "boolean", "value": "false"}, Value("boolean", "false")),
        ({"type": "date", "value": "2026-03"}, Value("date", "2026-03")),
        (
            {"type": "date", "value": "2026-03-01T10:00:00+02:00"},
            Value("date", "2026-03-01T08:00:00.000000Z"),
        ),
    ],
)
def test_values_of_facts_are_parsed(raw, value):
    answer = checked_fact({"target": None, "value": raw})

    assert isinstance(answer, ExtractedFact)
    assert answer.value == value


# ---------------------------------------------------------------------------- the speaker (R18)


def extraction(*names: str) -> Extraction:
    """Return an extraction whose second name knows the first."""
    entities = tuple(ExtractedEntity(name=name) for name in names)
    return Extraction(
        entities=entities, facts=(ExtractedFact(source=1, target=0, relation="KNOWS", text="they know"),)
    )


@pytest.mark.parametrize(
    ("names", "speaker", "expected", "fact"),
    [
        (("Alice", "Bob"), "Alice", ("Alice", "Bob"), (1, 0)),
        (("Bob", "Alice"), "Alice", ("Alice", "Bob"), (0, 1)),
        (("Bob", "Carol", "Alice"), "Alice", ("Alice", "Bob", "Carol"), (2, 1)),
        (("Bob", "alice"), "Alice", ("Alice", "Bob"), (0, 1)),
        (("Bob", "Carol"), " Alice  Nguyen ", ("Alice Nguyen", "Bob", "Carol"), (2, 1)),
    ],
)
def test_the_speaker_of_a_message_comes_first(names, speaker, expected, fact):
    result = speaker_first(extraction(*names), episode("", speaker))

    assert tuple(entity.name for entity in result.entities) == expected
    assert [(item.source, item.target) for item in result.facts] == [fact]


def test_other_kinds_have_no_speaker():
    result = extraction("Bob", "Alice")

    assert speaker_first(result, episode("", "Alice", kind="text")) is result
    assert speaker_first(result, episode("")) is result


def test_a_message_without_facts_still_has_its_speaker():
    result = parse_extraction({"entities": [], "facts": []}, episode("Hi, Alice here", "Alice"))

    assert result == Extraction(entities=(ExtractedEntity(name="Alice", span=(4, 9)),))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ITEM = st.fixed_dictionaries(
    {},
    optional={
        "source": st.integers(-1, 3) | st.sampled_from(["Alice", "alice", "Bob", "", "\x00"]) | JSON,
        "target": st.integers(-1, 3) | st.sampled_from(["Alice", "Bob"]) | JSON,
        "relation": st.sampled_from(["knows", "WORKS_AT"]) | JSON,
        "fact": st.text(max_size=20) | JSON,
        "kind": st.sampled_from(["holds", "ended", "denied"]) | JSON,
        "valid_at": st.sampled_from([None, "2018", "2026-03-10", "2999-01-01"]) | JSON,
        "invalid_at": st.sampled_from([None, "2018", "2026-03-10"]) | JSON,
        "value": JSON,
    },
)


@settings(max_examples=tries(200))
@given(
    entities=st.lists(
        st.fixed_dictionaries({"name": st.sampled_from(["Alice", "Bob", " "]) | JSON}), max_size=4
    ),
    facts=st.lists(ITEM | JSON, max_size=4),
    speaker=st.sampled_from([None, "Alice", "Zoe"]),
)
def test_an_extraction_of_any_lists_is_valid(entities, facts, speaker):
    """Every item is kept or dropped; kept items hold ExtractedFact's promises."""
    result = parse_extraction({"entities": entities, "facts": facts}, episode("Alice", speaker))

    assert len(result.facts) + sum(line.startswith("facts[") for line in result.dropped) == len(facts)
    if speaker:
        assert result.entities[0].name == speaker
    names = [entity.name for entity in result.entities]
    assert len(names) == len(set(names))
    for fact in result.facts:
        assert 0 <= fact.source < len(names)
        assert (fact.target is None) != (fact.value is None)
        assert fact.target is None or (0 <= fact.target < len(names) and fact.target != fact.source)
        assert fact.kind != "ended" or fact.valid_to is not None
        assert fact.valid_from is None or fact.valid_to is None or fact.valid_from < fact.valid_to
        assert (fact.valid_from is None) == (fact.from_precision is None)
        assert (fact.valid_to is None) == (fact.to_precision is None)


# ------------------------------------------------------------------------------------- answers

TWO = ("Acme", "Acme Ltd")


@pytest.mark.parametrize(
    ("kind", "reply", "answer"),
    [
        ("entity", {"duplicate_of": 1, "reason": "same firm"}, {"duplicate_of": 1}),
        ("entity", {"duplicate_of": None}, {"duplicate_of": None}),
        ("compare", {"answers": ["same", "ends"], "reason": "x"}, {"answers": ["same", "ends"]}),
        ("compare", {"same": 1}, {"answers": ["independent", "same"]}),
        ("compare", {"same": [1], "ends": [0]}, {"answers": ["ends", "same"]}),
        ("compare", {"same": None, "contradicts": [1, 0, 1]}, {"answers": ["contradicts"] * 2}),
        ("compare", {"contradicts": [], "ends": None}, {"answers": ["independent"] * 2}),
        ("compare", {"independent": [0]}, {"answers": ["independent"] * 2}),
        # The item is attached to the oldest statement that it repeats.
        ("compare", {"same": [0, 1]}, {"answers": ["same", "independent"]}),
        ("compare", {"answers": ["same", "same"]}, {"answers": ["same", "independent"]}),
    ],
)
def test_an_answer_is_parsed_to_its_canonical_form(kind, reply, answer):
    assert parse_answer(Question(kind=kind, item="x", candidates=TWO), reply) == answer


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        ("entity", None),
        ("entity", {}),
        ("entity", {"duplicate_of": 2}),
        ("entity", {"duplicate_of": -1}),
        ("entity", {"duplicate_of": True}),
        ("entity", {"duplicate_of": "Acme"}),
        ("entity", {"duplicate_of": 1.0}),
        ("compare", None),
        ("compare", []),
        ("compare", {}),
        ("compare", {"duplicate_of": 0}),
        ("compare", {"contradicts": ["0"]}),
        ("compare", {"answers": "same"}),
        ("compare", {"answers": [["same"], "ends"]}),
    ],
)
def test_an_answer_of_another_kind_of_question_is_invalid(kind, reply):
    with pytest.raises(InvalidAnswer, match=f"the answer to a question of kind '{kind}'"):
        parse_answer(Question(kind=kind, item="x", candidates=TWO), reply)


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        ({"answers": ["same"]}, "answers: 1 of them for 2 candidates"),
        ({"answers": ["same"] * 3}, "answers: 3 of them for 2 candidates"),
        ({"answers": ["same", "similar"]}, "answers.1: Input should be 'same', 'contradicts', 'ends' or"),
        ({"ends": [2]}, "ends.0: 2 is no index of 2 candidates"),
        ({"same": -1}, "same.0: -1 is no index of 2 candidates"),
        ({"same": True}, "same.0: Input should be a valid integer"),
        ({"contradicts": [0], "ends": [1, 0]}, "ends: the candidate 0 is in 'contradicts' too"),
        ({"same": 1, "independent": [1]}, "independent: the candidate 1 is in 'same' too"),
    ],
)
def test_a_wrong_comparison_gets_a_clear_error(reply, fault):
    with pytest.raises(InvalidAnswer) as caught:
        parse_answer(Question(kind="compare", item="x", candidates=TWO), reply)

    text = str(caught.value)
    assert text.startswith(f"the answer to a question of kind 'compare' is wrong: {fault}")
    assert "\n" not in text


@given(st.lists(st.sampled_from(COMPARISONS), max_size=6))
def test_both_forms_of_a_comparison_parse_equally(words):
    question = Question(kind="compare", item="x", candidates=tuple(map(str, range(len(words)))))
    lists = {word: [at for at, each in enumerate(words) if each == word] for word in COMPARISONS}

    answer = parse_answer(question, {"answers": words})

    assert parse_answer(question, lists) == answer == parse_answer(question, answer)
    assert answer["answers"].count("same") <= 1
