"""The measures themselves, on graphs small enough to count by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from bench import scoring
from bench.reading import ShownGraph
from bench.scoring import Matched, Scores
from kgray.domain import times
from kgray.domain.graph import Fact
from tests import make
from tests.world import ToldFact, TrueFact, Truth, WorldEpisode
from tests.world.questions import WorldQuestion, true_answers
from tests.world.truth import TrueKey

ZERO = times.parse("2026-01-01")[0]


def day(number: float) -> int:
    return ZERO + round(number * times.DAY)


def fact(target: str, start: float | None, end: float | None = None, statement: str = "") -> Fact:
    name = f"{target}{start}"
    return Fact(
        id=name,
        statement=statement or target,
        source="E1",
        relation="WORKS_AT",
        text=name,
        created_at=0,
        target=target,
        valid_at=None if start is None else day(start),
        invalid_at=None if end is None else day(end),
    )


def true(target: str, start: float | None, end: float | None = None) -> TrueFact:
    return TrueFact(
        key=("alice", "WORKS_AT", target),
        valid_at=None if start is None else day(start),
        invalid_at=None if end is None else day(end),
        episodes=(),
    )


@dataclass
class FixedTruth:
    """The facts of a truth, given as they are."""

    facts_given: list[TrueFact] = field(default_factory=list)
    named_ends: set[tuple[TrueKey, int]] = field(default_factory=set)

    def facts(self) -> list[TrueFact]:
        return self.facts_given


MATCHED = Matched({"E1": "alice", "A": "acme", "B": "beta"}, {"alice": "E1", "acme": "A", "beta": "B"})


def scored(facts: list[Fact], true_facts: list[TrueFact]) -> Scores:
    scores = Scores()
    truth: Any = FixedTruth(true_facts)
    scoring.score_facts(ShownGraph(facts=facts), MATCHED, truth, scores)
    return scores


def test_a_correct_graph_gets_full_marks():
    scores = scored([fact("A", 0, 60), fact("B", 60)], [true("acme", 0, 60), true("beta", 60)])

    assert (scores.fact_recall, scores.fact_precision, scores.duplicate_rate) == (1, 1, 0)
    assert (scores.ended, scores.inv_recall, scores.inv_precision, scores.boundary_error_days) == (1, 1, 1, 0)
    assert scores.faults == []


def test_a_missed_end_lowers_recall_and_an_extra_end_lowers_precision():
    missed = scored([fact("A", 0), fact("B", 60)], [true("acme", 0, 60), true("beta", 60)])
    added = scored([fact("A", 0, 60), fact("B", 60, 90)], [true("acme", 0, 60), true("beta", 60)])

    assert (missed.inv_recall, missed.inv_precision) == (0, 1)
    assert (added.inv_recall, added.inv_precision) == (1, 0.5)
    assert len(missed.faults) == len(added.faults) == 1


def test_an_end_on_another_day_is_wrong_and_its_error_is_measured():
    scores = scored([fact("A", 0, 50)], [true("acme", 0, 60)])

    assert (scores.inv_recall, scores.inv_precision, scores.boundary_error_days) == (0, 0, 10)


def test_the_spans_of_one_statement_are_paired_by_their_starts():
    true_facts = [true("acme", 0, 60), true("acme", 120)]

    assert scored([fact("A", 120), fact("A", 0, 60)], true_facts).fact_recall == 1
    late = scored([fact("A", 120), fact("A", 10, 60)], true_facts)
    assert (late.fact_recall, late.facts) == (0.5, 2)


def test_a_repeated_statement_is_a_duplicate():
    scores = scored([fact("A", 0, statement="s1"), fact("A", 5, statement="s2")], [true("acme", 0)])

    assert (scores.duplicate_rate, scores.fact_precision) == (0.5, 0.5)


def test_a_fact_about_an_unknown_entity_is_not_a_hit():
    scores = scored([fact("X", 0)], [true("acme", 0)])

    assert (scores.fact_recall, scores.fact_precision) == (0, 0)


def test_a_fact_is_recognised_under_each_name_and_from_either_end():
    """The same fact under three statement names: one is right, two are duplicates."""
    synonym = replace(fact("A", 0, 60, statement="s1"), relation="IS_EMPLOYED_AT")
    turned = replace(fact("E1", 60, statement="s2"), source="B", relation="EMPLOYS")
    true_facts = [true("acme", 0, 60), true("beta", 60)]
    questions = [WorldQuestion(("alice", "WORKS_AT"), day(at)) for at in (10, 70)]

    scores = scored([synonym, turned], true_facts)
    twice = scored([synonym, turned, fact("B", 60, statement="s3")], true_facts)

    assert (scores.fact_recall, scores.fact_precision, scores.inv_recall, scores.duplicate_rate) == (
        1,
        1,
        1,
        0,
    )
    assert (twice.fact_recall, twice.fact_precision, twice.duplicate_rate) == (1, 2 / 3, 1 / 3)
    answers = scoring.graph_answers(ShownGraph(facts=[synonym, turned]), MATCHED, questions)
    assert answers == [{"acme"}, {"beta"}]


def test_a_symmetric_fact_is_recognised_from_either_end():
    people = Matched({"P0": "person-0-0", "P1": "person-0-1"}, {"person-0-0": "P0", "person-0-1": "P1"})
    married = TrueFact(
        key=("person-0-0", "MARRIED_TO", "person-0-1"), valid_at=day(0), invalid_at=None, episodes=()
    )
    questions = [WorldQuestion(("person-0-0", "MARRIED_TO"), day(1))]
    for source, target in ("P0", "P1"), ("P1", "P0"):
        output = replace(fact(target, 0), source=source, relation="IS_WED_TO")
        scores = Scores()
        scoring.score_facts(ShownGraph(facts=[output]), people, FixedTruth([married]), scores)  # type: ignore[arg-type]
        assert (scores.fact_recall, scores.fact_precision) == (1, 1)
        answers = scoring.graph_answers(ShownGraph(facts=[output]), people, questions)
        assert answers == [{"person-0-1"}]


@pytest.mark.parametrize(
    ("end", "recall", "precision"),
    [
        pytest.param(31, 1, 1, id="ended-on-its-day"),
        pytest.param(None, 0, 1, id="still-open"),
        pytest.param(90, 0, 0, id="ended-on-another-day"),
    ],
)
def test_an_end_with_its_own_name_must_end_the_state(end, recall, precision):
    """The record of the end ("left", from then on) is no fact of the world, and does not count for it."""
    departure = replace(fact("A", 31, statement="left"), relation="LEFT")
    truth: Any = FixedTruth([true("acme", 0, 31)], {(("alice", "WORKS_AT", "acme"), day(31))})
    scores = Scores()

    scoring.score_facts(ShownGraph(facts=[fact("A", 0, end), departure]), MATCHED, truth, scores)

    assert (scores.named_ends, scores.named_end_recall) == (1, recall)
    assert (scores.inv_recall, scores.inv_precision, scores.fact_precision) == (recall, precision, 1)
    questions = [WorldQuestion(("alice", "WORKS_AT"), day(40))]
    answers = scoring.graph_answers(ShownGraph(facts=[departure]), MATCHED, questions)
    assert answers == [frozenset()]


def test_an_end_beside_its_open_state_is_an_error():
    """A reader called it an end, no state was found for it, and it made a span of its own."""
    departure = replace(fact("A", None, 31, statement="left"), relation="LEFT")

    scores = scored([fact("A", 0), departure], [true("acme", 0, 31)])

    assert (scores.inv_recall, scores.inv_precision) == (0, 0)


def test_an_answer_is_right_only_if_complete():
    questions = [WorldQuestion(("alice", "WORKS_AT"), day(at)) for at in (10, 70, 100)]
    facts = [true("acme", 0, 60), true("beta", 60)]
    graph = ShownGraph(facts=[fact("A", 0), fact("B", 60)])

    right, answers = true_answers(facts, questions), scoring.graph_answers(graph, MATCHED, questions)

    assert right == [{"acme"}, {"beta"}, {"beta"}]
    assert answers == [{"acme"}, {"acme", "beta"}, {"acme", "beta"}]
    assert scoring.accuracy(right, answers) == pytest.approx(1 / 3)
    assert scoring.stale(facts, questions, answers) == pytest.approx(2 / 3)


def test_mention_scores_use_pairs_and_single_mentions():
    """Three mentions of alice, with a wrong split, and two of bob: 4 pairs are true, the graph has 2."""
    surfaces = [
        ("Alice", "E1", "alice"),
        ("A.", "E1", "alice"),
        ("Ally", "E2", "alice"),
        ("Bob", "E3", "bob"),
        ("B.", "E3", "bob"),
    ]
    mentions = [(f"e{n}", surface, entity) for n, (surface, entity, _) in enumerate(surfaces, start=1)]
    names = {"E1": ["Alice", "A."], "E2": ["Ally"], "E3": ["Bob", "B."]}
    scores = Scores()

    graph = ShownGraph(facts=[], mentions=mentions, names=names)
    matched = scoring.match_entities(graph, truth_of(surfaces), scores)

    assert (scores.mentions, scores.mention_recall) == (5, 1)
    assert (scores.er_precision, scores.er_recall) == (1, 0.5)
    assert scores.er_f1 == pytest.approx(2 / 3)
    complete = (2 * 2 / 3 + 1 / 3 + 2) / 5
    assert scores.er_bcubed_f1 == pytest.approx(2 * complete / (1 + complete))
    assert (matched.true_of, matched.best) == (
        {"E1": "alice", "E2": "alice", "E3": "bob"},
        {"alice": "E1", "bob": "E3"},
    )
    assert scores.faults == ["entity: 1 of alice in ['Ally'], beside ['Alice', 'A.']"]


def truth_of(surfaces: list[tuple[str, str, str]]) -> Truth:
    readings: list[tuple[WorldEpisode, tuple[ToldFact, ...]]] = []
    for n, (surface, _, entity) in enumerate(surfaces, start=1):
        draft = make.draft(surface, at=n, client_id=f"e{n}")
        readings.append((WorldEpisode(draft=draft, said=(), mentions=((surface, entity, "Person"),)), ()))
    return Truth.of_readings([], readings)
