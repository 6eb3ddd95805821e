"""The cuts of a long text, without loss: its units, and their merged extractions."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgray.domain import times
from kgray.domain.records import Episode, Extraction, canonical
from kgray.ingest.steps import TextUnit, UnitSize, excerpt, joined, text_units, unit_requests
from kgray.models.prompting.replies import parse_extraction
from kgray.models.prompting.tokens import cost_of, count_tokens
from kgray.ports import ExtractionRequest
from tests import make
from tests.tries import tries

SAID_AT = times.parse("2026-03-05T09:00:00Z")[0]
WORDS = st.sampled_from(
    "Anna Boris works at Acme, the desk. costs 1,200 EUR! 我住在柏林。 かな Straße привет "
    "naïveté https://example.org/a/b?c=d&e=f ... (see) Dr. U.S. end? x 2026-03-05T09:00:00Z".split(" ")
)
BLANKS = st.sampled_from([" ", " ", " ", " ", "  ", "\n", "\n\n", "\r\n\r\n", "\t", "", "\u00a0"])
PROSE = st.lists(st.tuples(WORDS, BLANKS), max_size=120).map(lambda pairs: "".join(a + b for a, b in pairs))
TEXTS = st.one_of(PROSE, st.text(max_size=300))
SIZES = st.integers(1, 40).flatmap(lambda n: st.builds(UnitSize, st.just(n), st.integers(0, n - 1)))


def episode(text: str, kind: Any = "text", sequence: int = 1) -> Episode:
    return make.episode(text, kind=kind, at=SAID_AT, sequence=sequence)


def cut(text: str, tokens: int, overlap: int = 0, kind: Any = "text") -> list[str]:
    """Return the texts of the units."""
    return [unit.text for unit in text_units(episode(text, kind), UnitSize(tokens, overlap))]


@settings(max_examples=tries(300), deadline=None)
@given(text=TEXTS, size=SIZES)
def test_units_are_parts_of_the_text_and_cover_it(text, size):
    units = text_units(episode(text), size)

    assert [unit.text for unit in units] == [text[unit.start : unit.end] for unit in units]
    covered = set().union(*(range(unit.start, unit.end) for unit in units))
    assert [c for place, c in enumerate(text) if place not in covered and not c.isspace()] == []
    places = [(unit.start, unit.end) for unit in units]
    assert places == sorted(places)
    assert len({unit.end for unit in units}) == len(units)


@settings(max_examples=tries(300), deadline=None)
@given(text=TEXTS, size=SIZES)
def test_only_a_unit_with_a_single_long_word_exceeds_its_size(text, size):
    units = text_units(episode(text), size)

    large = [unit.text for unit in units if count_tokens(unit.text) > size.tokens]
    assert [unit for unit in large if len(unit.split()) > 1] == []
    for first_unit, next_unit in pairwise(units):
        assert count_tokens(text[next_unit.start : first_unit.end].strip()) <= size.overlap


@settings(max_examples=tries(200), deadline=None)
@given(text=TEXTS, place=st.integers(0, 300))
def test_parts_of_a_text_cost_at_least_as_much_as_the_whole(text, place):
    """Else a unit could exceed its size, which is the sum of its words' costs."""
    words = re.findall(r"\S+|\s+", text)
    assert sum(map(cost_of, words)) >= cost_of(text)
    assert cost_of(text[:place]) + cost_of(text[place:]) >= cost_of(text)


@settings(max_examples=tries(100), deadline=None)
@given(
    items=st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
            ),
            max_leaves=5,
        ),
        min_size=1,
        max_size=30,
    ),
    indent=st.sampled_from([None, 2]),
    tokens=st.integers(5, 60),
)
def test_a_json_list_is_cut_into_lists_of_whole_items(items, indent, tokens):
    text = json.dumps(items, ensure_ascii=False, indent=indent)
    units = text_units(episode(text, "json"), UnitSize(tokens, tokens - 1))
    parts = [json.loads(unit.text) for unit in units]

    assert [item for part in parts for item in part] == items
    assert [
        part
        for part, unit in zip(parts, units, strict=True)
        if count_tokens(unit.text) > tokens and len(part) > 1
    ] == []
    if len(units) > 1:  # between its own brackets, a unit is a stretch of the text
        assert [unit.text[1:-1] for unit in units] == [text[unit.start + 1 : unit.end - 1] for unit in units]


