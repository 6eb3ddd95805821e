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
from dataclasses import dataclass
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

# A reply that took longer than the first, at fewer tokens a second than the second, is a slow server's: from
# then on replies are streamed, and the deadline is one for silence. Those of a fast one are not: pieces cost
# time of the processor.
_SLOW_S, _SLOW_RATE = 2.0, 20.0
_OnText = Callable[[str], None]
_SETTINGS = {
    401: "refuses the key: check {setting}.api_key (KGRAY_{SETTING}_API_KEY)",
    403: "does not let this key use it: check {setting}.api_key (KGRAY_{SETTING}_API_KEY) and what it may do",
    404: "knows no such address or model: check {setting}.base_url (often ends in /v1) and {setting}.name",
}


class Rejected(Exception):
    """The server answered 4xx to the request itself; text: status and message. Never leaves this package."""


class TryLater(Exception):
    """The server cannot answer now. Never leaves the client.

    seconds: how long it asks to wait, 0 where it does not; worked: whether it may bill the request (R24)
    """

    def __init__(self, reason: str, seconds: float = 0.0, *, worked: bool = False) -> None:
        super().__init__(reason)
        self.seconds, self.worked = seconds, worked


@dataclass(slots=True)
class TokensSpent:
    """What an episode's requests have cost so far: every call that the server worked on, usable or not."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    most_calls: int | None = None  # after so many, no request is sent again

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model is served."""

    base_url: str
    name: str
    key: Secret | None = None
    timeout_s: float = 120.0
    max_concurrency: int = 32
    patience_s: float = 600.0
    setting: str = "model"  # the section of the settings, for errors; also: embedder, reranker
    first_pause_s: float = 0.5  # between two tries of a request, at most; it doubles with each try
    longest_pause_s: float = 30.0


@dataclass(frozen=True, slots=True)
class _Post:
    """One request. is_sound: whether a response body is a valid answer to it."""

    path: str
    body: dict[str, Any]
    is_sound: Callable[[dict[str, Any]], bool]
    # Called at each try: returns what takes the pieces of the reply as they arrive.
    listener: Callable[[], _OnText] | None = None
    if_slow: bool = False  # ask for a stream only of a slow server


