"""The reranker and the embedder behind real HTTP servers: forms, batches, faults, and commands."""

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


def cohere(request: ChatRequest, score: Score = by_length) -> Say:
    """Answer like Cohere and vLLM: best first, each with its index; refuse another key for the texts."""
    if "documents" not in request.body:
        return Say("documents: field required", status=422)
    rows = [
        {"index": place, "relevance_score": score(text)}
        for place, text in enumerate(request.body["documents"])
    ]
    return Say(raw=json.dumps({"results": sorted(rows, key=lambda row: -row["relevance_score"])}).encode())


def tei(request: ChatRequest) -> Say:
    """Answer like text-embeddings-inference: a bare list."""
    if "texts" not in request.body:
        return Say("missing field `texts`", status=422)
    rows = [{"index": place, "score": by_length(text)} for place, text in enumerate(request.body["texts"])]
    return Say(raw=json.dumps(rows[::-1]).encode())


@pytest.fixture
def serve() -> Iterator[Callable[..., ChatServer]]:
    servers: list[ChatServer] = []

    def start(answer: Any) -> ChatServer:
        servers.append(ChatServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        with suppress(OSError):
            server.close()


def reranker(server: ChatServer) -> HttpReranker:
    return HttpReranker(
        Client(Endpoint(base_url=server.url, name="m", setting="reranker", patience_s=0.1, timeout_s=5.0))
    )


@pytest.mark.parametrize("form", [cohere, tei])
async def test_scores_have_the_order_of_the_texts_for_every_form_of_server(serve, form):
    server = serve(form)
    texts = ["x" * (n + 1) for n in range(70)] + [""]
    asking = reranker(server)

    scores = await asking.score("which?", texts)

    assert scores == pytest.approx([by_length(text or " ") for text in texts])
    accepted = [request for request in server.requests if ("documents" in request.body) == (form is cohere)]
    assert [request.path for request in accepted] == ["/v1/rerank"] * 3
    assert (
        max(len(request.body.get("documents") or request.body["texts"]) for request in accepted) == RERANKED
    )
    assert {request.body["query"] for request in server.requests} == {"which?"}
    request_count = len(server.requests)
    assert (await asking.score("which?", [])).shape == (0,)
    await asking.score("which?", ["a"])
    assert (
        len(server.requests) == request_count + 1
    )  # no second probe of the form, and no request without texts


async def test_a_long_text_has_the_score_of_its_best_piece(serve):
    server = serve(lambda request: cohere(request, lambda text: 0.9 if "needle" in text else 0.1))

    scores = await reranker(server).score("needle?", ["hay " * PIECE + "needle", "hay " * PIECE, "hay"])

    assert scores == pytest.approx([0.9, 0.1, 0.1])
    assert max(len(text) for request in server.requests for text in request.body["documents"]) == PIECE


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (lambda request: cohere(request, lambda _: 3.25), SettingsError, "sent the score 3.25"),
        (lambda _: Say(raw=b'{"results": [{"index": 7, "score": 0.1}]}'), InvalidAnswer, "without index"),
        (lambda _: Say("too long", status=413), Refused, "refused a text"),
    ],
)
async def test_an_invalid_answer_of_the_reranker_is_reported(serve, answer, error, words):
    with pytest.raises(error, match=words):
        await reranker(serve(answer)).score("q", ["a"])


def test_search_uses_the_reranker_and_doctor_checks_it(kgray, serve):
    """By commands: the longest text is first, by a cross-encoder that prefers long texts."""
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
    checks = {check["name"]: check for check in kgray("doctor", "--json").json["checks"]}
    assert checks["reranker"]["ok"]
    assert "scores a text 0.003" in checks["reranker"]["detail"]
    server.close()
    down = {check["name"]: check for check in kgray("doctor", "--json").json["checks"]}
    assert not down["reranker"]["ok"]


def test_the_width_of_an_embedder_is_requested_once_and_stored(tmp_path, serve):
    def embedding(request: ChatRequest) -> Say:
        rows = [
            {"index": i, "embedding": [float(len(t)), 1.0, 0.5]} for i, t in enumerate(request.body["input"])
        ]
        return Say(raw=json.dumps({"data": rows}).encode())

    server = serve(embedding)
    options = {"embedder_backend": "openai", "embedder_base_url": server.url, "embedder_name": "m"}
    with pytest.raises(StoreError, match="no kgray store"):
        library.open(tmp_path / "d", create=False, settings=options)
    assert server.requests == []
    for _ in range(2):
        with closing(library.open_async(tmp_path / "d", create=True, settings=options)) as memory:
            assert (memory.embedder.dimensions, memory.store.dimensions) == (3, 3)
    assert len(server.requests) == 1
    with (
        closing(
            library.open_async(tmp_path / "d", create=True, settings={"embedder_dimensions": 16, **options})
        ) as memory,
        pytest.raises(StoreError, match="gives 16 numbers a text, but the graph"),
    ):
        memory.check_embedder()
