"""The forms of requests for a JSON reply, of which each server supports some."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from kgray.models.prompting.prompts import Prompt
from kgray.models.prompting.reply_schemas import Schema
from kgray.ports.ingest import Mode

_MARK = "kgray-7"  # an unlikely text: a reply with it shows that the server enforces the schema
PROBE: Schema = {
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
