"""`python -m bench comparisons`: labelled sentences, several forms of reply, and their scores."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing

import pytest

from bench.labelled_set.comparisons import FORMS, SHIPPED_SET, head_of, load_comparisons
from kgray.errors import InputError
from kgray.models.prompting.replies import COMPARISONS
from tests.doors.chat_server import ChatRequest, ChatServer, Say, as_json

LABELLED = load_comparisons(SHIPPED_SET)
BEST = {item.question.item: [words[0] for words in item.accepted] for item in LABELLED}


def answering(request: ChatRequest) -> Say:
    """Answer with the best words, in the form that the request's schema asks for."""
    name = request.task.removeprefix("compare_")
    answers = []
    for row in request.sections["QUESTIONS"]:
        words = BEST[row["fact"]]
        written = FORMS[name if name in FORMS else "lists"].written(words)
        if name not in FORMS:
            written["same"] = next(iter(written["same"]), None)
            written["kind"] = row["kind"]
        answers.append({"id": row["id"], **written})
    return as_json({"answers": answers})


def test_the_set_has_every_word_and_one_to_five_candidates_a_question():
    counts = Counter(word for words in BEST.values() for word in words)

    assert len(LABELLED) == len(BEST) == 30
    assert set(counts) == set(COMPARISONS)
    assert counts["independent"] > sum(counts.values()) / 2
    assert {len(item.accepted) for item in LABELLED} == {1, 2, 3, 4, 5}
    assert not any(item.question.item in load for load in map(head_of, FORMS.values()) for item in LABELLED)


@pytest.mark.parametrize("together", [pytest.param(1, marks=pytest.mark.slow), 10])
def test_a_perfect_model_has_full_marks_in_every_form(bench, together):
    with closing(ChatServer(answering)) as server:
        reply = bench(
            "comparisons", "--url", server.url, "--forms", "shipped,lists,words,rows",
            "--together", str(together), "--json",
        ).json  # fmt: skip

    tasks = {"batched" if together > 1 else "compare", *(f"compare_{name}" for name in FORMS)}
    assert set(server.tasks()) == tasks
    for scores in reply["forms"]:
        assert (scores["questions"], scores["failed"]) == (30, 0)
        assert scores["best"] == scores["accepted"] == scores["candidates"] == sum(map(len, BEST.values()))


def test_wrong_words_and_failed_replies_are_counted(bench):
    """Everything is called an end; the first question gets no usable reply."""

    def ending(request: ChatRequest) -> Say:
        (row,) = request.sections["QUESTIONS"]
        count = len(row["candidates"])
        ends = [99] if row["fact"] == LABELLED[0].question.item else list(range(count))
        return as_json({"answers": [{"id": 0, "same": [], "contradicts": [], "ends": ends}]})

    with closing(ChatServer(ending)) as server:
        (scores,) = bench("comparisons", "--url", server.url, "--forms", "lists", "--json").json["forms"]
        text = bench("comparisons", "--url", server.url, "--forms", "lists").out

    ends = sum(words.count("ends") for words in BEST.values())
    assert scores["failed"] == 1
    assert scores["best"] == ends == scores["pairs"]["ends > ends"]
    assert scores["pairs"]["contradicts > none"] == 1
    assert text.split("\n")[0].split()[:6] == ["form", "questions", "failed", "best", "accepted", "false"]
    assert text.split("\n")[1].split()[5:9] == ["1.000", "0.00", "0.00", "1.00"]


@pytest.mark.parametrize(
    "row",
    [
        "{",
        {"fact": "a"},
        {"fact": "a", "candidates": []},
        {"fact": "a", "candidates": [{"fact": "b", "answers": ["similar"]}]},
        {"fact": "a", "candidates": [{"fact": "b", "answers": []}]},
    ],
)
def test_a_fault_in_a_set_names_its_line(tmp_path, row):
    path = tmp_path / "set.jsonl"
    good = {"fact": "a", "candidates": [{"fact": "b", "answers": ["same"]}]}
    path.write_text(f"{json.dumps(good)}\n{row if isinstance(row, str) else json.dumps(row)}\n", "utf-8")

    with pytest.raises(InputError, match="line 2: "):
        load_comparisons(path)
