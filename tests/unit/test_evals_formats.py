"""Data sets of other people, on small files of their shape that were written here."""

from __future__ import annotations

import json

import pytest

from kgray.errors import InputError
from kgray.evals.retrieval import Message, Question, read_dataset

LOCOMO = {
    "sample_id": "conv-1",
    "conversation": {
        "speaker_a": "Ada",
        "speaker_b": "Ben",
        "session_10_date_time": "9:05 am on 2 June, 2023",
        "session_10": [{"speaker": "Ben", "dia_id": "D10:1", "text": "Bye"}],
        "session_2_date_time": "1:56 pm on 8 May, 2023",
        "session_2": [
            {"speaker": "Ada", "dia_id": "D2:1", "text": "Look", "blip_caption": "a red kite"},
            {"speaker": "Ben", "dia_id": "D2:2", "text": "Nice"},
        ],
    },
    "observation": {},
    "qa": [
        {"question": "What flew?", "answer": "a kite", "evidence": ["D2:1; D10:1"], "category": 1},
        {"question": "How many?", "answer": 2, "evidence": ["D:2:02", "D9:9"], "category": 4},
        {"question": "Who left?", "adversarial_answer": "Ada", "evidence": ["D10:1"], "category": 5},
        {"question": "Why?", "evidence": [], "category": 3},
    ],
}
LONGMEMEVAL = {
    "question_id": "q1",
    "question_type": "knowledge-update",
    "question": "Where do I live?",
    "answer": "Oslo",
    "question_date": "2023/06/01 (Thu) 10:00",
    "haystack_session_ids": ["s9", "s1"],
    "haystack_dates": ["2023/05/30 (Tue) 23:40", "2023/05/20 (Sat) 02:21"],
    "haystack_sessions": [
        [
            {"role": "user", "content": "I moved to Oslo", "has_answer": True},
            {"role": "assistant", "content": ""},
        ],
        [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}],
    ],
    "answer_session_ids": ["s9"],
}
DMR = {
    "previous_dialogs": [
        {"dialog": [{"text": "I keep bees"}, {"text": "Wow"}], "time_num": 2, "time_unit": "weeks"},
        {"dialog": [{"text": "Hi"}], "time_num": 12, "time_unit": "hours"},
    ],
    "dialog": [{"id": "Speaker 1", "text": "Again!"}],
    "self_instruct": {"B": "What do you keep?", "A": "Bees"},
}


@pytest.fixture
def write(tmp_path):
    """Write a data set: an array, JSON lines, or a text as it is."""

    def write(content, *, lines=False):
        path = tmp_path / "set.json"
        text = "".join(f"{json.dumps(row)}\n" for row in content) if lines else json.dumps(content)
        path.write_text(content if isinstance(content, str) else text, encoding="utf-8")
        return path

    return write


def test_a_locomo_file_is_read(write):
    dataset = read_dataset(write([LOCOMO]))
    (talk,) = dataset.conversations

    may, june = "2023-05-08T13:56:00+00:00", "2023-06-02T09:05:00+00:00"
    assert talk.name == "conv-1"
    assert talk.messages == (
        Message(id="D2:1", text="Look [picture: a red kite]", speaker="Ada", at=may, session="2"),
        Message(id="D2:2", text="Nice", speaker="Ben", at=may, session="2"),
        Message(id="D10:1", text="Bye", speaker="Ben", at=june, session="10"),
    )
    assert [(q.type, q.evidence, q.answer, q.apart) for q in talk.questions] == [
        ("1 multi-hop", ("D2:1", "D10:1"), "a kite", False),
        ("4 single-hop", ("D2:2",), "2", False),
        ("5 adversarial", ("D10:1",), "", True),
    ]
    assert dataset.notes == (
        "1 ids of evidence name no message",
        "1 questions have neither evidence nor an answer",
    )


def test_longmemeval_has_one_conversation_per_question_sorted_by_date(write):
    absent = {**LONGMEMEVAL, "question_id": "q2_abs"}
    first, second = read_dataset(write([LONGMEMEVAL, absent])).conversations

    assert first.name == "q1"
    assert [(m.id, m.text, m.speaker, m.at, m.session) for m in first.messages] == [
        ("0:s1:1", "Hello", "user", "2023-05-20T02:21:00+00:00", "s1"),
        ("0:s1:2", "Hi!", "assistant", "2023-05-20T02:21:00+00:00", "s1"),
        ("1:s9:1", "I moved to Oslo", "user", "2023-05-30T23:40:00+00:00", "s9"),
    ]
    question = {"text": "Where do I live?", "answer": "Oslo", "at": "2023-06-01T10:00:00+00:00"}
    assert first.questions == (Question(id="q1", type="knowledge-update", evidence=("1:s9:1",), **question),)
    assert second.questions == (Question(id="q2_abs", type="abstention", apart=True, **question),)


