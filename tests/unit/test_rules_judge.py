"""The judge without a model: names and sentences compared by rules, and a key that is the questions (R21)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.models.prompting.replies import COMPARISONS, parse_answer
from kgray.models.rules import RulesJudge
from kgray.models.rules.comparing import compare_sentences
from kgray.ports import Judged, Question, QuestionRequest
from tests import make

EPISODE = make.episode()


def request_of(*questions: Question) -> QuestionRequest:
    return QuestionRequest(episode=EPISODE, questions=questions)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (Question(kind="entity", item="Alice", candidates=("Alicia", "Malice")), {"duplicate_of": None}),
        (Question(kind="entity", item="alice", candidates=("Alicia", "Alice")), {"duplicate_of": 1}),
        (Question(kind="entity", item="Alice", candidates=("Alice", "ALICE")), {"duplicate_of": None}),
        (Question(kind="compare", item="a", candidates=("b", "c")), {"answers": ["independent"] * 2}),
    ],
)
async def test_each_kind_of_question_gets_a_valid_answer(question, answer):
    judged = await RulesJudge().judge(request_of(question))

    assert judged == Judged(answers=(answer,))
    assert parse_answer(question, answer) == answer


async def test_answers_are_in_the_order_of_the_questions():
    compare = Question(kind="compare", item="Alice left Acme", candidates=("Alice works at Acme",))
    entity = Question(kind="entity", item="A", candidates=("A",))

    answers = ({"answers": ["ends"]}, {"duplicate_of": 0})
    assert (await RulesJudge().judge(request_of(compare, entity))).answers == answers
    assert (await RulesJudge().judge(request_of(entity, compare))).answers == answers[::-1]


@pytest.mark.parametrize(
    ("sentence", "candidate", "word"),
    [
        ("Alice is a member of the choir", "Alice is member of choir.", "same"),
        ("Alice works at Acme now", "alice works at ACME", "same"),
        ("Alice reports to Bob", "Bob reports to Alice", "independent"),
        ("Alice moved to Oslo", "Alice moved from Oslo", "independent"),
        ("The desk costs 90 EUR", "The desk costs 80 EUR", "independent"),
        ("Alice left Acme", "Alice works at Acme", "ends"),
        ("Alice left Acme in May", "Alice works for Acme", "ends"),
        ("Alice has just left Acme", "Alice works for Acme", "ends"),
        ("Alice never left Acme", "Alice works for Acme", "independent"),
        ("Alice left Acme", "Alice never works for Acme", "independent"),
        ("Alice quit the rowing club", "Alice trains with the rowing club", "ends"),
        ("Alice sold her van", "Alice owns a van", "ends"),
        ("Alice moved from Oslo to Bergen", "Alice lives in Oslo", "ends"),
        ("Alice divorced Bob", "Bob is married to Alice", "ends"),
        ("Alice retired as head of design", "Alice is head of design", "ends"),
        ("Alice no longer works at Acme", "Alice works at Acme", "ends"),
        ("Alice works at Acme", "Alice no longer works at Acme", "independent"),
        ("Alice left Acme Labs", "Alice works at Acme", "independent"),
        ("Alice left Acme", "Alice works at Acme Labs", "independent"),
        ("Alice left Acme", "Bob works at Acme", "independent"),
        ("Acme left Alice", "Alice works at Acme", "independent"),
        ("Alice sold her van", "Alice likes her van", "independent"),
        ("Alice sold Acme", "Alice works at Acme", "independent"),
        ("Alice moved from Oslo", "Alice likes Oslo", "independent"),
        ("Alice left", "Alice works at Acme", "independent"),
        ("Alice doesn't like tea", "Alice likes tea", "contradicts"),
        ("Alice likes tea", "Alice does not like tea", "contradicts"),
        ("Alice never drinks coffee", "Alice drinks coffee", "contradicts"),
        ("Alice never drinks coffee", "Alice does not drink coffee", "independent"),
        ("Alice doesn't like tea", "Alice likes coffee", "independent"),
        ("I don't like tea", "I like tea", "independent"),  # two speakers may have said them
        ("She left Acme", "She works at Acme", "independent"),
        ("Alice lives in Oslo", "Alice lives in Bergen", "independent"),
        ("", "", "same"),
    ],
)
def test_two_sentences_are_compared_by_their_words(sentence, candidate, word):
    assert compare_sentences(sentence, candidate) == word


async def test_only_the_oldest_of_two_equal_sentences_is_the_same():
    question = Question(kind="compare", item="Alice likes tea", candidates=("alice likes tea",) * 2)

    assert (await RulesJudge().judge(request_of(question))).answers == ({"answers": ["same", "independent"]},)


WORD = st.sampled_from("Alice Bob Acme left works at sold owns is no longer not the".split())


@given(st.lists(WORD, max_size=6), st.lists(WORD, max_size=6))
def test_any_two_sentences_get_a_valid_comparison(first, second):
    """Equality has no direction, and every sentence equals itself."""
    forward, backward = (
        compare_sentences(" ".join(first), " ".join(second)),
        compare_sentences(" ".join(second), " ".join(first)),
    )

    assert {forward, backward} <= set(COMPARISONS)
    assert (forward == "same") == (backward == "same")
    assert compare_sentences(" ".join(first), " ".join(first)) == "same"


def test_the_key_depends_on_the_questions_and_not_on_the_episode():
    """R21: equal questions have one key, whichever episode asks; any other text has another."""
    judge = RulesJudge()
    question = Question(kind="entity", item="Alice", candidates=("Alicia",), cards=("Alice", "Alicia"))
    elsewhere = QuestionRequest(
        episode=make.episode("x", group="h", sequence=9, at=5, content_sha256="y"),
        questions=(question,),
    )
    key = judge.key(request_of(question))

    assert judge.key(elsewhere) == key
    assert len(key) == 64
    variants = [
        Question(kind="compare", item="Alice", candidates=("Alicia",), cards=("Alice", "Alicia")),
        Question(kind="entity", item="Alice", candidates=("Alicia",), cards=("Alice", "Alicia B")),
        Question(kind="entity", item="Alice", candidates=("Alicia", "Al"), cards=("Alice", "Alicia")),
    ]
    assert (
        len(
            {
                key,
                *(judge.key(request_of(item)) for item in variants),
                judge.key(request_of(question, question)),
            }
        )
        == 5
    )
