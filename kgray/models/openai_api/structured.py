"""A request for a JSON reply: sent in the form that the server obeys, parsed leniently, repaired once.

    call 1  the prompt, in the strongest form that the server obeys: json_schema, json_object, text
    call 2  if the reply is unusable: the prompt with the fault and the reply at the end; or, if the reply was
            cut before its first complete item, the prompt with more room
    call 3  if this reply is unusable too: the prompt in a weaker form

If the server rejects the form or the room of a call, the next call uses a weaker form or less room. A request
that does not reach the server is sent again by the client, not here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any, Never, TypeVar

from kgray.domain.records import Extraction
from kgray.errors import InvalidAnswer, Refused, SettingsError
from kgray.models.openai_api.client import Client, Rejected, TokensSpent
from kgray.models.openai_api.streaming import ReplyWatch
from kgray.models.prompting.prompts import Prompt, Prompts, repair_data
from kgray.models.prompting.reply_schemas import Schema
from kgray.ports import Judged
from kgray.ports.ingest import Mode, ModelCall, ModelReply, Steps

_T = TypeVar("_T")
_R = TypeVar("_R", Extraction, Judged)
FormOf = Callable[[ModelCall], tuple[Prompt, Schema]]  # the prompt and the schema of a call
MAX_CALLS = 3
_MORE_ROOM = 8192  # minimum tokens after a cut: a model may reason before it replies
RAW_KEPT = 4000  # characters of a bad reply that a repair quotes, and a failure keeps
_ABOUT_FORM = ("response_format", "schema", "grammar", "guided", "structured")  # words of a refusal
_log = logging.getLogger("kgray")

_MARK = "kgray-7"  # an unlikely text: a reply with it shows that the server enforces the schema
_PROBE: Schema = {
    "type": "object",
    "properties": {
        "probe": {"type": "string", "enum": [_MARK]},
        "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["probe", "numbers"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form of requests that a server supports; bound: the parameter for the maximum tokens of a reply."""

    mode: Mode = "json_schema"  # the strongest
    bound: str = "max_tokens"
    temperature: bool = True

    def body(
        self, prompt: Prompt, data: str, schema: Schema, *, room: int, temperature: float = 0.0
    ) -> dict[str, Any]:
        """Return the body of a request. room: maximum tokens of the reply."""
        head = prompt.head
        if self.mode != "json_schema":
            form = json.dumps(schema, separators=(",", ":"))
            head += f"\n\nReply with one JSON object and nothing else.\nReply schema {prompt.task}: {form}"
        body = self.chat(head, data, room=room, temperature=temperature)
        if self.mode == "json_schema":
            named = {"name": prompt.task, "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        elif self.mode == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body

    def chat(self, head: str, data: str, *, room: int, temperature: float = 0.0) -> dict[str, Any]:
        """Return the body of a request for plain text."""
        messages = [{"role": "system", "content": head}, {"role": "user", "content": data}]
        body: dict[str, Any] = {"messages": messages, self.bound: room}
        return body | ({"temperature": temperature} if self.temperature else {})

    def down(self) -> Dialect:
        """Return the next weaker form; text stays text."""
        return replace(self, mode="json_object" if self.mode == "json_schema" else "text")

    def reduced(self, refusal: str) -> Dialect:
        """Return the dialect without the refused parameter; a weaker form if the refusal names none."""
        if self.bound == "max_tokens" and "max_completion_tokens" in refusal:
            return replace(self, bound="max_completion_tokens")
        if self.temperature and "temperature" in refusal:
            return replace(self, temperature=False)
        return self.down()

    def is_obeyed(self, text: str) -> bool:
        """Return whether the reply to a probe shows that the server enforces this form."""
        if self.mode == "text":
            return True  # nothing is enforced: each reply shows whether the model writes JSON
        try:
            reply = json.loads(text)
        except ValueError:
            return False
        if self.mode == "json_object" or not isinstance(reply, dict):
            return isinstance(reply, dict)
        numbers = reply.pop("numbers", None)
        return reply == {"probe": _MARK} and isinstance(numbers, list)


# The dialects of servers by address and model, from one probe in the life of the process.
DIALECTS: dict[tuple[str, str], Dialect] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredRequest:
    """A request for a reply that follows a schema."""

    prompt: Prompt
    data: str
    schema: Schema
    room: int  # maximum tokens of the reply
    kinds: tuple[str, ...] = ()  # of questions, see `ModelCall`


def structured(
    request: StructuredRequest, accept: Callable[[Mapping[str, Any]], _T]
) -> Steps[tuple[_T, bool]]:
    """Return the steps of a request; they return the result of `accept`, and True if the reply was cut.

    accept: converts a reply, or raises InvalidAnswer, whose message the repair quotes
    The steps raise InvalidAnswer after the last call, and Refused.
    """
    keys = tuple(request.schema["required"])
    data, temperature, room, weaker = request.data, 0.0, request.room, 0
    shrunk = False
    fault = InvalidAnswer("")
    for number in range(1, MAX_CALLS + 1):
        reply: ModelReply = yield ModelCall(
            task=request.prompt.task,
            data=data,  # in a repair, with the fault at its end
            kinds=request.kinds,
            room=room,
            temperature=temperature,
            weaker=weaker,
        )
        if reply.rejection is not None:
            words = reply.rejection.casefold()
            # The prompt fits, but not together with the room for the reply.
            about_room = "too large" in words and re.search("max_(completion_)?tokens", words)
            about_form = reply.mode != "text" and any(word in words for word in _ABOUT_FORM)
            if number < MAX_CALLS and about_form:
                weaker += 1
            elif number < MAX_CALLS and not shrunk and about_room:
                room, shrunk = room // 4, True
            else:
                raise Refused(f"the server refused the text ({reply.rejection})")
            continue
        try:
            content, cut = _readable(reply.text, keys, cut=reply.cut, last=number == MAX_CALLS)
            return accept(content), cut
        except InvalidAnswer as error:
            fault = error
        data, temperature = request.data, 0.0
        if reply.cut and salvage(reply.text, keys) is None:
            room = room if shrunk else max(2 * room, _MORE_ROOM)
        elif number == 1:
            # Add the fault at the end, so that the server can reuse its cache of the prefix.
            data += repair_data(str(fault), reply.text[:RAW_KEPT])
            temperature = 0.2
        if number == MAX_CALLS - 1:
            weaker += 1
    raise InvalidAnswer(f"no usable reply in {MAX_CALLS} calls: {fault}", raw=fault.raw[:RAW_KEPT])


@dataclass(slots=True)
class Asker:
    """Asks one endpoint for structured replies; its dialect is probed once per address and model."""

    client: Client
    _probing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def carry_out(self, steps: Steps[_T], form_of: FormOf, spent: TokensSpent) -> _T:
        """Make the calls that the steps request; return their result."""
        try:
            call = next(steps)
            while True:
                call = steps.send(await self.answer(call, form_of, spent))
        except StopIteration as end:
            result: _T = end.value
            return result

    async def answer(self, call: ModelCall, form_of: FormOf, spent: TokensSpent) -> ModelReply:
        """Make one call, in the form that the server obeys. Raises Refused, SettingsError, Unavailable."""
        prompt, schema = form_of(call)
        dialect = await self._dialect(spent)
        for _ in range(call.weaker):
            dialect = dialect.down()
        body = dialect.body(prompt, call.data, schema, room=call.room, temperature=call.temperature)
        try:
            text, cut = await self._send(body, spent)
        except Rejected as rejection:
            return ModelReply(mode=dialect.mode, rejection=str(rejection))
        return ModelReply(mode=dialect.mode, text=text, cut=cut)

    async def _dialect(self, spent: TokensSpent) -> Dialect:
        """Return the strongest form that the server obeys; the first request probes, the others wait.

        The probe checks the reply, because a server that ignores a field also answers with status 200.
        """
        at = self.client.endpoint
        if (at.base_url, at.name) in DIALECTS:
            return DIALECTS[at.base_url, at.name]
        async with self._probing:
            dialect, refused = Dialect(), 0
            while (at.base_url, at.name) not in DIALECTS:
                prompt = Prompt("probe", "Reply with one JSON object.")
                body = dialect.body(prompt, "Name a colour and three numbers.", _PROBE, room=256)
                try:
                    text, _ = await self._send(body, spent)
                except Rejected as rejection:
                    refused += 1
                    simpler = dialect.reduced(str(rejection))
                    if simpler == dialect or refused == 6:
                        raise SettingsError(
                            f"The server at {at.base_url} refuses a request of a few words to {at.name!r} "
                            f"({rejection}): check model.base_url and model.name."
                        ) from None
                    dialect = simpler
                else:
                    if dialect.is_obeyed(text):
                        DIALECTS[at.base_url, at.name] = dialect
                    dialect = dialect.down()
        return DIALECTS[at.base_url, at.name]

    async def _send(self, body: dict[str, Any], spent: TokensSpent) -> tuple[str, bool]:
        """Return a reply's text, and whether it was cut."""
        room = body.get("max_tokens") or body.get("max_completion_tokens", 0)
        answer = await self.client.chat(body, spent, if_slow=lambda: ReplyWatch(self.client.server, room))
        choices = answer["choices"]
        choice = _as_object(choices[0] if isinstance(choices, list) else None)
        message = _as_object(choice.get("message"))
        text = message.get("content") or ""
        text = self.client.masked(text if isinstance(text, str) else json.dumps(text))
        if spent.count(answer.get("usage"), body, text):
            _warn_of_estimates()
        if choice.get("finish_reason") == "content_filter" or (message.get("refusal") and not text):
            words = self.client.masked(str(message.get("refusal") or "its content filter"))[:300]
            raise Refused(f"the model refused the text: {words}", raw=text)
        return text, choice.get("finish_reason") == "length"


def identity_of(name: str) -> str:
    """Return a model's identity, stored with its results: its name and parameters."""
    return f"openai:{name} temperature=0"


class PromptedModel(ABC):
    """A model behind HTTP that answers a request in steps (`ports.ingest.Stepwise`)."""

    def __init__(self, client: Client, prompts: Prompts) -> None:
        self._asker, self._prompts = Asker(client), prompts
        self.identity = identity_of(client.endpoint.name)

    @abstractmethod
    def _form_of(self, call: ModelCall) -> tuple[Prompt, Schema]:
        """Return the prompt and the schema of a call."""

    async def answer(self, call: ModelCall) -> ModelReply:
        """Make a call of the steps; return the reply with its cost."""
        spent = TokensSpent()
        with spent.on_errors():
            reply = await self._asker.answer(call, self._form_of, spent)
        return replace(reply, **spent.cost._asdict())

    async def _carry_out(self, steps: Steps[_R]) -> _R:
        """Make all calls of the steps; return their result with the cost."""
        spent = TokensSpent()
        with spent.on_errors():
            result = await self._asker.carry_out(steps, self._form_of, spent)
        return replace(result, **spent.cost._asdict())


def _as_object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _readable(text: str, keys: tuple[str, ...], *, cut: bool, last: bool) -> tuple[Mapping[str, Any], bool]:
    """Return the reply's object and whether it was cut. Raises InvalidAnswer.

    If a reply breaks off although the server reports no cut, only that of the last call is salvaged.
    """
    reply = read_object(text, keys)
    if reply is not None and all(key in reply for key in keys):
        return reply, False
    if cut or (last and breaks_off(text)):
        complete = salvage(text, keys)
        if complete is not None:
            return complete, True
    if cut:
        why = "the reply was cut before its first complete item"
    elif reply is not None:
        why = f"the reply has no {', '.join(repr(key) for key in keys if key not in reply)}"
    else:
        why = "the reply holds no JSON object" if text.strip() else "the reply is empty"
    raise InvalidAnswer(why, raw=text[:RAW_KEPT])


@cache
def _warn_of_estimates() -> None:
    _log.warning("the model's server reports no usage: tokens are estimated at 4 characters each")


_REASONING = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL)
_REASONED = re.compile(
    r"^.*</(?:think|thinking|reasoning)>", re.DOTALL
)  # the opening tag was in the chat template


