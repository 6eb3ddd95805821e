"""The calls of a model for one question, within bounds of calls and tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import add
from typing import Any

from kgray.errors import Cost, InputError
from kgray.models.prompting.tokens import count_tokens
from kgray.ports import Answerer, AnswerRequest
from kgray.search.answering import LEAST_ROOM, NO_COST, ROOM, OnText


@dataclass(slots=True)
class Spending:
    """A model, and the calls and tokens (of prompts and replies) that are left; None = any number."""

    model: Answerer
    calls: int | None = None
    tokens: int | None = None
    cost: Cost = NO_COST

    async def ask(
        self, task: str, question: str, data: str, on_text: OnText, *,
        reserved: int = 0, schema: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Ask once; on_text takes the pieces of the reply. reserved: calls for later requests.

        Raises InputError if the rest does not suffice for a call, and the errors of `Answerer.answer`.
        """
        calls, head, room = self.calls, self.model.head(task), ROOM
        if calls is not None and (calls := calls - reserved) < 1:
            raise InputError(f"max_calls is {calls}: an answer needs 1 call", field="max_calls")
        if self.tokens is not None:
            prompt = count_tokens(head) + count_tokens(data)
            room = min(ROOM, self.tokens - prompt)
            if room < LEAST_ROOM:
                raise InputError(
                    f"max_tokens is {self.tokens}, but the prompt alone takes about {prompt}: allow "
                    f"{prompt + LEAST_ROOM} or more, or a smaller context (tokens)",
                    field="max_tokens",
                )
        request = AnswerRequest(
            task=task, question=question, head=head, data=data, room=room, max_calls=calls, schema=schema
        )
        self.add(await self.model.answer(request, on_text))

    async def text(self, task: str, question: str, data: str, *, reserved: int = 0) -> str:
        """Return the reply of one request."""
        pieces: list[str] = []
        await self.ask(task, question, data, pieces.append, reserved=reserved)
        return "".join(pieces)

    async def json(
        self, task: str, question: str, data: str, schema: Mapping[str, Any], *, reserved: int = 0
    ) -> dict[str, Any]:
        """Return the reply of one request with a schema."""
        pieces: list[str] = []
        await self.ask(task, question, data, pieces.append, reserved=reserved, schema=schema)
        reply: dict[str, Any] = json.loads("".join(pieces))
        return reply

    def add(self, cost: Cost) -> None:
        """Count a cost."""
        self.cost = Cost(*map(add, self.cost, cost))
        self.calls = None if self.calls is None else self.calls - cost.calls
        if self.tokens is not None:
            self.tokens -= cost.prompt_tokens + cost.completion_tokens

    def worst(self, task: str, data: str, room: int = ROOM) -> int:
        """Return how many tokens a request may take: its prompt and the longest reply."""
        return count_tokens(self.model.head(task)) + count_tokens(data) + room

    def allows(self, calls: int, tokens: int) -> bool:
        """Return whether the bounds allow this number of calls and tokens."""
        enough_calls = self.calls is None or self.calls >= calls
        return enough_calls and (self.tokens is None or self.tokens >= tokens)

    def share(self, tokens: int) -> Spending:
        """Return the bounds of a request that is sent beside others: a single call, this number of tokens.

        Its cost is added with `add` afterwards.
        """
        calls = None if self.calls is None else 1
        return Spending(self.model, calls, None if self.tokens is None else tokens)