SENTENCES = [f"Sentence number {n} is here." for n in range(1, 9)]


@pytest.mark.parametrize(
    ("text", "tokens", "overlap", "units"),
    [
        pytest.param("Short.", 8, 4, ["Short."], id="a short text is one unit"),
        pytest.param(
            " ".join(SENTENCES[:3]) + "\n\n" + " ".join(SENTENCES[3:5]),
            26,
            0,
            [" ".join(SENTENCES[:3]), " ".join(SENTENCES[3:5])],
            id="a paragraph ends a unit before a later sentence does",
        ),
        pytest.param(
            " ".join(SENTENCES[:4]),
            16,
            0,
            [" ".join(SENTENCES[:2]), " ".join(SENTENCES[2:4])],
            id="a sentence ends a unit before a later word does",
        ),
        pytest.param(
            " ".join(SENTENCES[:4]),
            18,
            9,
            [" ".join(SENTENCES[:2]), " ".join(SENTENCES[1:3]), " ".join(SENTENCES[2:4])],
            id="a unit begins with the last sentence of the one before it",
        ),
        pytest.param(
            "one two three four five six", 3, 1, ["one two three", "three four five", "five six"], id="words"
        ),
        pytest.param("我住在柏林" * 3, 6, 0, ["我住在柏林我住", "在柏林我住在柏", "林"], id="no spaces"),
        pytest.param("a " + "https://example.org/" + "x" * 200 + " b", 10, 2, None, id="a word is never cut"),
    ],
)
def test_a_text_is_cut_at_the_expected_places(text, tokens, overlap, units):
    assert cut(text, tokens, overlap) == (units or text.split())


def test_a_json_record_that_is_not_a_list_is_not_cut():
    text = canonical({"name": "Desk", "notes": ["a long note " * 50]})

    assert cut(text, 20, 0, "json") == [text]
    assert cut("[1, 2", 1, 0, "json") == ["[1, 2"]
    assert cut("[]", 1, 0, "json") == ["[]"]
    assert cut(canonical([{"source": "A"}] * 50), 20, 0, "triples") == [canonical([{"source": "A"}] * 50)]


def test_previous_texts_of_a_unit_are_limited_to_the_length_of_a_unit():
    previous = [episode(f"Old text {n}. " + "It goes on and on. " * 3, sequence=n) for n in (1, 2, 3)]
    size = UnitSize(30, 0)
    request = ExtractionRequest(episode=episode(" ".join(SENTENCES)), previous=tuple(previous))

    requests = [request for _, request in unit_requests(request, size)]

    output = [[each.text for each in request.previous] for request in requests]
    assert len(requests) > 1
    assert output == [["It goes on and on.", previous[2].text]] * len(requests)
    assert [each.id for each in requests[0].previous] == ["e2", "e3"]
    assert unit_requests(request, None) == [(TextUnit(request.episode.text, 0), request)]


def test_a_question_includes_the_unit_with_its_item():
    long = episode(" ".join(f"Here {name} works. Nothing else is said." for name in ("Ann", "Bob", "Cid")))
    size = UnitSize(10, 0)

    assert excerpt(long, size, ["Bob"]).text == "Here Bob works. Nothing else is said."
    assert excerpt(long, size, ["nobody"]).text == "Here Ann works. Nothing else is said."
    assert excerpt(long, None, ["Bob"]) is long
    assert excerpt(long, UnitSize(1000, 0), ["Bob"]) is long


# ------------------------------------------------------------------- extractions of units as one

NAMES = [f"{first} {last}" for first in ("Ann", "Bob", "Cid", "Dana") for last in ("Lee", "Fox", "Ray")]
ITEM_SENTENCE = re.compile(
    r"(?<=\[)([A-Z]\w+ [A-Z]\w+) knows ([A-Z]\w+ [A-Z]\w+) well, as item (\d+) says(?=\])"
)


