"""Readers and judges of a world, in this process: the same answers as over HTTP, without the way there."""

from __future__ import annotations

from dataclasses import replace

from kgray.backends.judging import questions_key
from kgray.bench.world.dice import Dice
from kgray.bench.world.errors import Errors
from kgray.bench.world.latency import ZERO, Latency, Streams, tokens
from kgray.bench.world.oracle import Oracle
from kgray.bench.world.world import World
from kgray.ports import Answer, ExtractionRequest, Judged, Question, QuestionRequest
from kgray.prompting.replies import parse_answer, parse_extraction
from kgray.records import Extraction, canonical


class WorldReader:
    """An extractor that knows the world. Prompt tokens count the data alone: there is no prompt here."""

    def __init__(
        self,
        world: World,
        *,
        errors: Errors | None = None,
        latency: Latency = ZERO,
        oracle: Oracle | None = None,
        streams: Streams | None = None,
    ) -> None:
        """Share `oracle` and `streams` with a judge that stands for the same server."""
        self.oracle = oracle or Oracle(world, errors)
        self.identity = self.oracle.identity
        self.streams = streams or Streams(latency)

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return what the episode says; of a text that is not of this world, nothing."""
        reply = self.oracle.extraction(request.episode.text)
        written = tokens(canonical(reply))
        await self.streams.take(written)
        read = sum(tokens(e.text) for e in (*request.previous, request.episode))
        found = parse_extraction(reply, request.episode)
        return replace(found, model=self.identity, calls=1, prompt_tokens=read, completion_tokens=written)


class WorldJudge:
    """A judge that knows the world."""

    def __init__(
        self,
        world: World,
        *,
        errors: Errors | None = None,
        latency: Latency = ZERO,
        oracle: Oracle | None = None,
        streams: Streams | None = None,
    ) -> None:
        """Share `oracle` and `streams` with the reader that stands for the same server."""
        self.oracle = oracle or Oracle(world, errors)
        self.identity = self.oracle.identity
        self.streams = streams or Streams(latency)

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key (R21)."""
        return questions_key(self.identity, request.questions)

    async def judge(self, request: QuestionRequest) -> Judged:
        """Return one answer a question, as one call."""
        answers = tuple(self._answer(question) for question in request.questions)
        written = tokens(canonical(answers))
        await self.streams.take(written)
        read = tokens(canonical([q.brief() | {"cards": q.cards} for q in request.questions]))
        return Judged(answers=answers, calls=1, prompt_tokens=read, completion_tokens=written)

    def _answer(self, question: Question) -> Answer:
        oracle = self.oracle
        match question.kind:
            case "entity":
                found: object = {"duplicate_of": oracle.entity(question.cards[0], question.cards[1:])}
            case "variant":
                found = {"duplicate_of": oracle.variant(question.item, question.candidates)}
            case "verdict":
                found = {"contradicts": oracle.verdict(question.item, question.candidates)}
            case "relation":
                found = oracle.relation(question.item, question.candidates[0])
            case "cardinality":
                found = {"cardinality": oracle.cardinality(question.item)}
        return parse_answer(question, found)


class WildJudge:
    """A judge whose every answer is a hash of the whole request: right about nothing, but the same (R20)."""

    def __init__(self, seed: int = 0, *, latency: Latency = ZERO, streams: Streams | None = None) -> None:
        """Another seed gives other answers."""
        self.identity = f"wild-{seed}"
        self.streams = streams or Streams(latency)

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key (R21)."""
        return questions_key(self.identity, request.questions)

    async def judge(self, request: QuestionRequest) -> Judged:
        """Return one answer a question, as one call."""
        whole = self.key(request)
        answers = tuple(
            parse_answer(
                question, wild_answer(Dice("wild", whole, place), question.kind, len(question.candidates))
            )
            for place, question in enumerate(request.questions)
        )
        written = tokens(canonical(answers))
        await self.streams.take(written)
        return Judged(answers=answers, calls=1, completion_tokens=written)


def wild_answer(dice: Dice, kind: str, candidates: int) -> dict[str, object]:
    """Return an answer of the right form and no sense."""
    match kind:
        case "entity" | "variant":
            pick = dice.below(candidates + 1)
            return {"duplicate_of": None if pick == candidates else pick}
        case "relation":
            return dice.pick(({}, {"same_as": True}, {"inverse_of": True}, {"excludes": True}, {}))
        case "cardinality":
            return {"cardinality": dice.pick(("single", "single_object", "many", "depends"))}
    return {"contradicts": [index for index in range(candidates) if dice.flip(0.5)]}
