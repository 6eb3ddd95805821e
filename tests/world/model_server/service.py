"""The answers of a simulated model server, their latency, and injected faults."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kgray.domain.records import canonical
from tests.world.dice import chance
from tests.world.latency import ZERO, Latency, Streams, tokens
from tests.world.model_server.faults import MAX_REMEMBERED, Faults, TransportFault
from tests.world.model_server.record import RecordedAnswer, ServerRecord
from tests.world.model_server.tasks import UnreadableRequest, reply_to
from tests.world.model_server.vectors import WorldEmbedder
from tests.world.oracle import Oracle

MAX_TEXTS = 2048  # of one embeddings request
_MAX_HEADS = 1000  # number of remembered prompt heads


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP answer. streams: sent as events, with the complete text in one event."""

    body: Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    streams: bool = False

    def events(self) -> list[Mapping[str, Any]]:
        """Return the chunks of a streamed completion, its usage last."""
        (choice,) = self.body["choices"]
        head = {name: self.body[name] for name in ("id", "created", "model")}
        head["object"] = "chat.completion.chunk"
        text = {"index": 0, "delta": choice["message"], "finish_reason": None}
        end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
        return [
            head | {"choices": [text]}, head | {"choices": [end]},
            head | {"choices": [], "usage": self.body["usage"]},
        ]  # fmt: skip