class Limiter(Gate):
    """How many requests are at a server: the cap halves when it says "too many" and grows back (AIMD).

    One a server and key, shared by all that call it on one event loop; first come, first served.
    """

    def __init__(self, cap: int) -> None:
        super().__init__(float(cap))
        self._cap, self._cut_at = float(cap), 0.0
        self.resume_at = 0.0  # before which nothing is sent: the server said when to come back

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Hold one place at the server; yields the moment at which it was taken."""
        async with self.pass_through(Urgency(False, 0, 0)):
            while (left := self.resume_at - time.monotonic()) > 0:  # noqa: ASYNC110 - until a moment, which may move
                await asyncio.sleep(left)
            yield time.monotonic()

    def succeeded(self) -> None:
        """Grow by one for each full round of successes."""
        self.width = min(self._cap, self.width + 1 / self.width)
        self.let_in()

    def throttled(self, sent_at: float) -> None:
        """Halve, once for all requests that were under way together."""
        if sent_at >= self._cut_at:
            self.width = max(1.0, self.width / 2)
            self._cut_at = time.monotonic()


@dataclass(slots=True)
class _ServerSession:
    """An event loop's connections and limiter for one server and key."""

    api: ClientSession
    limiter: Limiter
    closing: AsyncGenerator[None, None]
    is_slow: bool = False
    streams: bool = True


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
        on_text: _OnText | None = None,
        *,
        if_slow: Callable[[], _OnText] | None = None,
    ) -> dict[str, Any]:
        """Return the body of a chat completion; calls that gave none are added to `spent`.

        on_text   asks for a stream, and takes each piece of the reply; one that broke off is not asked for
                  again. Raises Repeats to end it: what came is the reply, its finish_reason "length"
        if_slow   returns such an on_text, a new one for each try: asks for a stream only of a server that
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
        from aiohttp import ClientError

        if self.endpoint.setting == "embedder":
            shortest = _Post("/embeddings", {"input": ["a"]}, lambda got: "data" in got)
        else:
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            shortest = _Post("/chat/completions", body, lambda got: "choices" in got)
        session = await _session(self.endpoint)
        try:
            async with asyncio.timeout(deadline_s):
                # Without a list the model is asked, and says what is wrong.
                with suppress(ClientError, TimeoutError, ValueError, KeyError, TypeError):
                    async with session.api.get(f"{self._url}/models", raise_for_status=True) as answer:
                        found: Any = json.loads(await answer.read())
                    if self.endpoint.name in {row["id"] for row in found["data"]}:
                        return "serves it"
                await self._once(session, shortest, time.monotonic())
        except TimeoutError:
            raise Unavailable(f"{self.where} gives no answer within {deadline_s:g} s") from None
        except TryLater as later:
            raise Unavailable(f"{self.where} {later}") from None
        except Rejected as rejection:
            return f"answers, and refuses a request of one word ({rejection})"
        return "answers"

    async def _opened(self) -> Any:  # noqa: ANN401 - a `_ServerSession`; of an engine, one with a limiter
        return await _session(self.endpoint)

    async def _patiently(self, post: _Post, spent: TokensSpent) -> dict[str, Any]:
        """Send until there is an answer, or the patience is spent."""
        session, at = await self._opened(), self.endpoint
        since: float | None = None  # when the first request failed
        longest = min(at.first_pause_s, at.longest_pause_s)
        while True:
            sent = 0.0
            try:
                async with session.limiter.slot() as sent_at:
                    sent = time.time()
                    waits = OUTAGES.asking(self.where, at.timeout_s)
                    with model_call(post.path, at.name) as tell, waits:
                        found = await self._once(session, post, sent_at)
                        tell(found)
                session.limiter.succeeded()
                OUTAGES.answered(self.where)
                return found
            except asyncio.CancelledError:
                if sent:  # the server may work on it, and bill it
                    spent.count(None, post.body)
                raise
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
            OUTAGES.failed(self.where, reason, since=sent, patience_s=at.patience_s)
            now = time.monotonic()
            since = now if since is None else since
            left = since + at.patience_s - now
            # Jitter, so that streams come back one by one.
            delay = max(wait, random.uniform(0.05, longest))  # noqa: S311 - spreads load, guards nothing
            if delay > left and (wait or left <= 0):
                more = f" and asks for {wait:.0f} s" if wait else ""
                raise Unavailable(
                    f"The server at {at.base_url} {reason}{more}; waited {round(now - since, 1):g} s "
                    f"(model.patience_s = {at.patience_s:g}). What was accepted is safe: run the command "
                    "again.",
                    waited=True,
                )
            await asyncio.sleep(min(delay, max(left, 0.0)))
            longest = min(2 * longest, at.longest_pause_s)

    async def _once(self, session: Any, post: _Post, sent_at: float) -> dict[str, Any]:  # noqa: ANN401 - as above
        """Return a sound body. Raises TryLater, Rejected, SettingsError."""
        from aiohttp import ClientConnectorError, ClientError, ConnectionTimeoutError

        try:
            body = {"model": self.endpoint.name, **post.body}
            found: Any = None
            streams = not post.if_slow or (session.is_slow and session.streams)
            on_text = post.listener() if post.listener and streams else None
            if on_text:
                with suppress(*((Rejected,) if post.if_slow else ())):
                    found = await self._streamed(session, post, body, sent_at, on_text)
            refused = on_text and found is None
            if found is None:  # also where the stream was refused, or the text: its own answer tells which
                since = time.monotonic()
                async with self._sent(session, post, body, sent_at) as answer:
                    found = json.loads(await answer.read())
                with suppress(KeyError, TypeError):  # of another form, or without a count
                    slow_s = max(_SLOW_S, found["usage"]["completion_tokens"] / _SLOW_RATE)
                    session.is_slow = session.is_slow or time.monotonic() - since > slow_s
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
        at = self.endpoint
        async with session.api.post(self._url + post.path, data=json.dumps(body).encode()) as answer:
            status = answer.status
            if status < 400:
                yield answer
                return
            said = await answer.text(errors="replace")
            if post.if_slow and "stream" in body and status == 501:
                raise Rejected("501")  # of the stream: whole, it may be answered
            if status in {408, 409, 425, 429} or status >= 500:
                seconds, limiter = _retry_after(answer.headers), session.limiter
                if status == 429:
                    limiter.throttled(sent_at)
                until = time.monotonic() + min(seconds, at.patience_s)
                limiter.resume_at = max(limiter.resume_at, until)
                raise TryLater(f"answers {status}", seconds)
            if status in _SETTINGS:
                what = _SETTINGS[status].format(setting=at.setting, SETTING=at.setting.upper())
                raise SettingsError(f"The server at {at.base_url} (model {at.name!r}) {what}.")
            try:
                told: Any = json.loads(said)
                told = told.get("error", told)
                told = told.get("message") or told
            except (ValueError, AttributeError):  # no JSON, or a text where an object is usual
                told = said
            raise Rejected(f"{status}: {self.masked(' '.join(str(told).split()))[:300]}")

    async def _streamed(
        self, session: _ServerSession, post: _Post, body: dict[str, Any], sent_at: float, on_text: _OnText
    ) -> object:
        """Return the body of a completion, each piece of which was passed on; a server need not stream."""
        from aiohttp import ClientError

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
                    raise Unavailable(f"{self.where} broke off its answer in the middle: ask again") from None
                silent = f"wrote nothing for {self.endpoint.timeout_s:g} s"
                said = silent if isinstance(error, TimeoutError) else "broke off its answer"
                raise TryLater(said, worked=True) from None

    def masked(self, text: str) -> str:
        """Return the text with the key masked: servers' messages are stored, and may repeat what was sent.

        A key of a few letters ("none", "x") is no secret, and masking it would spoil every reply.
        """
        key = self.endpoint.key.reveal() if self.endpoint.key else ""
        if len(key) >= 8:
            for spelled in (key, json.dumps(key)[1:-1], key.replace("/", r"\/")):  # as JSON writes it, too
                text = text.replace(spelled, "***")
        return text


async def _session(endpoint: Endpoint) -> _ServerSession:
    """Return this loop's session with the server and key; closed when the loop ends."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    here = _SESSIONS.setdefault(asyncio.get_running_loop(), {})
    key = endpoint.key.reveal() if endpoint.key else ""
    name = (endpoint.base_url, hashlib.sha256(key.encode()).hexdigest())
    if name not in here:
        most_s = endpoint.timeout_s  # of silence
        # The environment's proxy: aiohttp's `trust_env` reads a netrc too, and refuses keys beside it.
        parts = urlsplit(endpoint.base_url)
        direct = proxy_bypass(parts.hostname or "")
        api = ClientSession(
            headers={"Authorization": f"Bearer {key or 'none'}", "Content-Type": "application/json"},
            timeout=ClientTimeout(sock_read=most_s, sock_connect=min(5.0, most_s)),
            connector=TCPConnector(limit=0, keepalive_timeout=4.0),  # servers close theirs after 5 s
            read_bufsize=1 << 22,  # bytes of a line of a stream
            proxy=None if direct else getproxies().get(parts.scheme),
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


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that the server asks for, as a number or as a date; 0 where it does not."""
    for told, unit in ((headers.get("retry-after-ms"), 1000), (headers.get("retry-after"), 1)):
        with suppress(ValueError):
            return max(0.0, float(told or "") / unit)
        with suppress(ValueError):
            return max(0.0, parsedate_to_datetime(told or "").timestamp() - time.time())
    return 0.0
