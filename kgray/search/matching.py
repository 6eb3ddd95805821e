"""Matching of facts with questions: a valid fact comes before messages with outdated statements (promise 9).

A fact answers a question that names one of its entities and has the words of its relation: words of its
sentence and name, of the ontology's phrases and nouns, or their synonyms. Roles count: "Alice reports to Bob"
does not answer "Who reports to Alice?". A chain of two facts can answer, too: "Where does the head of Apollo
live?". Nothing is learnt from data; asking.toml has the English words.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from kgray.domain.graph import Entity, Fact
from kgray.domain.ontology import Ontology, words_of_matter
from kgray.domain.times import Instant
from kgray.graph.verbs import ENGLISH
from kgray.language.words import MAX_QUERY_WORDS, plain_words, stem, term
from kgray.ports import GraphView
from kgray.search.query import languages

# Role of a name next to a word: subject or object of a verb; owner ("the boss of Ada") or bearer of a noun.
Role = Literal["before", "after", "owner", "bearer"]
_OPPOSITE: Mapping[Role, Role] = {
    "before": "after",
    "after": "before",
    "owner": "bearer",
    "bearer": "owner",
}

LEAST_COVER = 0.5  # least share of the question words, by weight, in a fact that answers
# Weight of a synonym and of a word of the relation's description; the word itself has 1.
OF_SENSE, OF_DESCRIPTION = 0.6, 0.35
WRONG_ROLE = 0.35  # factor for a word that states the relation in the other direction
KIND = 0.25  # added to the score for a fitting kind, subtracted for an unfitting kind
NEAR = 0.3  # added to the score for a vector of nearness 1
BOTH_ENDS = 0.5  # added to the score if the question names both ends
EQUAL_SHARE = 0.85  # facts from this share of the best score up answer equally well
MAX_FIRST = 5  # facts that come first
FACTS_READ = 64  # an entity
_AUXILIARIES = frozenset("is are was were be been am do does did has have had will would can could".split())
_NOUN_WORDS = 3  # words of a noun such as "chief executive"
_STEPS = 2  # values of a vector's nearness, apart from 0
_CHAIN_LEFT = 0.1  # least share of the question words that the first fact of a chain leaves open
_CHAIN_COVER = 0.6  # least share of these open words in the second fact


class Name(NamedTuple):
    """A name in a question: the recorded entities that bear it, and its place among the words."""

    entities: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)  # no slots: the instance stores cached properties
class StateQuestion:
    """A question in the form for matching; properties that many matches need are cached."""

    words: tuple[str, ...]  # plain, in order
    names: tuple[Name, ...]
    weights: Mapping[int, float] = field(default_factory=dict)  # place of a question word -> its weight

    @property
    def entities(self) -> list[str]:
        """The recorded entities that the question names."""
        return list(dict.fromkeys(id_ for name in self.names for id_ in name.entities))

    @property
    def speaks(self) -> bool:
        """Whether the question asks for an utterance of somebody."""
        return not _table().speech.isdisjoint(self.words)

    @property
    def looks_back(self) -> bool:
        """Whether the question asks for a former state."""
        name_places = {place for name in self.names for place in range(name.start, name.end)}
        return any(word in _table().history for n, word in enumerate(self.words) if n not in name_places)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The entity labels that the question asks for; empty = any."""
        entries = [_table().kinds[word] for word in self.words if word in _table().kinds]
        precise = [kinds for word, kinds in zip(self.words, map(_table().kinds.get, self.words), strict=True)
                   if kinds and word not in ("who", "where", "whose", "whom")]  # fmt: skip
        return frozenset().union(*(precise or entries))

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


class _Table(NamedTuple):
    fillers: frozenset[str]
    speech: frozenset[str]
    history: frozenset[str]
    kinds: Mapping[str, frozenset[str]]
    senses: tuple[frozenset[str], ...]
    lemmas: Mapping[str, str]


@cache
def _table() -> _Table:
    entries = tomllib.loads(Path(__file__).with_name("asking.toml").read_text(encoding="utf-8"))
    thirds = (pair.split(":") for pair in ENGLISH["third_to_past"])
    lemmas = {past: stem(third) for third, past in thirds}
    lemmas |= {form: stem(base) for form, base in (pair.split(":") for pair in entries["irregular"].split())}
    return _Table(
        fillers=frozenset(entries["fillers"].split()),
        speech=frozenset(entries["speech"].split()),
        history=frozenset(entries["history"].split()),
        kinds={word: frozenset(kinds.split()) for word, kinds in entries["kinds"].items()},
        senses=tuple(
            frozenset(lemmas.get(word) or stem(word) for word in words.split())
            for words in entries["senses"].values()
        ),
        lemmas=lemmas,
    )  # fmt: skip


