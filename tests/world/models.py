"""A reader and judge of a world in this process: the answers that a model server gives over HTTP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kgray.domain.records import Extraction, canonical
from kgray.models.prompting.replies import parse_answer, parse_extraction
from kgray.ports import Answer, ExtractionRequest, Judged, Question, QuestionRequest
from tests.world.dice import Dice
from tests.world.latency import tokens
from tests.world.oracle import COMPARISONS, Oracle


class WorldModel:
    """An extractor and judge that knows the world. Prompt tokens count the data: there is no prompt here.

    wild: questions get answers that are a hash of the whole request: right about nothing, but the same
    for the same request (R20).
    """

    def __init__(self, oracle: Oracle, *, wild: bool = False) -> None:
        """Answer from the oracle, with its errors."""
        self.oracle = oracle
        self.identity = f"{oracle.identity}-wild" if wild else oracle.identity
        self._wild = wild

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return the episode's extraction; empty for a text from outside this world."""
        reply = self.oracle.extraction(request.episode.text)
        return replace(
            parse_extraction(reply, request.episode),
            model=self.identity,
            calls=1,
            prompt_tokens=sum(tokens(e.text) for e in (*request.previous, request.episode)),
            completion_tokens=tokens(canonical(reply)),
        )

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key (R21)."""
        return request.key(self.identity)

    async def judge(self, request: QuestionRequest) -> Judged:
        """Return one answer a question, as one call."""
        request_key = self.key(request)
        answers = tuple(self._answer(request_key, *numbered) for numbered in enumerate(request.questions))
        read = tokens(canonical([q.brief() | {"cards": q.cards} for q in request.questions]))
        return Judged(
            answers=answers, calls=1, prompt_tokens=read, completion_tokens=tokens(canonical(answers))
        )

    def _answer(self, request_key: str, place: int, question: Question) -> Answer:
        if self._wild:
            reply = wild_answer(Dice("wild", request_key, place), question.kind, len(question.candidates))
        elif question.kind == "entity":
            reply = self.oracle.answer("entity", question.cards[0], question.cards[1:])
        else:
            reply = self.oracle.answer(question.kind, question.item, question.candidates)
        return parse_answer(question, reply)


def wild_answer(dice: Dice, kind: str, candidates: int) -> dict[str, Any]:
    """Return an answer of the right form and no sense."""
    if kind == "entity":
        pick = dice.number_below(candidates + 1)
        return {"duplicate_of": None if pick == candidates else pick}
    words = [dice.pick(COMPARISONS) for _ in range(candidates)]
    first = words.index("same") if "same" in words else candidates
    return {"answers": [*words[: first + 1], *(dice.pick(COMPARISONS[1:]) for _ in words[first + 1 :])]}
