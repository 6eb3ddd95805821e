"""One structured request: which form the server obeys, a reply read leniently, salvaged, repaired once.

    1  the prompt, in the strongest form that the server obeys: json_schema, json_object, text
    2  the same with what was wrong at its end, where the reply could not be used; or with twice the
       room, where it was cut before its first complete item
    3  the prompt one form down

Before all that the response cache is asked, and what was accepted whole is kept there.

At most three calls, and no retry of a call that did not get through: the client waits for those.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from kgray.backends.openai_api.client import Client, Rejected
from kgray.backends.openai_api.lenient import breaks_off, read_object, salvage
from kgray.errors import InvalidAnswer, Refused, SettingsError
from kgray.ports import ResponseCache
from kgray.prompting import Prompt, repair_data, tokens
from kgray.prompting.schemas import Schema
from kgray.records import Episode, canonical

_T = TypeVar("_T")
Mode = Literal["json_schema", "json_object", "text"]
MODES: tuple[Mode, ...] = ("json_schema", "json_object", "text")
MAX_CALLS = 3
REPAIR_TEMPERATURE = 0.2
_RAW_KEPT = 4000  # characters of a bad reply that a repair quotes, and a failure keeps
_PROBE: Schema = {
    "type": "object",
    "properties": {
        # No model says this by itself: who replies with it was made to.
        "probe": {"type": "string", "enum": ["kgray-7"]},
        "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["probe", "numbers"],
    "additionalProperties": False,
}
_PROBE_PROMPT = Prompt("probe", "Reply with one JSON object.")
_PROBE_DATA = "Name a colour and three numbers."
_log = logging.getLogger("kgray")


@dataclass(slots=True)
class Spent:
    """What a request cost so far. estimated: the server did not say, so tokens are characters / 4."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one server takes: the form of replies, the name of the token bound, whether a temperature."""

    mode: Mode = "json_schema"
    bound: str = "max_tokens"
    temperature: bool = True

    def body(
        self, prompt: Prompt, data: str, schema: Schema, *, room: int, temperature: float
    ) -> dict[str, Any]:
        """Return the request."""
        head = prompt.head
        if self.mode != "json_schema":
            told = json.dumps(schema, separators=(",", ":"))
            head += f"\n\nReply with one JSON object and nothing else.\nReply schema {prompt.task}: {told}"
        messages = [{"role": "system", "content": head}, {"role": "user", "content": data}]
        body: dict[str, Any] = {"messages": messages, self.bound: room}
        if self.temperature:
            body["temperature"] = temperature
        if self.mode == "json_schema":
            named = {"name": prompt.task, "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        elif self.mode == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body

    def down(self) -> Dialect:
        """Return the next weaker form; text stays text."""
        return replace(self, mode=MODES[min(MODES.index(self.mode) + 1, len(MODES) - 1)])


@dataclass(frozen=True, slots=True)
class _Reply:
    text: str
    cut: bool


@dataclass(slots=True)
class Asker:
    """Asks one endpoint for structured replies; what it obeys is probed once per address and model."""

    client: Client
    temperature: float = 0.0
    cache: ResponseCache | None = None
    _probing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(
        self,
        prompt: Prompt,
        data: str,
        schema: Schema,
        accept: Callable[[Mapping[str, Any], bool], _T],
        *,
        room: int,
        spent: Spent,
        asking: Episode,
        context: Sequence[Episode] = (),
        kept: Callable[[], Mapping[str, Any]] | None = None,
    ) -> _T:
        """Return what `accept` makes of the reply; it is told whether the reply was cut.

        accept raises InvalidAnswer, whose words the repair quotes. room: tokens for the reply.
        asking, context: the episodes whose texts `data` holds. kept: what to keep of what was accepted,
        in the form of a reply; None = the reply. Nothing is kept of a reply that was cut.
        Raises InvalidAnswer, Refused, SettingsError, Unavailable.
        """
        if self.cache is None:
            return (await self._answered(prompt, data, schema, accept, room=room, spent=spent))[0]
        asked = [self.client.endpoint.name, self.temperature, prompt.task, prompt.head, schema, room, data]
        key = hashlib.sha256(canonical(asked).encode("utf-8", "surrogatepass")).hexdigest()
        known = self.cache.recall(key, asking, context)
        if known is not None:
            with suppress(InvalidAnswer):  # accepted by another version than this one: it is asked again
                return accept(json.loads(known), False)
        said, reply, cut = await self._answered(prompt, data, schema, accept, room=room, spent=spent)
        if not cut:
            self.cache.keep(key, canonical(kept() if kept else reply), asking, context)
        return said

    async def _answered(
        self,
        prompt: Prompt,
        data: str,
        schema: Schema,
        accept: Callable[[Mapping[str, Any], bool], _T],
        *,
        room: int,
        spent: Spent,
    ) -> tuple[_T, Mapping[str, Any], bool]:
        """Ask the model; return what `accept` makes of the reply, the reply, and whether it was cut."""
        dialect = await self._dialect(spent)
        wanted = tuple(schema["required"])
        asked, temperature, shrunk = data, self.temperature, False
        fault: InvalidAnswer | None = None
        for call in range(1, MAX_CALLS + 1):
            try:
                reply = await self._send(
                    dialect.body(prompt, asked, schema, room=room, temperature=temperature), spent
                )
            except Rejected as rejection:
                if call < MAX_CALLS and _about_form(rejection) and dialect.mode != "text":
                    dialect = dialect.down()
                    continue
                if call < MAX_CALLS and _about_room(rejection) and not shrunk:
                    room, shrunk = room // 4, True
                    continue
                raise Refused(f"the server refused the text ({rejection})") from None
            try:
                found, cut = _readable(reply, wanted, last=call == MAX_CALLS)
                return accept(found, cut), found, cut
            except InvalidAnswer as error:
                fault = error
            asked, temperature = data, self.temperature
            if reply.cut and salvage(reply.text, wanted) is None:
                room = room if shrunk else 2 * room
            elif call == 1:
                asked, temperature = data + _rejected(fault, reply), REPAIR_TEMPERATURE
            if call == MAX_CALLS - 1:
                dialect = dialect.down()
        raise InvalidAnswer(
            f"no usable reply in {MAX_CALLS} calls: {fault}", raw=fault.raw[:_RAW_KEPT] if fault else ""
        )

    async def _dialect(self, spent: Spent) -> Dialect:
        """Return what the server obeys; the first request finds out, the others wait for it."""
        name = (self.client.endpoint.base_url, self.client.endpoint.name)
        if name not in _KNOWN:
            async with self._probing:
                if name not in _KNOWN:
                    _KNOWN[name] = await self._probe(spent)
        return _KNOWN[name]

    async def _probe(self, spent: Spent) -> Dialect:
        """Try the forms, strongest first: an answer of 200 is not enough, the reply must obey.

        A server that takes a field and ignores it looks like one that knows it.
        """
        dialect, tries = Dialect(), 0
        while True:
            tries += 1
            body = dialect.body(_PROBE_PROMPT, _PROBE_DATA, _PROBE, room=256, temperature=self.temperature)
            try:
                reply = await self._send(body, spent)
            except Rejected as rejection:
                adapted = _adapted(dialect, str(rejection))
                if adapted == dialect or tries > 6:
                    raise SettingsError(
                        f"The server at {self.client.endpoint.base_url} refuses a request of a few words to "
                        f"{self.client.endpoint.name!r} ({rejection}): check model.base_url and model.name."
                    ) from None
                dialect = adapted
                continue
            # In the last form nothing constrains: whether the model replies with JSON shows with each text.
            if dialect.mode == "text" or _obeys(reply, dialect.mode):
                return dialect
            dialect = dialect.down()

    async def _send(self, body: dict[str, Any], spent: Spent) -> _Reply:
        got = await self.client.chat(body)
        choices: Any = got["choices"]
        choice: dict[str, Any] = _object(choices[0] if isinstance(choices, list) else None)
        message = _object(choice.get("message"))
        text = message.get("content") or ""
        text = self.client.masked(text if isinstance(text, str) else json.dumps(text))
        _count(spent, got.get("usage"), body, text)
        if choice.get("finish_reason") == "content_filter" or (message.get("refusal") and not text):
            words = self.client.masked(str(message.get("refusal") or "its content filter"))[:300]
            raise Refused(f"the model refused the text: {words}", raw=text)
        return _Reply(text, choice.get("finish_reason") == "length")


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# What servers were found to take, by address and model: for the life of the process.
_KNOWN: dict[tuple[str, str], Dialect] = {}


def _readable(reply: _Reply, wanted: tuple[str, ...], *, last: bool) -> tuple[Mapping[str, Any], bool]:
    """Return the reply's object and whether it was cut. Raises InvalidAnswer.

    A reply that broke off though the server does not say so is asked for again; only the last is salvaged.
    """
    found = read_object(reply.text, wanted)
    if found is not None and all(key in found for key in wanted):
        return found, False
    if reply.cut or (last and breaks_off(reply.text)):
        kept = salvage(reply.text, wanted)
        if kept is not None:
            return kept, True
    raw = reply.text[:_RAW_KEPT]
    if reply.cut:
        raise InvalidAnswer("the reply was cut before its first complete item", raw=raw)
    if found is None:
        raise InvalidAnswer(
            "the reply holds no JSON object" if reply.text.strip() else "the reply is empty", raw=raw
        )
    lacking = ", ".join(repr(key) for key in wanted if key not in found)
    raise InvalidAnswer(f"the reply has no {lacking}", raw=raw)


def _rejected(fault: InvalidAnswer, reply: _Reply) -> str:
    """Return what a repair adds, at the end: all before it is the server's cached prefix."""
    return repair_data(str(fault), reply.text[:_RAW_KEPT])


def _obeys(reply: _Reply, mode: Mode) -> bool:
    try:
        found = json.loads(reply.text)
    except ValueError:
        return False
    if mode == "json_object":
        return isinstance(found, dict)
    return (
        isinstance(found, dict)
        and set(found) == {"probe", "numbers"}
        and found["probe"] == "kgray-7"
        and isinstance(found["numbers"], list)
    )


def _adapted(dialect: Dialect, words: str) -> Dialect:
    """Return the dialect without what a server's refusal names; the next form where it names nothing."""
    if dialect.bound == "max_tokens" and "max_completion_tokens" in words:
        return replace(dialect, bound="max_completion_tokens")
    if dialect.temperature and "temperature" in words:
        return replace(dialect, temperature=False)
    return dialect.down()


def _about_form(rejection: Rejected) -> bool:
    words = str(rejection).casefold()
    return any(word in words for word in ("response_format", "schema", "grammar", "guided", "structured"))


def _about_room(rejection: Rejected) -> bool:
    """Whether the room asked for the reply is what does not fit, not the text."""
    words = str(rejection).casefold()
    return "too large" in words and ("max_tokens" in words or "max_completion_tokens" in words)


def _count(spent: Spent, usage: object, body: Mapping[str, Any], text: str) -> None:
    spent.calls += 1
    said = usage if isinstance(usage, dict) else {}
    prompt, completion = said.get("prompt_tokens"), said.get("completion_tokens")
    if isinstance(prompt, int) and isinstance(completion, int):
        spent.prompt_tokens += prompt
        spent.completion_tokens += completion
        return
    if not _SAID:
        _SAID.append(True)
        _log.warning("the model's server reports no usage: tokens are estimated at 4 characters each")
    spent.estimated = True
    spent.prompt_tokens += sum(tokens(message["content"]) for message in body["messages"])
    spent.completion_tokens += tokens(text)


_SAID: list[bool] = []
