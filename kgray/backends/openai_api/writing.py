"""What a language model writes for people: answers, as their text arrives, and summaries of communities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kgray.backends.openai_api.client import Client, Rejected, TokensSpent
from kgray.backends.openai_api.dialect import Dialect
from kgray.backends.openai_api.extractor import identity_of
from kgray.backends.openai_api.structured import Asker, StructuredRequest
from kgray.errors import Cost, InvalidAnswer, Refused
from kgray.ports import AnswerRequest, SummaryRequest
from kgray.prompting.prompts import Prompt
from kgray.prompting.schemas import SCHEMAS, parse_summary


class OpenAIAnswerer:
    """Answers behind HTTP. Nothing is probed: a question is one call, more where a parameter is refused."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def answer(self, request: AnswerRequest, on_text: Callable[[str], None]) -> Cost:
        spent, dialect = TokensSpent(most_calls=request.max_calls), Dialect(mode="text")
        reply: dict[str, Any] | None = None
        with spent.told():
            while reply is None:
                body = dialect.chat(request.head, request.data, room=request.room, temperature=0.0)
                try:
                    reply = await self._client.chat(body, spent, on_text)
                except Rejected as rejection:
                    simpler = dialect.without(str(rejection))
                    if simpler == dialect or spent.is_over:
                        raise Refused(f"the server refuses the question ({rejection})") from None
                    dialect = simpler
            message = reply["choices"][0].get("message") or {}
            text = message.get("content") or ""
            spent.count(reply.get("usage"), body, text)
            if not text.strip():
                if message.get("refusal"):
                    raise Refused("the model refused the question")
                raise InvalidAnswer("the model's answer is empty")
        return spent.cost


class OpenAISummarizer:
    """A summarizer behind HTTP; what it wrote is kept by its caller."""

    def __init__(self, client: Client) -> None:
        self._asker = Asker(client)
        self.identity = identity_of(client.endpoint.name, self._asker.temperature)

    async def write(self, request: SummaryRequest) -> tuple[Mapping[str, Any], Cost]:
        spent = TokensSpent()
        asked = StructuredRequest(
            prompt=Prompt(request.task, request.head),
            data=request.data,
            schema=SCHEMAS[request.task],
            room=request.room,
        )
        with spent.told():
            reply, _ = await self._asker.ask(
                asked, lambda found: parse_summary(found, request.task, len(request.facts)), spent
            )
        return reply, spent.cost
