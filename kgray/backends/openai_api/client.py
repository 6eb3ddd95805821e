"""One server: its connections, its limiter, and what each of its errors means (R24).

All waiting for a server happens here. The setting promises a time (`model.patience_s`), after which
Unavailable is raised with `waited` set. A request by aiohttp is 0.11 ms of CPU, by the openai library 1.0.

    408, 409, 425, 429, 5xx, a broken connection or body, a timeout   tried again, after growing pauses
    401, 403, 404       SettingsError: no other episode would fare better; the key is never shown
    other 4xx           Rejected: the caller knows whether the text or a parameter is to blame
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

from kgray.backends.openai_api.streaming import Repeats, whole
from kgray.errors import Cost, KgrayError, SettingsError, Unavailable
from kgray.ingest.calls import Gate, Urgency
from kgray.outages import OUTAGES
from kgray.prompting.prompts import tokens
from kgray.settings.checks import Secret
from kgray.spans import model_call

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

CONNECT_S = 5.0
MASK = "***"  # shown in place of a key
LEAST_SECRET = 8  # characters from which on a key is treated as a secret
_KEPT_S = 4.0  # an idle connection; servers close theirs after 5 s
_LONGEST_LINE = 1 << 22  # bytes of a line of a stream
_TRIED_AGAIN = frozenset({408, 409, 425, 429})
# A reply that took longer than the first, at fewer tokens a second than the second, is a slow server's: from
# then on replies are streamed, and the deadline is one for silence. Those of a fast one are not: pieces cost
# time of the processor.
_SLOW_S, _SLOW_RATE = 2.0, 20.0
_SETTINGS = {
    401: "refuses the key: check {setting}.api_key (KGRAY_{SETTING}_API_KEY)",
    403: "does not let this key use it: check {setting}.api_key (KGRAY_{SETTING}_API_KEY) and what it may do",
    404: "knows no such address or model: check {setting}.base_url (often ends in /v1) and {setting}.name",
}


class Rejected(Exception):
    """The server answered 4xx to the request itself; text: status and message. Never leaves this package."""


class TryLater(Exception):
    """The server cannot answer now. Never leaves the client.

    seconds   how long it asks to wait; 0 = it does not say
    worked    whether it may have worked on the request: then the call is counted as spent (R24)
    """

    def __init__(self, reason: str, seconds: float = 0.0, *, worked: bool = False) -> None:
        super().__init__(reason)
        self.seconds, self.worked = seconds, worked


@dataclass(slots=True)
class TokensSpent:
    """What an episode's requests have cost so far: every call that the server worked on, usable or not.

    most_calls  after so many, no request is sent again; None = no bound
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    most_calls: int | None = None

    @property
    def cost(self) -> Cost:
        return Cost(self.calls, self.prompt_tokens, self.completion_tokens)

    @property
    def is_over(self) -> bool:
        return self.most_calls is not None and self.calls >= self.most_calls

    def count(self, usage: object, body: Mapping[str, Any], text: str = "") -> bool:
        """Count a call with the server's own figures; return whether it gave none, so they are estimated."""
        said = usage if isinstance(usage, dict) else {}
        prompt, completion = said.get("prompt_tokens"), said.get("completion_tokens")
        self.calls += 1
        if isinstance(prompt, int) and isinstance(completion, int):
            self.prompt_tokens += prompt
            self.completion_tokens += completion
            return False
        self.prompt_tokens += sum(tokens(message["content"]) for message in body.get("messages", ()))
        self.completion_tokens += tokens(text)
        return True

    @contextmanager
    def told(self) -> Iterator[None]:
        """Give the errors that leave the block, a cancellation too, what was spent before them."""
        try:
            yield
        except (KgrayError, asyncio.CancelledError) as error:
            error.spent = self.cost  # type: ignore[union-attr]
            raise

    @contextmanager
    def if_cancelled(self, body: Mapping[str, Any]) -> Iterator[None]:
        """Count a call that is cancelled inside the block: the server may work on it, and bill it."""
        try:
            yield
        except asyncio.CancelledError:
            self.count(None, body)
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model is served.

    setting                        the section of the settings for errors: model, embedder or reranker
    first_pause_s, longest_pause_s between two tries of a request, at most; the first doubles with each try
    """

    base_url: str
    name: str
    key: Secret | None = None
    timeout_s: float = 120.0
    max_concurrency: int = 32
    patience_s: float = 600.0
    setting: str = "model"
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0


@dataclass(frozen=True, slots=True)
class _Post:
    """One request. is_sound: whether a response body is a valid answer to it."""

    path: str
    body: dict[str, Any]
    is_sound: Callable[[dict[str, Any]], bool]
    # Called at each try: returns what is called with each piece of the reply as it arrives.
    listener: Callable[[], Callable[[str], None]] | None = None
    if_slow: bool = False  # ask for a stream only of a slow server


class Limiter(Gate):
    """How many requests are at a server: the cap halves when it says "too many" and grows back (AIMD).

    One a server and key, shared by all that call it on one event loop; first come, first served.
    """

    def __init__(self, cap: int) -> None:
        super().__init__(float(cap))
        self._cap = cap
        self._resume_at = self._cut_at = 0.0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Hold one place at the server; yields the moment at which it was taken."""
        async with self.pass_through(Urgency(False, 0, 0)):
            while (left := self._resume_at - time.monotonic()) > 0:  # noqa: ASYNC110 - until a moment, which may move
                await asyncio.sleep(left)
            yield time.monotonic()

    def succeeded(self) -> None:
        """Grow by one for each full round of successes."""
        self.width = min(float(self._cap), self.width + 1 / self.width)
        self.let_in()

    def throttled(self, sent_at: float) -> None:
        """Halve, once for all requests that were under way together."""
        if sent_at >= self._cut_at:
            self.width = max(1.0, self.width / 2)
            self._cut_at = time.monotonic()

    def pause(self, seconds: float) -> None:
        """Send nothing for a while: the server said when to come back."""
        self._resume_at = max(self._resume_at, time.monotonic() + seconds)


