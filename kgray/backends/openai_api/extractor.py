"""Extracts episodes with a language model: in one call, or one call each for entities, facts and dates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kgray.backends.openai_api.client import Client, TokensSpent
from kgray.backends.openai_api.structured import RAW_KEPT, Asker, StructuredRequest
from kgray.errors import InvalidAnswer
from kgray.ports import ExtractionRequest
from kgray.prompting.prompts import Prompts, dating_data, extraction_data, tokens
from kgray.prompting.replies import EXTRACTION_TASKS, parse_extraction, plain_fact
from kgray.records import Episode, ExtractedEntity, Extraction, as_value

_T = TypeVar("_T")
# Tokens for a reply, a bound for one that repeats itself: at most twice what the longest good replies took,
# and as a text's length allows: a list of names may say a fact with each of its tokens, which takes 50.
_ROOM = {"extract_entities": 1024, "reflect": 1024, "date_facts": 2048}
_ROOM_MOST, _ROOM_LEAST, _ROOM_A_TOKEN = 4096, 256, 48
_Reply = Mapping[str, Any]


def identity_of(name: str) -> str:
    """Return the identity that is stored with a model's results: its name and parameters."""
    return f"openai:{name} temperature=0"


@dataclass(slots=True)
class _EpisodeReading:
    """The reading of one episode: which prompts were used, what was spent, what to note."""

    request: ExtractionRequest
    spent: TokensSpent = field(default_factory=TokensSpent)
    prompts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class OpenAIExtractor:
    """Extractions by a model behind HTTP; `combined`, or `separate` with rounds of reflection."""

    def __init__(
        self,
        client: Client,
        prompts: Prompts,
        *,
        separate: bool = False,
        reflect_rounds: int = 0,
    ) -> None:
        self._asker = Asker(client)
        self._prompts = prompts
        self._separate = separate
        self._rounds = reflect_rounds
        self.identity = identity_of(client.endpoint.name)

    async def extract(self, request: ExtractionRequest) -> Extraction:
        reading, episode = _EpisodeReading(request), request.episode

        def accept(reply: _Reply) -> Extraction:
            return _parsed(episode, _listed(reply, "entities"), _listed(reply, "facts"))

        with reading.spent.told():
            if self._separate:
                named = await self._entities(reading, "extract_entities", ())
                for _ in range(self._rounds):
                    more = await self._entities(reading, "reflect", named)
                    if len(more) == len(named):
                        break
                    named = more
                found = _parsed(episode, _shown_entities(named), await self._facts(reading, named))
            else:
                found = await self._ask(reading, "combined", extraction_data(request), accept)
        return replace(
            found,
            dropped=(*reading.notes, *found.dropped),
            model=self.identity,
            prompts=tuple(dict.fromkeys(reading.prompts)),
            **reading.spent.cost._asdict(),
        )

    async def _entities(
        self, reading: _EpisodeReading, task: str, known: tuple[ExtractedEntity, ...]
    ) -> tuple[ExtractedEntity, ...]:
        """Return the known entities and those that the reply adds, the speaker first."""

        def accept(reply: _Reply) -> Extraction:
            listed = [*_shown_entities(known), *_listed(reply, "entities")]
            return _parsed(reading.request.episode, listed, [])

        data = extraction_data(reading.request, known if task == "reflect" else None)
        found = await self._ask(reading, task, data, accept)
        reading.notes += found.dropped
        return found.entities

    async def _facts(self, reading: _EpisodeReading, named: tuple[ExtractedEntity, ...]) -> list[object]:
        """Return the dated facts in the schema's form; `_parsed` converts them, and may do so only once."""
        data = extraction_data(reading.request, named)
        facts = await self._ask(reading, "extract_facts", data, lambda reply: _listed(reply, "facts"))
        rows = {place: row for place, fact in enumerate(facts) if (row := _shown(fact, named))}

        def accept(reply: _Reply) -> dict[int, dict[str, Any]]:
            given: dict[int, dict[str, Any]] = {}
            for item in _listed(reply, "facts"):
                if isinstance(item, dict) and type(item.get("id")) is int and item["id"] in rows:
                    given[item["id"]] = {key: item.get(key) for key in ("valid_at", "invalid_at")}
            if missing := sorted(rows.keys() - given):
                raise InvalidAnswer(f"facts without dates: {missing}", raw=str(reply)[:RAW_KEPT])
            return given

        if not rows:
            return facts
        data = dating_data(reading.request.episode, ({"id": place, **row} for place, row in rows.items()))
        dates = await self._ask(reading, "date_facts", data, accept)
        return [
            {**fact, **dates[place]} if isinstance(fact, dict) and place in dates else fact
            for place, fact in enumerate(facts)
        ]

    async def _ask(
        self, reading: _EpisodeReading, task: str, data: str, accept: Callable[[_Reply], _T]
    ) -> _T:
        prompt, episode = self._prompts[task], reading.request.episode
        reading.prompts.append(prompt.sha256)
        request = StructuredRequest(
            prompt=prompt,
            data=data,
            schema=EXTRACTION_TASKS[task],
            room=min(_ROOM.get(task, _ROOM_MOST), _ROOM_LEAST + _ROOM_A_TOKEN * tokens(episode.text)),
        )
        found, cut = await self._asker.ask(request, accept, reading.spent)
        if cut:
            reading.notes.append(f"{task}: the reply was cut; what was complete is kept")
        return found


def _parsed(episode: Episode, entities: Iterable[object], facts: Iterable[object]) -> Extraction:
    reply = {"entities": [*entities], "facts": [plain_fact(fact) for fact in facts]}
    return parse_extraction(reply, episode)


def _listed(reply: _Reply, key: str) -> list[object]:
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
    told = (fact.get("source"), fact.get("target"))
    ends = [named[end].name if type(end) is int and 0 <= end < len(named) else end for end in told]
    source, target = (end if isinstance(end, str) else None for end in ends)
    other: dict[str, Any] = {"target": target} if target else {}
    if not other:
        try:
            other = {"value": as_value(fact.get("value")).shown()}
        except ValueError:
            return None
    if source is None or not isinstance(fact.get("relation"), str):
        return None
    text = fact.get("fact") if isinstance(fact.get("fact"), str) else ""
    kind = fact.get("kind") if isinstance(fact.get("kind"), str) else "holds"
    return {"source": source, **other, "relation": fact["relation"], "fact": text, "kind": kind}
