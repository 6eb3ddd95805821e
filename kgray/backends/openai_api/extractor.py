"""Extracts episodes with a language model: in one call, or one call each for entities, facts and dates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kgray.backends.openai_api.client import Client, TokensSpent
from kgray.backends.openai_api.structured import RAW_KEPT, Asker, StructuredRequest
from kgray.errors import InvalidAnswer
from kgray.ports import ExtractionRequest, ResponseCache
from kgray.prompting.prompts import Prompts, dating_data, extraction_data, tokens
from kgray.prompting.replies import EXTRACTION_TASKS, parse_extraction, plain_entity, plain_fact
from kgray.records import Episode, ExtractedEntity, Extraction, as_value

_T = TypeVar("_T")
# Tokens for a reply, a bound for one that repeats itself: at most twice what the longest good replies took,
# and as a text's length allows: a list of names may say a fact with each of its tokens, which takes 50.
ROOM: Mapping[str, int] = {
    "combined": 4096,
    "extract_entities": 1024,
    "reflect": 1024,
    "extract_facts": 4096,
    "date_facts": 2048,
}
_ROOM_LEAST, _ROOM_A_TOKEN = 256, 48


def identity_of(name: str, temperature: float) -> str:
    """Return the identity that is stored with a model's results: its name and parameters."""
    return f"openai:{name} temperature={temperature:g}"


@dataclass(slots=True)
class _EpisodeReading:
    """The reading of one episode: which prompts were used, what was spent, what to note."""

    request: ExtractionRequest
    spent: TokensSpent = field(default_factory=TokensSpent)
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
        self._asker = Asker(client, cache=cache)
        self._prompts = prompts
        self._separate = separate
        self._rounds = reflect_rounds
        self.identity = identity_of(client.endpoint.name, self._asker.temperature)

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return all that the episode says, with what it cost.

        Raises Refused, InvalidAnswer, Unavailable; SettingsError where no episode could be read.
        """
        reading = _EpisodeReading(request)
        with reading.spent.told():
            found = await (self._separately(reading) if self._separate else self._combined(reading))
        return replace(
            found,
            dropped=(*reading.notes, *found.dropped),
            model=self.identity,
            prompts=tuple(dict.fromkeys(reading.prompts)),
            **reading.spent.cost._asdict(),
        )

    async def _combined(self, reading: _EpisodeReading) -> Extraction:
        def accept(reply: Mapping[str, Any]) -> Extraction:
            return _parsed(reading.episode, _listed(reply, "entities"), _listed(reply, "facts"))

        return await self._ask(reading, "combined", extraction_data(reading.request), accept)

    async def _separately(self, reading: _EpisodeReading) -> Extraction:
        named = await self._entities(reading, "extract_entities", ())
        for _ in range(self._rounds):
            more = await self._entities(reading, "reflect", named)
            if len(more) == len(named):
                break
            named = more
        return _parsed(reading.episode, _shown_entities(named), await self._facts(reading, named))

    async def _entities(
        self, reading: _EpisodeReading, task: str, known: tuple[ExtractedEntity, ...]
    ) -> tuple[ExtractedEntity, ...]:
        """Return the known entities and those that the reply adds, the speaker first."""

        def accept(reply: Mapping[str, Any]) -> Extraction:
            return _parsed(reading.episode, [*_shown_entities(known), *_listed(reply, "entities")], [])

        data = extraction_data(reading.request, known if task == "reflect" else None)
        found = await self._ask(reading, task, data, accept)
        reading.notes += found.dropped
        return found.entities

    async def _facts(self, reading: _EpisodeReading, named: tuple[ExtractedEntity, ...]) -> list[object]:
        """Return the dated facts in the schema's form; `_parsed` converts them, and may do so only once."""
        data = extraction_data(reading.request, named)
        facts = await self._ask(reading, "extract_facts", data, lambda reply: _listed(reply, "facts"))
        rows = {place: row for place, fact in enumerate(facts) if (row := _shown(fact, named))}
        if not rows:
            return facts
        dates = await self._dates(reading, [{"id": place, **row} for place, row in rows.items()])
        return [
            {**fact, **dates[place]} if isinstance(fact, dict) and place in dates else fact
            for place, fact in enumerate(facts)
        ]

    async def _dates(self, reading: _EpisodeReading, rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Return index of the fact -> {"valid_at", "invalid_at"}, in the schema's form."""
        places = {row["id"] for row in rows}

        def accept(reply: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
            given: dict[int, dict[str, Any]] = {}
            for item in _listed(reply, "facts"):
                if isinstance(item, dict) and type(item.get("id")) is int and item["id"] in places:
                    given[item["id"]] = {key: item.get(key) for key in ("valid_at", "invalid_at")}
            if missing := sorted(places - set(given)):
                raise InvalidAnswer(f"facts without dates: {missing}", raw=str(reply)[:RAW_KEPT])
            return given

        return await self._ask(reading, "date_facts", dating_data(reading.episode, rows), accept)

    async def _ask(
        self, reading: _EpisodeReading, task: str, data: str, accept: Callable[[Mapping[str, Any]], _T]
    ) -> _T:
        prompt = self._prompts[task]
        reading.prompts.append(prompt.sha256)
        request = StructuredRequest(
            prompt=prompt,
            data=data,
            schema=EXTRACTION_TASKS[task],
            room=min(ROOM[task], _ROOM_LEAST + _ROOM_A_TOKEN * tokens(reading.episode.text)),
            episode=reading.episode,
            context=reading.request.previous,
        )
        found, cut = await self._asker.ask(request, accept, reading.spent)
        if cut:
            reading.notes.append(f"{task}: the reply was cut; what was complete is kept")
        return found


def _parsed(episode: Episode, entities: Iterable[object], facts: Iterable[object]) -> Extraction:
    reply = {"entities": [plain_entity(e) for e in entities], "facts": [plain_fact(f) for f in facts]}
    return parse_extraction(reply, episode)


def _listed(reply: Mapping[str, Any], key: str) -> list[object]:
    found = reply.get(key)
    if not isinstance(found, list):
        raise InvalidAnswer(f"{key!r} of the reply is not a list", raw=str(reply)[:RAW_KEPT])
    return found


def _shown_entities(entities: Iterable[ExtractedEntity]) -> list[object]:
    return [{"name": one.name, "type": one.type} for one in entities]


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
