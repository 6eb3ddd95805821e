"""The parts of `Memory.ask` without a model: levels of communities, ratings, a conversation, keywords."""

from __future__ import annotations

import pytest

from kgray.domain.graph import Community
from kgray.errors import InputError
from kgray.memory.asking import AnswerOptions, newest, own_keywords, query_of, turns_of
from kgray.memory.report_points import fitting_reports, of_level


def community(name, level, parent=None, *, rating=None, size=3):
    """Return a community; a rating of None is that of a text without a model."""
    report = {} if rating is None else {"rating": rating}
    return Community(
        run=1, id=name, level=level, parent=parent, size=size, name=name, summary="They know one another.",
        report=report, writer="", content="", members=(), sources=b"", vector=b"",
    )  # fmt: skip


# Two trees of three levels, a tree of two, and a circle that is in no larger one.
FOREST = [
    community("top", 2), community("left", 1, "top"), community("right", 1, "top"),
    community("a", 0, "left"), community("b", 0, "left"), community("c", 0, "right"),
    community("pair", 1), community("d", 0, "pair"), community("alone", 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("level", "names"),
    [
        pytest.param(None, {"top", "pair", "alone"}, id="the-top"),
        pytest.param(2, {"top", "pair", "alone"}, id="the-coarsest"),
        pytest.param(1, {"left", "right", "pair", "alone"}, id="between-with-what-ends-below"),
        pytest.param(0, {"a", "b", "c", "d", "alone"}, id="the-finest"),
    ],
)
def test_a_level_covers_every_entity_once(level, names):
    assert {item.id for item in of_level(FOREST, level)} == names


def test_an_unknown_level_is_refused_with_a_list_of_the_levels():
    with pytest.raises(
        InputError, match="level 3 is unknown: the group has communities of the levels 0, 1, 2"
    ):
        of_level(FOREST, 3)


def test_reports_are_sorted_by_rating_and_low_ratings_are_omitted():
    rated = [
        community("low", 0, rating=2), community("high", 0, rating=9), community("fair", 0, rating=5),
        community("none", 0), community("large", 0, rating=5, size=9),
    ]  # fmt: skip
    read, left_out = fitting_reports(rated, 5, 10_000)
    assert ([item.id for item in read], left_out) == (["high", "large", "fair", "none"], 0)
    read, left_out = fitting_reports(rated, 0, 1)
    assert ([item.id for item in read], left_out) == (["high"], 4), "one is read, whatever the budget"


def test_only_the_newest_turns_that_fit_are_sent():
    turns = turns_of(
        {"role": role, "content": text}
        for role, text in (("user", "one two three"), ("assistant", "four [1]."), ("user", "five"))
    )
    assert [turn["content"] for turn in newest(turns, 1000)] == ["one two three", "four.", "five"]
    assert [turn["content"] for turn in newest(turns, 6)] == ["four.", "five"]
    assert newest(turns, 0) == []
    assert query_of("six", turns) == "six\nfive\none two three"


@pytest.mark.parametrize("row", ["text", {"role": "system", "content": "x"}, {"role": "user"}, None])
def test_a_malformed_turn_is_refused(row):
    with pytest.raises(InputError, match="history, turn 1: use"):
        turns_of([row])


@pytest.mark.parametrize(
    ("question", "high", "low"),
    [
        ("Where does Alice work?", ("work",), ("Alice",)),
        ("Wo arbeitet Alice in Berlin?", ("arbeitet",), ("Alice", "Berlin")),
        ("what was said on 2026?", ("said",), ("2026",)),
        ("?", (), ()),
    ],
)
def test_keywords_are_taken_from_the_question_without_a_model(question, high, low):
    assert own_keywords(question) == (high, low)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"mode": "dual"}, "mode 'dual' is unknown: use local, keywords, global, drift"),
        ({"suggest": 21}, "suggest is 21: use 0 to 20"),
        ({"min_rating": 11}, "min_rating is 11: use 0 to 10"),
        ({"report_tokens": 5}, "report_tokens is 5: use 100 to 100000000"),
        ({"high": ["work"]}, "mode local takes no keywords: use mode keywords"),
    ],
)
def test_invalid_answer_options_get_a_clear_error(options, line):
    with pytest.raises(InputError) as refused:
        AnswerOptions(**options)
    assert str(refused.value) == line
