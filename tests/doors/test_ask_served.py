"""Answers of a server: over HTTP, complete and as events, by MCP, and by the Python client."""

from __future__ import annotations

import json
import threading

import pytest

import kgray as library
from kgray.errors import InputError, SettingsError, Unavailable
from tests.doors.chat_server import ChatServer, Say
from tests.doors.served import serving
from tests.waiting import HANGS_S, wait_for

ASK = "/v1/groups/team/ask"
QUESTION = "Where does Alice work?"
ROWS = [
    {"id": "a", "speaker": "Alice", "text": "I work at Acme.", "at": "2026-01-01"},
    {"id": "b", "speaker": "Alice", "text": "I left Acme, and work at Beta now.", "at": "2026-03-01"},
]


@pytest.fixture
def model():
    """Return a model's server that answers in two pieces."""
    running = ChatServer(lambda _: Say(pieces=["At Beta ", "now [1]."], usage=(300, 6)))
    yield running
    running.close()


@pytest.fixture
def served(tmp_path, model):
    """Serve a memory that the rules have read, with a model behind HTTP that answers."""
    with library.open(tmp_path / "data", create=True) as memory:
        memory.add_many(ROWS, group="team")
    settings = {
        "model_backend": "openai",
        "model_base_url": model.url,
        "model_name": "m",
        "model_patience_s": 1,
    }
    with serving(tmp_path / "data", settings=settings) as server:
        yield server


def events(text):
    """Return the events of a stream: (name, data)."""
    results = []
    for block in filter(None, text.split("\n\n")):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        results += [(lines["event"], json.loads(lines["data"]))] if lines else []
    return results


def test_a_question_is_answered_with_its_sources(served):
    answer = served.client().post(ASK, json={"question": QUESTION})

    reply = answer.json()
    assert (answer.status_code, reply["answer"], reply["found"]) == (200, "At Beta now [1].", True)
    assert reply["citations"] == [
        {"number": 1, "episode": reply["citations"][0]["episode"], "client_id": "b"}
    ]
    assert reply["sources"][0]["text"] == "Alice works at Beta"
    assert (reply["calls"], reply["prompt_tokens"]) == (1, 300)
    assert 'kgray_model_calls_total{outcome="ok",task="answer"} 1.0' in served.client().get("/metrics").text


