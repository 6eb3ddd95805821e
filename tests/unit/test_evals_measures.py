"""The measures of retrieval, against numbers that were worked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.evals import retrieval as measures
from kgray.evals.retrieval import (
    Question,
    Result,
    is_repeated,
    mean,
    of_context,
    of_ranking,
    percentile,
    report,
    words,
)

RANKING = [{"x"}, {"a"}, set(), {"b", "c"}, {"a"}]


def test_the_marks_of_a_ranking_equal_values_worked_by_hand():
    """Evidence a, b, c, d: a is found at 2, b and c by one hit at 4, d never."""
    result = of_ranking(RANKING, ["a", "b", "c", "d"], (1, 2, 4))

    ideal = [1, 1 / math.log2(3), 1 / math.log2(4), 1 / math.log2(5)]
    assert result == {
        "fraction@1": 0.0,
        "any@1": 0.0,
        "all@1": 0.0,
        "ndcg@1": 0.0,
        "fraction@2": 0.25,
        "any@2": 1.0,
        "all@2": 0.0,
        "ndcg@2": pytest.approx(ideal[1] / sum(ideal[:2])),
        "fraction@4": 0.75,
        "any@4": 1.0,
        "all@4": 0.0,
        "ndcg@4": pytest.approx((ideal[1] + ideal[3]) / sum(ideal)),
        "mrr": 0.5,
    }


def test_marks_are_one_with_all_evidence_at_the_top_and_zero_without_evidence():
    assert set(of_ranking([{"a"}, {"b"}], ["b", "a"], (2, 5)).values()) == {1.0}
    assert set(of_ranking([{"x"}], ["a"], (5,)).values()) == {0.0}
    assert set(of_ranking([], ["a"], (5,)).values()) == {0.0}


def test_a_question_without_evidence_is_refused():
    with pytest.raises(ValueError, match="evidence"):
        of_ranking([{"a"}], [])


@given(
    st.lists(st.sets(st.sampled_from("abcxyz"), max_size=3), max_size=12),
    st.sets(st.sampled_from("abcde"), min_size=1),
)
def test_marks_are_between_0_and_1_and_grow_with_depth(ranking, evidence):
    result = of_ranking(ranking, evidence, (1, 5, 12))

    assert all(0 <= value <= 1 + 1e-9 for value in result.values())
    for name in ("fraction", "any", "all"):
        assert result[f"{name}@1"] <= result[f"{name}@5"] <= result[f"{name}@12"]
    for depth in (1, 5, 12):
        assert result[f"all@{depth}"] <= result[f"fraction@{depth}"] <= result[f"any@{depth}"]
    assert (result["mrr"] > 0) == bool(result["any@12"])


# --------------------------------------------------------------------------------------------- contexts

CONTEXT = """What was said: [date] SPEAKER: TEXT
- [2024-03-09] Dee: my mum has joined a gym, she wears a headband
- [2024-03-10] Marcus: no idea what to do with the old green coat of"""


@pytest.mark.parametrize(
    ("message", "is_repetition"),
    [
        pytest.param("my mum has joined a gym. She wears a HEADBAND", True, id="as-it-was-said"),
        pytest.param("my mum has joined a gym and runs", True, id="six-of-eight-words"),
        pytest.param("my mum went away and wears things", False, id="three-of-seven-words"),
        pytest.param("a headband wears she gym a joined has", False, id="all-words-out-of-order"),
        pytest.param("old green coat", True, id="short-and-whole"),
        pytest.param("the green coat", False, id="short-and-torn-apart"),
        pytest.param("my mum has joined a what to do with it", False, id="two-lines-tell-half-each"),
        pytest.param("🎉", False, id="no-words"),
    ],
)
def test_a_line_repeats_a_message_if_it_has_three_fifths_of_its_words_in_order(message, is_repetition):
    assert is_repeated(message, [words(line) for line in CONTEXT.splitlines()]) is is_repetition


def test_a_context_includes_its_messages_and_the_sources_of_its_facts():
    evidence = {
        "m1": "my mum has joined a gym, she wears a headband",
        "m2": "she lifts a lot of it now",
        "m3": "?",
    }

    assert of_context(CONTEXT, (), evidence) == pytest.approx(1 / 3)
    assert of_context(CONTEXT, {"m2", "other"}, evidence) == pytest.approx(2 / 3)


@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abcd"), max_size=9))
def test_the_longest_common_subsequence_equals_the_textbook_algorithm(first, second):
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])

    assert measures._common(first, second) == table[-1][-1]


def test_words_are_casefolded_and_without_punctuation():
    assert words("He's 13 in JUNE! 🎉") == ["he", "s", "13", "in", "june"]


# ------------------------------------------------------------------------------------- many questions


def test_shares_have_a_wilson_interval():
    """8 of 10: Wilson's 95 % interval is 0.490 to 0.943 (Newcombe 1998 works it so)."""
    result = mean([1.0] * 8 + [0.0] * 2)

    assert result == {"mean": 0.8, "low": 0.4902, "high": 0.9433, "count": 10}
    assert mean([0.0] * 10)["low"] == 0.0
    assert mean([1.0] * 10)["high"] == 1.0


def test_other_values_have_a_deterministic_bootstrap_interval():
    values = [0.25, 0.5, 0.5, 0.75] * 25
    result = mean(values)

    assert result["mean"] == 0.5
    assert result == mean(values)
    # The standard error is 0.1768 / 10, so the interval is about 0.5 -+ 0.0347.
    assert result["low"] == pytest.approx(0.465, abs=0.008)
    assert result["high"] == pytest.approx(0.535, abs=0.008)
    assert mean([0.3, 0.3]) == {"mean": 0.3, "low": 0.3, "high": 0.3, "count": 2}


def test_a_mean_without_values_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        mean([])


def test_missing_measures_of_a_question_are_excluded_from_the_mean():
    question = Question(id="1", text="who?", type="any")
    rows = [
        Result(conversation="c", question=question, marks=marks)
        for marks in ({"a": 1.0, "b": 0.5}, {"a": 0.0})
    ]
    result = report(rows)["overall"]["measures"]

    means_and_counts = {name: (item["mean"], item["count"]) for name, item in result.items()}
    assert means_and_counts == {"a": (0.5, 2), "b": (0.5, 1)}


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2), (0.95, 4), (0.25, 1), (0.0, 1)])
def test_a_percentile_is_an_observed_value(share, expected):
    assert percentile([3, 1, 4, 2], share) == expected