@dataclass(slots=True)
class _ServerSession:
    """An event loop's connections and limiter for one server and key."""

    api: ClientSession
    limiter: Limiter
    closing: AsyncGenerator[None, None] = field(repr=False)
    is_slow: bool = False
    streams: bool = True

    def note(self, found: dict[str, Any], seconds: float) -> None:
        """Note how long a whole reply took."""
        with suppress(KeyError, TypeError):  # of another form, or without a count
            if seconds > max(_SLOW_S, found["usage"]["completion_tokens"] / _SLOW_RATE):
                self.is_slow = True


# By event loop: connections die with the loop that made them, and `asyncio.run` makes a new one a call.
_SESSIONS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], _ServerSession]] = (
    WeakKeyDictionary()
)


class Client:
    """Sends requests to one endpoint; all clients of one server and key share a limiter."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.where = f"the {endpoint.setting}'s server at {endpoint.base_url}"
        self._url = endpoint.base_url.rstrip("/")

    async def chat(
        self,
        body: dict[str, Any],
        spent: TokensSpent,
        on_text: Callable[[str], None] | None = None,
        *,
        if_slow: Callable[[], Callable[[str], None]] | None = None,
    ) -> dict[str, Any]:
        """Return the body of a chat completion; calls that gave none are added to `spent`.

        on_text     asks for a stream, and is called with each piece of the reply; a reply that broke off in
                    the middle is not asked for again. Raises Repeats to end it: what came is the reply, and
                    its finish_reason is "length"
        if_slow     returns such an on_text, a new one for each try: asks for a stream only of a server that
                    has been slow, and again where one broke off
        Raises Rejected, SettingsError, Unavailable.
        """
        listener = if_slow if on_text is None else lambda: on_text
        post = _Post("/chat/completions", body, lambda got: bool(got["choices"]), listener, bool(if_slow))
        return await self._patiently(post, spent)

    async def embeddings(self, texts: list[str]) -> dict[str, Any]:
        """Return the body of an embeddings answer, one row a text. Raises as `chat` does."""
        body = {"input": texts, "encoding_format": "float"}
        post = _Post("/embeddings", body, lambda got: len(got["data"]) == len(texts))
        return await self._patiently(post, TokensSpent())

    async def rerank(self, query: str, texts: list[str], *, called: str) -> dict[str, Any]:
        """Return {"results": [...]}, a row a text. called: the texts' key; raises as `chat` does."""
        body = {"query": query, called: texts}
        post = _Post("/rerank", body, lambda got: len(got["results"]) == len(texts))
        return await self._patiently(post, TokensSpent())

    async def check(self, deadline_s: float) -> str:
        """Return what the server says to a request that is sent once: the end of a sentence about it.

        The list of its models costs nothing; only where the model is not on it, one token is asked of it.
        Raises Unavailable where it gives no answer in time, SettingsError for a wrong key, address or model.
        """
        if self.endpoint.setting == "embedder":
            shortest = _Post("/embeddings", {"input": ["a"]}, lambda got: "data" in got)
        else:
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            shortest = _Post("/chat/completions", body, lambda got: "choices" in got)
        session = await _session(self.endpoint)
        try:
            async with asyncio.timeout(deadline_s):
                if await self._is_listed(session):
                    return "serves it"
                await self._once(session, shortest, time.monotonic())
        except TimeoutError:
            raise Unavailable(f"{self.where} gives no answer within {deadline_s:g} s") from None
        except TryLater as later:
            raise Unavailable(f"{self.where} {later}") from None
        except Rejected as rejection:
            return f"answers, and refuses a request of one word ({rejection})"
        return "answers"

    async def _is_listed(self, session: _ServerSession) -> bool:
        from aiohttp import ClientError

        try:
            async with session.api.get(f"{self._url}/models", raise_for_status=True) as answer:
                found: Any = json.loads(await answer.read())
            return self.endpoint.name in {row["id"] for row in found["data"]}
        except (ClientError, TimeoutError, ValueError, KeyError, TypeError):
            return False  # the model is asked, and says what is wrong

    async def _opened(self) -> Any:  # noqa: ANN401 - a `_ServerSession`; of an engine, one with a limiter
        return await _session(self.endpoint)

    async def _patiently(self, post: _Post, spent: TokensSpent) -> dict[str, Any]:
        """Send until there is an answer, or the patience is spent."""
        session = await self._opened()
        since: float | None = None  # when the first request failed
        attempt = 0
        while True:
            try:
                async with session.limiter.slot() as sent_at:
                    sent = time.time()
                    call = model_call(post.path, self.endpoint.name)
                    waits = OUTAGES.asking(self.where, self.endpoint.timeout_s)
                    with call as tell, waits, spent.if_cancelled(post.body):
                        found = await self._once(session, post, sent_at)
                        tell(found)
                session.limiter.succeeded()
                OUTAGES.answered(self.where)
                return found
            except TryLater as later:
                reason, wait = str(later), later.seconds
                if later.worked:
                    spent.count(None, post.body)
            except Rejected:
                spent.calls += 1  # read and refused: nobody bills its tokens
                OUTAGES.answered(self.where)
                raise
            if spent.is_over:
                raise Unavailable(f"{self.where} {reason}, and no more calls are allowed", waited=True)
            OUTAGES.failed(self.where, reason, since=sent, patience_s=self.endpoint.patience_s)
            now = time.monotonic()
            since = now if since is None else since
            deadline = since + self.endpoint.patience_s
            # Jitter, so that streams come back one by one.
            longest = min(self.endpoint.longest_pause_s, self.endpoint.first_pause_s * 2 ** min(attempt, 10))
            delay = max(wait, random.uniform(0.05, longest))  # noqa: S311 - spreads load, guards nothing
            if now + delay > deadline and (wait or now >= deadline):
                more = f" and asks for {wait:.0f} s" if wait else ""
                raise Unavailable(
                    f"The server at {self.endpoint.base_url} {reason}{more}; waited "
                    f"{round(now - since, 1):g} s (model.patience_s = {self.endpoint.patience_s:g}). "
                    "What was accepted is safe: run the command again.",
                    waited=True,
                )
            await asyncio.sleep(min(delay, max(deadline - now, 0.0)))
            attempt += 1

    async def _once(self, session: Any, post: _Post, sent_at: float) -> dict[str, Any]:  # noqa: ANN401 - as above
        """Return a sound body. Raises TryLater, Rejected, SettingsError."""
        from aiohttp import ClientConnectorError, ClientError, ConnectionTimeoutError

        try:
            body = {"model": self.endpoint.name, **post.body}
            found: Any = None
            streamed = post.listener and (not post.if_slow or (session.is_slow and session.streams))
            if streamed:
                with suppress(*((Rejected,) if post.if_slow else ())):
                    found = await self._streamed(session, post, body, sent_at)
            refused = streamed and found is None
            if found is None:  # also where the stream was refused, or the text: its own answer tells which
                since = time.monotonic()
                async with self._sent(session, post, body, sent_at) as answer:
                    found = json.loads(await answer.read())
                session.note(found, time.monotonic() - since)
            found = {"results": found} if isinstance(found, list) else found  # the rerank interface of TEI
            if isinstance(found, dict) and post.is_sound(found):
                session.streams = session.streams and not refused
                return found
        except (ClientError, TimeoutError) as error:
            said = f"cannot be reached ({self.masked(' '.join(str(error).split()))[:120]})"
            was_sent = not isinstance(error, ClientConnectorError | ConnectionTimeoutError)
            if was_sent and isinstance(error, TimeoutError):
                session.is_slow = True
                said = f"no answer within {self.endpoint.timeout_s:g} s"
            raise TryLater(said, worked=was_sent) from None
        except (ValueError, KeyError, TypeError):  # no JSON, or of another form
            pass
        raise TryLater("its answer is no JSON of the interface", worked=True)

    @asynccontextmanager
    async def _sent(
        self, session: _ServerSession, post: _Post, body: Mapping[str, Any], sent_at: float
    ) -> AsyncIterator[ClientResponse]:
        """Yield the answer to a request, its body still to be read. Raises what a status means.

        By aiohttp's own error of a status, an answer that is no HTTP would be a refusal of the text.
        """
        async with session.api.post(self._url + post.path, data=json.dumps(body).encode()) as answer:
            if answer.status >= 400:
                said = await answer.text(errors="replace")
                if post.if_slow and "stream" in body and answer.status == 501:
                    raise Rejected("501")  # of the stream: whole, it may be answered
                raise self._meaning(answer, said, session.limiter, sent_at)
            yield answer

    async def _streamed(
        self, session: _ServerSession, post: _Post, body: dict[str, Any], sent_at: float
    ) -> object:
        """Return the body of a completion, each piece of which was passed on; a server need not stream."""
        from aiohttp import ClientError

        assert post.listener is not None  # noqa: S101 - see `_ServerSession.streamed`
        on_text = post.listener()
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        async with self._sent(session, post, body, sent_at) as answer:
            if "event-stream" not in answer.headers.get("content-type", ""):
                found = json.loads(await answer.read())
                with suppress(Repeats):
                    on_text(found["choices"][0]["message"]["content"] or "")
                return found
            pieces: list[str] = []
            try:
                sent = sum(tokens(message["content"]) for message in body["messages"])
                return await whole(answer, pieces, on_text, sent)
            except (ClientError, TimeoutError, ValueError, TypeError, AttributeError) as error:
                if pieces and not post.if_slow:
                    again = f"{self.where} broke off its answer in the middle: ask again"
                    raise Unavailable(again) from None
                silent = f"wrote nothing for {self.endpoint.timeout_s:g} s"
                said = silent if isinstance(error, TimeoutError) else "broke off its answer"
                raise TryLater(said, worked=True) from None

    def _meaning(self, answer: ClientResponse, said: str, limiter: Limiter, sent_at: float) -> Exception:
        status = answer.status
        if status in _TRIED_AGAIN or status >= 500:
            seconds = _retry_after(answer.headers)
            if status == 429:
                limiter.throttled(sent_at)
            limiter.pause(min(seconds, self.endpoint.patience_s))
            return TryLater(f"answers {status}", seconds)
        if status in _SETTINGS:
            at = self.endpoint
            what = _SETTINGS[status].format(setting=at.setting, SETTING=at.setting.upper())
            return SettingsError(f"The server at {at.base_url} (model {at.name!r}) {what}.")
        try:
            told: Any = json.loads(said)
            told = told.get("error", told)
            told = told.get("message") or told
        except (ValueError, AttributeError):  # no JSON, or a text where an object is usual
            told = said
        return Rejected(f"{status}: {self.masked(' '.join(str(told).split()))[:300]}")

    def masked(self, text: str) -> str:
        """Return the text with the key masked: servers' messages are stored, and may repeat what was sent.

        A key of a few letters ("none", "x") is no secret, and masking it would spoil every reply.
        """
        key = self.endpoint.key.reveal() if self.endpoint.key else ""
        if len(key) < LEAST_SECRET:
            return text
        for spelled in (key, json.dumps(key)[1:-1], key.replace("/", r"\/")):  # as JSON writes it, too
            text = text.replace(spelled, MASK)
        return text


