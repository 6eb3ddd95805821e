"""Replies of language models: ends by name, values, types, statuses and dates (R3, R18)."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.domain import times
from kgray.domain.records import Extraction, Value
from kgray.models.prompting.model_checks import (
    needed_context,
    without_foreign_facts,
    without_previous,
    without_questions,
)
from kgray.models.prompting.model_replies import ScriptForm, name_key, value_of
from kgray.models.prompting.replies import parse_extraction
from tests import make

T0 = times.parse("2026-03-05T09:00:00Z")[0]


episode = partial(make.episode, speaker="Marta Ruiz", at=T0)


def fact(subject="Leo", relation="WORKS_AT", target="Nordwind", **fields) -> dict:
    plain = {"fact": f"{subject} {relation} {target}", "status": "current", "start": None, "end": None}
    return {"subject": subject, "relation": relation, "object": target, **plain, **fields}


def read(text: str, *facts: dict, entities=("Leo", "Nordwind"), speaker="Marta Ruiz") -> Extraction:
    about = episode(text, speaker=speaker)
    form = ScriptForm(about)
    form.add_entities([{"name": name, "type": "Person"} for name in entities])
    form.add_facts(facts)
    return parse_extraction({"entities": form.entities, "facts": form.facts}, about)


def ends(extraction: Extraction) -> list[tuple[str, str]]:
    names = [entity.name for entity in extraction.entities]
    return [(names[f.source], f.value.shown() if f.value else names[f.target or 0]) for f in extraction.facts]


@pytest.mark.parametrize(
    ("subject", "target", "expected"),
    [
        pytest.param("leo", "the Nordwind", ("Leo", "Nordwind"), id="case-and-article"),
        pytest.param("Leo's", "NORDWIND.", ("Leo", "Nordwind"), id="possessive-and-outer-signs"),
        pytest.param("my Leo", "der Nordwind", ("Leo", "Nordwind"), id="pronoun-and-foreign-article"),
        pytest.param("I", "Nordwind", ("Marta Ruiz", "Nordwind"), id="first-person-is-the-speaker"),
        pytest.param("marta ruiz", "Nordwind", ("Marta Ruiz", "Nordwind"), id="the-speaker-by-name"),
        pytest.param("Aker Quartet", "Oslo", ("Aker Quartet", "Oslo"), id="unlisted-ends-become-mentions"),
        pytest.param("The printer", "Oslo", ("printer", "Oslo"), id="an-unlisted-end-without-its-article"),
        pytest.param("Leo", "90 EUR", ("Leo", "90 EUR"), id="a-price-is-a-value"),
        pytest.param("Leo", "engineer", ("Leo", "engineer"), id="a-lower-case-phrase-is-a-value"),
    ],
)
def test_ends_match_the_listed_entities_by_name(subject, target, expected):
    assert ends(read("Leo, Nordwind", fact(subject, target=target))) == [expected]


def test_a_pronoun_as_an_end_drops_only_its_fact():
    result = read("Leo", fact("she"), fact(target="her"), fact())

    assert ends(result) == [("Leo", "Nordwind")]
    assert len(result.dropped) == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90 EUR", Value("number", "90", "EUR")),
        ("€85", Value("number", "85", "EUR")),
        ("£85 a year", Value("number", "85", "GBP A YEAR")),
        ("1,500.50 dollars", Value("number", "1500.5", "USD")),
        ("1.500,50 €", Value("number", "1500.5", "EUR")),
        ("1.2 million euros", Value("number", "1200000", "EUR")),
        ("3.2 kg", Value("number", "3.2", "KG")),
        ("-5 °C", Value("number", "-5", "°C")),
        ("1,5", Value("number", "1.5", None)),
        ("12,000", Value("number", "12000", None)),
        ("2026-03", Value("date", "2026-03")),
        ("true", Value("boolean", "true")),
        ("on track", Value("text", "on track")),
    ],
)
def test_values_are_read_from_the_words_of_an_object(text, value):
    (result,) = read("x", fact(target=text)).facts
    assert result.value == value


@pytest.mark.parametrize("name", ["Nordwind", "plot 14", "M28", "Straße 5", "東京", "Q3 report"])
def test_names_are_not_values(name):
    assert value_of(name) is None


@given(st.text(max_size=40))
def test_any_text_is_a_name_or_a_value_that_parses(text):
    """One strange end never fails a reply (R24)."""
    result = read("x", fact(target=text), fact("Leo", target="Oslo"))
    assert ("Leo", "Oslo") in ends(result) or name_key(text) == "leo"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [("Person", "Person"), ("person", "Person"), ("Company", "Organization"), ("cities", "Place"),
     ("Pet", "Other"), ("Vessel", "Vessel"), ("Gizmo", "")],
)  # fmt: skip
def test_types_map_by_a_table_and_others_count_as_unknown(raw, kind):
    expected = {"cities": ""}.get(raw, kind)  # a plural that is not regular is not in the table
    assert ScriptForm(episode("x"), types=("Person", "Vessel")).type_of(raw) == expected


@pytest.mark.parametrize(
    ("text", "status", "start", "end", "expected"),
    [
        pytest.param("x", "current", "last May", None, ("holds", "2025-05", None), id="words-are-resolved"),
        pytest.param("x", "current", "2025-5", None, ("holds", "2025-05", None), id="a-month-of-one-digit"),
        pytest.param("x", "current", "soon", None, ("holds", None, None), id="no-date-is-left-out-alone"),
        pytest.param("x", "current", "2026-03-05", None, ("holds", None, None), id="the-day-of-the-message"),
        pytest.param("I met Leo today", "event", "2026-03-05", None, ("happened", "2026-03-05", None),
                     id="the-day-of-the-message-that-is-named"),
        pytest.param("x", "current", "unknown", None, ("holds", None, None), id="unknown-that-is-not-said"),
        pytest.param("Leo left on Monday", "ended", "2026-03-02", None, ("ended", None, "2026-03-02"),
                     id="the-date-of-a-change-in-the-wrong-field"),
        pytest.param("there since 2018, and left", "ended", "2018", None, ("holds", "2018", "now"),
                     id="an-ended-span-with-its-start"),
        pytest.param("x", "current", "2025", "2024", ("holds", "2025", None), id="an-end-before-the-start"),
        pytest.param("x", "event", None, "2025-04-01", ("happened", "2025-04-01", None), id="one-date"),
        pytest.param("x", "denied", "2025", "2026", ("denied", None, None), id="a-denial-has-no-dates"),
    ],
)  # fmt: skip
def test_statuses_and_dates_become_kinds_and_times(text, status, start, end, expected):
    (result,) = read(text, fact(status=status, start=start, end=end)).facts
    kind, start_time, deadline = expected
    deadlines = {None: None, "now": T0}
    assert result.kind == kind
    assert result.valid_to == (deadlines[deadline] if deadline in deadlines else times.parse(deadline)[0])
    if start_time is not None:
        assert result.valid_from == times.parse(start_time)[0]
    elif kind == "holds":
        assert (result.valid_from, result.inferred) == (T0, True)


def test_an_explicitly_unknown_start_is_unknown():
    (result,) = read("Leo has always worked there", fact(start="unknown")).facts
    assert (result.kind, result.valid_from, result.inferred) == ("holds", None, False)


def test_a_duplicate_fact_is_dropped_and_reported():
    form = ScriptForm(episode("x"))
    form.add_facts([fact(), fact(), fact(relation="WORKED_AT", fact="another sentence")])

    assert len(form.facts) == 2
    assert form.notes == ["facts: 'Leo WORKS_AT Nordwind' is listed twice"]


def test_entities_only_of_the_previous_context_are_dropped():
    previous = episode("Ines moved to Leeds.", speaker="Priya")
    result = read("Leo likes it", fact(target="tea"), entities=("Leo", "Ines", "Leeds", "Bo"))

    kept_result = without_previous(result, [previous])

    assert [entity.name for entity in kept_result.entities] == ["Marta Ruiz", "Leo", "Bo"]


def test_facts_stated_in_a_question_are_dropped_and_reported():
    text = "I still owe Leo 40 euros, could somebody send me his address? Has anyone seen my mug?"
    facts = [
        fact("Marta Ruiz", "OWES", "Leo", fact="Marta Ruiz owes Leo 40 euros"),
        fact("Marta Ruiz", "HAS", "mug", fact="Marta Ruiz has a mug"),
    ]
    result = without_questions(read(text, *facts), episode(text))

    assert [f.relation for f in result.facts] == ["OWES"]
    assert result.dropped == ("facts: 'Marta Ruiz has a mug' stands in a question",)


def test_facts_without_words_of_the_text_are_dropped():
    text = "If it happens again, I would move there too. I work there."
    previous = [episode("Sluice runs in Frankfurt, at Nordwind.", speaker="Priya")]
    facts = [
        fact("Leo", "RUNS_IN", "Frankfurt", fact="Leo runs in Frankfurt"),
        fact("Marta Ruiz", "WORKS_AT", "Nordwind", fact="Marta Ruiz works at Nordwind"),
    ]
    result = read(text, *facts)

    kept_result = without_foreign_facts(result, episode(text), previous)

    assert [f.relation for f in kept_result.facts] == ["WORKS_AT"]
    assert kept_result.dropped == ("facts: 'Leo runs in Frankfurt' has no word of the text",)
    question = [episode("Where does Leo run?", speaker="Priya")]
    assert without_foreign_facts(result, episode(text), question) == result
    assert without_foreign_facts(result, episode(text), []) == result


@pytest.mark.parametrize(
    ("text", "is_shown"),
    [
        ("I work at Nordwind.", False),
        ("She lives in Oslo now.", True),
        ("My friend Tomas gave up his half. He lives in Sheffield now.", False),
        ("I still owe him forty euros.", True),
        ("since May", True),
        ("この会社で働いています", True),
    ],
)
def test_the_previous_context_is_sent_only_with_texts_that_need_it(text, is_shown):
    question = episode("Since when have you been there?", speaker="Priya")
    assert needed_context(episode(text), [question]) == ([question] if is_shown else ())


def test_a_record_needs_no_context():
    assert needed_context(episode('{"his": 1}', speaker=None, kind="json"), [episode("x")]) == ()