@dataclass(slots=True)
class ServedCounts:
    """Counts of served requests; a token is 4 characters.

    by_task         answers to chat requests, by task
    repeated        answers to requests with the same messages as an earlier request, by task
    prefix_tokens   tokens of prompt heads that an earlier request had
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
    """One simulated server, without its HTTP."""

    def __init__(
        self,
        oracle: Oracle,
        *,
        latency: Latency = ZERO,
        faults: Faults | None = None,
        wild: bool = False,
        affinity: float = 0.0,
        dimensions: int = 1024,
        shuffle_s: float = 0.0,
        record: ServerRecord | None = None,
    ) -> None:
        """Answer from `oracle`.

        wild       questions get answers that are a hash of the whole prompt
        affinity   how near the names of one entity are embedded, 0 to 1
        shuffle_s  the maximum random delay of an answer, which changes the order of answers
        record     the file of answers, with the answers of earlier server processes
        """
        self.oracle = oracle
        self.streams = Streams(latency)
        self.faults = faults or Faults()
        self.counts = ServedCounts()
        self._wild = wild
        self._vectors = WorldEmbedder(oracle.world, dimensions=dimensions, affinity=affinity)
        self._heads: set[str] = set()
        self._shuffle_s = shuffle_s
        self._answered: set[str] = set()
        self._record = record
        for answer in record.recorded if record is not None else ():
            self._count(answer)

    def models(self) -> HttpAnswer:
        """Return the list of models: one."""
        return HttpAnswer(
            {"object": "list", "data": [{"id": "world", "object": "model", "owned_by": "kgray"}]}
        )

    def shown(self) -> dict[str, Any]:
        """Return the counts so far."""
        counts, question_counts = self.counts, self.oracle.counts
        return {
            **asdict(counts),
            "prefix_share": counts.prefix_tokens / max(1, counts.prompt_tokens),
            "questions": dict(question_counts.questions),
            "unrecognised": question_counts.unrecognised,
            "faults": dict(self.faults.made),
            "busy_s": self.streams.busy_s,
            "most_waiting": self.streams.most_waiting,
        }

    async def chat(self, body: bytes) -> HttpAnswer:
        """Return the answer to a chat request; every fault is an answer too."""
        return await self._guarded(body, self._chat)

    async def embeddings(self, body: bytes) -> HttpAnswer:
        """Return the answer to an embeddings request; every fault is an answer too."""
        return await self._guarded(body, self._embed)

    async def _guarded(
        self, body: bytes, handle: Callable[[dict[str, Any], TransportFault | None], Awaitable[HttpAnswer]]
    ) -> HttpAnswer:
        self.counts.requests += 1
        try:
            request = json.loads(body)
            if not isinstance(request, dict):
                raise UnreadableRequest("the body is no JSON object")
            fault = self.faults.fault_for(body)
            if fault == "throttled":
                return refusal(429, "too many requests", {"Retry-After": "0"})
            if fault == "hung":
                await asyncio.sleep(self.faults.hang_s)
            if fault in ("failed", "hung"):
                return refusal(500, "the server failed")
            return await handle(request, fault)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.counts.unreadable += 1
            return refusal(400, str(error)[:300])

    async def _chat(self, request: dict[str, Any], fault: TransportFault | None) -> HttpAnswer:
        task, reply = reply_to(self.oracle, request, wild=self._wild)
        digest = hashlib.sha256(canonical(request["messages"]).encode("utf-8", "replace")).hexdigest()[:32]
        text, reason = _text_of(reply, request, fault)
        prompt, prefix = self._prompt(request)
        written = tokens(text)
        await self.streams.take(written)
        counts = self.counts
        if self._shuffle_s:
            # The delay depends on the request and its number, so a repeated request gets another delay.
            await asyncio.sleep(self._shuffle_s * chance("shuffle", digest, counts.requests))
        answer = RecordedAnswer(time.time(), task, digest, prompt + written)
        self._count(answer)
        if self._record is not None:
            self._record.note(answer)
        counts.prompt_tokens += prompt
        counts.prefix_tokens += prefix
        counts.completion_tokens += written
        message = {"role": "assistant", "content": text}
        return HttpAnswer(
            {
                "id": f"chatcmpl-{counts.requests}",
                "object": "chat.completion",
                "created": 0,
                "model": request.get("model", "world"),
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                "usage": {
                    "prompt_tokens": prompt,
                    "completion_tokens": written,
                    "total_tokens": prompt + written,
                    "prompt_tokens_details": {"cached_tokens": prefix},
                },
            },
            streams=bool(request.get("stream")),
        )

    def _count(self, answer: RecordedAnswer) -> None:
        counts, task = self.counts, answer.task
        counts.by_task[task] = counts.by_task.get(task, 0) + 1
        if answer.request in self._answered:
            counts.repeated[task] = counts.repeated.get(task, 0) + 1
        elif len(self._answered) < MAX_REMEMBERED:
            self._answered.add(answer.request)

    def _prompt(self, request: dict[str, Any]) -> tuple[int, int]:
        """Return the number of prompt tokens, and of tokens in a head that an earlier request had."""
        texts = [str(message.get("content", "")) for message in request["messages"]]
        head = texts[0] if len(texts) > 1 else ""
        is_known_head = head in self._heads
        if len(self._heads) < _MAX_HEADS:
            self._heads.add(head)
        return sum(map(tokens, texts)), tokens(head) if is_known_head else 0

    async def _embed(self, request: dict[str, Any], _: TransportFault | None) -> HttpAnswer:
        text_or_list = request.get("input")
        texts = [text_or_list] if isinstance(text_or_list, str) else text_or_list
        if not (
            isinstance(texts, list) and all(isinstance(t, str) for t in texts) and len(texts) <= MAX_TEXTS
        ):
            raise UnreadableRequest(f"input is no text and no list of at most {MAX_TEXTS} texts")
        dimensions = request.get("dimensions", self._vectors.dimensions)
        if dimensions != self._vectors.dimensions:
            raise UnreadableRequest(
                f"vectors have {self._vectors.dimensions} dimensions here, not {dimensions}"
            )
        rows = await self._vectors.embed(texts)
        await asyncio.sleep(self.streams.latency.first_token_s)
        self.counts.embedded_texts += len(texts)
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
        return HttpAnswer(
            {"object": "list", "data": data, "model": request.get("model", "world"), "usage": usage}
        )


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    """Return an error in OpenAI's form."""
    kind = {429: "rate_limit_error", 500: "server_error"}.get(status, "invalid_request_error")
    return HttpAnswer({"error": {"message": message, "type": kind, "code": None}}, status, headers or {})


def _text_of(reply: object, request: Mapping[str, Any], fault: TransportFault | None) -> tuple[str, str]:
    """Return the message's text and its finish_reason, truncated by a fault or the request's limit."""
    text = json.dumps(reply, ensure_ascii=False, separators=(",", ":"))
    if fault == "malformed":
        text = f"I think that {text[: len(text) // 2]}"
    limit = request.get("max_completion_tokens", request.get("max_tokens"))
    if fault == "truncated":
        return text[: len(text) // 2], "length"
    if isinstance(limit, int) and tokens(text) > limit:
        return text[: 4 * limit], "length"
    return text, "stop"
