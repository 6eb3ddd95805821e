"""The answers to HTTP requests, with the time that they take and the faults that they meet."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.model_server.faults import MAX_REMEMBERED, Fault, Faults
from bench.model_server.record import Answered, Record
from bench.model_server.tasks import Unreadable, reply_to
from bench.model_server.vectors import WorldEmbedder
from bench.world.dice import chance
from bench.world.latency import ZERO, Latency, Streams, tokens
from bench.world.oracle import Oracle
from kgray.records import canonical

MAX_TEXTS = 2048  # of one embeddings request


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets. hang_s: silence for so long, then the connection closes."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_s: float = 0.0


@dataclass(slots=True)
class Stats:
    """What was served; tokens are characters / 4.

    repeated        by task, requests that were answered before, word for word
    prefix_tokens   of prompt heads that were served before
    """

    requests: int = 0
    by_task: dict[str, int] = field(default_factory=dict)
    repeated: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    completion_tokens: int = 0
    embedded_texts: int = 0
    unreadable: int = 0


class Service:
    """One simulated server."""

    def __init__(
        self,
        oracle: Oracle,
        *,
        latency: Latency = ZERO,
        faults: Faults | None = None,
        wild: bool = False,
        affinity: float = 0.0,
        dimensions: int = 1024,
        model: str = "world",
        shuffle_s: float = 0.0,
        record: Record | None = None,
    ) -> None:
        """Answer from `oracle`.

        wild       questions get answers that are a hash of the whole prompt
        shuffle_s  each answer is held back for up to so long, so that answers come in another order
        record     where answers are noted, and what was answered before this server started
        """
        self.oracle = oracle
        self.streams = Streams(latency)
        self.faults = faults or Faults()
        self.stats = Stats()
        self._wild = wild
        self._model = model
        self._vectors = WorldEmbedder(oracle.world, dimensions=dimensions, affinity=affinity)
        self._heads: dict[str, int] = {}
        self._shuffle_s = shuffle_s
        self._answered: set[str] = set()
        self._record = record
        for answer in record.before if record is not None else ():
            self._count(answer)

    async def answer(self, method: str, path: str, body: bytes) -> Answer:
        """Return what this request gets; every fault is an answer too."""
        match method, path.split("?", 1)[0].removeprefix("/v1"):
            case "GET", "/models":
                data = [{"id": self._model, "object": "model", "owned_by": "kgray"}]
                return Answer(200, {"object": "list", "data": data})
            case "GET", "/stats":
                return Answer(200, self.shown())
            case "POST", "/chat/completions":
                return await self._read(body, self._chat)
            case "POST", "/embeddings":
                return await self._read(body, self._embed)
        return _error(404, f"{method} {path[:80]} is not served here")

    def shown(self) -> dict[str, Any]:
        """Return the counts so far."""
        counts = self.oracle.counts
        return {
            **asdict(self.stats),
            "prefix_share": self.stats.prefix_tokens / max(1, self.stats.prompt_tokens),
            "questions": dict(counts.questions),
            "unrecognised": counts.unrecognised,
            "faults": dict(self.faults.made),
            "busy_s": self.streams.busy_s,
            "most_waiting": self.streams.most_waiting,
        }

    async def _read(self, body: bytes, handle: Any) -> Answer:  # noqa: ANN401 - one of two methods below
        self.stats.requests += 1
        try:
            request = json.loads(body)
            if not isinstance(request, dict):
                raise Unreadable("the body is no JSON object")
            fault = self.faults.of(body)
            if fault == "throttled":
                return _error(429, "too many requests", {"Retry-After": "0"})
            if fault == "failed":
                return _error(500, "the server failed")
            if fault == "hung":
                return Answer(0, {}, hang_s=self.faults.hang_s)
            answer: Answer = await handle(request, fault)
            return answer
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.stats.unreadable += 1
            return _error(400, str(error)[:300])

    async def _chat(self, request: dict[str, Any], fault: Fault | None) -> Answer:
        if request.get("stream"):
            return _error(400, "this server does not stream")
        task, reply = reply_to(self.oracle, request, wild=self._wild)
        digest = hashlib.sha256(canonical(request["messages"]).encode("utf-8", "replace")).hexdigest()[:32]
        text, reason = json.dumps(reply, ensure_ascii=False, separators=(",", ":")), "stop"
        if fault == "malformed":
            text = f"I think that {text[: len(text) // 2]}"
        room = request.get("max_completion_tokens", request.get("max_tokens"))
        if fault == "truncated":
            text, reason = text[: len(text) // 2], "length"
        elif isinstance(room, int) and tokens(text) > room:
            text, reason = text[: 4 * room], "length"
        prompt, prefix = self._prompt(request)
        written = tokens(text)
        await self.streams.take(written)
        stats = self.stats
        if self._shuffle_s:
            # By the request and its number, so that a repeated request is not held back for as long again.
            await asyncio.sleep(self._shuffle_s * chance("shuffle", digest, stats.requests))
        answer = Answered(time.time(), task, digest, prompt + written)
        self._count(answer)
        if self._record is not None:
            self._record.note(answer)
        stats.prompt_tokens += prompt
        stats.prefix_tokens += prefix
        stats.completion_tokens += written
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": prefix},
        }
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        number = f"chatcmpl-{stats.requests}"
        return Answer(
            200,
            {
                "id": number,
                "object": "chat.completion",
                "created": 0,
                "model": request.get("model", self._model),
                "choices": [choice],
                "usage": usage,
            },
        )

    def _count(self, answer: Answered) -> None:
        stats, task = self.stats, answer.task
        stats.by_task[task] = stats.by_task.get(task, 0) + 1
        if answer.request in self._answered:
            stats.repeated[task] = stats.repeated.get(task, 0) + 1
        elif len(self._answered) < MAX_REMEMBERED:
            self._answered.add(answer.request)

    def _prompt(self, request: dict[str, Any]) -> tuple[int, int]:
        """Return the prompt's tokens, and those of a head that was served before."""
        texts = [str(message.get("content", "")) for message in request["messages"]]
        head = texts[0] if len(texts) > 1 else ""
        seen = self._heads.get(head, 0)
        if len(self._heads) < 1000 or seen:
            self._heads[head] = seen + 1
        return sum(map(tokens, texts)), tokens(head) if seen else 0

    async def _embed(self, request: dict[str, Any], _: Fault | None) -> Answer:
        given = request.get("input")
        texts = [given] if isinstance(given, str) else given
        if (
            not isinstance(texts, list)
            or not all(isinstance(t, str) for t in texts)
            or len(texts) > MAX_TEXTS
        ):
            raise Unreadable(f"input is no text and no list of at most {MAX_TEXTS} texts")
        wanted = request.get("dimensions", self._vectors.dimensions)
        if wanted != self._vectors.dimensions:
            raise Unreadable(f"vectors have {self._vectors.dimensions} dimensions here, not {wanted}")
        rows = await self._vectors.embed(texts)
        await asyncio.sleep(self.streams.latency.first_token_s)
        self.stats.embedded_texts += len(texts)
        packed = request.get("encoding_format") == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(row.tobytes()).decode() if packed else row.tolist(),
            }
            for index, row in enumerate(rows)
        ]
        read = sum(map(tokens, texts))
        usage = {"prompt_tokens": read, "total_tokens": read}
        return Answer(
            200, {"object": "list", "data": data, "model": request.get("model", self._model), "usage": usage}
        )


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Answer:
    kind = {429: "rate_limit_error", 500: "server_error"}.get(status, "invalid_request_error")
    return Answer(status, {"error": {"message": message, "type": kind, "code": None}}, headers or {})
