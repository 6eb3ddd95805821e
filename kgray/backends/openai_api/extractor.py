"""Reads episodes with a language model: one call for all, or the paper's tasks, one call each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kgray.backends.openai_api.client import Client
from kgray.backends.openai_api.structured import Asker, Spent
from kgray.errors import InvalidAnswer
from kgray.ports import ExtractionRequest, ResponseCache
from kgray.prompting import Prompts, dating_data, extraction_data
from kgray.prompting.replies import parse_extraction
from kgray.prompting.schemas import EXTRACTION_TASKS, plain_entity, plain_fact
from kgray.records import Episode, ExtractedEntity, Extraction, as_value

_T = TypeVar("_T")
# Tokens for a reply. Twice what the longest good replies took; a bound for one that repeats itself.
ROOM: Mapping[str, int] = {
    "combined": 4096,
    "extract_entities": 1024,
    "reflect": 1024,
    "extract_facts": 4096,
    "date_facts": 2048,
}


def identity_of(name: str, temperature: float) -> str:
    """Return what is stored with all that a model says: its name and parameters."""
    return f"openai:{name} temperature={temperature:g}"


@dataclass(slots=True)
class _Reading:
    """One episode on its way: what was used and spent."""

    request: ExtractionRequest
    spent: Spent = field(default_factory=Spent)
    prompts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def episode(self) -> Episode:
        return self.request.episode


class OpenAIExtractor:
    """Extractions by a model behind HTTP; `combined`, or `separate` with rounds of reflection."""

    def __init__(
        self,
        client: Client,
        prompts: Prompts,
        *,
        separate: bool = False,
        reflect_rounds: int = 0,
        cache: ResponseCache | None = None,
    ) -> None:
        """Keep the parts; nothing is asked before the first episode. cache: None = none."""
        self._asker = Asker(client, cache=cache)
        self._prompts = prompts
        self._separate = separate
        self._rounds = reflect_rounds
        self.identity = identity_of(client.endpoint.name, self._asker.temperature)

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return all that the episode says, with what it cost.

        Raises Refused, InvalidAnswer, Unavailable; SettingsError where no episode could be read.
        """
        reading = _Reading(request)
        found = await (self._separately(reading) if self._separate else self._combined(reading))
        return replace(
            found,
            dropped=(*reading.notes, *found.dropped),
            model=self.identity,
            prompts=tuple(dict.fromkeys(reading.prompts)),
            calls=reading.spent.calls,
            prompt_tokens=reading.spent.prompt_tokens,
            completion_tokens=reading.spent.completion_tokens,
        )

    async def _combined(self, reading: _Reading) -> Extraction:
        def accept(reply: Mapping[str, Any], cut: bool) -> Extraction:
            _note_cut(reading, "combined", cut)
            return _parsed(reading.episode, _listed(reply, "entities"), _listed(reply, "facts"))

        return await self._ask(reading, "combined", extraction_data(reading.request), accept)

    async def _separately(self, reading: _Reading) -> Extraction:
        named = await self._entities(reading, "extract_entities", ())
        for _ in range(self._rounds):
            more = await self._entities(reading, "reflect", named)
            if len(more) == len(named):
                break
            named = more
        listed = [{"name": one.name, "type": one.type} for one in named]
        facts = await self._facts(reading, named)
        return _parsed(reading.episode, listed, facts)

    async def _entities(
        self, reading: _Reading, task: str, known: tuple[ExtractedEntity, ...]
    ) -> tuple[ExtractedEntity, ...]:
        """Return the known entities and those that the reply adds, the speaker first."""
        before = [{"name": one.name, "type": one.type} for one in known]

        def accept(reply: Mapping[str, Any], cut: bool) -> tuple[ExtractedEntity, ...]:
            _note_cut(reading, task, cut)
            found = _parsed(reading.episode, [*before, *_listed(reply, "entities")], [])
            reading.notes += found.dropped
            return found.entities

        data = extraction_data(reading.request, known if task == "reflect" else None)
        return await self._ask(reading, task, data, accept)

    async def _facts(self, reading: _Reading, named: tuple[ExtractedEntity, ...]) -> list[object]:
        """Return the facts as on the wire, dated; `_parsed` makes them plain, and may do so only once."""
        data = extraction_data(reading.request, named)

        def accept(reply: Mapping[str, Any], cut: bool) -> list[object]:
            _note_cut(reading, "extract_facts", cut)
            return _listed(reply, "facts")

        facts = await self._ask(reading, "extract_facts", data, accept)
        shown = [(place, row) for place, fact in enumerate(facts) if (row := _shown(fact, named))]
        if not shown:
            return facts
        dates = await self._dates(reading, [{"id": place, **row} for place, row in shown])
        return [
            {**fact, **dates[place]} if isinstance(fact, dict) and place in dates else fact
            for place, fact in enumerate(facts)
        ]

    async def _dates(self, reading: _Reading, rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Return place -> {"valid_at", "invalid_at"} as on the wire."""
        places = {row["id"] for row in rows}

        def accept(reply: Mapping[str, Any], cut: bool) -> dict[int, dict[str, Any]]:
            _note_cut(reading, "date_facts", cut)
            given: dict[int, dict[str, Any]] = {}
            for item in _listed(reply, "facts"):
                if isinstance(item, dict) and type(item.get("id")) is int and item["id"] in places:
                    given[item["id"]] = {key: item.get(key) for key in ("valid_at", "invalid_at")}
            if missing := sorted(places - set(given)):
                raise InvalidAnswer(f"facts without dates: {missing}", raw=str(reply)[:4000])
            return given

        return await self._ask(reading, "date_facts", dating_data(reading.episode, rows), accept)

    async def _ask(
        self, reading: _Reading, task: str, data: str, accept: Callable[[Mapping[str, Any], bool], _T]
    ) -> _T:
        prompt = self._prompts[task]
        reading.prompts.append(prompt.sha256)
        return await self._asker.ask(
            prompt,
            data,
            EXTRACTION_TASKS[task],
            accept,
            room=ROOM[task],
            spent=reading.spent,
            asking=reading.episode,
            context=reading.request.previous,
        )


def _parsed(episode: Episode, entities: Iterable[object], facts: Iterable[object]) -> Extraction:
    reply = {"entities": [plain_entity(e) for e in entities], "facts": [plain_fact(f) for f in facts]}
    return parse_extraction(reply, episode)


def _listed(reply: Mapping[str, Any], key: str) -> list[object]:
    found = reply.get(key)
    if not isinstance(found, list):
        raise InvalidAnswer(f"{key!r} of the reply is not a list", raw=str(reply)[:4000])
    return found


def _note_cut(reading: _Reading, task: str, cut: bool) -> None:
    if cut:
        reading.notes.append(f"{task}: the reply was cut; what was complete is kept")


def _shown(fact: object, named: tuple[ExtractedEntity, ...]) -> dict[str, Any] | None:
    """Return a fact as date_facts shows it; None for one that the parser will refuse anyway."""
    if not isinstance(fact, dict):
        return None
    source, target = (_name(fact.get(key), named) for key in ("source", "target"))
    other: dict[str, Any] = {"target": target} if target else {}
    if not other:
        try:
            other = {"value": as_value(fact.get("value")).shown()}
        except ValueError:
            return None
    if source is None or not isinstance(fact.get("relation"), str):
        return None
    told = fact.get("fact") if isinstance(fact.get("fact"), str) else ""
    kind = fact.get("kind") if isinstance(fact.get("kind"), str) else "holds"
    return {"source": source, **other, "relation": fact["relation"], "fact": told, "kind": kind}


def _name(endpoint: object, named: tuple[ExtractedEntity, ...]) -> str | None:
    if isinstance(endpoint, str):
        return endpoint
    if type(endpoint) is int and 0 <= endpoint < len(named):
        return named[endpoint].name
    return None
