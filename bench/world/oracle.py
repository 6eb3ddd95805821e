"""What a reader who knows the truth answers; it recognises texts and sentences, never ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.world.dice import Dice
from bench.world.errors import Errors
from bench.world.schema import RELATIONS
from bench.world.telling import ToldFact, WorldEpisode, reply
from bench.world.truth import TrueKey, Truth, key_of
from bench.world.world import World

_CARD = re.compile(r"(?P<name>.+?)(?: \([A-Za-z0-9]+\))?(?:: (?P<sentence>.*))?", re.DOTALL)


def plain(text: str) -> str:
    """Return the text as it is recognised: spaces folded."""
    return " ".join(text.split())


@dataclass(slots=True)
class OracleCounts:
    """What was asked, and what nobody in the world said."""

    extractions: int = 0
    questions: dict[str, int] = field(default_factory=dict)
    unrecognised: int = 0


class Oracle:
    """Answers for one world, with the errors of meaning that it is given."""

    def __init__(self, world: World, errors: Errors | None = None) -> None:
        """Walk through the world once."""
        self.world = world
        self.errors = errors or Errors()
        self.identity = f"world-{world.plan.seed}-{self.errors.identity}"
        self.counts = OracleCounts()
        self.readings: list[tuple[WorldEpisode, tuple[ToldFact, ...]]] = []
        self._by_text: dict[str, int] = {}
        self._told: dict[str, list[tuple[str, str]]] = {}  # surface -> (episode's text, entity)
        self._facts: dict[str, set[TrueKey]] = {}
        self._cards: dict[tuple[str, str], str | None] = {}
        things = {group: {t.id: t for t in world.things(group)} for group in world.groups}
        for episode in world:
            self._learn(*self.errors.read(episode, things[episode.draft.group]))

    def truth(self, group: str | None = None) -> Truth:
        """Return what follows from what this reader read, with true identities."""
        chosen = group or self.world.groups[0]
        own = [r for r in self.readings if r[0].draft.group == chosen]
        return Truth.of(self.world.things(chosen), own)

    # ------------------------------------------------------------------------------- reading

    def reading(self, text: str) -> tuple[WorldEpisode, tuple[ToldFact, ...]] | None:
        """Return the episode with this text and what was read in it; None for a text of no episode."""
        place = self._by_text.get(plain(text))
        if place is None:
            self.counts.unrecognised += 1
            return None
        return self.readings[place]

    def extraction(self, text: str) -> dict[str, Any]:
        """Return the reply to an extraction; a text that nobody told says nothing."""
        self.counts.extractions += 1
        found = self.reading(text)
        return reply(found[0].mentions, found[1]) if found else {"entities": [], "facts": []}

    # ------------------------------------------------------------------------------- judging

    def answer(self, kind: str, item: str, candidates: Sequence[str]) -> dict[str, Any]:
        """Return the answer to a question, as replies.parse_answer takes it; places are of `candidates`.

        item, candidates: cards of entities, texts of facts, or names of relations, as the kind says.
        """
        self.counts.questions[kind] = self.counts.questions.get(kind, 0) + 1
        match kind:
            case "entity":
                return {"duplicate_of": self.entity(item, candidates)}
            case "variant":
                return {"duplicate_of": self.variant(item, candidates)}
            case "verdict":
                return {"contradicts": self.verdict(item, candidates)}
            case "relation":
                return dict(self.relation(item, candidates[0]))
        return {"cardinality": self.cardinality(item)}

    def entity(self, card: str, candidates: Sequence[str]) -> int | None:
        """Return which candidate's card is of the same entity as this card."""
        asked = [*candidates]
        meant = self.identify(card)
        others = [self.identify(candidate) for candidate in asked]
        same = next((i for i, other in enumerate(others) if meant is not None and other == meant), None)
        if same is not None and self.errors.wrong(self.errors.missed_merge, "entity", card, asked):
            return None
        if same is None and asked and self.errors.wrong(self.errors.false_merge, "entity", card, asked):
            return Dice("error", self.errors.seed, "merge", card, asked).below(len(asked))
        return same

    def identify(self, card: str) -> str | None:
        """Return the entity that a card `NAME (Type): sentence` is of; None where nobody told that."""
        match = _CARD.fullmatch(card)
        if match is None:
            return None
        name, sentence = match["name"], plain(match["sentence"] or "")
        found = self._cards.get((name, sentence))
        if found is None:
            told = self._told.get(name, ())
            found = next((entity for text, entity in told if sentence in text), None)
            if found is None:
                self.counts.unrecognised += 1
            self._cards[name, sentence] = found
        return found

    def variant(self, fact: str, candidates: Sequence[str]) -> int | None:
        """Return which candidate wording tells the same statement."""
        keys = self._keys(fact)
        same = next((i for i, other in enumerate(candidates) if keys & self._keys(other)), None)
        if self.errors.wrong(self.errors.wrong_verdict, "variant", fact, [*candidates]):
            return None if same is not None or not candidates else 0
        return same

    def verdict(self, fact: str, candidates: Sequence[str]) -> list[int]:
        """Return which candidates cannot hold at one moment with the fact."""
        keys = self._keys(fact)
        found = []
        for index, other in enumerate(candidates):
            against = any(_excludes(a, b) for a in keys for b in self._keys(other))
            if against != self.errors.wrong(self.errors.wrong_verdict, "verdict", fact, other):
                found.append(index)
        return found

    def relation(self, name: str, other: str) -> dict[str, bool]:
        """Return what a relation's name is to another: in this world no two names are tied."""
        if self.errors.wrong(self.errors.wrong_ruling, "relation", *sorted((name, other))):
            return {"excludes": True}
        return {}

    def cardinality(self, name: str) -> str:
        """Return how many objects the relation takes at one moment."""
        known = RELATIONS.get(name)
        said = known.cardinality if known else "many"
        if self.errors.wrong(self.errors.wrong_ruling, "cardinality", name):
            return "single" if said == "many" else "many"
        return said

    # ------------------------------------------------------------------------------ its parts

    def _learn(self, episode: WorldEpisode, said: Iterable[ToldFact]) -> None:
        said = tuple(said)
        text = plain(episode.draft.text)
        self._by_text[text] = len(self.readings)
        self.readings.append((episode, said))
        for surface, entity, _ in episode.mentions:
            self._told.setdefault(surface, []).append((text, entity))
        for surface, entity in episode.given:
            self._told.setdefault(surface, []).append((text, entity))
        for fact in said:
            self._facts.setdefault(fact.text, set()).add(key_of(fact))

    def _keys(self, fact: str) -> set[TrueKey]:
        found = self._facts.get(fact)
        if found is None:
            self.counts.unrecognised += 1
            return set()
        return found


def _excludes(a: TrueKey, b: TrueKey) -> bool:
    return a[:2] == b[:2] and a[2] != b[2] and RELATIONS[a[1]].shape == "single"
