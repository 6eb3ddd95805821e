"""Generated conversations: repeatable, with correct evidence; and the plain searches."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime

import numpy as np
import pytest

from bench.plain_search import PlainBM25, Together, nearest, stems
from bench.retrieval import HANDMADE
from bench.talk import LONG, Shape, conversation
from bench.talk.making import SHARES
from bench.talk.topics import small_talk, topics
from kgray.evals.retrieval import Message, read_dataset

SMALL = Shape(turns=400, questions=60)


@pytest.fixture(scope="module")
def talk():
    return conversation(7, 0, SMALL)


def test_a_conversation_depends_only_on_its_number_and_seed(talk):
    assert conversation(7, 0, SMALL) == talk
    assert conversation(7, 1, SMALL).messages != talk.messages
    assert conversation(8, 0, SMALL).messages != talk.messages


def test_the_number_of_questions_does_not_change_the_messages(talk):
    """Ingested conversations can get more or fewer questions."""
    assert conversation(7, 0, Shape(turns=400, questions=10)).messages == talk.messages


def test_a_conversation_has_dated_sessions_of_two_friends(talk):
    moments = [datetime.fromisoformat(message.at) for message in talk.messages]
    sessions = Counter(message.session for message in talk.messages)

    assert len({message.speaker for message in talk.messages}) == 2
    assert len(talk.texts) == len(talk.messages) >= 400
    assert moments == sorted(moments)
    assert (moments[-1] - moments[0]).days > 20
    assert all(8 <= turns <= 50 for turns in sessions.values())
    assert not any("{" in message.text for message in talk.messages)


def test_many_people_talk_in_channels():
    talk = conversation(7, 4, Shape(people=7, turns=300))

    assert 5 <= len({message.speaker for message in talk.messages}) <= 7
    assert len({message.source for message in talk.messages}) > 1


def test_questions_of_every_type_have_the_evidence_that_their_type_needs(talk):
    kinds = Counter(question.type for question in talk.questions)
    speakers = {message.id: message.speaker for message in talk.messages}

    assert kinds.keys() == SHARES.keys()
    assert kinds["multi-hop"] == round(0.22 * 60)
    for question in talk.questions:
        assert not set("{}") & set(question.text)
        assert all(name in talk.texts for name in question.evidence)
        assert bool(question.evidence) == (question.type != "none")
        assert question.apart == (question.type in ("none", "adversarial"))
        if question.type == "multi-hop":
            assert 2 <= len(question.evidence) <= 5
        if question.type == "adversarial":
            assert all(speakers[name] not in question.text for name in question.evidence)


def test_a_long_conversation_has_adversarial_and_literal_questions():
    talk = conversation(7, 100, Shape(turns=600, questions=100, shares=LONG, alike=0.75, pads=2))
    speakers = {message.id: message.speaker for message in talk.messages}
    wrong = [question for question in talk.questions if question.type == "adversarial"]

    assert sum(len(text) for text in talk.texts.values()) / len(talk.texts) > 100
    assert len(wrong) == 20
    for question in wrong:
        assert question.evidence
        assert not question.apart
        assert all(speakers[name] not in question.text for name in question.evidence)
    assert sum(question.text.startswith("What did") for question in talk.questions) > 25


def _messages(*rows: tuple[str, str, str]) -> list[Message]:
    return [
        Message(id=str(n), speaker=speaker, text=text, session=session, at=f"2026-03-{n + 1:02}T09:00:00Z")
        for n, (speaker, text, session) in enumerate(rows)
    ]


def test_the_plain_search_adds_its_signals():
    """Worked by hand: shares of the best by words and vectors, halved; then factors, neighbours, session."""
    messages = _messages(("Ann", "a kettle", "1"), ("Bob", "a kettle", "1"), ("Bob", "the sea", "2"))
    vectors = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    plain = Together(messages, vectors)
    query = np.array([1, 0], np.float32)

    assert plain.ranked(plain.read("kettle?"), query) == [0, 1, 2]
    assert plain.ranked(plain.read("Bob's kettle?"), query) == [1, 0, 2]
    assert plain.ranked(plain.read("kettle?"), -query)[0] == 0
    assert plain.read("Bob's kettle?").topic == "kettle?"


def test_there_are_enough_topics():
    assert len(topics()) >= 60
    assert all(topic.say and topic.q and topic.near and len(topic.values) >= 3 for topic in topics())
    assert len(small_talk()) == 14


def test_the_hand_made_conversation_has_its_evidence():
    dataset = read_dataset(HANDMADE)
    (talk,) = dataset.conversations

    assert dataset.notes == ()
    assert len(talk.messages) >= 150
    assert len([question for question in talk.questions if not question.apart]) == 60
    assert len({message.session for message in talk.messages}) >= 8


# --------------------------------------------------------------------------------------- plain searches


def test_bm25_by_hand():
    """N = 3, average length 2: "dogs" is in two texts, "bark" in one; k1 1.2, b 0.75."""
    index = PlainBM25(["dogs bark", "the dog", "a cat"])
    idf_dog, idf_bark = math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)

    assert stems("Dogs barking!") == ["dog", "bark"]
    assert index.best("barking dogs", 5) == [0, 1]
    assert index.best("zebra", 5) == []
    assert index.scores("barking dog") == {0: pytest.approx(idf_dog + idf_bark), 1: pytest.approx(idf_dog)}


def test_the_nearest_vectors_come_first_and_ties_keep_their_order():
    vectors = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], dtype=np.float32)

    assert nearest(np.array([1.0, 0.0], dtype=np.float32), vectors, 2) == [1, 2]
