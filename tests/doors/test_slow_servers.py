"""A slow server: its replies are streamed, the timeout limits silence, and repetitive replies are ended."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice

import pytest

from kgray.errors import Refused
from kgray.models.openai_api import connection
from kgray.models.openai_api.streaming import Repeats, ReplyWatch, repeats
from kgray.models.prompting.prompts import REPAIR_LINE
from kgray.ports import ExtractionRequest
from kgray.system.outages import OUTAGES
from tests.doors.chat_server import PROBED, ChatRequest, ChatServer, Say, as_json
from tests.doors.test_openai_models import GOOD, HANGS_S, episode, extractor, in_turn, serve

__all__ = ["serve"]
REPLY = json.dumps(GOOD)
MANY_FACTS = {
    "facts": [{"source": n, "fact": f"{n} is prime", "valid_at": "2026-03-01T09:00:00Z"} for n in range(9)]
}
RAMBLING = '{"entities":[{"name":"Alice","type":"Person"},' + '{"name":"Acme","type":"Company"},' * 400


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Count a reply of a token in a tenth of a second as slow."""
    monkeypatch.setattr(connection, "SLOW_S", 0.05)
    OUTAGES.forget()


def slow_probe(_: ChatRequest) -> Say:
    return Say(json.dumps(PROBED), usage=(9, 1), delay=0.1)


def written(text: str, pause_s: float = 0.0, *, breaks: bool = False) -> Iterable[str]:
    """Return an iterable of pieces of four characters, which can be used for several replies."""

    class Pieces:
        def __iter__(self) -> Iterator[str]:
            for at in range(0, len(text), 4):
                time.sleep(pause_s)
                yield text[at : at + 4]
            if breaks:
                raise ConnectionError

    return Pieces()


async def relations(server: ChatServer, **changes: float) -> list[str]:
    extraction = await extractor(server, **changes).extract(ExtractionRequest(episode=episode()))
    return [fact.relation for fact in extraction.facts]


async def test_replies_of_a_fast_server_are_not_streamed(serve):
    server = serve(lambda _: as_json(GOOD))
    assert await relations(server) == ["WORKS_AT"]
    assert "stream" not in server.requests[0].body


async def test_the_timeout_of_a_streamed_reply_limits_its_silence(serve):
    """The reply takes twice `timeout_s`, and is never silent: it is requested once."""
    pause_s = 2 * 0.5 / (len(REPLY) / 4)
    server = serve(lambda _: Say(pieces=written(REPLY, pause_s)), probe=slow_probe)
    assert await relations(server, timeout_s=0.5) == ["WORKS_AT"]
    assert [request.body["stream"] for request in server.requests] == [True]


async def test_a_silent_stream_is_requested_again(serve):
    silent = Say(pieces=written(REPLY[:8], 0.7))
    complete = Say(pieces=written(REPLY))
    server = serve(in_turn(silent, complete), probe=slow_probe)
    assert await relations(server, timeout_s=0.3, patience_s=HANGS_S) == ["WORKS_AT"]
    assert len(server.requests) >= 2


async def test_interrupted_replies_do_not_count_as_repetition(serve):
    """Three attempts with equal beginnings are not a repetitive reply."""
    facts = [
        {**GOOD["facts"][0], "fact": f"Alice works at Acme, as is told in the year {n}."} for n in range(20)
    ]
    reply = json.dumps({**GOOD, "facts": facts})
    broken = Say(pieces=written(reply[:1600], breaks=True))
    server = serve(in_turn(broken, broken, broken, Say(pieces=written(reply))), probe=slow_probe)
    assert await relations(server, patience_s=HANGS_S) == ["WORKS_AT"] * 20
    assert len(server.requests) == 4


async def test_a_late_reply_is_requested_again_as_a_stream(serve):
    late = Say(REPLY, delay=0.7)
    server = serve(lambda request: Say(pieces=written(REPLY)) if "stream" in request.body else late)
    assert await relations(server, timeout_s=0.3, patience_s=HANGS_S) == ["WORKS_AT"]
    assert "stream" not in server.requests[0].body
    assert server.requests[-1].body["stream"] is True


async def test_a_repetitive_reply_is_ended_and_keeps_its_complete_items(serve):
    server = serve(lambda _: Say(pieces=written(RAMBLING, 0.001)), probe=slow_probe)

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert [entity.name for entity in extraction.entities] == ["Alice", "Acme"]
    assert extraction.dropped[:1] == ("combined: the reply was cut; its complete items are kept",)
    assert len(server.requests) == 1
    assert extraction.completion_tokens < len(RAMBLING) / 4 / 5