@lru_cache(maxsize=16_384)
def lemma(word: str) -> str:
    """Return the stem of a plain word's base form: for "led" the stem of "lead"."""
    return _table().lemmas.get(word) or stem(word)


@cache
def _forms() -> Mapping[str, frozenset[str]]:
    """Return stem -> the stems of all forms of its irregular verb."""
    verbs: dict[str, set[str]] = {}
    for form, base in _table().lemmas.items():
        verbs.setdefault(base, {base}).add(stem(form))
    return {form: frozenset(forms) for forms in verbs.values() if len(forms) > 1 for form in forms}


def other_forms(word: str) -> list[str]:
    """Return the stems of the other forms of a stem's irregular verb, in order: "bought" for "buy"."""
    return sorted(_forms().get(word, frozenset()) - {word})


@lru_cache(maxsize=4_096)
def senses_of(word: str) -> frozenset[str]:
    """Return the lemmas that share a sense with a lemma."""
    synonyms = [sense for sense in _table().senses if word in sense]
    synonyms += [words for words in _matters() if word in words]
    return frozenset().union(*synonyms)


@cache
def _matters() -> tuple[frozenset[str], ...]:
    return tuple(frozenset(map(lemma, words)) for words in words_of_matter().values())


class Vocabulary:
    """The words of relations: lemma -> (weight, role of a fact's source next to it)."""

    def __init__(self, ontology: Ontology) -> None:
        """Compute nothing yet; the words of a relation are computed at its first use."""
        self._ontology = ontology
        self._words: dict[str, dict[str, tuple[float, Role | None]]] = {}
        self._names: dict[str, list[str]] = {}
        for relation in ontology:
            self._names.setdefault(ontology.main_name(relation.name), []).append(relation.name)

    def words_of(self, relation: str) -> Mapping[str, tuple[float, Role | None]]:
        """Return the words of a relation, by its name in the graph."""
        if relation not in self._words:
            self._words[relation] = self._computed(relation)
        return self._words[relation]

    def _computed(self, relation: str) -> dict[str, tuple[float, Role | None]]:
        entries: dict[str, tuple[float, Role | None]] = {}

        def put(text: str, weight: float, role: Role | None) -> None:
            for word in plain_words(text):
                if word not in languages()["en"].stops and entries.get(lemma(word), (0.0, None))[0] < weight:
                    entries[lemma(word)] = (weight, role)

        main, turned_here = self._ontology.folded(relation)
        for name in dict.fromkeys([relation, *self._names.get(main, ())]):
            declared = self._ontology.get(name)
            turned = self._ontology.folded(name)[1] != turned_here
            if declared is not None:
                for phrase in (
                    *declared.phrases,
                    *declared.starts,
                    *declared.ends,
                    *declared.events,
                    declared.text,
                ):
                    plain = phrase.partition("{")[0]
                    passive = plain.split()[:1] in (["be"], ["is"]) and "by" in plain
                    put(plain.replace("|", " "), 1.0, _turned("after" if passive else "before", turned))
                for noun in (*declared.nouns, *(name.replace("_", " ") for name in declared.fields)):
                    put(noun, 1.0, _turned("owner", turned))
                put(declared.description, OF_DESCRIPTION, None)
            if name.startswith("HAS_"):
                put(name[4:].replace("_", " "), 1.0, _turned("owner", turned))
            else:
                passive = name.endswith("_BY")
                put(name.replace("_", " "), 1.0, _turned("after" if passive else "before", turned))
        return entries


def _turned(role: Role, turned: bool) -> Role:
    return _OPPOSITE[role] if turned else role


