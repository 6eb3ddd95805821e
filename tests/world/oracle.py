"""The answers of a reader that knows the truth; it recognises texts and sentences, never ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tests.world.dice import Dice
from tests.world.errors import Errors
from tests.world.schema import RELATIONS
from tests.world.telling import ToldFact, WorldEpisode, reply
from tests.world.truth import TrueKey, Truth, key_of
from tests.world.world import World

ComparisonWord = Literal["same", "contradicts", "ends", "independent"]
COMPARISONS: tuple[ComparisonWord, ...] = ("same", "contradicts", "ends", "independent")
_CARD = re.compile(r"(?P<name>.+?)(?: \([A-Za-z0-9]+\))?(?:: (?P<sentence>.*))?", re.DOTALL)


def plain(text: str) -> str:
    """Return the text as it is recognised: spaces folded."""
    return " ".join(text.split())


class SentenceMeaning(NamedTuple):
    """The state of the world in a sentence: it holds, it is over, or a named end of it."""

    key: TrueKey
    says: Literal["holds", "over", "end"]


@dataclass(slots=True)
class OracleCounts:
    """Counts of questions, and of unrecognised texts."""

    extractions: int = 0
    questions: dict[str, int] = field(default_factory=dict)
    unrecognised: int = 0


class Oracle:
    """Answers for one world, with the errors of meaning that it is given."""

    def __init__(self, world: World, errors: Errors | None = None) -> None:
        """Walk through the world once."""
        self.world = world
        self.errors = errors or Errors()
        named = "" if world.plan.relations == "listed" else f"{world.plan.relations}-"
        self.identity = f"world-{world.plan.seed}-{named}{self.errors.identity}"
        self.counts = OracleCounts()
        self.readings: list[tuple[WorldEpisode, tuple[ToldFact, ...]]] = []
        self._by_text: dict[str, int] = {}
        self._told_by_surface: dict[str, list[tuple[str, str]]] = {}  # surface -> (episode's text, entity)
        self._meanings: dict[str, set[SentenceMeaning]] = {}  # by the sentence of a fact
        self._cards: dict[tuple[str, str], str | None] = {}
        entities_by_group = {group: {t.id: t for t in world.entities(group)} for group in world.groups}
        for episode in world:
            self.learn(*self.errors.read(episode, entities_by_group[episode.draft.group]))

    def truth(self, group: str | None = None) -> Truth:
        """Return the facts derived from this reader's readings, with true identities."""
        chosen = group or self.world.groups[0]
        readings = [r for r in self.readings if r[0].draft.group == chosen]
        return Truth.of_readings(self.world.entities(chosen), readings)

    # ------------------------------------------------------------------------------- reading

    def reading(self, text: str) -> tuple[WorldEpisode, tuple[ToldFact, ...]] | None:
        """Return the episode with this text and its reading; None if no episode has the text."""
        place = self._by_text.get(plain(text))
        if place is None:
            self.counts.unrecognised += 1
            return None
        return self.readings[place]

    def extraction(self, text: str) -> dict[str, Any]:
        """Return the reply to an extraction; the reply to an unknown text is empty."""
        self.counts.extractions += 1
        reading = self.reading(text)
        return reply(reading[0].mentions, reading[1]) if reading else {"entities": [], "facts": []}

    # ------------------------------------------------------------------------------- judging

    def answer(self, kind: str, item: str, candidates: Sequence[str]) -> dict[str, Any]:
        """Return the answer to a question in the form of `ports.Question`; indexes are of `candidates`.

        item, candidates: cards of entities, or sentences of facts for "compare".
        """
        self.counts.questions[kind] = self.counts.questions.get(kind, 0) + 1
        if kind == "entity":
            return {"duplicate_of": self.entity(item, candidates)}
        return {"answers": self.compare(item, candidates)}

    def entity(self, card: str, candidates: Sequence[str]) -> int | None:
        """Return the index of the candidate's card with the same entity as this card."""
        cards = [*candidates]
        identity = self.identify(card)
        identities = [self.identify(candidate) for candidate in cards]
        match = next(
            (
                i
                for i, candidate_identity in enumerate(identities)
                if identity is not None and candidate_identity == identity
            ),
            None,
        )
        if match is not None and self.errors.wrong(self.errors.missed_merge, "entity", card, cards):
            return None
        if match is None and cards and self.errors.wrong(self.errors.false_merge, "entity", card, cards):
            return Dice("error", self.errors.seed, "merge", card, cards).number_below(len(cards))
        return match

    def identify(self, card: str) -> str | None:
        """Return the entity that a card `NAME (Type): sentence` is of; None if no text says that."""
        match = _CARD.fullmatch(card)
        if match is None:
            return None
        name, sentence = match["name"], plain(match["sentence"] or "")
        identity = self._cards.get((name, sentence))
        if identity is None:
            texts = self._told_by_surface.get(name, ())
            identity = next((entity for text, entity in texts if sentence in text), None)
            if identity is None:
                self.counts.unrecognised += 1
            self._cards[name, sentence] = identity
        return identity

    def compare(self, sentence: str, candidates: Sequence[str]) -> list[ComparisonWord]:
        """Return how a new sentence is related to each candidate, which is a known sentence."""
        item = self._meanings_of(sentence)
        meanings = [self._meanings_of(candidate) for candidate in candidates]
        words: list[ComparisonWord] = []
        for states in meanings:
            word = _relation_of(item, states)
            words.append("independent" if word == "same" and "same" in words else word)
        rate, seed = self.errors.wrong_comparison, self.errors.seed
        if candidates and self.errors.wrong(rate, "compare", sentence, [*candidates]):
            draws = [Dice("error", seed, "pair", sentence, candidate).number() for candidate in candidates]
            place = draws.index(min(draws))
            dice = Dice("error", seed, "word", sentence, candidates[place])
            words[place] = dice.pick(_wrong_words(item, meanings[place], words, place))
        return words

    # ------------------------------------------------------------------------------ its parts

    def learn(self, episode: WorldEpisode, facts: Iterable[ToldFact]) -> None:
        """Add an episode that this reader recognises, with the facts of its reading."""
        facts = tuple(facts)
        text = plain(episode.draft.text)
        self._by_text[text] = len(self.readings)
        self.readings.append((episode, facts))
        for surface, entity, _ in episode.mentions:
            self._told_by_surface.setdefault(surface, []).append((text, entity))
        for surface, entity in episode.given:
            self._told_by_surface.setdefault(surface, []).append((text, entity))
        for fact in facts:
            says: Literal["holds", "over", "end"] = (
                "end" if fact.is_named_end else "over" if fact.kind in ("ended", "denied") else "holds"
            )
            self._meanings.setdefault(plain(fact.text), set()).add(SentenceMeaning(key_of(fact), says))

    def _meanings_of(self, sentence: str) -> set[SentenceMeaning]:
        meanings = self._meanings.get(plain(sentence))
        if meanings is None:
            self.counts.unrecognised += 1
            return set()
        return meanings