async def test_a_server_without_streams_sends_complete_replies(serve, monkeypatch):
    """A refused stream is no fault, and no outage is reported."""
    outages: list[object] = []
    monkeypatch.setattr(OUTAGES, "failed", lambda *failure, **_: outages.append(failure))

    def answer(request: ChatRequest) -> Say:
        return Say("this server does not stream", status=400) if "stream" in request.body else as_json(GOOD)

    server = serve(answer, probe=slow_probe)
    assert await relations(server) == ["WORKS_AT"]
    assert await relations(server) == ["WORKS_AT"]
    assert ["stream" in chat_request.body for chat_request in server.requests] == [True, False, False]
    assert outages == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "Streaming is not supported by this model"),
        (400, "not with this model"),
        (405, ""),
        (415, "no events"),
        (422, "extra inputs are not permitted"),
        (501, "not implemented"),
    ],
)
async def test_a_refused_stream_is_recognised_in_any_words(serve, status: int, message: str):
    server = serve(
        lambda request: Say(message, status=status) if "stream" in request.body else as_json(GOOD),
        probe=slow_probe,
    )
    assert await relations(server, patience_s=HANGS_S) == ["WORKS_AT"]
    assert await relations(server) == ["WORKS_AT"]
    assert ["stream" in request.body for request in server.requests] == [True, False, False]


async def test_a_refused_text_about_streams_does_not_turn_streams_off(serve):
    def answer(request: ChatRequest) -> Say:
        if "ACME_LEAKS" in request.data:
            return Say("the text 'a stream of ACME_LEAKS' is not allowed", status=400)
        return Say(pieces=written(REPLY)) if "stream" in request.body else as_json(GOOD)

    server = serve(answer, probe=slow_probe)
    reader = extractor(server)
    with pytest.raises(Refused, match="not allowed"):
        await reader.extract(ExtractionRequest(episode=episode("a stream of ACME_LEAKS")))
    assert ["stream" in chat_request.body for chat_request in server.requests] == [True, False]
    await reader.extract(ExtractionRequest(episode=episode()))
    assert server.requests[-1].body["stream"] is True


async def test_concurrent_requests_are_repeated_after_a_refused_stream(serve):
    """None of them counts as a refused text."""
    together = threading.Barrier(3, timeout=HANGS_S)

    def answer(request: ChatRequest) -> Say:
        if "stream" not in request.body:
            return as_json(GOOD)
        together.wait()
        return Say("this server does not stream", status=400)

    server = serve(answer, probe=slow_probe)
    assert await asyncio.gather(*(relations(server) for _ in range(3))) == [["WORKS_AT"]] * 3


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(None, id="nothing"),
        pytest.param(b'data: {"error": {"message": "overloaded"}}\n\n', id="an error"),
        pytest.param(b"data: {no JSON\n\n", id="no JSON"),
        pytest.param(b"data: 7\n\n", id="another form"),
        pytest.param(b'data: {"choices": [7]}\n\n', id="choices of another form"),
    ],
)
async def test_a_stream_without_its_end_is_requested_again(serve, event: bytes | None):
    """A server that ends may close a connection properly in the middle of a reply."""

    class Ended(Say):
        def events(self) -> Iterator[bytes]:
            yield from islice(super().events(), len(REPLY) // 8)
            if event:
                yield event

    server = serve(in_turn(Ended(pieces=written(REPLY)), Say(pieces=written(REPLY))), probe=slow_probe)
    assert await relations(server, patience_s=HANGS_S) == ["WORKS_AT"]
    assert REPAIR_LINE not in server.requests[-1].data
    assert [request.body["temperature"] for request in server.requests] == [0.0, 0.0]


def test_the_speed_of_a_slow_reply_is_reported() -> None:
    with OUTAGES.asking("the model", 120.0):
        watch = ReplyWatch("the model", room=1000)
        for _ in range(33):
            watch("a ")
        (slow,) = OUTAGES.current(time.time() + 3)
    assert slow.slow
    assert slow.reason.endswith("tokens a second, 32 so far of at most 1000")


def test_a_reply_in_progress_ends_an_outage() -> None:
    OUTAGES.failed("the model", "cannot be reached (Server disconnected)", since=1.0, patience_s=9.0)
    with OUTAGES.asking("the model", 120.0):
        watch = ReplyWatch("the model", room=1000)
        for _ in range(33):
            watch("a ")
        assert [item.slow for item in OUTAGES.current(time.time() + 3)] == [True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(RAMBLING, True, id="an item again and again"),
        pytest.param('{"entities":[' + " " * 300, True, id="white space without end"),
        pytest.param(REPLY, False, id="a good reply"),
        pytest.param(REPLY + REPLY, False, id="the same twice"),
        pytest.param("ab" * 30, False, id="too short to say"),
        pytest.param(
            "".join(f'{{"source":{n},"fact":"Alice Nguyen is a professor."}},' for n in range(5)),
            True,
            id="one sentence of many ends",
        ),
        pytest.param(
            "".join(
                f'{{"source":{n},"fact":"Person {n} likes tea a lot.","value":null}},' for n in range(40)
            ),
            False,
            id="items that are alike",
        ),
        pytest.param(json.dumps(MANY_FACTS, indent=2), False, id="many items with indents, and one date"),
    ],
)
def test_repetition_is_detected(text: str, expected: bool) -> None:
    assert repeats(text) is expected


def test_a_watch_ends_a_reply_soon_after_its_repetition_begins() -> None:
    watch, pieces = ReplyWatch("the model", room=100_000), []

    def read() -> None:
        for piece in written(RAMBLING):
            pieces.append(piece)
            watch(piece)

    with pytest.raises(Repeats):
        read()
    assert len(pieces) < 100
