"""Stated truth: the timeline over all stated facts, with true identities (R6-R12)."""

from __future__ import annotations

from dataclasses import replace

from kgray.domain import times
from kgray.domain.records import Draft
from tests.world import ToldFact, Truth, World, WorldEpisode
from tests.world.questions import rounds, slots_of, true_answers

ZERO = times.parse("2026-01-01")[0]


def day(number: int) -> int:
    return ZERO + number * times.DAY


def iso(number: int) -> str:
    return str(times.show(day(number)))[:10]


def claim(
    at: int, target: str, kind: str = "holds", **dates: str
) -> tuple[WorldEpisode, tuple[ToldFact, ...]]:
    stated = ToldFact(
        subject="alice",
        relation="WORKS_AT",
        text=f"at {target}",
        kind=kind,
        source="A",
        object=target,
        **dates,
    )
    draft = Draft(
        group="g",
        source="s",
        kind="text",
        text=f"{at} {target}",
        reference_time=day(at),
        client_id=f"{at}-{target}",
    )
    return WorldEpisode(draft=draft, said=(stated,), mentions=()), (stated,)


def spans(*readings: tuple[WorldEpisode, tuple[ToldFact, ...]], known_at: int | None = None) -> set[tuple]:
    facts = Truth.of_readings([], readings).facts(known_at)
    return {(f.key[2], _number(f.valid_at), _number(f.invalid_at)) for f in facts}


def _number(instant: int | None) -> int | None:
    return None if instant is None else (instant - ZERO) // times.DAY


def test_a_change_ends_the_previous_state():
    """Case a."""
    assert spans(claim(0, "acme"), claim(60, "beta")) == {("acme", 0, 60), ("beta", 60, None)}


def test_a_return_opens_a_second_span():
    """Case b."""
    result = spans(claim(0, "acme"), claim(60, "beta"), claim(120, "acme"))

    assert result == {("acme", 0, 60), ("acme", 120, None), ("beta", 60, 120)}


def test_an_interrupted_span_resumes_after_the_interruption():
    """Case q."""
    result = spans(claim(25, "acme", since=iso(18)), claim(26, "beta", since=iso(21), until=iso(22)))

    assert result == {("acme", 18, 21), ("beta", 21, 22), ("acme", 22, None)}


def test_a_denial_cancels_earlier_claims():
    """Case t."""
    result = spans(claim(0, "acme"), claim(50, "acme"), claim(80, "acme", "denied"), claim(90, "acme"))

    assert result == {("acme", 90, None)}


def test_an_end_without_a_start_has_an_unknown_start():
    """Case v; an unknown start of a current state is the same."""
    assert spans(claim(90, "acme", "ended")) == {("acme", None, 90)}
    assert spans(claim(90, "acme", since="unknown")) == {("acme", None, None)}


def test_an_end_with_its_own_name_ends_the_state():
    departure = (
        replace(claim(90, "acme", "ended", until=iso(31))[1][0], name="LEFT", reported_as="happened"),
    )
    episode = claim(90, "acme")[0]
    truth = Truth.of_readings([], (claim(0, "acme"), (episode, departure)))

    assert [(f.key, _number(f.invalid_at)) for f in truth.facts()] == [(("alice", "WORKS_AT", "acme"), 31)]
    assert truth.named_ends == {(("alice", "WORKS_AT", "acme"), day(31))}


def test_known_at_is_a_number_of_episodes():
    readings = (claim(0, "acme"), claim(60, "beta"))

    assert spans(*readings, known_at=1) == {("acme", 0, None)}
    assert spans(*readings, known_at=2) == spans(*readings)


def test_a_single_valued_slot_has_one_object_at_a_time():
    world = World(seed=2, episodes=300)
    facts = [f for f in world.truth().facts() if f.key[1] == "WORKS_AT"]
    for subject in {f.key[0] for f in facts}:
        for number in range(0, 120, 3):
            at = world.plan.start + number * times.DAY
            assert sum(f.key[0] == subject and f.holds_at(at) for f in facts) <= 1


def test_questions_are_answered_by_the_facts_known_at_their_time():
    world = World(seed=2, episodes=120)
    truth = world.truth()
    for questions in rounds(truth, 2, world.end()):
        facts = truth.facts(questions.known_at)
        for question, answer in zip(questions.asked, true_answers(facts, questions.asked), strict=True):
            true_objects = {f.key[2] for f in facts if f.key[:2] == question.slot and f.holds_at(question.at)}
            assert answer == true_objects


def test_questions_cover_every_slot_and_are_repeatable():
    truth, end = World(seed=2, episodes=120).truth(), World(seed=2, episodes=120).end()
    first, second_result = list(rounds(truth, 2, end)), list(rounds(truth, 2, end))

    assert first == second_result
    assert [r.kind for r in first] == ["now", "as-of", *["as-known"] * 8]
    slots = slots_of(truth.facts())
    assert [q.slot for q in first[0].asked] == [q.slot for q in first[1].asked] == slots
    assert [r.known_at for r in first[2:]] == [13, 26, 40, 53, 66, 80, 93, 106]