def test_dmr_sessions_are_dated_by_their_intervals(write):
    (talk,) = read_dataset(write([DMR], lines=True)).conversations

    assert [(m.id, m.text, m.speaker, m.at) for m in talk.messages] == [
        ("1:1", "I keep bees", "Speaker 1", "2023-12-17T12:00:00+00:00"),
        ("1:2", "Wow", "Speaker 2", "2023-12-17T12:00:00+00:00"),
        ("2:1", "Hi", "Speaker 1", "2023-12-31T12:00:00+00:00"),
        ("3:1", "Again!", "Speaker 1", "2024-01-01T00:00:00+00:00"),
    ]
    assert [(q.text, q.answer, q.evidence) for q in talk.questions] == [("What do you keep?", "Bees", ())]


def test_json_lines_of_messages_and_questions_are_read(write):
    rows = [
        {"id": "a", "text": "I play the cello", "speaker": "Ada", "at": "2024-01-01", "session": 1},
        {"question": "What does Ada play?", "type": "single", "evidence": ["a"], "answer": "cello"},
        {"question": "What does Ben play?", "type": "none"},
        {"id": "a", "text": "Another group", "group": "g2", "source": "lunch"},
        {"question": "Which?", "evidence": ["a"], "group": "g2", "id": "q9"},
    ]
    first, second = read_dataset(write(rows, lines=True)).conversations

    assert first.messages == (
        Message(id="a", text="I play the cello", speaker="Ada", at="2024-01-01", session="1"),
    )
    assert [(q.type, q.evidence, q.answer, q.apart) for q in first.questions] == [
        ("single", ("a",), "cello", False),
        ("none", (), "", True),
    ]
    assert (second.name, second.questions[0].id, second.questions[0].type) == ("g2", "q9", "any")
    assert second.messages[0].row() == {"id": "a", "text": "Another group", "source": "lunch"}


def test_a_limit_takes_the_first_conversations(write):
    rows = [{**LONGMEMEVAL, "question_id": f"q{n}"} for n in range(5)]

    assert [talk.name for talk in read_dataset(write(rows), most=2).conversations] == ["q0", "q1"]


def changed(row, **changes):
    return {key: value for key, value in {**row, **changes}.items() if value is not ...}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param("", "set.json holds no question with evidence or an answer", id="empty"),
        pytest.param("[{", "set.json is no JSON in UTF-8: ", id="cut"),
        pytest.param([[1]], "item 1 is not as its data set has it: ", id="no-object"),
        pytest.param([{"a": 1}], "a row of LoCoMo has conversation and qa", id="unknown-form"),
        pytest.param(
            [LOCOMO, changed(LOCOMO, qa=[{"category": 1}])], "item 2 is not", id="question-is-missing"
        ),
        pytest.param([changed(LONGMEMEVAL, haystack_dates=...)], "it has no 'haystack_dates'", id="no-dates"),
        pytest.param(
            [changed(LONGMEMEVAL, haystack_dates=["soon", "now"])], "'soon' does not match", id="date"
        ),
        pytest.param([changed(LONGMEMEVAL, haystack_dates=[])], "differ in length", id="lengths-differ"),
        pytest.param([changed(DMR, dialog=[{"text": 5}])], "text is no text", id="text-is-a-number"),
        pytest.param(
            [{"question": "Q?", "evidence": ["a"]}], "has questions and no message", id="no-messages"
        ),
        pytest.param([{"id": "a", "text": "x"}], "holds no question", id="no-question"),
        pytest.param(
            [{"id": "a", "text": "x"}] * 2, "two messages of the conversation set have one id", id="ids"
        ),
    ],
)
def test_a_malformed_file_gets_a_clear_error(write, content, line):
    with pytest.raises(InputError) as caught:
        read_dataset(write(content))

    assert line in str(caught.value)
    assert "set.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_gets_a_clear_error(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.json cannot be read: No such file"):
        read_dataset(tmp_path / "nothing.json")
