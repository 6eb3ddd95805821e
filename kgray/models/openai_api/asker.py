"""Asks a server for JSON replies, in the form that the server obeys."""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

from kgray.domain.records import Extraction
from kgray.errors import Refused, SettingsError
from kgray.models.openai_api.client import Client, Rejected, TokensSpent
from kgray.models.openai_api.dialects import DIALECTS, PROBE, Dialect
from kgray.models.openai_api.streaming import ReplyWatch
from kgray.models.prompting.prompts import Prompt, Prompts
from kgray.models.prompting.reply_schemas import Schema
from kgray.ports import Judged
from kgray.ports.ingest import ModelCall, ModelReply, Steps

_T = TypeVar("_T")
_R = TypeVar("_R", Extraction, Judged)
FormOf = Callable[[ModelCall], tuple[Prompt, Schema]]  # the prompt and the schema of a call
_log = logging.getLogger("kgray")


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
                body = dialect.body(prompt, "Name a colour and three numbers.", PROBE, room=256)
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


@cache
def _warn_of_estimates() -> None:
    _log.warning("the model's server reports no usage: tokens are estimated at 4 characters each")
