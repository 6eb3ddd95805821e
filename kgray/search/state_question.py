"""A question about states, read for matching with facts: names, words, roles, kinds.

asking.toml has the English words: fillers, synonyms, irregular forms, and the kinds that questions ask for.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from kgray.domain.ontology import words_of_matter
from kgray.graph.sentences import ENGLISH
from kgray.language.words import MAX_QUERY_WORDS, languages, plain_words, stem, term

# Role of a name next to a word: subject or object of a verb; owner ("the boss of Ada") or bearer of a noun.
Role = Literal["before", "after", "owner", "bearer"]
_OPPOSITE: Mapping[Role, Role] = {
    "before": "after",
    "after": "before",
    "owner": "bearer",
    "bearer": "owner",
}
_AUXILIARIES = frozenset("is are was were be been am do does did has have had will would can could".split())
_JOINING = frozenset({"and", "or", "s"})  # words between names of one unit: "Ada's and Bob's"


class Name(NamedTuple):
    """A name in a question: the recorded entities that bear it, and its place among the words.

    unit    number of the named thing; names joined by "and" or "or" share it, because each of them will do.
            None: a name of function words ("that", "IT"), which the fact need not have
    """

    entities: tuple[str, ...]
    start: int
    end: int
    unit: int | None = None


class Unit(NamedTuple):
    """One named thing of a question.

    weight      that of its rarest word
    weights     place of each of its words -> weight
    """

    entities: frozenset[str]
    weight: float
    weights: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)  # no slots: the instance stores cached properties
class StateQuestion:
    """A question in the form for matching; properties that many matches need are cached."""

    words: tuple[str, ...]  # plain, in order
    names: tuple[Name, ...]
    weights: Mapping[int, float] = field(default_factory=dict)  # place of a question word -> its weight
    name_weights: Mapping[int, float] = field(default_factory=dict)  # place of a word of a name -> its weight

    @property
    def entities(self) -> list[str]:
        """The recorded entities that the question names."""
        return list(dict.fromkeys(id_ for name in self.names for id_ in name.entities))

    @cached_property
    def units(self) -> list[Unit]:
        """The named things: names that "and" or "or" joins are one, and names of function words are none."""
        by_number: dict[int, list[Name]] = {}
        for name in self.names:
            if name.unit is not None:
                by_number.setdefault(name.unit, []).append(name)
        units = []
        for names in by_number.values():
            places = [place for name in names for place in range(name.start, name.end)]
            weights = {place: self.name_weights[place] for place in places}
            entities = frozenset(id_ for name in names for id_ in name.entities)
            units.append(Unit(entities, max(weights.values()), weights))
        return units

    @cached_property
    def joined(self) -> frozenset[str]:
        """The recorded entities of names that "and" or "or" joins."""
        numbers = [name.unit for name in self.names if name.unit is not None]
        several = {number for number in numbers if numbers.count(number) > 1}
        return frozenset(id_ for name in self.names if name.unit in several for id_ in name.entities)

    @property
    def speaks(self) -> bool:
        """Whether the question asks for an utterance of somebody."""
        return not asking().speech.isdisjoint(self.words)

    @property
    def looks_back(self) -> bool:
        """Whether the question asks for a former state."""
        name_places = {place for name in self.names for place in range(name.start, name.end)}
        return any(word in asking().history for n, word in enumerate(self.words) if n not in name_places)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The entity labels that the question asks for; empty = any."""
        entries = {word: kinds for word in self.words if (kinds := kinds_of(word))}
        precise = [kinds for word, kinds in entries.items() if word not in ("who", "where", "whose", "whom")]
        return frozenset().union(*(precise or entries.values()))

    @cached_property
    def inner(self) -> frozenset[int]:
        """Places of the question words next to a name: "boss" in "the city of the boss of Ada"."""
        stops, entries = languages()["en"].stops, set[int]()
        for name in self.names:
            following = name.end + 1 if self.words[name.end : name.end + 1] == ("s",) else 0
            preceding = name.start - 2 if self.words[name.start - 1 : name.start] == ("of",) else -1
            while preceding >= 0 and self.words[preceding] not in stops:
                entries.add(preceding)
                preceding -= 1
            while 0 < following < len(self.words) and self.words[following] not in stops:
                entries.add(following)
                following += 1
        return frozenset(entries & self.weights.keys())

    @cached_property
    def roles(self) -> Mapping[int, Role | None]:
        """Place of each question word -> role of the nearest name, as in a statement; None = not known."""
        return {place: self._role(place) for place in self.weights}

    def _role(self, place: int) -> Role | None:
        if not self.names:
            return None
        name = min(self.names, key=lambda span: min(abs(place - span.start), abs(place - span.end)))
        if place >= name.end:
            if self.words[name.end : name.end + 1] == ("s",):
                return "owner"
            return "after" if self.words[place + 1 : place + 2] == ("by",) else "before"
        between = self.words[place + 1 : name.start]
        if between and between[-1] == "of":
            return "owner"
        if not _AUXILIARIES.isdisjoint(between):  # "Which school is Ada at?": a noun, not a verb
            return None
        return "before" if "by" in between else "after"


