"""Texts that a language model writes for people: answers, as they arrive, and summaries of communities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kgray.domain.records import canonical, clean_text
from kgray.errors import Cost, InvalidAnswer, Refused
from kgray.models.openai_api.asker import Asker, identity_of
from kgray.models.openai_api.client import Client, Rejected, TokensSpent
from kgray.models.openai_api.dialects import Dialect
from kgray.models.openai_api.structured import RAW_KEPT, StructuredRequest, read_object, salvage, structured
from kgray.models.prompting.prompts import Prompt, PromptFiles, repair_data
from kgray.models.prompting.reply_schemas import INDEX, TEXT, Schema, listed_of, object_of
from kgray.ports import AnswerRequest, SummaryRequest, SummaryTask

_NAME, _SUMMARY, _REASON, _FINDINGS = 160, 2000, 400, 7  # characters, characters, characters, items
_FINDING = object_of(summary=TEXT, explanation=TEXT, facts=listed_of(INDEX))
SCHEMAS: Mapping[SummaryTask, Schema] = {
    "profile": object_of(summary=TEXT),
    "community": object_of(name=TEXT, summary=TEXT),
    "community_report": object_of(
        name=TEXT, summary=TEXT, rating=INDEX, reason=TEXT, findings=listed_of(_FINDING)
    ),
}


class OpenAIAnswerer:
    """Answers behind HTTP. Nothing is probed: a question is a single call.

    More calls follow if the server refuses a parameter, or if a reply with a schema cannot be read.
    """

    def __init__(self, client: Client, files: PromptFiles | None = None) -> None:
        self._client = client
        self.head = (files or PromptFiles()).text
        self._dialects = {False: Dialect(mode="text"), True: Dialect()}  # of plain text, of JSON

    async def answer(self, request: AnswerRequest, on_text: Callable[[str], None]) -> Cost:
        spent = TokensSpent(most_calls=request.max_calls)
        with spent.on_errors():
            if request.schema is None:
                await self._replied(request, request.data, spent, on_text)
            else:
                on_text(canonical(await self._object(request, request.schema, spent)))
        return spent.cost

    async def _object(
        self, request: AnswerRequest, schema: Mapping[str, Any], spent: TokensSpent
    ) -> dict[str, Any]:
        """Return a reply with the keys of the schema; an unreadable reply is requested once more."""
        data, keys = request.data, tuple(schema["required"])
        while True:
            text = await self._replied(request, data, spent, lambda _: None)
            document = read_object(text, keys)
            if document is None or not document.keys() >= set(keys):
                document = salvage(text, keys)
            if document is not None:
                return document
            fault = f"the reply holds no JSON object with {' and '.join(map(repr, keys))}"
            if data != request.data or spent.is_over:
                raise InvalidAnswer(fault, raw=text[:RAW_KEPT])
            data += repair_data(fault, text[:RAW_KEPT])

    async def _replied(
        self, request: AnswerRequest, data: str, spent: TokensSpent, on_text: Callable[[str], None]
    ) -> str:
        """Return the text of a reply, in the first form of request that the server accepts."""
        has_schema, prompt = request.schema is not None, Prompt(request.task, request.head)
        dialect = self._dialects[has_schema]
        while True:
            if request.schema is None:
                body = dialect.chat(request.head, data, room=request.room)
            else:
                body = dialect.body(prompt, data, dict(request.schema), room=request.room)
            try:
                reply = await self._client.chat(body, spent, on_text)
                break
            except Rejected as rejection:
                simpler = dialect.reduced(str(rejection))
                if simpler == dialect or spent.is_over:
                    raise Refused(f"the server refuses the question ({rejection})") from None
                dialect = simpler
        self._dialects[has_schema] = dialect
        message = reply["choices"][0].get("message") or {}
        text = str(message.get("content") or "")
        spent.count(reply.get("usage"), body, text)
        if not text.strip():
            if message.get("refusal"):
                raise Refused("the model refused the question")
            raise InvalidAnswer("the model's answer is empty")
        return text


class OpenAISummarizer:
    """A summarizer behind HTTP; its caller stores the summaries."""

    def __init__(self, client: Client, files: PromptFiles | None = None) -> None:
        self._asker = Asker(client)
        self.head = (files or PromptFiles()).text
        self.identity = identity_of(client.endpoint.name)

    async def write(self, request: SummaryRequest) -> tuple[Mapping[str, Any], Cost]:
        spent = TokensSpent()
        prompt, schema = Prompt(request.task, request.head), SCHEMAS[request.task]
        steps = structured(
            StructuredRequest(prompt=prompt, data=request.data, schema=schema, room=request.room),
            lambda document: parse_summary(document, request.task, len(request.facts)),
        )
        with spent.on_errors():
            reply, _ = await self._asker.carry_out(steps, lambda _: (prompt, schema), spent)
        return reply, spent.cost


def parse_summary(reply: Mapping[str, Any], task: SummaryTask, facts: int) -> dict[str, Any]:
    """Return a reply's texts, cleaned and cut. facts: number in the prompt; other citations are dropped.

    Raises InvalidAnswer for a text that is missing or empty, and for a rating outside 0 to 10.
    """
    lengths = {"summary": _SUMMARY} if task == "profile" else {"name": _NAME, "summary": _SUMMARY}
    summary: dict[str, Any] = {name: _text(reply, name, limit) for name, limit in lengths.items()}
    for name, text in summary.items():
        if not text:
            raise InvalidAnswer(f"the reply has no {name!r}", raw=canonical(reply))
    if task != "community_report":
        return summary
    rating, items = reply.get("rating"), reply.get("findings")
    if type(rating) is not int or not 0 <= rating <= 10:
        raise InvalidAnswer(f"the rating is {rating!r}: use a whole number, 0 to 10", raw=canonical(reply))
    listed = [item for item in (items if isinstance(items, list) else []) if isinstance(item, dict)]
    findings = []
    for item in listed[:_FINDINGS]:
        cited = item.get("facts")
        citations = cited if isinstance(cited, list) else []
        valid = dict.fromkeys(at for at in citations if type(at) is int and 0 <= at < facts)
        texts = {"summary": _REASON, "explanation": _SUMMARY}
        texts_of_item = {name: _text(item, name, limit) for name, limit in texts.items()}
        findings.append({**texts_of_item, "facts": list(valid)})
    reason = _text(reply, "reason", _REASON)
    return summary | {"rating": rating, "reason": reason, "findings": [f for f in findings if f["summary"]]}


def _text(reply: Mapping[str, Any], name: str, max_length: int) -> str:
    text = reply.get(name)
    return clean_text(text)[:max_length] if isinstance(text, str) else ""
