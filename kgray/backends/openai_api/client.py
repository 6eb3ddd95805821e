"""One server: its connections, its limiter, and what each of its errors means (R24).

Waiting happens here and nowhere else: 408, 409, 429, 5xx, a broken connection or body and a timeout are
waited out with growing, jittered pauses up to the endpoint's patience; then Unavailable says that it
was waited for, and callers do not wait again. The library's own retries are off.

    401, 403, 404          SettingsError: no other episode would fare better; the key is never shown
    other 4xx              Rejected: the caller knows whether the text or a parameter is to blame
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kgray.backends.openai_api.limiter import Limiter
from kgray.errors import SettingsError, Unavailable
from kgray.settings import Secret

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

CONNECT_S = 5.0
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
MASK = "***"  # what stands for a key
LEAST_SECRET = 8  # characters of a key that is one
_WAITED_OUT = frozenset({408, 409, 425, 429})
_SETTINGS = {
    401: "refuses the key: check {setting}.api_key (KGRAY_{SETTING}_API_KEY)",
    403: "does not let this key use it: check {setting}.api_key (KGRAY_{SETTING}_API_KEY) and what it may do",
    404: "knows no such address or model: check {setting}.base_url (often ends in /v1) and {setting}.name",
}


class Rejected(Exception):
    """The server answered 4xx to the request itself; never leaves this package."""

    def __init__(self, status: int, message: str) -> None:
        """Keep the status beside the server's words, cut."""
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model is served. setting: the section that an error names, `model` or `embedder`."""

    base_url: str
    name: str
    key: Secret | None = None
    timeout_s: float = 120.0
    max_concurrency: int = 32
    patience_s: float = 600.0
    setting: str = "model"


@dataclass(slots=True)
class _Session:
    """What one event loop holds of one server and key."""

    api: AsyncOpenAI
    limiter: Limiter
    keeper: AsyncGenerator[None, None] = field(repr=False)


# By loop: connections die with the loop that made them, and `asyncio.run` makes one a call.
_SESSIONS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], _Session]] = WeakKeyDictionary()


class Client:
    """Sends one request at a time to one endpoint; the rest is the limiter's."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Keep the endpoint; nothing is opened before the first request."""
        self.endpoint = endpoint

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a chat completion. Raises Rejected, SettingsError, Unavailable."""
        sent = {"model": self.endpoint.name, **body}
        return await self._patiently(
            lambda api: api.chat.completions.with_raw_response.create(**sent),
            lambda got: bool(got["choices"]),
        )

    async def embeddings(self, texts: list[str]) -> dict[str, Any]:
        """Return the body of an embeddings answer, one row a text. Raises as `chat` does."""
        return await self._patiently(
            # "float" said: the library asks for base64 otherwise, which not every server knows.
            lambda api: api.embeddings.with_raw_response.create(
                model=self.endpoint.name, input=texts, encoding_format="float"
            ),
            lambda got: len(got["data"]) == len(texts),
        )

    async def _patiently(
        self, send: Callable[[AsyncOpenAI], Awaitable[Any]], sound: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """Send until there is an answer, or the patience is spent. `sound`: whether a body is one."""
        session = await _session(self.endpoint)
        since: float | None = None  # when the first request failed
        attempt = 0
        while True:
            wait = 0.0
            try:
                async with session.limiter.slot() as sent_at:
                    body = await self._once(session, send, sent_at)
                    if body is not None and _is_sound(body, sound):
                        session.limiter.succeeded()
                        return body
                    reason = "its answer is no JSON of the interface"
            except _Later as later:
                reason, wait = str(later), later.seconds
            now = time.monotonic()
            since = now if since is None else since
            deadline = since + self.endpoint.patience_s
            delay = max(wait, _jittered(attempt))
            if now + delay > deadline and (wait or now >= deadline):
                raise Unavailable(self._gave_up(reason, now - since, wait), waited=True)
            await asyncio.sleep(min(delay, max(deadline - now, 0.0)))
            attempt += 1

    async def _once(
        self, session: _Session, send: Callable[[AsyncOpenAI], Awaitable[Any]], sent_at: float
    ) -> dict[str, Any] | None:
        """Return a body, None for one that is no JSON object. Raises _Later, Rejected, SettingsError."""
        from openai import APIConnectionError, APIStatusError, APITimeoutError

        try:
            raw = await send(session.api)
            body = json.loads(raw.content)
            return body if isinstance(body, dict) else None
        except APITimeoutError:
            raise _Later(f"no answer within {self.endpoint.timeout_s:g} s") from None
        except APIConnectionError as error:
            raise _Later(f"cannot be reached ({_cause(error)})") from None
        except APIStatusError as error:
            raise self._sorted(error, session.limiter, sent_at) from None
        except ValueError:
            return None

    def _sorted(self, error: APIStatusError, limiter: Limiter, sent_at: float) -> Exception:
        """Return what an error status means."""
        status = error.status_code
        if status in _WAITED_OUT or status >= 500:
            seconds = _retry_after(error)
            if status == 429:
                limiter.throttled(sent_at)
            if seconds:
                limiter.pause(min(seconds, self.endpoint.patience_s))
            return _Later(f"answers {status}", seconds)
        if status in _SETTINGS:
            where = self.endpoint.setting
            what = _SETTINGS[status].format(setting=where, SETTING=where.upper())
            return SettingsError(
                f"The server at {self.endpoint.base_url} (model {self.endpoint.name!r}) {what}."
            )
        return Rejected(status, self._shown(error))

    def _shown(self, error: APIStatusError) -> str:
        """Return the server's own words on one line, cut, without the key."""
        body = error.body
        said = body.get("message") if isinstance(body, dict) else body
        text = " ".join(str(said or error.message).split())
        return self.masked(text)[:300]

    def _gave_up(self, reason: str, waited: float, asked: float) -> str:
        """Return the error's words. waited: seconds since the first failure; asked: that the server wants."""
        more = f" and asks for {asked:.0f} s" if asked else ""
        return (
            f"The server at {self.endpoint.base_url} {reason}{more}; waited {round(waited, 1):g} s "
            f"(model.patience_s = {self.endpoint.patience_s:g}). What was accepted is safe: "
            "run the command again."
        )

    def masked(self, text: str) -> str:
        """Return the text without the key: what a server says is kept, and may repeat what it was sent.

        A key of a few letters ("none", "x") is no secret, and masking it would spoil every reply.
        """
        key = self.endpoint.key.reveal() if self.endpoint.key else ""
        if len(key) < LEAST_SECRET:
            return text
        # As such, and as JSON inside the text writes it.
        return (
            text.replace(key, MASK)
            .replace(json.dumps(key)[1:-1], MASK)
            .replace(key.replace("/", r"\/"), MASK)
        )


