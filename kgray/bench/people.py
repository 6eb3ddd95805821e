"""A generated group of any size: people who work, live and like, a few facts an episode.

Seeded and streaming. The reader is the generator itself, so that what is measured is the engine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from kgray import times
from kgray.ports import ExtractionRequest
from kgray.records import Draft, ExtractedEntity, ExtractedFact, Extraction
from kgray.times import Instant

FACTS_AN_EPISODE = 3
_START = times.parse("2020-01-01")[0]
_MINUTE = 60 * times.SECOND
_HEADS = (
    "bal cor dan eli fer gal hol ira jon kel lor mar nor oli per qui ros sam tor ulm vel wen yar zan".split()
)
_TAILS = "a an bert dis er gard ham in ka land mer nas o pin rick sen ton us vic wold".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One generated episode with its truth."""

    draft: Draft
    extraction: Extraction


def tell(group: str, episodes: int, *, seed: int = 1, hub: str | None = None) -> Iterator[Told]:
    """Yield episodes of 3 facts about 2 people, a third of them known; one entity for two facts.

    hub: the one town where everybody lives.
    """
    rng = random.Random(seed)  # noqa: S311 - made-up people, the same for one seed
    people: list[str] = []
    things: tuple[list[str], ...] = ([], [], [])
    for number in range(episodes):
        pair = [_person(rng, people) for _ in range(2)]
        told = [
            (0, "WORKS_AT", _known_or(rng, things[0], 10, f"{_word(rng)} {_word(rng)} Works"), "works at"),
            (1, "LIVES_IN", hub or _town(rng, things[1]), "lives in"),
            (rng.randrange(2), "LIKES", _known_or(rng, things[2], 10, f"{_word(rng).lower()} tea"), "likes"),
        ]
        at = _START + number * _MINUTE
        entities = [ExtractedEntity(name=name, type="Person") for name in pair]
        facts = []
        for who, relation, name, words in told:
            entities.append(ExtractedEntity(name=name))
            text = f"{pair[who]} {words} {name}"
            facts.append(
                ExtractedFact(
                    source=who,
                    target=len(entities) - 1,
                    relation=relation,
                    text=text,
                    valid_from=at,
                    from_precision="instant",
                    inferred=True,
                )
            )
        draft = Draft(
            group=group,
            source="generated",
            kind="text",
            text=". ".join(f.text for f in facts) + ".",
            reference_time=at,
            client_id=f"e{number}",
        )
        yield Told(draft=draft, extraction=Extraction(entities=tuple(entities), facts=tuple(facts)))


class TellingReader:
    """An extractor that knows what it told; `identity` names the generator's seed."""

    def __init__(self, told: dict[str, Extraction], seed: int = 1) -> None:
        """Answer from `told`: client id -> extraction; the caller fills and empties it."""
        self.identity = f"generated-{seed}"
        self.told = told

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return what the episode was made from."""
        return self.told[request.episode.client_id or ""]


def prices(group: str, values: int, *, start: int = 0) -> Iterator[Draft]:
    """Yield triples that give one product one price after another: a slot with as many values."""
    from kgray.intake.triples import normalise

    for number in range(start, start + values):
        at: Instant = _START + number * _MINUTE
        triple = {"source": "Kestrel lamp", "relation": "COSTS", "target": {"value": number, "unit": "EUR"}}
        text = normalise([triple], at)
        yield Draft(group=group, source="prices", kind="triples", text=text, reference_time=at)


def _person(rng: random.Random, people: list[str]) -> str:
    if people and rng.random() < 1 / 3:
        return rng.choice(people)
    name = f"{_word(rng)} {_word(rng)}{_word(rng).lower()}"
    people.append(name)
    return name


def _town(rng: random.Random, towns: list[str]) -> str:
    return _known_or(rng, towns, 20, f"{_word(rng)}{rng.choice(_TAILS)}")


def _known_or(rng: random.Random, known: list[str], one_in: int, new: str) -> str:
    """Return a thing that was told of before, or once in so many a new one."""
    if known and rng.randrange(one_in):
        return rng.choice(known)
    known.append(new)
    return new


def _word(rng: random.Random) -> str:
    return (rng.choice(_HEADS) + rng.choice(_HEADS) + rng.choice(_TAILS)).capitalize()
