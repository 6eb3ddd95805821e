"""What one server supports: how it enforces a reply schema, and which request parameters it accepts."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from kgray.backends.openai_api.client import Rejected
from kgray.prompting.prompts import Prompt
from kgray.prompting.schemas import Schema

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
