"""Requests to a server: their cost, their limit, and the wait for a server that cannot be reached (R24).

All waiting for a server happens here: the `openai` library sends each request once, in its place of the
limiter. `model.patience_s` is the maximum length of an outage; then Unavailable is raised with `waited` set.

    401, 403, 404   SettingsError: no other episode would fare better; the key is never shown
    408, 409, 425, 429, 5xx, a broken connection or body, a timeout: the request is sent again, after pauses
    other 4xx       Rejected: the caller knows whether the text or a parameter is to blame
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kgray.errors import Cost, KgrayError, Unavailable
from kgray.models.prompting.prompts import tokens
from kgray.ports.ingest import Gate, Urgency
from kgray.settings.checks import Secret
from kgray.system.outages import OUTAGES
from kgray.system.spans import model_call

OnText = Callable[[str], None]
_CONNECTION = "kgray.models.openai_api.connection"


class Rejected(Exception):
    """The server answered 4xx to the request itself; text: status and message. Never leaves this package."""


class TryLater(Exception):
    """The server cannot answer now. Never leaves the client.

    seconds: for how long it asks to wait, 0 where it does not; worked: whether it may bill the request (R24)
    """

    def __init__(self, reason: str, seconds: float = 0.0, *, worked: bool = False) -> None:
        super().__init__(reason)
        self.seconds, self.worked = seconds, worked


@dataclass(slots=True)
class TokensSpent:
    """The cost of an episode's requests so far: each call that the server worked on, usable or not."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    most_calls: int | None = None  # after that number of calls no request is sent again

    @property
    def cost(self) -> Cost:
        return Cost(self.calls, self.prompt_tokens, self.completion_tokens)

    @property
    def is_over(self) -> bool:
        return self.most_calls is not None and self.calls >= self.most_calls

    def count(self, usage: object, body: Mapping[str, Any], text: str = "") -> bool:
        """Count a call with the server's figures; return whether they are missing and thus estimated."""
        figures = usage if isinstance(usage, dict) else {}
        prompt, completion = figures.get("prompt_tokens"), figures.get("completion_tokens")
        self.calls += 1
        if isinstance(prompt, int) and isinstance(completion, int):
            self.prompt_tokens += prompt
            self.completion_tokens += completion
            return False
        self.prompt_tokens += estimate(body)
        self.completion_tokens += tokens(text)
        return True

    @contextmanager
    def on_errors(self) -> Iterator[None]:
        """Add the cost of earlier calls to the errors that leave the block, and to a cancellation."""
        try:
            yield
        except (KgrayError, asyncio.CancelledError) as error:
            error.spent = self.cost  # type: ignore[union-attr]
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A model and its server."""

    base_url: str
    name: str
    key: Secret | None = None
    timeout_s: float = 120.0
    max_concurrency: int = 32
    patience_s: float = 600.0
    setting: str = "model"  # the section of the settings, for errors; also: embedder, reranker
    first_pause_s: float = 0.5  # maximum between two tries of a request; it doubles with each try
    longest_pause_s: float = 30.0

    @property
    def server(self) -> str:
        """Return the server's name in messages."""
        return f"the {self.setting}'s server at {self.base_url}"

    def line(self, words: object, max_length: int) -> str:
        """Return a server's words as a line with the key masked. max_length: characters."""
        return self.masked(" ".join(str(words).split()))[:max_length]

    def masked(self, text: str) -> str:
        """Return the text with the key masked: servers' messages are stored, and may repeat the request.

        A key of a few letters ("none", "x") is no secret, and masking it would spoil every reply.
        """
        key = self.key.reveal() if self.key else ""
        if len(key) >= 8:
            for spelled in (key, json.dumps(key)[1:-1], key.replace("/", r"\/")):  # as JSON writes it, too
                text = text.replace(spelled, "***")
        return text


def estimate(body: Mapping[str, Any]) -> int:
    """Return an estimate of a request's tokens."""
    return sum(tokens(message["content"]) for message in body.get("messages", ()))


@dataclass(frozen=True, slots=True)
class Post:
    """One request."""

    at: Endpoint
    path: str
    body: dict[str, Any]
    rows: str  # the key of a list in each answer
    count: int | None = None  # length of the list; None = any but 0
    # Called at each try: returns a function that takes the pieces of the reply as they arrive.
    listener: Callable[[], OnText] | None = None
    if_slow: bool = False  # ask for a stream only of a slow server