def _relation_of(item: set[SentenceMeaning], states: set[SentenceMeaning]) -> ComparisonWord:
    """Return how a new sentence is related to a known one; a sentence may be about several things.

    A known sentence denotes its state, even if it says that the state is over: a state that was first
    reported at its end may come back. A named end is no state: nothing says the same, or ends it.
    """
    words = {_word(meaning, state) for meaning in item for state in states if state.says != "end"}
    return next((word for word in COMPARISONS if word in words), "independent")


def _word(meaning: SentenceMeaning, state: SentenceMeaning) -> ComparisonWord:
    if meaning.key == state.key:
        return "same" if meaning.says == "holds" else "ends"
    if meaning.says != "end" and _excludes(meaning.key, state.key):
        return "contradicts"
    return "independent"


def _excludes(a: TrueKey, b: TrueKey) -> bool:
    return a[:2] == b[:2] and a[2] != b[2] and RELATIONS[a[1]].shape == "single"


def _wrong_words(
    item: set[SentenceMeaning],
    states: set[SentenceMeaning],
    words: Sequence[ComparisonWord],
    place: int,
) -> list[ComparisonWord]:
    """Return the wrong words that a reader could answer for the pair at this place of `words`.

    Only facts between the same two ends can be the same, or can end each other. At most one candidate can
    be the same.
    """
    item_ends, state_ends = (
        {frozenset((meaning.key[0], meaning.key[2])) for meaning in meanings} for meanings in (item, states)
    )
    allowed = set(COMPARISONS) if item_ends & state_ends else {"contradicts", "independent"}
    if "same" in words:
        allowed.discard("same")
    return [word for word in COMPARISONS if word in allowed and word != words[place]]