def read_object(text: str, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the last outermost object with these keys, else the first object; None if there is no object.

    A model may write drafts, and ends with its answer; so the last complete object counts.
    """
    objects: list[dict[str, Any]] = []
    bare, end = _bare(text), 0
    for _ in range(16):  # a text of brackets must not cost quadratic time
        if (start := bare.find("{", end)) < 0:
            break
        try:
            value, end = _DECODER.raw_decode(bare, start)
            objects.append(_clean(value))
        except (ValueError, RecursionError):
            end = start + 1
    complete = [value for value in objects if all(key in value for key in keys)]
    return complete[-1] if complete else objects[0] if objects else None


def salvage(text: str, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the complete list items of a cut text; None if no item is complete.

    The list of a missing key is empty.
    """
    bare = _bare(text)
    ends = [match.end() for match in re.finditer(r"[]}]", bare)]
    for end, closing in product(ends[:-65:-1], ("]}", "}")):  # of an item, of a list
        with suppress(ValueError, RecursionError):
            value = _clean(_DECODER.decode(bare[:end] + closing))
            if isinstance(value, dict) and any(value.values()):
                return {key: [] for key in keys} | value
    return None


def breaks_off(text: str) -> bool:
    """Return whether the text ends inside its first object."""
    bare = _bare(text)
    try:
        _DECODER.raw_decode(bare)
    except json.JSONDecodeError as error:
        # The fault is at the end, in an unfinished string, or in an unfinished word such as `null`.
        ends = "Unterminated" in error.msg or re.fullmatch(r"[a-z]*\s*", bare[error.pos :])
        return bool(bare and ends)
    except (ValueError, RecursionError):
        pass
    return False


def _bare(text: str) -> str:
    """Return the text from its first brace, without closed reasoning; open reasoning may be an answer."""
    return "".join(_REASONED.sub("", _REASONING.sub("", text)).partition("{")[1:])


def _no_number(constant: str) -> Never:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_number)


def _clean(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the value with texts that can be stored: no control characters, no half of a surrogate pair."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(c for c in value if c in "\t\n" or unicodedata.category(c) not in ("Cc", "Cs"))
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value