class Match(NamedTuple):
    """The match of a fact: score, share of the question words that it covers, and their places."""

    score: float
    cover: float
    places: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """Matches one question with facts of one view.

    near    returns the nearness of a statement's vector to the question, 0 to 1
    """

    question: StateQuestion
    vocabulary: Vocabulary
    view: GraphView
    near: Callable[[str], float]

    def first(self, moment: Instant | None, top_facts: Callable[[], Sequence[Fact]]) -> list[Fact]:
        """Return the facts that come first, best first, at most MAX_FIRST; [] if no fact answers.

        top_facts   returns the best facts of the first stage; called if the entities have too many facts to
                    read all
        """
        named = [entity.id for entity in self.view.entities(self.question.entities)]
        if not named or self.question.speaks:
            return []
        limit = FACTS_READ * len(named)
        facts = {fact.id: fact for fact in self.view.facts_at(named, moment, limit)}
        if len(facts) == limit:
            facts |= {fact.id: fact for fact in top_facts() if not set(fact.ends).isdisjoint(named)}
        if not facts:
            return []
        places = frozenset(self.question.weights)
        matches = self._matches([*facts.values()], set(named), places)
        answering = [(match, facts[id_]) for id_, match in matches.items() if self._answers(match, places)]
        best = self._best(answering)
        return self._chained(best, matches, named, moment)[:MAX_FIRST]

    def _answers(self, match: Match, places: frozenset[int]) -> bool:
        kinds = _table().kinds
        if all(self.question.words[place] in kinds for place in places):  # "Which company is Ada with?"
            return match.score >= KIND
        return match.cover >= LEAST_COVER or match.score >= LEAST_COVER + KIND / 2

    def _best(self, answering: Sequence[tuple[Match, Fact]]) -> list[Fact]:
        if not answering:
            return []
        minimum = EQUAL_SHARE * max(match.score for match, _ in answering)
        rows = [(match, fact) for match, fact in answering if match.score >= minimum]
        rows.sort(key=lambda row: (-round(row[0].score, 6), -(row[1].valid_at or 0), row[1].id))
        if self.question.looks_back:  # former facts come first
            rows.sort(key=lambda row: row[1].invalid_at is None)
        return [fact for _, fact in rows]

    def _matches(self, facts: Sequence[Fact], named: set[str], places: frozenset[int]) -> dict[str, Match]:
        ends = list(dict.fromkeys(end for fact in facts for end in fact.ends))
        entities = {entity.id: entity for entity in self.view.entities(ends)}
        return {fact.id: self._match(fact, named, places, entities) for fact in facts}

    def _match(
        self, fact: Fact, named: set[str], places: frozenset[int], entities: Mapping[str, Entity]
    ) -> Match:
        question, weights = self.question, self.question.weights
        sentence_words = self._sentence(fact, entities)
        vocabulary = self.vocabulary.words_of(fact.relation)
        subject_is_named = fact.source in named
        covered: set[int] = set()
        got = total = 0.0
        for place in places:
            weight, word = weights[place], lemma(question.words[place])
            names_kind = question.words[place] in _table().kinds  # "which city": optional in the fact
            total += 0.0 if names_kind else weight
            if word in sentence_words:
                share, source_role = 1.0, sentence_words[word]
            elif word in vocabulary:
                share, source_role = vocabulary[word]
            else:
                synonyms = senses_of(word)
                synonym = next((w for w in (*sentence_words, *vocabulary) if w in synonyms), None)
                share, source_role = (OF_SENSE if synonym else 0.0), None
            if not share:
                continue
            total += weight if names_kind else 0.0
            role = question.roles[place]
            is_both = len(named.intersection(fact.ends)) == len(set(fact.ends)) > 1
            if source_role and role and not is_both and _contradict(source_role, role, subject_is_named):
                share *= WRONG_ROLE
            got += weight * share
            if share >= OF_SENSE:
                covered.add(place)
        inner = question.inner & places
        if inner and inner.isdisjoint(covered):  # the fact is about another relation of the named entity
            got *= WRONG_ROLE
        cover = got / total if total else 0.0
        # Nearness is rounded, because small differences between two objects of one relation are noise.
        score = cover + NEAR * round(_STEPS * self.near(fact.statement)) / _STEPS
        kinds = question.kinds
        if kinds:
            score += KIND if self._is_kind(fact, named, entities, kinds) else -KIND
        if len(question.names) > 1 and len(named.intersection(fact.ends)) > 1:
            score += BOTH_ENDS
        return Match(score, cover, frozenset(covered))

    @staticmethod
    def _is_kind(fact: Fact, named: set[str], entities: Mapping[str, Entity], kinds: frozenset[str]) -> bool:
        if fact.value is not None:
            return "value" in kinds
        other_ends = [end for end in fact.ends if end not in named] or list(fact.ends)
        return any(
            not entities[end].labels or not kinds.isdisjoint(entities[end].labels)
            for end in other_ends
            if end in entities
        )

    def _sentence(self, fact: Fact, entities: Mapping[str, Entity]) -> dict[str, Role | None]:
        """Return lemma -> role of the source, for a fact's sentence without the names of its ends."""
        text = plain_words(fact.text)
        source = _place_of(text, entities.get(fact.source))
        target = _place_of(text, entities.get(fact.target or ""))
        name_places = {place for span in (source, target) if span for place in range(*span)}
        entries: dict[str, Role | None] = {}
        stops = languages()["en"].stops
        for place, word in enumerate(text):
            if place in name_places or word in stops:
                continue
            role: Role | None = None
            if source is not None:
                role = "before" if source[0] < place else "after"
                if "by" in text[place + 1 : place + 3]:
                    role = _turned(role, turned=True)
                if _owns(text, source, place):
                    role = "owner"
                elif _owns(text, target, place):
                    role = "bearer"
            entries.setdefault(lemma(word), role)
        return entries

    def _chained(
        self, best: list[Fact], matches: Mapping[str, Match], named: Sequence[str], moment: Instant | None
    ) -> list[Fact]:
        """Return the best facts; if a chain start -> fact answers the open words, the chain comes first."""
        weights = self.question.weights
        total = sum(weights.values())
        starts = best[:2]
        if not starts:  # the first fact of a chain may cover less than LEAST_COVER
            covering = {
                fact.id: fact for fact in self.view.facts([id_ for id_, m in matches.items() if m.places])
            }
            ranked = sorted(covering, key=lambda id_: (-matches[id_].cover, id_))
            starts = [covering[id_] for id_ in ranked[:2]]
        for start in starts:
            inner = {lemma(self.question.words[place]) for place in self.question.inner}
            open_places = frozenset(weights) - matches[start.id].places
            # "The boss of the boss of Ada": the outer "boss" is open.
            open_places |= {
                p for p in weights.keys() - self.question.inner if lemma(self.question.words[p]) in inner
            }
            open_places = (
                open_places
                if any(self.question.words[place] not in _table().kinds for place in open_places)
                else frozenset()
            )
            open_share = sum(weights[place] for place in open_places) / total if total else 0.0
            other_ends = [end for end in start.ends if end not in named]
            if open_share < _CHAIN_LEFT or not matches[start.id].places or not other_ends:
                continue
            facts = self.view.facts_at(other_ends, moment, FACTS_READ)
            facts = [fact for fact in facts if set(fact.ends).isdisjoint(named)]
            second = self._matches(facts, set(other_ends), open_places)
            rows = [(second[fact.id], fact) for fact in facts if second[fact.id].cover >= _CHAIN_COVER]
            if rows:
                chain = [start, *self._best(rows)[:2]]
                return [*chain, *(fact for fact in best if fact not in chain)]
        return best


