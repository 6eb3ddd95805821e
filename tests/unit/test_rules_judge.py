"""The judge without a model: fixed answers, and a key that is the questions (R17, R21)."""

from __future__ import annotations

import pytest

from kgray.backends.rules import RulesJudge
from kgray.ports import Judged, Question, QuestionRequest
from kgray.prompting.replies import parse_answer
from kgray.records import Episode

EPISODE = Episode(
    group="g", sequence=1, id="e", source="s", kind="text", text="", reference_time=0, content_sha256=""
)


def asked(*questions: Question) -> QuestionRequest:
    return QuestionRequest(episode=EPISODE, questions=questions)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (Question(kind="entity", item="Alice", candidates=("Alicia", "Malice")), {"duplicate_of": None}),
        (Question(kind="entity", item="alice", candidates=("Alicia", "Alice")), {"duplicate_of": 1}),
        (Question(kind="entity", item="Alice", candidates=("Alice", "ALICE")), {"duplicate_of": None}),
        (Question(kind="variant", item="a", candidates=("a", "b")), {"duplicate_of": None}),
        (Question(kind="relation", item="LIKES", candidates=("LOVES",)), {}),
        (Question(kind="cardinality", item="LIKES"), {"cardinality": "many"}),
        (Question(kind="verdict", item="a", candidates=("b", "c")), {"contradicts": []}),
    ],
)
async def test_each_kind_has_one_answer(question, answer):
    judged = await RulesJudge().judge(asked(question))

    assert judged == Judged(answers=(answer,))
    assert parse_answer(question, answer) == answer


async def test_answers_stand_in_the_order_of_the_questions():
    one, two = Question(kind="cardinality", item="A"), Question(kind="relation", item="A", candidates=("B",))

    assert (await RulesJudge().judge(asked(one, two))).answers == ({"cardinality": "many"}, {})
    assert (await RulesJudge().judge(asked(two, one))).answers == ({}, {"cardinality": "many"})


def test_the_key_is_the_questions_and_not_the_episode():
    """R21: equal questions have one key, whichever episode asks; any other text has another."""
    judge = RulesJudge()
    question = Question(kind="entity", item="Alice", candidates=("Alicia",), cards=("Alice", "Alicia"))
    elsewhere = QuestionRequest(
        episode=Episode(
            group="h",
            sequence=9,
            id="f",
            source="s",
            kind="text",
            text="x",
            reference_time=5,
            content_sha256="y",
        ),
        questions=(question,),
    )
    key = judge.key(asked(question))

    assert judge.key(elsewhere) == key
    assert len(key) == 64
    others = [
        Question(kind="variant", item="Alice", candidates=("Alicia",), cards=("Alice", "Alicia")),
        Question(kind="entity", item="Alice", candidates=("Alicia",), cards=("Alice", "Alicia B")),
        Question(kind="entity", item="Alice", candidates=("Alicia", "Al"), cards=("Alice", "Alicia")),
    ]
    assert (
        len({key, *(judge.key(asked(other)) for other in others), judge.key(asked(question, question))}) == 5
    )
