"""A server that writes slowly: its replies are streamed, its silence is what counts, rambling is ended."""

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
from tests.doors.test_openai_models import GOOD, HANGS_S, episode, extractor, one_after_the_other, serve

__all__ = ["serve"]
REPLY = json.dumps(GOOD)
MANY = {
    "facts": [{"source": n, "fact": f"{n} is prime", "valid_at": "2026-03-01T09:00:00Z"} for n in range(9)]
}
RAMBLING = '{"entities":[{"name":"Alice","type":"Person"},' + '{"name":"Acme","type":"Company"},' * 400


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Have a reply of one token in a tenth of a second count as slow."""
    monkeypatch.setattr(connection, "SLOW_S", 0.05)
    OUTAGES.forget()


def slow_probe(_: ChatRequest) -> Say:
    return Say(json.dumps(PROBED), usage=(9, 1), delay=0.1)


def written(text: str, pause_s: float = 0.0, *, breaks: bool = False) -> Iterable[str]:
    """Return an iterable, for as many replies as are asked for, of pieces of four characters."""

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


async def test_a_fast_server_is_not_asked_for_a_stream(serve):
    server = serve(lambda _: as_json(GOOD))
    assert await relations(server) == ["WORKS_AT"]
    assert "stream" not in server.requests[0].body


async def test_the_deadline_of_a_slow_servers_reply_is_one_for_silence(serve):
    """The reply takes twice `timeout_s`, and is never silent: it is asked for once."""
    pause_s = 2 * 0.5 / (len(REPLY) / 4)
    server = serve(lambda _: Say(pieces=written(REPLY, pause_s)), probe=slow_probe)
    assert await relations(server, timeout_s=0.5) == ["WORKS_AT"]
    assert [asked.body["stream"] for asked in server.requests] == [True]


async def test_silence_in_a_reply_has_it_asked_for_again(serve):
    silent = Say(pieces=written(REPLY[:8], 0.7))
    whole = Say(pieces=written(REPLY))
    server = serve(one_after_the_other(silent, whole), probe=slow_probe)
    assert await relations(server, timeout_s=0.3, patience_s=HANGS_S) == ["WORKS_AT"]
    assert len(server.requests) >= 2


async def test_a_reply_that_broke_off_is_no_part_of_the_next_one(serve):
    """Three tries that begin alike are not one reply that repeats itself."""
    facts = [
        {**GOOD["facts"][0], "fact": f"Alice works at Acme, as is told in the year {n}."} for n in range(20)
    ]
    reply = json.dumps({**GOOD, "facts": facts})
    broken = Say(pieces=written(reply[:1600], breaks=True))
    server = serve(one_after_the_other(broken, broken, broken, Say(pieces=written(reply))), probe=slow_probe)
    assert await relations(server, patience_s=HANGS_S) == ["WORKS_AT"] * 20
    assert len(server.requests) == 4


async def test_a_reply_that_did_not_come_in_time_is_asked_for_as_a_stream(serve):
    late = Say(REPLY, delay=0.7)
    server = serve(lambda asked: Say(pieces=written(REPLY)) if "stream" in asked.body else late)
    assert await relations(server, timeout_s=0.3, patience_s=HANGS_S) == ["WORKS_AT"]
    assert "stream" not in server.requests[0].body
    assert server.requests[-1].body["stream"] is True


async def test_a_reply_that_repeats_itself_is_ended_and_what_is_complete_is_kept(serve):
    server = serve(lambda _: Say(pieces=written(RAMBLING, 0.001)), probe=slow_probe)

    extraction = await extractor(server).extract(ExtractionRequest(episode=episode()))

    assert [entity.name for entity in extraction.entities] == ["Alice", "Acme"]
    assert extraction.dropped[:1] == ("combined: the reply was cut; its complete items are kept",)
    assert len(server.requests) == 1
    assert extraction.completion_tokens < len(RAMBLING) / 4 / 5


async def test_a_server_that_streams_nothing_is_asked_for_whole_replies(serve, monkeypatch):
    """Nothing is wrong with it, and nobody is told of an outage."""
    told: list[object] = []
    monkeypatch.setattr(OUTAGES, "failed", lambda *what, **_: told.append(what))

    def answer(asked: ChatRequest) -> Say:
        return Say("this server does not stream", status=400) if "stream" in asked.body else as_json(GOOD)

    server = serve(answer, probe=slow_probe)
    assert await relations(server) == ["WORKS_AT"]
    assert await relations(server) == ["WORKS_AT"]
    assert ["stream" in asked.body for asked in server.requests] == [True, False, False]
    assert told == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "Streaming is not supported by this model"),
        (400, "not with this model"),
        (405, ""),
        (415, "no events"),
        (422, "extra inputs are not permitted"),
        (501, "not implemented"),
    ],
)
async def test_a_stream_may_be_refused_in_any_words(serve, status: int, said: str):
    server = serve(
        lambda asked: Say(said, status=status) if "stream" in asked.body else as_json(GOOD), probe=slow_probe
    )
    assert await relations(server, patience_s=HANGS_S) == ["WORKS_AT"]
    assert await relations(server) == ["WORKS_AT"]
    assert ["stream" in asked.body for asked in server.requests] == [True, False, False]


async def test_a_refused_text_that_speaks_of_streams_costs_one_request_more_and_turns_no_stream_off(serve):
    def answer(asked: ChatRequest) -> Say:
        if "ACME_LEAKS" in asked.data:
            return Say("the text 'a stream of ACME_LEAKS' is not allowed", status=400)
        return Say(pieces=written(REPLY)) if "stream" in asked.body else as_json(GOOD)

    server = serve(answer, probe=slow_probe)
    reader = extractor(server)
    with pytest.raises(Refused, match="not allowed"):
        await reader.extract(ExtractionRequest(episode=episode("a stream of ACME_LEAKS")))
    assert ["stream" in asked.body for asked in server.requests] == [True, False]
    await reader.extract(ExtractionRequest(episode=episode()))
    assert server.requests[-1].body["stream"] is True


async def test_requests_that_were_under_way_when_the_first_stream_was_refused_are_asked_again_too(serve):
    """None of them is taken for a text that the server refuses."""
    together = threading.Barrier(3, timeout=HANGS_S)

    def answer(asked: ChatRequest) -> Say:
        if "stream" not in asked.body:
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
async def test_a_stream_without_its_end_is_asked_for_again(serve, event: bytes | None):
    """A connection may be closed in order in the middle of a reply, by a server that is ended."""

    class Ended(Say):
        def events(self) -> Iterator[bytes]:
            yield from islice(super().events(), len(REPLY) // 8)
            if event:
                yield event

    server = serve(
        one_after_the_other(Ended(pieces=written(REPLY)), Say(pieces=written(REPLY))), probe=slow_probe
    )
    assert await relations(server, patience_s=HANGS_S) == ["WORKS_AT"]
    assert REPAIR_LINE not in server.requests[-1].data
    assert [asked.body["temperature"] for asked in server.requests] == [0.0, 0.0]


def test_how_fast_a_reply_is_written_is_told() -> None:
    with OUTAGES.asking("the model", 120.0):
        watch = ReplyWatch("the model", room=1000)
        for _ in range(33):
            watch("a ")
        (slow,) = OUTAGES.current(time.time() + 3)
    assert slow.slow
    assert slow.reason.endswith("tokens a second, 32 so far of at most 1000")


def test_a_server_that_writes_a_reply_is_out_of_reach_no_longer() -> None:
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
        pytest.param(json.dumps(MANY, indent=2), False, id="many items with indents, and one date"),
    ],
)
def test_what_counts_as_repeating(text: str, expected: bool) -> None:
    assert repeats(text) is expected


def test_a_watch_ends_a_reply_soon_after_it_began_to_repeat_itself() -> None:
    watch, taken = ReplyWatch("the model", room=100_000), []

    def read() -> None:
        for piece in written(RAMBLING):
            taken.append(piece)
            watch(piece)

    with pytest.raises(Repeats):
        read()
    assert len(taken) < 100
