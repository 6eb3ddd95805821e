"""Names and summarises communities with a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kgray.backends.openai_api.client import Client, TokensSpent
from kgray.backends.openai_api.extractor import identity_of
from kgray.backends.openai_api.structured import Asker, StructuredRequest
from kgray.errors import Cost
from kgray.ports import SummaryRequest
from kgray.prompting.prompts import Prompt
from kgray.prompting.summaries import SCHEMAS, parse_summary


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