class Limiter(Gate):
    """The limit of requests at a server: it halves when the server says "too many" and grows back (AIMD).

    A limiter belongs to a server and key, shared by all clients on an event loop; first come, first served.
    """

    def __init__(self, cap: int) -> None:
        super().__init__(float(cap))
        self._cap, self._cut_at = float(cap), 0.0
        self.resume_at = 0.0  # nothing is sent before: the server's retry time

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Reserve a place at the server; yields the start of the reservation."""
        async with self.pass_through(Urgency(False, 0, 0)):
            while (pause := self.resume_at - time.monotonic()) > 0:  # noqa: ASYNC110 - until a moment, which may move
                await asyncio.sleep(pause)
            yield time.monotonic()

    def succeeded(self) -> None:
        """Grow by one for each full round of successes."""
        self.width = min(self._cap, self.width + 1 / self.width)
        self.let_in()

    def throttled(self, sent_at: float) -> None:
        """Halve the limit, once for all requests in flight at that time."""
        if sent_at >= self._cut_at:
            self.width = max(1.0, self.width / 2)
            self._cut_at = time.monotonic()


class Client:
    """Sends requests to an endpoint; all clients of a server and key share a limiter."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.server, self.masked = endpoint.server, endpoint.masked

    async def chat(
        self,
        body: dict[str, Any],
        spent: TokensSpent,
        on_text: OnText | None = None,
        *,
        if_slow: Callable[[], OnText] | None = None,
    ) -> dict[str, Any]:
        """Return the body of a chat completion; failed calls are added to `spent`.

        on_text   requests a stream, and receives each piece of the reply; a broken stream is not requested
                  again. Raises Repeats to end it: the pieces so far are the reply, with finish_reason
                  "length"
        if_slow   returns an on_text for each try: only a slow server is asked for a stream, and again after a
                  broken stream
        Raises Rejected, SettingsError, Unavailable.
        """
        listener = if_slow if on_text is None else lambda: on_text
        post = Post(self.endpoint, "/chat/completions", body, "choices", None, listener, bool(if_slow))
        return await self._patiently(post, spent)

    async def embeddings(self, texts: list[str]) -> dict[str, Any]:
        """Return the body of an embeddings answer, a row for each text. Raises the errors of `chat`."""
        body = {"input": texts, "encoding_format": "float"}
        post = Post(self.endpoint, "/embeddings", body, "data", len(texts))
        return await self._patiently(post, TokensSpent())

    async def rerank(self, query: str, texts: list[str], *, called: str) -> dict[str, Any]:
        """Return {"results": [...]}, a row for each text. called: the texts' key."""
        body = {"query": query, called: texts}
        post = Post(self.endpoint, "/rerank", body, "results", len(texts))
        return await self._patiently(post, TokensSpent())

    async def check(self, deadline_s: float) -> str:
        """Send a single request to the server; return its answer as the end of a sentence.

        The list of its models is free; a token is requested only if the model is not on the list. Raises
        Unavailable if no answer comes in time, SettingsError for a wrong key, address or model.
        """
        if self.endpoint.setting == "embedder":
            shortest = Post(self.endpoint, "/embeddings", {"input": ["a"]}, "data")
        else:
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            shortest = Post(self.endpoint, "/chat/completions", body, "choices")
        session = await self._opened()
        try:
            async with asyncio.timeout(deadline_s):
                if await session.lists(self.endpoint.name):
                    return "serves it"
                await self._once(session, shortest, time.monotonic())
        except TimeoutError:
            raise Unavailable(f"{self.server} gives no answer within {deadline_s:g} s") from None
        except TryLater as later:
            raise Unavailable(f"{self.server} {later}") from None
        except Rejected as rejection:
            return f"answers, and refuses a request of one word ({rejection})"
        return "answers"

    async def _opened(self) -> Any:  # noqa: ANN401 - a `Connection`; of an engine, an object with a limiter
        if _CONNECTION not in sys.modules:  # in a thread: the import takes half a second
            await asyncio.to_thread(import_module, _CONNECTION)
        from kgray.models.openai_api.connection import connection

        return await connection(self.endpoint)

    async def _patiently(self, post: Post, spent: TokensSpent) -> dict[str, Any]:
        """Send the request until an answer comes, or the patience is used up."""
        session, at = await self._opened(), self.endpoint
        first_failure: float | None = None
        longest = min(at.first_pause_s, at.longest_pause_s)
        while True:
            sent = 0.0
            try:
                async with session.limiter.slot() as sent_at:
                    sent = time.time()
                    waits = OUTAGES.asking(self.server, at.timeout_s)
                    with model_call(post.path, at.name) as tell, waits:
                        answer = await self._once(session, post, sent_at)
                        tell(answer)
                session.limiter.succeeded()
                OUTAGES.answered(self.server)
                return answer
            except asyncio.CancelledError:
                if sent:  # the server may work on it, and bill it
                    spent.count(None, post.body)
                raise
            except TryLater as later:
                reason, wait = str(later), later.seconds
                if later.worked:
                    spent.count(None, post.body)
            except Rejected:
                spent.calls += 1  # read and refused: its tokens are not billed
                OUTAGES.answered(self.server)
                raise
            if spent.is_over:
                raise Unavailable(f"{self.server} {reason}, and no more calls are allowed", waited=True)
            OUTAGES.failed(self.server, reason, since=sent, patience_s=at.patience_s)
            clock = time.monotonic()
            first_failure = clock if first_failure is None else first_failure
            patience = first_failure + at.patience_s - clock
            # Jitter, so that streams come back one by one.
            delay = max(wait, random.uniform(0.05, longest))  # noqa: S311 - spreads load, guards nothing
            if delay > patience and (wait or patience <= 0):
                advice = f" and asks for {wait:.0f} s" if wait else ""
                raise Unavailable(
                    f"The server at {at.base_url} {reason}{advice}; waited "
                    f"{round(clock - first_failure, 1):g} s "
                    f"(model.patience_s = {at.patience_s:g}). What was accepted is safe: run the command "
                    "again.",
                    waited=True,
                )
            await asyncio.sleep(min(delay, max(patience, 0.0)))
            longest = min(2 * longest, at.longest_pause_s)

    async def _once(self, session: Any, post: Post, sent_at: float) -> dict[str, Any]:  # noqa: ANN401 - as above
        """Return a sound body. Raises TryLater, Rejected, SettingsError."""
        answer: dict[str, Any] = await session.answer(post, sent_at)
        return answer
