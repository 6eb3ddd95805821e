"""The connection to a server: the openai library's client, on aiohttp, and the meaning of its errors.

Imported at the first request: the library takes half a second to import.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import cache
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakKeyDictionary

import httpx2
from aiohttp import ClientConnectorError, ClientError, ConnectionTimeoutError
from openai import APIError, APIStatusError, AsyncAzureOpenAI, AsyncOpenAI, AsyncStream, DefaultAioHttpClient

from kgray.errors import SettingsError, Unavailable
from kgray.models.openai_api.client import Endpoint, Limiter, OnText, Post, Rejected, TryLater, estimate
from kgray.models.openai_api.streaming import Repeats, completion
from kgray.settings.checks import Secret

# A server is slow after a reply that took longer than the first, at fewer tokens a second than the second.
# Its replies are then streamed, and the deadline limits silence. A fast server does not stream: each piece
# costs processor time.
SLOW_S, _SLOW_RATE = 2.0, 20.0
_CONNECT_S = 5.0
_IDLE_S = 4.0  # of a connection: servers close theirs after 5 s
_LATER = {408, 409, 425, 429}  # statuses to retry, besides 500 and above
_SETTINGS = {
    401: "refuses the key: check {setting}.api_key (KGRAY_{SETTING}_API_KEY)",
    403: "does not let this key use it: check {setting}.api_key (KGRAY_{SETTING}_API_KEY) and what it may do",
    404: "knows no such address or model: check {setting}.base_url (often ends in /v1) and {setting}.name",
}
_AZURE_HOSTS = (".openai.azure.com", ".cognitiveservices.azure.com")
_AZURE_VERSION = "2024-10-21"  # of Azure's interface, for addresses without a version
# The library wraps most errors of the layers below it; a head that is no HTTP comes as aiohttp's own.
_FAULTS = (APIError, httpx2.RequestError, ClientError, TimeoutError)
# Errors of an invalid address or proxy, and of a request that cannot be written as UTF-8.
_UNSENDABLE = (ValueError, httpx2.InvalidURL)


class Connection:
    """A server and key, for all requests of an event loop, also to several models."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._api = _library_client(endpoint)
        self.limiter = Limiter(endpoint.max_concurrency)
        self.closing = self._closing()
        self._is_slow = False
        self._streams = True  # until it refuses to stream a reply that it sends whole

    async def _closing(self) -> AsyncGenerator[None, None]:
        """Close the connections with the loop: `asyncio.run` ends running async generators."""
        try:
            yield
        finally:
            CONNECTIONS.pop(asyncio.get_running_loop(), None)  # its values hold the loop, which would stay
            await self._api.close()

    async def lists(self, model: str) -> bool:
        """Return whether the server's list of models names this model; False where it sends no list."""
        if isinstance(self._api, AsyncAzureOpenAI):  # its list names models that are not deployed
            return False
        with suppress(*_FAULTS, ValueError, AttributeError, TypeError):
            return model in {row.id async for row in self._api.models.list()}
        return False

    async def answer(self, post: Post, sent_at: float) -> dict[str, Any]:
        """Return a sound body. Raises TryLater, Rejected, SettingsError."""
        body = {"model": post.at.name, **post.body}
        streams = not post.if_slow or (self._is_slow and self._streams)
        on_text = post.listener() if post.listener and streams else None
        answer: Any = None
        with suppress(ValueError, KeyError, TypeError):  # no JSON, or of another form
            if on_text:
                with suppress(*((Rejected,) if post.if_slow else ())):
                    answer = await self._streamed(post, body, sent_at, on_text)
            is_refused = on_text and answer is None
            if answer is None:  # the stream or the text was refused: this request decides which
                answer = await self._at_once(post, body, sent_at)
            if isinstance(answer, list):  # the rerank interface of TEI
                answer = {"results": answer}
            rows = answer[post.rows]
            if isinstance(answer, dict) and rows and post.count in {None, len(rows)}:
                self._streams = self._streams and not is_refused
                return answer
        raise TryLater("sends no JSON of the interface", worked=True)

    async def _at_once(self, post: Post, body: dict[str, Any], sent_at: float) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON of a response without a stream; note whether the server is slow."""
        start = time.monotonic()
        answer: Any = (await self._sent(post, body, sent_at)).json()
        with suppress(KeyError, TypeError):  # without a count of tokens
            slow_s = max(SLOW_S, answer["usage"]["completion_tokens"] / _SLOW_RATE)
            self._is_slow = self._is_slow or time.monotonic() - start > slow_s
        return answer

    async def _streamed(self, post: Post, body: dict[str, Any], sent_at: float, on_text: OnText) -> Any:  # noqa: ANN401 - JSON
        """Pass on each piece of a completion, then return its body; a server need not stream."""
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        response = await self._sent(post, body, sent_at)
        if response.is_closed:  # it came whole
            answer: Any = response.json()
            with suppress(Repeats):
                on_text(answer["choices"][0]["message"]["content"] or "")
            return answer
        pieces: list[str] = []
        try:
            async with AsyncStream[Any](cast_to=object, response=response, client=self._api) as events:
                return await completion(events, pieces, on_text, estimate(body))
        except (*_FAULTS, ValueError, TypeError, AttributeError) as error:
            if pieces and not post.if_slow:
                raise Unavailable(f"{post.at.server} broke off its answer in the middle: ask again") from None
            silent = f"wrote nothing for {post.at.timeout_s:g} s"
            reason = silent if isinstance(_cause(error), TimeoutError) else "broke off its answer"
            raise TryLater(reason, worked=True) from None

    async def _sent(self, post: Post, body: dict[str, Any], sent_at: float) -> httpx2.Response:
        """Return the response, read completely or open for events. Raises its errors as kgray's.

        Uses `post` for each interface: `chat.completions.create` takes twice as long, because of its types.
        """
        streams = "stream" in body
        try:
            response = await self._api.post(post.path, body=body, cast_to=httpx2.Response, stream=streams)
            if "event-stream" not in response.headers.get("content-type", ""):
                await response.aread()
            return response
        except APIStatusError as error:
            if error.status_code == 501 and streams and post.if_slow:
                raise Rejected("501") from None  # the stream is refused: without a stream it may work
            raise self._meaning(post.at, error, sent_at) from None
        except _FAULTS as error:
            cause = _cause(error)
            is_sent = not isinstance(cause, ClientConnectorError | ConnectionTimeoutError)
            reason = f"cannot be reached ({post.at.line(cause, 120)})"
            if is_sent and isinstance(cause, TimeoutError):
                self._is_slow = True
                reason = f"gives no answer within {post.at.timeout_s:g} s"
            raise TryLater(reason, worked=is_sent) from None
        except _UNSENDABLE as error:
            raise _unsendable(post.at, error) from None

    def _meaning(self, at: Endpoint, error: APIStatusError, sent_at: float) -> Exception:
        limiter, status = self.limiter, error.status_code
        if status in _LATER or not 400 <= status < 500:
            seconds = self._api._parse_retry_after_header(error.response.headers) or 0.0  # noqa: SLF001 - no public function reads it
            if status == 429:
                limiter.throttled(sent_at)
            limiter.resume_at = max(limiter.resume_at, time.monotonic() + min(seconds, at.patience_s))
            return TryLater(f"answers {status}", max(0.0, seconds))
        if status in _SETTINGS:
            advice = _SETTINGS[status].format(setting=at.setting, SETTING=at.setting.upper())
            return SettingsError(f"The server at {at.base_url} (model {at.name!r}) {advice}.")
        message: Any = error.body.get("message") if isinstance(error.body, dict) else None
        return Rejected(f"{status}: {at.line(message or error.body, 300)}")


def _library_client(at: Endpoint) -> AsyncOpenAI:
    """Return the library's client of a server.

    An address has Azure's form if its host is Azure's, or if it ends with `?api-version=...`, except Azure's
    interface without versions (`/openai/v1`), which is like any other server's.

    The library must not retry: while it waits, it would occupy a place at the server, report no outage, and
    ignore the patience of the settings.
    """
    address = urlsplit(at.base_url)
    url, query = address._replace(query="", fragment="").geturl(), dict(parse_qsl(address.query))
    timeout = httpx2.Timeout(at.timeout_s, connect=min(_CONNECT_S, at.timeout_s), pool=None)
    limits = httpx2.Limits(max_connections=0, keepalive_expiry=_IDLE_S)  # 0: only the limiter limits
    settings: dict[str, Any] = {
        "api_key": at.key.reveal() if at.key else "none",
        "default_query": query,
        "max_retries": 0,
        "http_client": DefaultAioHttpClient(timeout=timeout, limits=limits, verify=_certificates()),
    }
    is_azure = "api-version" in query or (address.hostname or "").endswith(_AZURE_HOSTS)
    if is_azure and "/openai/v1" not in address.path:
        url = url if address.path.strip("/") else url.rstrip("/") + "/openai"
        version = query.get("api-version", _AZURE_VERSION)
        api: AsyncOpenAI = AsyncAzureOpenAI(base_url=url, api_version=version, **settings)
    else:
        api = AsyncOpenAI(base_url=url, **settings)
    # The environment's variables for OpenAI's servers do not apply to other servers.
    api.organization = api.project = None
    api._custom_headers = {}  # noqa: SLF001 - no argument leaves OPENAI_CUSTOM_HEADERS out
    return api


@cache
def _certificates() -> SSLContext:
    """Return the system's certificates, or the certificates of SSL_CERT_FILE; reading them takes 20 ms."""
    return httpx2.create_ssl_context()


def _unsendable(at: Endpoint, error: Exception) -> SettingsError:
    return SettingsError(
        f"The server at {at.base_url} cannot be asked ({at.line(error, 120)}): check "
        f"{at.setting}.base_url and the proxies in the environment (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY)."
    )


def _cause(error: BaseException) -> BaseException:
    """Return aiohttp's error inside the library's error, which calls every broken connection a timeout."""
    while error.__cause__ is not None and not isinstance(error, ClientError):
        error = error.__cause__
    return error


# A connection dies with the event loop that made it, and each `asyncio.run` makes a loop.
_ByServer = dict[tuple[str, Secret | None], Connection]
CONNECTIONS: WeakKeyDictionary[asyncio.AbstractEventLoop, _ByServer] = WeakKeyDictionary()


async def connection(endpoint: Endpoint) -> Connection:
    """Return this loop's connection to the server with the key; closed when the loop ends."""
    connections = CONNECTIONS.setdefault(asyncio.get_running_loop(), {})
    name = endpoint.base_url, endpoint.key
    if name not in connections:
        try:
            connections[name] = Connection(endpoint)
        except _UNSENDABLE as error:
            raise _unsendable(endpoint, error) from None
        await anext(connections[name].closing)
    return connections[name]