async def _session(endpoint: Endpoint) -> _ServerSession:
    """Return this loop's session with the server and key; closed when the loop ends."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    here = _SESSIONS.setdefault(asyncio.get_running_loop(), {})
    key = endpoint.key.reveal() if endpoint.key else ""
    name = (endpoint.base_url, hashlib.sha256(key.encode()).hexdigest())
    if name not in here:
        most_s = endpoint.timeout_s  # of silence
        api = ClientSession(
            headers={"Authorization": f"Bearer {key or 'none'}", "Content-Type": "application/json"},
            timeout=ClientTimeout(sock_read=most_s, sock_connect=min(CONNECT_S, most_s)),
            connector=TCPConnector(limit=0, keepalive_timeout=_KEPT_S),
            read_bufsize=_LONGEST_LINE,
            proxy=_proxy(endpoint.base_url),
        )
        # The loop's own shutdown (asyncio.run) closes async generators that were started: the one moment
        # when connections can still be closed in order.
        closing = _closing(api)
        here[name] = _ServerSession(api, Limiter(endpoint.max_concurrency), closing)
        await anext(closing)
    return here[name]


async def _closing(api: ClientSession) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        _SESSIONS.pop(asyncio.get_running_loop(), None)  # a session holds its loop, which would stay for ever
        await api.close()


def _proxy(url: str) -> str | None:
    """Return the environment's proxy; aiohttp's `trust_env` reads a netrc too, and refuses keys beside it."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that the server asks for, as a number or as a date; 0 where it does not."""
    for told, unit in ((headers.get("retry-after-ms"), 1000), (headers.get("retry-after"), 1)):
        with suppress(ValueError):
            return max(0.0, float(told or "") / unit)
        with suppress(ValueError):
            return max(0.0, parsedate_to_datetime(told or "").timestamp() - time.time())
    return 0.0
