"""Answers questions with a language model: an episode's in one call, or one call a task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kgray.backends.openai_api.client import Client, TokensSpent
from kgray.backends.openai_api.extractor import identity_of
from kgray.backends.openai_api.structured import RAW_KEPT, Asker, StructuredRequest
from kgray.errors import InvalidAnswer
from kgray.ports import Answer, Judged, Question, QuestionRequest, ResponseCache
from kgray.prompting.prompts import Prompt, Prompts, questions_data
from kgray.prompting.replies import answers_schema, parse_answer
from kgray.records import Episode, canonical, clean_text

# The task that answers a kind. The questions of `relate` share a call: names are judged beside each other.
_TASKS: Mapping[str, str] = {
    "entity": "resolve_entity",
    "variant": "resolve_facts",
    "verdict": "contradiction",
    "relation": "relate",
    "cardinality": "relate",
}
_SEES_EPISODE = frozenset({"batched", "resolve_entity"})
_ROOM = (256, 128)  # tokens for a reply, and for each question
_REASON = 240  # characters of a reason that are kept


@dataclass(frozen=True, slots=True)
class _JudgeCall:
    """One call of a request."""

    prompt: Prompt
    data: str
    questions: tuple[Question, ...]
    places: tuple[int, ...]  # of the questions in the request


class OpenAIJudge:
    """A judge behind HTTP. apart: a call for all relations, and one for each other question."""

    def __init__(
        self, client: Client, prompts: Prompts, *, apart: bool = False, cache: ResponseCache | None = None
    ) -> None:
        self._asker = Asker(client, cache=cache)
        self._prompts = prompts
        self._apart = apart
        self.identity = identity_of(client.endpoint.name, self._asker.temperature)

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key: model, parameters, and the bytes of its prompts (R21)."""
        content = [self.identity, *([p.prompt.task, p.prompt.head, p.data] for p in self._parts(request))]
        return hashlib.sha256(canonical(content).encode("utf-8", "surrogatepass")).hexdigest()

    async def judge(self, request: QuestionRequest) -> Judged:
        """Return one validated answer a question, with what they cost.

        Raises Refused, InvalidAnswer, Unavailable; SettingsError where nothing could be asked.
        """
        spent = TokensSpent()
        answers: dict[int, Answer] = {}
        with spent.told():
            for part in self._parts(request):
                answers |= await self._answers(request.episode, part, spent)
        found = tuple(answers[place] for place in range(len(request.questions)))
        return Judged(answers=found, **spent.cost._asdict())

    async def _answers(self, asking: Episode, part: _JudgeCall, spent: TokensSpent) -> dict[int, Answer]:
        """Return the answers by index in the request; a repair may complete what the first reply began."""
        said: dict[int, Answer] = {}

        def accept(reply: Mapping[str, Any]) -> dict[int, Answer]:
            faults = _take(reply, part.questions, said)
            if len(said) < len(part.questions):
                raise InvalidAnswer("; ".join(faults)[:1000], raw=canonical(reply)[:RAW_KEPT])
            return {part.places[i]: answer for i, answer in said.items()}

        request = StructuredRequest(
            prompt=part.prompt,
            data=part.data,
            schema=answers_schema(question.kind for question in part.questions),
            room=_ROOM[0] + _ROOM[1] * len(part.questions),
            episode=asking,
        )

        def kept() -> dict[str, Any]:
            return {"answers": [{"id": place, **answer} for place, answer in sorted(said.items())]}

        answers, _ = await self._asker.ask(request, accept, spent, kept=kept)
        return answers

    def _parts(self, request: QuestionRequest) -> Iterator[_JudgeCall]:
        if not self._apart:
            yield self._part("batched", request, tuple(range(len(request.questions))))
            return
        related = tuple(i for i, q in enumerate(request.questions) if _TASKS[q.kind] == "relate")
        if related:
            yield self._part("relate", request, related)
        for place, question in enumerate(request.questions):
            if place not in related:
                yield self._part(_TASKS[question.kind], request, (place,))

    def _part(self, task: str, request: QuestionRequest, places: tuple[int, ...]) -> _JudgeCall:
        questions = tuple(request.questions[place] for place in places)
        data = questions_data(request.episode if task in _SEES_EPISODE else None, questions)
        return _JudgeCall(self._prompts[task], data, questions, places)


def _take(reply: Mapping[str, Any], questions: tuple[Question, ...], said: dict[int, Answer]) -> list[str]:
    """Add the reply's good answers to `said`, the first for each question; return the faults of the rest."""
    faults: list[str] = []
    items = reply.get("answers")
    for item in items if isinstance(items, list) else []:
        place = item.get("id") if isinstance(item, dict) else None
        if type(place) is not int or not 0 <= place < len(questions):
            faults.append(f"an answer has the id {place!r}, which no question has"[:120])
        elif place not in said:
            try:
                said[place] = _reasoned(parse_answer(questions[place], item), item)
            except InvalidAnswer as fault:
                faults.append(f"id {place}: {fault}")
    open_ones = [place for place in range(len(questions)) if place not in said]
    return [*faults, f"no usable answer to the questions with id {open_ones}"] if open_ones else faults


def _reasoned(answer: Answer, item: Mapping[str, Any]) -> Answer:
    reason = item.get("reason")
    text = clean_text(reason)[:_REASON] if isinstance(reason, str) else ""
    return {**answer, "reason": text} if text else answer
