"""The reranker and the embedder behind real HTTP servers: forms, batches, faults; through the commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

import kgray as library
from kgray.errors import InvalidAnswer, Refused, SettingsError, StoreError
from kgray.models.openai_api.client import Client, Endpoint
from kgray.models.openai_api.retrieval import PIECE, RERANKED, HttpReranker
from tests.doors.chat_server import ChatRequest, ChatServer, Say, at

Score = Callable[[str], float]


def by_length(text: str) -> float:
    return min(1.0, len(text) / PIECE)


def cohere(asked: ChatRequest, score: Score = by_length) -> Say:
    """As Cohere and vLLM answer: best first, each with its index; another key for the texts is refused."""
    if "documents" not in asked.body:
        return Say("documents: field required", status=422)
    rows = [
        {"index": place, "relevance_score": score(text)} for place, text in enumerate(asked.body["documents"])
    ]
    return Say(raw=json.dumps({"results": sorted(rows, key=lambda row: -row["relevance_score"])}).encode())


def tei(asked: ChatRequest) -> Say:
    """As text-embeddings-inference answers: a bare list."""
    if "texts" not in asked.body:
        return Say("missing field `texts`", status=422)
    rows = [{"index": place, "score": by_length(text)} for place, text in enumerate(asked.body["texts"])]
    return Say(raw=json.dumps(rows[::-1]).encode())


@pytest.fixture
def serve() -> Iterator[Callable[..., ChatServer]]:
    made: list[ChatServer] = []

    def start(answer: Any) -> ChatServer:
        made.append(ChatServer(answer))
        return made[-1]

    yield start
    for server in made:
        with suppress(OSError):
            server.close()


def reranker(server: ChatServer) -> HttpReranker:
    return HttpReranker(
        Client(Endpoint(base_url=server.url, name="m", setting="reranker", patience_s=0.1, timeout_s=5.0))
    )


@pytest.mark.parametrize("form", [cohere, tei])
async def test_scores_come_in_the_order_of_the_texts_whatever_the_servers_form(serve, form):
    server = serve(form)
    texts = ["x" * (n + 1) for n in range(70)] + [""]
    asking = reranker(server)

    scores = await asking.score("which?", texts)

    assert scores == pytest.approx([by_length(text or " ") for text in texts])
    taken = [asked for asked in server.requests if ("documents" in asked.body) == (form is cohere)]
    assert [asked.path for asked in taken] == ["/v1/rerank"] * 3
    assert max(len(asked.body.get("documents") or asked.body["texts"]) for asked in taken) == RERANKED
    assert {asked.body["query"] for asked in server.requests} == {"which?"}
    before = len(server.requests)
    assert (await asking.score("which?", [])).shape == (0,)
    await asking.score("which?", ["a"])
    assert len(server.requests) == before + 1  # its form is known by now, and nothing is asked for no text


async def test_a_long_text_has_the_score_of_its_best_piece(serve):
    server = serve(lambda asked: cohere(asked, lambda text: 0.9 if "needle" in text else 0.1))

    scores = await reranker(server).score("needle?", ["hay " * PIECE + "needle", "hay " * PIECE, "hay"])

    assert scores == pytest.approx([0.9, 0.1, 0.1])
    assert max(len(text) for asked in server.requests for text in asked.body["documents"]) == PIECE


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (lambda asked: cohere(asked, lambda _: 3.25), SettingsError, "sent the score 3.25"),
        (lambda _: Say(raw=b'{"results": [{"index": 7, "score": 0.1}]}'), InvalidAnswer, "without index"),
        (lambda _: Say("too long", status=413), Refused, "refused a text"),
    ],
)
async def test_an_answer_that_is_no_score_is_said(serve, answer, error, words):
    with pytest.raises(error, match=words):
        await reranker(serve(answer)).score("q", ["a"])


def test_search_orders_by_the_server_and_doctor_asks_it(kgray, serve):
    """Through the command: the longest text first, by a cross-encoder that likes length."""
    server = serve(cohere)
    kgray.env |= at(server.url, "RERANKER") | {"KGRAY_MODEL_BACKEND": "rules"}
    long = "I like tea, and " + "very much " * 20 + "so"
    rows = [{"id": f"m{n}", "at": "2026-03-01", "text": text} for n, text in enumerate(["I like tea", long])]
    kgray("add", kgray.write("a.jsonl", *rows), "--group", "g")

    result = kgray("search", "tea", "--group", "g", "--recipe", "reranked", "--scope", "episode", "--json")

    assert [hit["text"] for hit in result.json["hits"]] == [long, "I like tea"]
    assert [hit["score"] for hit in result.json["hits"]] == pytest.approx(
        [by_length(long), by_length("I like tea")]
    )
    told = {check["name"]: check for check in kgray("doctor", "--json").json["checks"]}
    assert told["reranker"]["ok"]
    assert "scores a text 0.003" in told["reranker"]["detail"]
    server.close()
    down = {check["name"]: check for check in kgray("doctor", "--json").json["checks"]}
    assert not down["reranker"]["ok"]


def test_the_width_of_an_embedder_is_asked_once_and_kept_with_the_store(tmp_path, serve):
    def embedding(asked: ChatRequest) -> Say:
        rows = [
            {"index": i, "embedding": [float(len(t)), 1.0, 0.5]} for i, t in enumerate(asked.body["input"])
        ]
        return Say(raw=json.dumps({"data": rows}).encode())

    server = serve(embedding)
    how = {"embedder_backend": "openai", "embedder_base_url": server.url, "embedder_name": "m"}
    with pytest.raises(StoreError, match="no kgray store"):
        library.open(tmp_path / "d", create=False, settings=how)
    assert server.requests == []
    for _ in range(2):
        with closing(library.open_async(tmp_path / "d", create=True, settings=how)) as memory:
            assert (memory.embedder.dimensions, memory.store.dimensions) == (3, 3)
    assert len(server.requests) == 1
    with (
        closing(
            library.open_async(tmp_path / "d", create=True, settings={"embedder_dimensions": 16, **how})
        ) as memory,
        pytest.raises(StoreError, match="gives 16 numbers a text, but the graph"),
    ):
        memory.check_embedder()