def _contradict(source_role: Role, role: Role, subject_is_named: bool) -> bool:
    """Return whether the fact states the relation in the opposite direction to the question."""
    if (role == "owner") != (source_role in ("owner", "bearer")):
        return False  # a noun and a verb: "the owner of Apollo", "Apollo is owned by Ada"
    return role != _turned(source_role, turned=not subject_is_named)


def _owns(text: Sequence[str], span: tuple[int, int] | None, place: int) -> bool:
    """Return whether the word at a place is a noun that a name owns: "the boss of Ada", "Ada's boss"."""
    if span is None:
        return False
    between = text[place + 1 : span[0]]
    if between and between[-1] == "of":
        return len(between) <= _NOUN_WORDS
    return text[span[1] : span[1] + 1] == ["s"] and span[1] < place <= span[1] + _NOUN_WORDS


def _place_of(text: Sequence[str], entity: Entity | None) -> tuple[int, int] | None:
    """Return the first span of the entity's longest name that occurs in the text; None if none does."""
    if entity is None:
        return None
    names = sorted((plain_words(name) for name in (entity.name, *entity.aliases)), key=len, reverse=True)
    for name in names:
        for start in range(len(text) - len(name) + 1) if name else ():
            if text[start : start + len(name)] == name:
                return start, start + len(name)
    return None


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
    for entity, name in surfaces:
        size = len(name)
        for start in range(len(terms) - size + 1):
            if size and terms[start : start + size] == list(name):
                spans.setdefault((start, start + size), []).append(entity)
    names: list[Name] = []
    for (start, end), entities in sorted(spans.items(), key=lambda span: (span[0][0] - span[0][1], span[0])):
        if all(end <= name.start or start >= name.end for name in names):
            names.append(Name(tuple(dict.fromkeys(entities)), start, end))
    names.sort(key=lambda name: name.start)
    name_places = {place for name in names for place in range(name.start, name.end)}
    left_out = languages()["en"].stops | _table().fillers
    weights = {
        place: max(weight_of(terms[place]), 1e-3) if weight_of else 1.0
        for place, word in enumerate(words)
        if place not in name_places and word not in left_out
    }
    return StateQuestion(words=words, names=tuple(names), weights=weights)
