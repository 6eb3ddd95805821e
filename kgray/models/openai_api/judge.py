"""Answers questions with a language model: an episode's questions in a call, or a call for each question."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kgray.domain.records import canonical, clean_text
from kgray.errors import InvalidAnswer
from kgray.models.openai_api.asker import PromptedModel
from kgray.models.openai_api.client import Client
from kgray.models.openai_api.structured import RAW_KEPT, StructuredRequest, structured
from kgray.models.prompting.prompts import Prompt, Prompts, questions_data
from kgray.models.prompting.replies import parse_answer
from kgray.models.prompting.reply_schemas import Schema, answers_schema
from kgray.ports import Answer, Judged, Question, QuestionRequest
from kgray.ports.ingest import ModelCall, Steps

_TASKS: Mapping[str, str] = {"entity": "resolve_entity", "compare": "compare"}  # by the kind of question
_ROOM = (256, 128)  # tokens for a reply, and for each question
_REASON = 240  # stored characters of a reason


class OpenAIJudge(PromptedModel):
    """A judge behind HTTP. apart: a call for each question, with its kind's prompt; else a single call."""

    def __init__(self, client: Client, prompts: Prompts, *, apart: bool = False) -> None:
        super().__init__(client, prompts)
        self._apart = apart

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key: model, parameters, and the bytes of its prompts (R21)."""
        content = [
            self.identity,
            *([prompt.task, prompt.head, data] for prompt, data, _ in self._calls(request)),
        ]
        return hashlib.sha256(canonical(content).encode("utf-8", "surrogatepass")).hexdigest()

    async def judge(self, request: QuestionRequest) -> Judged:
        return await self._carry_out(self.steps(request))

    def _form_of(self, call: ModelCall) -> tuple[Prompt, Schema]:
        return self._prompts[call.task], answers_schema(call.kinds)

    def steps(self, request: QuestionRequest) -> Steps[Judged]:
        """Return the steps of a request; their result has no cost yet."""
        answers: dict[int, Answer] = {}
        for prompt, data, places in self._calls(request):
            answers |= yield from self._answers(request, prompt, data, places)
        return Judged(answers=tuple(answers[place] for place in range(len(request.questions))))

    def _answers(
        self, request: QuestionRequest, prompt: Prompt, data: str, places: Sequence[int]
    ) -> Steps[dict[int, Answer]]:
        """Return the answers by index in the request; a repair may complete the first reply."""
        answers_so_far: dict[int, Answer] = {}
        questions = [request.questions[place] for place in places]

        def accept(reply: Mapping[str, Any]) -> dict[int, Answer]:
            if faults := _faults(reply, questions, answers_so_far):
                raise InvalidAnswer("; ".join(faults)[:1000], raw=canonical(reply)[:RAW_KEPT])
            return {places[i]: answer for i, answer in answers_so_far.items()}

        kinds = tuple(sorted({question.kind for question in questions}))
        request_for_reply = StructuredRequest(
            prompt=prompt,
            data=data,
            schema=answers_schema(kinds),
            kinds=kinds,
            room=_ROOM[0] + _ROOM[1] * len(questions),
        )
        answers, _ = yield from structured(request_for_reply, accept)
        return answers

    def _calls(self, request: QuestionRequest) -> Iterator[tuple[Prompt, str, Sequence[int]]]:
        """Yield the prompt and the data of each call, and the indexes of its questions."""
        parts: list[tuple[str, Sequence[int]]] = [("batched", range(len(request.questions)))]
        if self._apart:
            parts = [(_TASKS[question.kind], [place]) for place, question in enumerate(request.questions)]
        for task, places in parts:
            questions = [request.questions[place] for place in places]
            yield self._prompts[task], questions_data(request.episode, questions), places


def _corrected(question: Question, place: int, item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer with the only candidate's number in place of the question's number.

    Small models copy the question's number: of 136 messages, read by a model of 1.5 B parameters, seven
    needed two repairs each for this reason alone. The answer means the only candidate, because nothing else
    has a number.
    """
    copied = item.get("duplicate_of") if question.kind == "entity" and len(question.candidates) == 1 else None
    is_copy = type(copied) is int and copied == place
    return {**item, "duplicate_of": 0} if is_copy else item


def _faults(reply: Mapping[str, Any], questions: Sequence[Question], answers: dict[int, Answer]) -> list[str]:
    """Add the reply's valid answers, the first for each question; return faults of open questions."""
    faults: list[str] = []
    items = reply.get("answers")
    for item in items if isinstance(items, list) else []:
        place = item.get("id") if isinstance(item, dict) else None
        if type(place) is not int or not 0 <= place < len(questions):
            faults.append(f"an answer has the id {place!r}, which no question has"[:120])
        elif place not in answers:
            try:
                answer = parse_answer(questions[place], _corrected(questions[place], place, item))
            except InvalidAnswer as fault:
                faults.append(f"id {place}: {fault}")
                continue
            reason = item.get("reason")
            text = clean_text(reason)[:_REASON] if isinstance(reason, str) else ""
            answers[place] = {**answer, "reason": text} if text else answer
    still_open = [place for place in range(len(questions)) if place not in answers]
    return [*faults, f"no usable answer to the questions with id {still_open}"] if still_open else []
