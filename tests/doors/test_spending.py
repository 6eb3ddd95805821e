"""The cost of a model includes unusable replies: status, report, bound (R24)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.doors.chat_server import NOTHING, ChatRequest, ChatServer, Say, as_json
from tests.doors.shell import Shell
from tests.waiting import HANGS_S

ROWS = [
    {"id": f"m{n}", "speaker": "Alice", "text": f"I saw number {n}.", "at": "2026-01-01"} for n in range(40)
]
Serve = Callable[[Callable[[ChatRequest], Say]], ChatServer]


def model(server: ChatServer, **extra: str) -> dict[str, str]:
    """Return the settings that name a server."""
    return {
        "KGRAY_MODEL_BACKEND": "openai",
        "KGRAY_MODEL_NAME": "m",
        "KGRAY_MODEL_BASE_URL": server.url,
        **extra,
    }


@pytest.fixture
def serve(kgray: Shell) -> Iterator[Serve]:
    servers: list[ChatServer] = []

    def start(answer: Callable[[ChatRequest], Say]) -> ChatServer:
        servers.append(ChatServer(answer))
        kgray.env = model(servers[-1])
        kgray.write("in.jsonl", *ROWS)
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def calls(server: ChatServer) -> int:
    """Return how many calls of the model a server has answered."""
    return len(server.requests) + len(server.probes)


def spent(kgray: Shell) -> dict[str, int]:
    """Return the cost of the model in `kgray status`."""
    return dict(kgray("status", "--json").json["model"])


def test_a_bound_of_ten_calls_holds_for_unusable_replies(kgray: Shell, serve: Serve) -> None:
    """Three calls an episode: calls in flight may exceed the bound by the calls of an episode."""
    server = serve(lambda _: Say("I would rather not."))

    answer = kgray("backfill", "in.jsonl", "--group", "g", "--max-calls", "10", "--json")

    report = answer.json["report"]
    call_count = calls(server)
    assert 10 <= call_count <= 13
    assert (answer.code, report["state"]) == (75, "stopped")
    assert report["reason"] == f"--max-calls 10 is spent: {call_count} calls were made"
    cost = {"calls": call_count, "prompt_tokens": call_count * 100, "completion_tokens": call_count * 20}
    assert {name: report[name] for name in cost} == spent(kgray) == cost
    assert answer.json["failed"] == len(server.requests) / 3


@pytest.mark.parametrize("usable", [True, False])
def test_a_bound_holds_for_episodes_that_were_already_pending(
    kgray: Shell, serve: Serve, *, usable: bool
) -> None:
    """The bound limits the calls, not the window."""
    server = serve(lambda _: NOTHING if usable else Say("I would rather not."))
    kgray("add", "in.jsonl", "--group", "g", "--accept-only")
    kgray.write("more.jsonl", ROWS[0])

    answer = kgray("backfill", "more.jsonl", "--group", "g", "--max-calls", "10", "--json")

    assert 9 <= calls(server) <= 16
    assert answer.code == 75
    counted = answer.json["report"]["calls"]
    assert counted == spent(kgray)["calls"]
    assert 0 <= counted - calls(server) <= 1, "a cancelled call counts, whether it arrived or not"
    assert kgray("status", "--json").json["groups"]["g"]["accepted"] > 20


@pytest.mark.parametrize(
    ("bad", "answered"),
    [
        pytest.param(Say("no JSON"), True, id="no-json"),
        pytest.param(Say('{"entities": [', finish="length"), True, id="cut"),
        pytest.param(Say(refusal="I will not."), True, id="refused-by-the-model"),
        pytest.param(Say("too long", status=400), False, id="refused-by-the-server"),
    ],
)
def test_every_call_of_a_failed_episode_counts(kgray: Shell, serve: Serve, bad: Say, answered: bool) -> None:
    """With another episode that is read. A server bills no tokens of a refused call."""
    server = serve(lambda request: bad if "number 1." in request.data else NOTHING)
    kgray.write("in.jsonl", *ROWS[:2])

    added = kgray("add", "in.jsonl", "--group", "g", "--json")

    assert (added.json["committed"], added.json["failed"]) == (1, 1)
    billed = calls(server) if answered else 2  # the probe and the episode that is read
    assert spent(kgray) == {
        "calls": calls(server),
        "prompt_tokens": billed * 100,
        "completion_tokens": billed * 20,
    }


def test_a_question_without_a_usable_answer_counts(kgray: Shell, serve: Serve) -> None:
    """The journal stores the extraction, but not the three calls of the judge; all of them count."""

    def say(request: ChatRequest) -> Say:
        if request.task != "combined":
            return Say("Who knows?")
        name = request.sections["EPISODE"]["text"].removeprefix("I saw ").rstrip(".")
        fact = {"source": 0, "target": 1, "relation": "VISITED", "fact": f"Alice saw {name}", "kind": "holds"}
        dates = {"valid_at": None, "invalid_at": None, "value": None}
        names = [{"name": name, "type": ""} for name in ("Alice", name)]
        return as_json({"entities": names, "facts": [fact | dates]})

    server = serve(say)
    texts = ("I saw Acme Industries.", "I saw Acme.")
    kgray.write("in.jsonl", *(row | {"text": text} for row, text in zip(ROWS, texts, strict=False)))

    added = kgray("add", "in.jsonl", "--group", "g", "--json")

    assert (added.json["committed"], added.json["failed"]) == (1, 1)
    assert sorted(server.tasks()) == [*["batched"] * 3, *["combined"] * 2]
    assert spent(kgray)["calls"] == calls(server) == 6


def test_a_call_counts_if_it_times_out_and_not_if_it_cannot_connect(kgray: Shell, serve: Serve) -> None:
    first, slow = iter([True]), threading.Event()

    def answer(_: ChatRequest) -> Say:
        if next(first, False):
            slow.wait(HANGS_S)
        return NOTHING

    server = serve(answer)
    kgray.env |= {"KGRAY_MODEL_TIMEOUT_S": "1"}
    kgray.write("in.jsonl", ROWS[0])

    added = kgray("add", "in.jsonl", "--group", "g", "--json")

    slow.set()
    # The probe, the call without an answer and its repetition; more than one on a slow machine.
    assert (added.json["committed"], spent(kgray)["calls"] >= 3) == (1, True)
    assert spent(kgray)["calls"] == (call_count := calls(server))
    kgray.write("in.jsonl", ROWS[1])
    server.close()
    kgray.env |= {"KGRAY_MODEL_PATIENCE_S": "1"}
    assert kgray("add", "in.jsonl", "--group", "g").code == 75
    assert spent(kgray)["calls"] == call_count


def test_a_failed_episode_shows_the_last_reply_until_its_removal(kgray: Shell, serve: Serve) -> None:
    serve(lambda _: Say("I would rather not."))
    kgray.write("in.jsonl", ROWS[0])
    kgray("add", "in.jsonl", "--group", "g")

    (failed,) = kgray("failures", "--json").json["failures"]
    reply = kgray("show", "m0", "--group", "g", "--json").json["records"]

    why = {
        "class": "InvalidAnswer",
        "message": "no usable reply in 3 calls: the reply holds no JSON object",
        "attempts": 1,
        "reply": "I would rather not.",
    }
    id_ = failed["id"]
    assert failed == {"id": id_, "client_id": "m0", "group": "g", **why}
    assert [row for row in reply if row["type"] == "failure"] == [{"type": "failure", "episode": id_, **why}]
    assert "I would rather not." in kgray("show", "m0", "--group", "g").out
    assert kgray("remove", "--group", "g", "--episode", "m0", "--yes").code == 0
    assert b"rather not" not in (kgray.folder / "kgray-data" / "kgray.sqlite3").read_bytes()