def perfect(read: Episode, cost: int = 1) -> Extraction:
    """Return the extraction of a reader that reads only whole sentences."""
    facts = [
        {"source": a, "target": b, "relation": "KNOWS", "fact": f"{a} knows {b} by item {n}"}
        for a, b, n in ITEM_SENTENCE.findall(read.text)
    ]
    listed = list(dict.fromkeys(name for fact in facts for name in (fact["source"], fact["target"])))
    reply = {"entities": [{"name": name, "type": "Person"} for name in listed], "facts": facts}
    extraction = parse_extraction(reply, read)
    return Extraction(
        entities=extraction.entities,
        facts=extraction.facts,
        model="perfect",
        prompts=("p",),
        calls=cost,
        prompt_tokens=7,
    )


STORY = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).filter(lambda pair: pair[0] != pair[1]),
    min_size=2,
    max_size=40,
).map(lambda pairs: [f"[{a} knows {b} well, as item {n} says]." for n, (a, b) in enumerate(pairs)])


@settings(max_examples=tries(150), deadline=None)
@given(sentences=STORY, tokens=st.integers(45, 90), overlap=st.integers(0, 44), lines=st.booleans())
def test_units_and_the_complete_text_give_the_same_facts(sentences, tokens, overlap, lines):
    complete_result = episode(("\n\n" if lines else " ").join(sentences))
    units = text_units(complete_result, UnitSize(tokens, overlap))
    extraction = joined([(unit, perfect(episode(unit.text))) for unit in units])
    at_once = perfect(complete_result)

    assert (extraction.entities, extraction.facts) == (at_once.entities, at_once.facts)
    assert (extraction.calls, extraction.prompt_tokens, extraction.prompts) == (
        len(units),
        7 * len(units),
        ("p",),
    )


def reading(text: str, facts: list[dict[str, Any]], dropped: tuple[str, ...] = ()) -> Extraction:
    extraction = parse_extraction({"entities": [], "facts": facts}, episode(text))
    return Extraction(entities=extraction.entities, facts=extraction.facts, dropped=dropped)


def test_a_fact_in_the_overlap_is_counted_once_in_any_wording():
    first, second = TextUnit("Ann plays. Ann leads Rex.", 0), TextUnit("Ann leads Rex. Rex sings.", 11)
    leads = {"source": "Ann", "relation": "LEADS", "target": "Rex"}

    extraction = joined(
        [
            (first, reading(first.text, [{**leads, "fact": "Ann leads Rex"}], ("facts[1]: bad",))),
            (
                second,
                reading(second.text, [{**leads, "fact": "ann is the leader of rex"}], ("facts[0]: bad",)),
            ),
        ]
    )

    assert [fact.text for fact in extraction.facts] == ["Ann leads Rex"]
    assert [(entity.name, entity.span) for entity in extraction.entities] == [
        ("Ann", (0, 3)),
        ("Rex", (21, 24)),
    ]
    assert extraction.dropped == ("unit 1 of 2: facts[1]: bad", "unit 2 of 2: facts[0]: bad")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"fact": "Ann leads Rex part-time"}, id="another variant"),
        pytest.param({"kind": "denied"}, id="another kind"),
        pytest.param({"valid_at": "2020"}, id="another date"),
        pytest.param({"relation": "KNOWS"}, id="another relation"),
        pytest.param({"source": "Rex", "target": "Ann"}, id="the other direction"),
        pytest.param({"source": "Bob"}, id="another subject"),
    ],
)
def test_a_different_fact_of_the_overlap_is_kept(change):
    text = "Ann leads Rex. Bob too."
    leads = {"source": "Ann", "relation": "LEADS", "target": "Rex", "fact": "Ann leads Rex"}
    units = [TextUnit(text, 0), TextUnit(text, 0)]

    extraction = joined(
        [(units[0], reading(text, [leads])), (units[1], reading(text, [{**leads, **change}]))]
    )

    assert len(extraction.facts) == 2


def test_equal_facts_outside_the_overlap_are_both_kept():
    first, second = TextUnit("Ann leads Rex.", 0), TextUnit("It is Ann who leads Rex.", 20)
    leads = {"source": "Ann", "relation": "LEADS", "target": "Rex"}

    extraction = joined(
        [
            (first, reading(first.text, [{**leads, "fact": "Ann leads Rex"}])),
            (second, reading(second.text, [{**leads, "fact": "It is Ann who leads Rex"}])),
        ]
    )

    assert len(extraction.facts) == 2
