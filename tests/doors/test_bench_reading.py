"""`python -m bench reading` against a server on loopback: both readers, their scores and their calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.labelled_set.files import SHIPPED_SET
from tests.doors.chat_server import NOTHING, ChatRequest, ChatServer, Say, as_json

CELLO = {
    "subject": "I", "relation": "plays", "object": "the cello", "sentence": "Ada plays the cello.",
    "status": "current", "start": "2020", "end": None,
}  # fmt: skip
HEADER = {
    "conversation": "a",
    "part": "development",
    "entities": {
        "ada": {"type": "Person", "names": ["Ada"]},
        "bo": {"type": "Person", "names": ["Bo"]},
    },
}
FACT = {"subject": ["@ada"], "object": ["cello"], "cues": ["play"], "status": ["current"], "start": "2020"}
MESSAGE = {
    "id": "a-1", "kind": "message", "at": "2026-01-05T09:00:00Z", "speaker": "Ada",
    "text": "I have played the cello since 2020", "mentions": ["ada"], "facts": [FACT],
}  # fmt: skip
SILENT = {
    **MESSAGE, "id": "a-2", "at": "2026-01-06T09:00:00Z", "speaker": "Bo", "text": "Shall we meet?",
    "mentions": ["bo"], "facts": [],
}  # fmt: skip


def plain_reads_the_cello(request: ChatRequest) -> Say:
    """Answer the plain prompt about the first message with its fact, and all other requests with nothing."""
    is_first = request.data.rpartition("speaker Ada:\n")[2] == MESSAGE["text"]
    reads = is_first and request.task == "plain_reading"
    return as_json({"entities": [], "facts": [CELLO]}) if reads else NOTHING


def assert_calls(figures: dict[str, Any], server: ChatServer, *, messages: int) -> None:
    """Compare the calls of a report with the calls that arrived; the server may be probed once."""
    arrived = sum(task != "plain_reading" for task in server.tasks())
    reported = round((figures["extraction_calls"] + figures["repeated_calls"]) * messages)
    probes = reported - arrived
    assert probes in (0, len(server.probes))
    assert figures["question_calls"] == 0
    assert figures["calls"] == figures["extraction_calls"]


@pytest.fixture
def server():
    server = ChatServer(plain_reads_the_cello)
    yield server
    server.close()


def test_both_readers_read_every_message_and_are_scored_equally(bench, server):
    labelled = bench.write("set.jsonl", HEADER, MESSAGE, SILENT)

    answer = bench("reading", "--url", server.url, "--set", labelled, "--out", "out.json")

    assert answer.code == 0, answer.err
    document = json.loads((bench.folder / "out.json").read_text(encoding="utf-8"))
    (part,) = document["parts"]
    plain, engine = part["plain prompt"], part["kgray"]
    assert (plain["right"], plain["wrong"], plain["missed"], plain["f1"]) == (1, 0, 0, 1.0)
    assert (plain["date_accuracy"], plain["false_dates"], plain["status_accuracy"]) == (1.0, 0, 1.0)
    assert (engine["right"], engine["wrong"], engine["missed"], engine["f1"]) == (0, 0, 1, 0.0)
    assert_calls(engine, server, messages=2)
    assert (plain["prompt_tokens_a_call"], plain["completion_tokens_a_call"]) == (100, 20)
    assert (engine["prompt_tokens_a_call"], engine["completion_tokens_a_call"]) == (100, 20)
    assert part["difference_f1"]["high"] <= 0.0
    assert [row["id"] for row in document["messages"]] == ["a-1", "a-2"]
    assert document["messages"][0]["plain prompt"]["right"][0]["object"] == "the cello"
    assert document["messages"][0]["kgray"]["missed"][0]["object"] == ["cello"]
    assert server.tasks().count("plain_reading") == 2
    assert len(server.tasks()) == 4
    assert "1/2 a-1" in answer.err
    assert "development: 2 messages, 1 labelled facts" in answer.out


def test_separate_extraction_counts_all_its_calls(bench, server):
    labelled = bench.write("set.jsonl", HEADER, MESSAGE)

    answer = bench("reading", "--url", server.url, "--set", labelled, "--extraction", "separate", "--json")

    assert_calls(json.loads(answer.out)["parts"][0]["kgray"], server, messages=1)
    assert len(server.tasks()) >= 3


def test_the_order_of_the_readers_changes_from_message_to_message(bench, server):
    labelled = bench.write("set.jsonl", HEADER, MESSAGE, SILENT)

    bench("reading", "--url", server.url, "--set", labelled)

    is_plain = [task == "plain_reading" for task in server.tasks()]
    assert is_plain == [False, True, True, False]


def test_a_refusing_server_and_a_faulty_file_are_one_line_errors(bench, server):
    server.answer = lambda _: Say(status=401)
    labelled = bench.write("set.jsonl", HEADER, MESSAGE)
    refused = bench("reading", "--url", server.url, "--set", labelled)
    broken = bench.write("broken.jsonl", HEADER, {**MESSAGE, "kind": "mail"})
    faulty = bench("reading", "--url", server.url, "--set", broken)

    assert refused.code != 0
    assert "bench: " in refused.err
    assert "refuses the key" in refused.err
    assert faulty.code == 2
    assert "broken.jsonl, line 2: kind 'mail'" in faulty.err


def test_a_limit_cuts_the_set_that_ships(bench, server):
    answer = bench("reading", "--url", server.url, "--part", "kept", "--limit", "2", "--json")

    document = json.loads(answer.out)
    assert document["set"] == SHIPPED_SET.name
    assert [part["part"] for part in document["parts"]] == ["kept"]
    assert len(document["messages"]) == 2