class Asking(NamedTuple):
    """The tables of asking.toml, by the names that they have there."""

    fillers: frozenset[str]
    speech: frozenset[str]
    history: frozenset[str]
    kinds: Mapping[str, frozenset[str]]
    senses: tuple[frozenset[str], ...]
    lemmas: Mapping[str, str]


@cache
def asking() -> Asking:
    """Return the tables of asking.toml, which is read once."""
    entries = tomllib.loads(Path(__file__).with_name("asking.toml").read_text(encoding="utf-8"))
    thirds = (pair.split(":") for pair in ENGLISH["third_to_past"])
    lemmas = {past: stem(third) for third, past in thirds}
    lemmas |= {form: stem(base) for form, base in (pair.split(":") for pair in entries["irregular"].split())}
    return Asking(
        fillers=frozenset(entries["fillers"].split()),
        speech=frozenset(entries["speech"].split()),
        history=frozenset(entries["history"].split()),
        kinds={stem(word): frozenset(kinds.split()) for word, kinds in entries["kinds"].items()},
        senses=tuple(
            frozenset(lemmas.get(word) or stem(word) for word in words.split())
            for words in entries["senses"].values()
        ),
        lemmas=lemmas,
    )  # fmt: skip


@lru_cache(maxsize=16_384)
def lemma(word: str) -> str:
    """Return the stem of a plain word's base form: for "led" the stem of "lead"."""
    return asking().lemmas.get(word) or stem(word)


def kinds_of(word: str) -> frozenset[str]:
    """Return the kinds that a word asks for, in the singular or plural; empty for other words."""
    return asking().kinds.get(stem(word), frozenset())


@cache
def _forms() -> Mapping[str, frozenset[str]]:
    """Return stem -> the stems of all forms of its irregular verb."""
    verbs: dict[str, set[str]] = {}
    for form, base in asking().lemmas.items():
        verbs.setdefault(base, {base}).add(stem(form))
    return {form: frozenset(forms) for forms in verbs.values() if len(forms) > 1 for form in forms}


def other_forms(word: str) -> list[str]:
    """Return the stems of the other forms of a stem's irregular verb, in order: "bought" for "buy"."""
    return sorted(_forms().get(word, frozenset()) - {word})


@lru_cache(maxsize=4_096)
def senses_of(word: str) -> frozenset[str]:
    """Return the lemmas that share a sense with a lemma."""
    synonyms = [sense for sense in asking().senses if word in sense]
    synonyms += [words for words in _matters() if word in words]
    return frozenset().union(*synonyms)


@cache
def _matters() -> tuple[frozenset[str], ...]:
    return tuple(frozenset(map(lemma, words)) for words in words_of_matter().values())


def turned_role(role: Role, turned: bool) -> Role:
    """Return the role in the opposite direction if `turned`, else the same role."""
    return _OPPOSITE[role] if turned else role


def read_state_question(
    text: str, surfaces: Iterable[tuple[str, Sequence[int]]], weight_of: Callable[[int], float] | None = None
) -> StateQuestion:
    """Read a question for matching.

    text        read up to MAX_QUERY_WORDS words, as by the other methods
    surfaces    (recorded entity, the terms of one of its names), for names that may occur in the question
    weight_of   returns the weight of a term; None: each term weighs 1
    """
    # The cost of matching is words x names for each fact; without a bound, 800 names would take minutes.
    words = tuple(islice(plain_words(text), MAX_QUERY_WORDS))
    terms = [term(stem(word)) for word in words]
    spans: dict[tuple[int, int], list[str]] = {}
    for entity, surface in surfaces:
        size = len(surface)
        for start in range(len(terms) - size + 1):
            if size and terms[start : start + size] == list(surface):
                spans.setdefault((start, start + size), []).append(entity)
    longest: list[Name] = []
    for (start, end), entities in sorted(spans.items(), key=lambda span: (span[0][0] - span[0][1], span[0])):
        if all(end <= name.start or start >= name.end for name in longest):
            longest.append(Name(tuple(dict.fromkeys(entities)), start, end))
    stops = languages()["en"].stops
    names: list[Name] = []
    unit, last = 0, 0
    for name in sorted(longest, key=lambda name: name.start):
        if stops.issuperset(words[name.start : name.end]):
            names.append(name)
            continue
        unit += not _JOINING.issuperset(words[last : name.start])
        names.append(name._replace(unit=unit))
        last = name.end
    name_places = {place for name in names for place in range(name.start, name.end)}

    def weights(places: Iterable[int], left_out: Collection[str]) -> dict[int, float]:
        counted = (place for place in places if words[place] not in left_out)
        return {place: max(weight_of(terms[place]), 1e-3) if weight_of else 1.0 for place in counted}

    return StateQuestion(
        words=words,
        names=tuple(names),
        weights=weights((n for n in range(len(words)) if n not in name_places), stops | asking().fillers),
        name_weights=weights(name_places, ()),
    )
