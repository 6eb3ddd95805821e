"""One request for a JSON reply: sent in the form that the server obeys, parsed leniently, repaired once.

    call 1  the prompt, in the strongest form that the server obeys: json_schema, json_object, text
    call 2  the same with what was wrong at its end, where the reply could not be used; or with more room,
            where it was cut before its first complete item
    call 3  the prompt one form down

The reply cache is looked up first, and replies that were accepted complete are stored there. Requests that
do not get through are retried by the client, not here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, TypeVar

from kgray.backends.openai_api.client import Client, Rejected, TokensSpent
from kgray.backends.openai_api.lenient import breaks_off, read_object, salvage
from kgray.backends.openai_api.streaming import ReplyWatch
from kgray.errors import InvalidAnswer, Refused, SettingsError
from kgray.ports import ResponseCache
from kgray.prompting.prompts import Prompt, repair_data
from kgray.prompting.replies import Schema
from kgray.records import Episode, canonical

_T = TypeVar("_T")
MAX_CALLS = 3
REPAIR_TEMPERATURE = 0.2
_MORE_ROOM = 8192  # tokens, at least: a model may reason before it replies
RAW_KEPT = 4000  # characters of a bad reply that a repair quotes, and a failure keeps
_ABOUT_FORM = ("response_format", "schema", "grammar", "guided", "structured")  # words of a refusal
_log = logging.getLogger("kgray")

AnswerForm = Literal["json_schema", "json_object", "text"]
MODES: tuple[AnswerForm, ...] = ("json_schema", "json_object", "text")  # the strongest first
_MOST_PROBES = 6
_MARK = "kgray-7"  # no model says this by itself: a reply with it shows that the schema was enforced
_PROBE: Schema = {
    "type": "object",
    "properties": {
        "probe": {"type": "string", "enum": [_MARK]},
        "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["probe", "numbers"],
    "additionalProperties": False,
}
_PROBE_PROMPT = Prompt("probe", "Reply with one JSON object.")
_PROBE_DATA = "Name a colour and three numbers."
_PROBE_ROOM = 256


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one server supports. bound: the name of the parameter that limits a reply's tokens."""

    mode: AnswerForm = "json_schema"
    bound: str = "max_tokens"
    temperature: bool = True

    def body(
        self, prompt: Prompt, data: str, schema: Schema, *, room: int, temperature: float
    ) -> dict[str, Any]:
        """Return the body of a request. room: most tokens of the reply."""
        head = prompt.head
        if self.mode != "json_schema":
            told = json.dumps(schema, separators=(",", ":"))
            head += f"\n\nReply with one JSON object and nothing else.\nReply schema {prompt.task}: {told}"
        body = self.chat(head, data, room=room, temperature=temperature)
        if self.mode == "json_schema":
            named = {"name": prompt.task, "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        elif self.mode == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body

    def chat(self, head: str, data: str, *, room: int, temperature: float) -> dict[str, Any]:
        """Return the body of a request for plain text."""
        messages = [{"role": "system", "content": head}, {"role": "user", "content": data}]
        body: dict[str, Any] = {"messages": messages, self.bound: room}
        return body | ({"temperature": temperature} if self.temperature else {})

    def down(self) -> Dialect:
        """Return the next weaker form; text stays text."""
        return replace(self, mode=MODES[min(MODES.index(self.mode) + 1, len(MODES) - 1)])

    def without(self, refusal: str) -> Dialect:
        """Return the dialect without the parameter that a refusal names; one form down if it names none."""
        if self.bound == "max_tokens" and "max_completion_tokens" in refusal:
            return replace(self, bound="max_completion_tokens")
        if self.temperature and "temperature" in refusal:
            return replace(self, temperature=False)
        return self.down()

    def is_obeyed(self, text: str) -> bool:
        """Whether the reply to a probe shows that the server enforces this form."""
        if self.mode == "text":
            return True  # nothing is enforced: whether the model replies with JSON shows with each reply
        try:
            found = json.loads(text)
        except ValueError:
            return False
        if self.mode == "json_object" or not isinstance(found, dict):
            return isinstance(found, dict)
        return (
            set(found) == set(_PROBE["required"])
            and found["probe"] == _MARK
            and isinstance(found["numbers"], list)
        )


async def probe(send: Callable[[dict[str, Any]], Awaitable[str]], *, temperature: float) -> Dialect:
    """Return the strongest form that the server obeys. send: sends a request, returns the reply's text.

    A status of 200 is not enough: a server that ignores a field looks like one that supports it.
    Raises Rejected where even the weakest request is refused.
    """
    dialect, refused = Dialect(), 0
    while True:
        body = dialect.body(_PROBE_PROMPT, _PROBE_DATA, _PROBE, room=_PROBE_ROOM, temperature=temperature)
        try:
            text = await send(body)
        except Rejected as rejection:
            refused += 1
            simpler = dialect.without(str(rejection))
            if simpler == dialect or refused == _MOST_PROBES:
                raise
            dialect = simpler
            continue
        if dialect.is_obeyed(text):
            return dialect
        dialect = dialect.down()


# The dialects found by probing, by address and model: for the life of the process.
DIALECTS: dict[tuple[str, str], Dialect] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredRequest:
    """A request. room: most tokens of the reply; episode, context: those whose texts are in the data.

    Without an episode the reply is not kept in the cache: a removal could not find it there.
    """

    prompt: Prompt
    data: str
    schema: Schema
    room: int
    episode: Episode | None = None
    context: Sequence[Episode] = ()

    def key(self, model: str, temperature: float) -> str:
        prompt = self.prompt
        content = [model, temperature, prompt.task, prompt.head, self.schema, self.room, self.data]
        return hashlib.sha256(canonical(content).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class _ChatReply:
    text: str
    cut: bool


@dataclass(slots=True)
class Asker:
    """Asks one endpoint for structured replies; its dialect is probed once per address and model."""

    client: Client
    temperature: float = 0.0
    cache: ResponseCache | None = None
    _probing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(
        self,
        request: StructuredRequest,
        accept: Callable[[Mapping[str, Any]], _T],
        spent: TokensSpent,
        *,
        kept: Callable[[], Mapping[str, Any]] | None = None,
    ) -> tuple[_T, bool]:
        """Return what `accept` makes of the reply, and whether the reply was cut.

        accept   raises InvalidAnswer, whose words the repair quotes
        kept     what to keep of what was accepted, in the form of a reply; None = the reply itself.
                 Nothing is kept of a reply that was cut
        Raises InvalidAnswer, Refused, SettingsError, Unavailable.
        """
        if self.cache is None or request.episode is None:
            said, _, cut = await self._answered(request, accept, spent)
            return said, cut
        key = request.key(self.client.endpoint.name, self.temperature)
        known = self.cache.recall(key, request.episode, request.context)
        if known is not None:
            with suppress(InvalidAnswer):  # accepted by another version than this one: it is asked again
                return accept(json.loads(known)), False
        said, reply, cut = await self._answered(request, accept, spent)
        if not cut:
            self.cache.keep(key, canonical(kept() if kept else reply), request.episode, request.context)
        return said, cut

    async def _answered(
        self, request: StructuredRequest, accept: Callable[[Mapping[str, Any]], _T], spent: TokensSpent
    ) -> tuple[_T, Mapping[str, Any], bool]:
        """Ask the model; return what `accept` makes of the reply, the reply, and whether it was cut."""
        dialect = await self._dialect(spent)
        wanted = tuple(request.schema["required"])
        data, temperature, room = request.data, self.temperature, request.room
        shrunk = False
        fault = InvalidAnswer("")
        for call in range(1, MAX_CALLS + 1):
            body = dialect.body(request.prompt, data, request.schema, room=room, temperature=temperature)
            try:
                reply = await self._send(body, spent)
            except Rejected as rejection:
                words = str(rejection).casefold()
                if call < MAX_CALLS and dialect.mode != "text" and any(word in words for word in _ABOUT_FORM):
                    dialect = dialect.down()
                elif call < MAX_CALLS and not shrunk and _is_about_room(words):
                    room, shrunk = room // 4, True
                else:
                    raise Refused(f"the server refused the text ({rejection})") from None
                continue
            try:
                found, cut = _readable(reply, wanted, last=call == MAX_CALLS)
                return accept(found), found, cut
            except InvalidAnswer as error:
                fault = error
            data, temperature = request.data, self.temperature
            if reply.cut and salvage(reply.text, wanted) is None:
                room = room if shrunk else max(2 * room, _MORE_ROOM)
            elif call == 1:
                # At the end: all before it is the server's cached prefix.
                data += repair_data(str(fault), reply.text[:RAW_KEPT])
                temperature = REPAIR_TEMPERATURE
            if call == MAX_CALLS - 1:
                dialect = dialect.down()
        raise InvalidAnswer(f"no usable reply in {MAX_CALLS} calls: {fault}", raw=fault.raw[:RAW_KEPT])

    async def _dialect(self, spent: TokensSpent) -> Dialect:
        """Return the server's dialect; the first request probes for it, the others wait."""
        endpoint = self.client.endpoint
        name = (endpoint.base_url, endpoint.name)

        async def send(body: dict[str, Any]) -> str:
            return (await self._send(body, spent)).text

        if name not in DIALECTS:
            async with self._probing:
                if name not in DIALECTS:
                    try:
                        DIALECTS[name] = await probe(send, temperature=self.temperature)
                    except Rejected as rejection:
                        raise SettingsError(
                            f"The server at {endpoint.base_url} refuses a request of a few words to "
                            f"{endpoint.name!r} ({rejection}): check model.base_url and model.name."
                        ) from None
        return DIALECTS[name]

    async def _send(self, body: dict[str, Any], spent: TokensSpent) -> _ChatReply:
        room = body.get("max_tokens") or body.get("max_completion_tokens", 0)
        got = await self.client.chat(body, spent, if_slow=lambda: ReplyWatch(self.client.where, room))
        choices = got["choices"]
        choice = _as_object(choices[0] if isinstance(choices, list) else None)
        message = _as_object(choice.get("message"))
        text = message.get("content") or ""
        text = self.client.masked(text if isinstance(text, str) else json.dumps(text))
        if spent.count(got.get("usage"), body, text):
            _warn_of_estimates()
        if choice.get("finish_reason") == "content_filter" or (message.get("refusal") and not text):
            words = self.client.masked(str(message.get("refusal") or "its content filter"))[:300]
            raise Refused(f"the model refused the text: {words}", raw=text)
        return _ChatReply(text, choice.get("finish_reason") == "length")


def _as_object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _readable(reply: _ChatReply, wanted: tuple[str, ...], *, last: bool) -> tuple[Mapping[str, Any], bool]:
    """Return the reply's object and whether it was cut. Raises InvalidAnswer.

    A reply that broke off though the server does not say so is asked for again; only the last is salvaged.
    """
    found = read_object(reply.text, wanted)
    if found is not None and all(key in found for key in wanted):
        return found, False
    if reply.cut or (last and breaks_off(reply.text)):
        complete = salvage(reply.text, wanted)
        if complete is not None:
            return complete, True
    if reply.cut:
        why = "the reply was cut before its first complete item"
    elif found is not None:
        why = f"the reply has no {', '.join(repr(key) for key in wanted if key not in found)}"
    else:
        why = "the reply holds no JSON object" if reply.text.strip() else "the reply is empty"
    raise InvalidAnswer(why, raw=reply.text[:RAW_KEPT])


def _is_about_room(words: str) -> bool:
    """Whether a refusal is about the tokens reserved for the reply, not about the text."""
    return "too large" in words and ("max_tokens" in words or "max_completion_tokens" in words)


@cache
def _warn_of_estimates() -> None:
    _log.warning("the model's server reports no usage: tokens are estimated at 4 characters each")
