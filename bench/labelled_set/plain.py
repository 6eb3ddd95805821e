"""The baseline of `python -m bench reading`: one plain prompt a message, without kgray's code.

The prompt is bench/data/plain_prompt.md. The reply is constrained by a JSON schema, at temperature 0.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.labelled_set.facts import ReadFact, end_name
from bench.labelled_set.labels import CONTEXT, LabelledMessage
from kgray.errors import Unavailable

_PROMPT = Path(__file__).parents[1] / "data" / "plain_prompt.md"
_ROOM = 1024  # tokens of a reply; the longest good replies took half of it
_TIMEOUT_S = 600
_NAME = {"type": "string", "minLength": 1}
_DATE = {"anyOf": [{"type": "string"}, {"type": "null"}]}


def _object_of(**properties: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON schemas
    required = list(properties)
    return {
        "type": "object", "properties": properties, "required": required, "additionalProperties": False,
    }  # fmt: skip


_SCHEMA = _object_of(
    entities={"type": "array", "items": _object_of(name=_NAME, type={"type": "string"})},
    facts={
        "type": "array",
        "items": _object_of(
            subject=_NAME,
            relation=_NAME,
            object=_NAME,
            sentence={"type": "string"},
            status={"enum": ["current", "ended", "event"]},
            start=_DATE,
            end=_DATE,
        ),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainReading:
    """The plain prompt's facts of one message, and their cost. complete: the reply was not cut off."""

    facts: tuple[ReadFact, ...]
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    complete: bool


class PlainReader:
    """Reads messages with the plain prompt, from a server with OpenAI's interface."""

    def __init__(
        self, base_url: str, model: str, api_key: str | None = None, replies: Path | None = None
    ) -> None:
        """Read the replies of earlier runs.

        base_url  mostly ends in /v1
        api_key   None = the server needs none
        replies   a file of replies by the hash of their request, which is extended; None = ask for each
        """
        self._file = replies
        lines = replies.read_text(encoding="utf-8").splitlines() if replies and replies.exists() else []
        self._replies: dict[str, dict[str, Any]] = dict(map(json.loads, lines))
        self._url, self._model = base_url.rstrip("/"), model
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._head = _PROMPT.read_text(encoding="utf-8").strip()

    def read(self, message: LabelledMessage, previous: Sequence[LabelledMessage]) -> PlainReading:
        """Return the facts of one message. previous: the messages before it. Raises Unavailable."""
        start = time.perf_counter()
        body = self._send(
            {
                "model": self._model,
                "temperature": 0,
                "max_tokens": _ROOM,
                "messages": [
                    {"role": "system", "content": self._head},
                    {"role": "user", "content": shown_message(message, previous[-CONTEXT:])},
                ],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "plain_reading", "schema": _SCHEMA, "strict": True},
                },
            }
        )
        usage = body.get("usage") or {}
        content = body["choices"][0]["message"]["content"] or ""
        rows, complete = listed_facts(content)
        return PlainReading(
            facts=tuple(read_fact(row, message.speaker) for row in rows),
            prompt_tokens=int(usage.get("prompt_tokens", 0)),
            completion_tokens=int(usage.get("completion_tokens", 0)),
            seconds=time.perf_counter() - start,
            complete=complete,
        )

    def _send(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the server's reply, or that of an earlier run to the same request."""
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        if key not in self._replies:
            self._replies[key] = self._requested(body)
            if self._file:
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, self._replies[key]]) + "\n")
        return self._replies[key]

    def _requested(self, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - the user's own address
            f"{self._url}/chat/completions", json.dumps(body).encode(), self._headers
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                reply: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            reason = error.read(300).decode(errors="replace")
            raise Unavailable(f"{self._url} answered the plain prompt with {error.code}: {reason}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unavailable(f"{self._url} gave no answer to the plain prompt: {error}") from None
        if not reply.get("choices"):
            raise Unavailable(f"{self._url} answered the plain prompt without choices")
        return reply


def shown_message(message: LabelledMessage, previous: Sequence[LabelledMessage]) -> str:
    """Return the user's part of the prompt: previous messages, then the message with time and speaker."""
    lines = []
    if previous:
        lines += ["Previous messages:", *(_quoted(earlier) for earlier in previous), ""]
    day = datetime.fromisoformat(message.at)
    speaker = f", speaker {message.speaker}" if message.speaker else ""
    kind = {"message": "Message", "text": "Note", "json": "JSON record"}[message.kind]
    return "\n".join([*lines, f"{kind} of {day:%Y-%m-%d} ({day:%A}){speaker}:", message.rendered])


def _quoted(message: LabelledMessage) -> str:
    return f"{message.speaker}: {message.rendered}" if message.speaker else message.rendered


def listed_facts(content: str) -> tuple[list[Mapping[str, Any]], bool]:
    """Return the rows of facts in a reply, and whether it is complete; the complete rows of one cut off."""
    try:
        return _rows(json.loads(content)), True
    except ValueError:
        pass
    try:
        return _rows(json.loads(content[: content.rindex("}") + 1] + "]}")), False
    except ValueError:
        return [], False


def _rows(reply: Any) -> list[Mapping[str, Any]]:  # noqa: ANN401 - any JSON value
    rows = reply.get("facts") if isinstance(reply, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def read_fact(row: Mapping[str, Any], speaker: str | None) -> ReadFact:
    """Return one row of a reply as a fact; a missing field is an empty text."""

    def text(name: str) -> str:
        value = row.get(name)
        return "" if value is None else str(value)

    return ReadFact(
        subject=end_name(text("subject"), speaker),
        object=end_name(text("object"), speaker),
        relation=text("relation"),
        text=text("sentence"),
        status=text("status"),
        start=text("start") or None,
        end=text("end") or None,
    )