class _Later(Exception):
    """Not now; seconds: how long the server said, 0 where it did not."""

    def __init__(self, reason: str, seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.seconds = seconds


async def _session(endpoint: Endpoint) -> _Session:
    """Return this loop's session with the server and key; closed when the loop ends."""
    here = _SESSIONS.setdefault(asyncio.get_running_loop(), {})
    key = endpoint.key.reveal() if endpoint.key else ""
    name = (endpoint.base_url, hashlib.sha256(key.encode()).hexdigest())
    if name not in here:
        api = _open(endpoint, key)
        # An async generator that was started is closed by the loop's own shutdown (asyncio.run), which
        # is the one moment when connections can still be closed in order.
        keeper = _kept(api)
        here[name] = _Session(api, Limiter(endpoint.max_concurrency), keeper)
        await anext(keeper)
    return here[name]


async def _kept(api: AsyncOpenAI) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await api.close()


def _open(endpoint: Endpoint, key: str) -> AsyncOpenAI:
    from openai import AsyncOpenAI, Timeout

    return AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=key or "none",  # said, so that no key of the environment goes to a server it is not for
        max_retries=0,
        timeout=Timeout(endpoint.timeout_s, connect=min(CONNECT_S, endpoint.timeout_s)),
    )


def _is_sound(body: dict[str, Any], sound: Callable[[dict[str, Any]], bool]) -> bool:
    try:
        return sound(body)
    except (KeyError, TypeError):
        return False


def _retry_after(error: APIStatusError) -> float:
    """Return the seconds that the server asks for; 0 where it does not."""
    headers = error.response.headers
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        return max(0.0, float(headers.get("retry-after", 0)))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time())
    except (ValueError, TypeError, KeyError):
        return 0.0


def _jittered(attempt: int) -> float:
    """Return a pause between 0.05 s and 0.5, 1, 2, ... 30 s: jitter, so that streams come back apart."""
    longest = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(attempt, 10))
    return random.uniform(0.05, longest)  # noqa: S311 - spreads load, guards nothing


def _cause(error: BaseException) -> str:
    inner = error.__cause__ or error.__context__
    return " ".join(str(inner or error).split())[:120] or type(error).__name__
