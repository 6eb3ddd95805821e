"""Extracts episodes with a language model: in a single call, or in calls for entities, facts and dates.

With rounds of reflection the model is then asked for missed entities and facts, until it finds nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kgray.domain.records import ExtractedEntity, Extraction
from kgray.errors import InvalidAnswer
from kgray.models.openai_api.asker import PromptedModel
from kgray.models.openai_api.client import Client
from kgray.models.openai_api.structured import RAW_KEPT, StructuredRequest, structured
from kgray.models.prompting.model_checks import (
    needed_context,
    without_foreign_facts,
    without_previous,
    without_questions,
)
from kgray.models.prompting.model_replies import ScriptForm
from kgray.models.prompting.prompts import Prompt, Prompts, dating_data, extraction_data, tokens
from kgray.models.prompting.replies import parse_extraction
from kgray.models.prompting.reply_schemas import Schema, extraction_schemas
from kgray.ports import ExtractionRequest
from kgray.ports.ingest import ModelCall, Steps

_T = TypeVar("_T")
# Maximum tokens of a reply, because a bad reply may repeat itself: twice the longest good replies, and less
# for short texts: a list of names may have a fact in each of its tokens, and a fact takes 50.
_ROOM = {"extract_entities": 1024, "date_facts": 2048}
_ROOM_MOST, _ROOM_LEAST, _ROOM_A_TOKEN = 4096, 256, 48
_Reply = Mapping[str, Any]


@dataclass(slots=True)
class _EpisodeReading:
    """The reading of an episode: replies so far, used prompts, notes."""

    request: ExtractionRequest
    form: ScriptForm
    prompts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def extraction(self) -> Extraction:
        """Return the extraction of all replies so far. Raises InvalidAnswer."""
        parsed = parse_extraction(
            {"entities": self.form.entities, "facts": self.form.facts}, self.request.episode
        )
        episode, previous = self.request.episode, self.request.previous
        checked = without_foreign_facts(without_questions(parsed, episode), episode, previous)
        return without_previous(checked, previous)

    def entities(self) -> Sequence[ExtractedEntity]:
        """Return the entities of the replies so far, the speaker first."""
        reply: _Reply = {"entities": self.form.entities, "facts": []}
        return parse_extraction(reply, self.request.episode).entities


class OpenAIExtractor(PromptedModel):
    """Extractions by a model behind HTTP; `combined` or `separate`, with rounds of reflection."""

    def __init__(
        self, client: Client, prompts: Prompts, *, separate: bool = False, reflect_rounds: int = 0
    ) -> None:
        super().__init__(client, prompts)
        self._schemas = extraction_schemas(prompts.types)
        self._separate, self._rounds = separate, reflect_rounds

    async def extract(self, request: ExtractionRequest) -> Extraction:
        return await self._carry_out(self.steps(request))

    def _form_of(self, call: ModelCall) -> tuple[Prompt, Schema]:
        return self._prompts[call.task], self._schemas[call.task]

    def steps(self, request: ExtractionRequest) -> Steps[Extraction]:
        """Return the steps of an extraction; their result has no cost yet."""
        request = replace(request, previous=tuple(needed_context(request.episode, request.previous)))
        reading = _EpisodeReading(request, ScriptForm(request.episode, self._prompts.types))
        if self._separate:
            yield from self._read_in_steps(reading)
        else:
            data = extraction_data(request)
            self._add(reading, (yield from self._ask(reading, "combined", data, _lists("entities", "facts"))))
        for _ in range(self._rounds):
            if not (yield from self._reflect(reading)):
                break
        extraction = reading.extraction()
        return replace(
            extraction,
            dropped=(*reading.notes, *reading.form.notes, *extraction.dropped),
            model=self.identity,
            prompts=tuple(dict.fromkeys(reading.prompts)),
        )

    def _add(self, reading: _EpisodeReading, reply: Mapping[str, list[object]]) -> None:
        """Add a reply's entities first, so that the ends of its facts match them."""
        reading.form.add_entities(reply.get("entities", ()))
        reading.form.add_facts(reply.get("facts", ()))

    def _read_in_steps(self, reading: _EpisodeReading) -> Steps[None]:
        """Ask for the entities, then for the facts between them, then for their dates."""
        request = reading.request
        data = extraction_data(request)
        named = yield from self._ask(reading, "extract_entities", data, _lists("entities"))
        self._add(reading, named)
        data = extraction_data(request, reading.entities())
        facts = (yield from self._ask(reading, "extract_facts", data, _lists("facts")))["facts"]
        reading.form.add_facts((yield from self._dated(reading, facts)))

    def _dated(self, reading: _EpisodeReading, facts: list[object]) -> Steps[list[object]]:
        """Return the facts with dates from another call."""
        statements = {
            place: {"id": place, "fact": fact["fact"], "status": fact.get("status", "current")}
            for place, fact in enumerate(facts)
            if isinstance(fact, dict) and isinstance(fact.get("fact"), str)
        }
        if not statements:
            return facts

        def accept(reply: _Reply) -> dict[int, dict[str, Any]]:
            dates = {
                item["id"]: {key: item.get(key) for key in ("start", "end")}
                for item in _lists("facts")(reply)["facts"]
                if isinstance(item, dict) and type(item.get("id")) is int
            }
            if missing := sorted(statements.keys() - dates):
                raise InvalidAnswer(f"facts without dates: {missing}", raw=str(reply)[:RAW_KEPT])
            return dates

        data = dating_data(reading.request.episode, statements.values())
        dates = yield from self._ask(reading, "date_facts", data, accept)
        return [
            {**fact, **dates[place]} if isinstance(fact, dict) and place in statements else fact
            for place, fact in enumerate(facts)
        ]

    def _reflect(self, reading: _EpisodeReading) -> Steps[bool]:
        """Ask once for missing entities and facts; return whether anything new came."""
        old = reading.extraction()
        data = extraction_data(reading.request, old.entities, [fact.text for fact in old.facts])
        self._add(reading, (yield from self._ask(reading, "reflect", data, _lists("entities", "facts"))))
        new = reading.extraction()
        return len(new.entities) > len(old.entities) or len(new.facts) > len(old.facts)

    def _ask(
        self, reading: _EpisodeReading, task: str, data: str, accept: Callable[[_Reply], _T]
    ) -> Steps[_T]:
        prompt, episode = self._prompts[task], reading.request.episode
        reading.prompts.append(prompt.sha256)
        request = StructuredRequest(
            prompt=prompt,
            data=data,
            schema=self._schemas[task],
            room=min(_ROOM.get(task, _ROOM_MOST), _ROOM_LEAST + _ROOM_A_TOKEN * tokens(episode.text)),
        )
        reply, was_cut = yield from structured(request, accept)
        if was_cut:
            reading.notes.append(f"{task}: the reply was cut; its complete items are kept")
        return reply


def _lists(*names: str) -> Callable[[_Reply], dict[str, list[object]]]:
    """Return a check of a reply that gives its lists of these names, or raises InvalidAnswer."""

    def accept(reply: _Reply) -> dict[str, list[object]]:
        for name in names:
            if not isinstance(reply.get(name), list):
                raise InvalidAnswer(f"{name!r} of the reply is not a list", raw=str(reply)[:RAW_KEPT])
        return {name: reply[name] for name in names}

    return accept