@pytest.mark.parametrize("options", [{"stream": True}, {}])
def test_an_answer_comes_as_events_while_it_is_written(served, model, options):
    """The model writes its second piece after the first has arrived."""
    has_come = threading.Event()

    def pieces():
        yield "At Beta now"
        yield " "
        assert has_come.wait(HANGS_S)
        yield "[1]."

    model.answer = lambda _: Say(pieces=pieces())
    headers = {} if options else {"accept": "text/event-stream"}
    body = {"question": QUESTION, **options}
    text = ""
    with served.client().stream("POST", ASK, json=body, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for piece in answer.iter_text():
            text += piece
            if "At Beta now" in text:
                has_come.set()
    stream_events = events(text)
    assert "".join(data["text"] for name, data in stream_events if name == "text") == "At Beta now [1]."
    assert stream_events[-1][0] == "answer"
    assert stream_events[-1][1]["answer"] == "At Beta now [1]."


def test_an_early_error_is_a_problem_and_a_late_error_is_an_event(served, model):
    def pieces():
        yield "At Beta now"
        yield " it"
        raise ConnectionError

    model.answer = lambda _: Say(pieces=pieces())
    stream_events = events(served.client().post(ASK, json={"question": QUESTION, "stream": True}).text)
    assert stream_events[0] == ("text", {"text": "At Beta now"})
    assert (stream_events[-1][0], stream_events[-1][1]["code"]) == ("error", "unavailable")
    for stream in (True, False):
        body = {"question": QUESTION, "stream": stream, "level": 1}
        answer = served.client().post(ASK, json=body)
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
        assert "mode local takes no level or rating" in answer.json()["detail"]


@pytest.mark.parametrize(
    "wrong",
    [{"question": ""}, {}, {"question": "x", "mode": "dual"}, {"question": "x", "suggest": 21},
     {"question": "x", "history": [{"role": "system", "content": "x"}]}, {"question": "x", "sugest": 1}],
)  # fmt: skip
def test_a_wrong_body_is_a_problem_that_names_the_field(served, model, wrong):
    answer = served.client().post(ASK, json=wrong)
    assert (answer.status_code, answer.json()["code"]) == (422, "input_error")
    assert answer.json()["errors"]
    assert model.requests == []


def test_a_disconnected_client_ends_the_call_of_the_model(served, model):
    has_ended = threading.Event()

    def pieces():
        try:
            yield "At Beta now"
            while True:
                yield " and now"
                has_ended.wait(0.02)
        finally:
            has_ended.set()

    model.answer = lambda _: Say(pieces=pieces())
    with served.client().stream("POST", ASK, json={"question": QUESTION, "stream": True}) as answer:
        next(answer.iter_text())
    assert has_ended.wait(HANGS_S)
    wait_for(lambda: served.door.answers.borrowed_tokens == 0)


def test_a_key_of_another_group_gets_no_answer(served, model):
    key = served.key("other", "read")
    assert served.client(key).post(ASK, json={"question": QUESTION}).status_code == 403
    assert model.requests == []


def test_a_server_without_a_model_names_the_setting(tmp_path):
    with serving(tmp_path / "data") as server:
        answer = server.client().post(ASK, json={"question": QUESTION})
        assert answer.status_code == 500
        assert 'model.backend = "rules" writes no answers' in answer.json()["detail"]
        with library.connect(server.url) as memory, pytest.raises(SettingsError, match="writes no answers"):
            memory.ask(QUESTION, group="team")


def test_the_python_client_answers_like_a_local_memory(served, model):
    pieces: list[str] = []
    with library.connect(served.url) as memory:
        answer = memory.ask(
            QUESTION, group="team", on_text=pieces.append, history=[{"role": "user", "content": "Hi"}]
        )
        with pytest.raises(InputError, match="mode local takes no level or rating"):
            memory.ask(QUESTION, group="team", level=1)
    local = served.memory_now()
    with local as memory:
        assert answer.citations[0][1:] == (memory.search("Beta", group="team")[0].fact.episodes[0])
    assert "".join(pieces) == answer.text == "At Beta now [1]."
    assert (answer.sources[0][1].text, answer.cost.calls) == ("Alice works at Beta", 1)
    assert model.requests[0].sections["HISTORY"] == [{"role": "user", "content": "Hi"}]


async def test_the_mcp_tool_accepts_the_options_of_ask(served, model):
    pytest.importorskip("mcp", reason="needs the extra `mcp`")
    from mcp.client import Client

    async with Client(f"{served.url}/mcp/team") as client:

        async def ask(**arguments):
            return await client.call_tool("ask_memory", {"question": QUESTION, **arguments})

        history = [{"role": "user", "content": "Hi"}]
        options = {"history": history, "general": True, "form": "one line", "kinds": ["fact"]}
        answer = await ask(options=options)
        by_hand = await ask(mode="keywords", options={"high": ["work"], "low": ["Alice"]})
        wrong = [await ask(options={"level": 1}), await ask(options={"lavel": 1}), await ask(mode="best")]
    assert answer.structured_content["answer"] == "At Beta now [1]."
    first = model.requests[0]
    assert first.sections["HISTORY"] == history
    assert "one line" in first.data
    assert "general knowledge" in first.head
    assert by_hand.structured_content["keywords"] == {"high_level": ["work"], "low_level": ["Alice"]}
    texts = [each.content[0].text for each in wrong]
    assert all(each.is_error for each in wrong)
    assert ["\n" in text for text in texts] == [False] * 3
    assert "use mode global" in texts[0]
    assert "min_rating" in texts[1]
    assert "drift" in texts[2]


def test_the_python_client_reports_an_interrupted_answer(served, model):
    def pieces():
        yield "At Beta now"
        yield " it"
        raise ConnectionError

    model.answer = lambda _: Say(pieces=pieces())
    with library.connect(served.url) as memory, pytest.raises(Unavailable, match="broke off its answer"):
        memory.ask(QUESTION, group="team")
