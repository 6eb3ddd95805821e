"""Which facts answer a question: promise 9, a fact that holds comes before messages that say something older.

A fact answers a question that names one of its entities and whose other words are those of its relation:
words of its sentence and name, of the ontology's phrases and nouns, or of one sense with these. Roles count:
"Alice reports to Bob" does not answer "Who reports to Alice?". A chain of two facts answers, too: "Where does
the head of Apollo live?". Nothing here is learnt from data; asking.toml has the English words.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from kgray.derivation.verbs import ENGLISH
from kgray.graph import Entity, Fact
from kgray.ontology import Ontology, words_of_matter
from kgray.ports import GraphView
from kgray.search.query import languages
from kgray.times import Instant
from kgray.words import MAX_QUERY_WORDS, plain_words, stem, term

# Of a name beside a word: the subject of a verb, its object; a noun's owner ("the boss of Ada"), its bearer.
Role = Literal["before", "after", "owner", "bearer"]
_OPPOSITE: Mapping[Role, Role] = {
    "before": "after",
    "after": "before",
    "owner": "bearer",
    "bearer": "owner",
}

LEAST_COVER = 0.5  # share of the question words, by weight, from which on a fact answers
# Weight of a synonym and of a word of the relation's description; the word itself has 1.
OF_SENSE, OF_DESCRIPTION = 0.6, 0.35
WRONG_ROLE = 0.35  # factor of a word that states the relation in the other direction
KIND = 0.25  # is added to the score for a fitting kind, and subtracted for an unfitting kind
NEAR = 0.3  # is added to the score for a vector that stands out completely
BOTH_ENDS = 0.5
WITHIN = 0.85  # of the best score: facts that answer alike
MOST = 5  # facts that come first
FACTS_READ = 64  # an entity
_AUXILIARIES = frozenset("is are was were be been am do does did has have had will would can could".split())
_NOUN_WORDS = 3  # of a noun such as "chief executive"
_STEPS = 2  # of a vector's nearness
_CHAIN_LEFT = 0.1  # share of the question words that the first fact of a chain leaves open, at least
_CHAIN_COVER = 0.6  # of the words that are left


class Name(NamedTuple):
    """A name in a question: the recorded entities that bear it, and its place among the words."""

    entities: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)  # without slots: cached properties are kept in the instance
class StateQuestion:
    """A question, as it is matched with facts; one of many facts, so what depends on it alone is kept."""

    words: tuple[str, ...]  # plain, in order
    names: tuple[Name, ...]
    weights: Mapping[int, float] = field(default_factory=dict)  # place of a question word -> its weight

    @property
    def entities(self) -> list[str]:
        """The recorded entities that are named."""
        return list(dict.fromkeys(id_ for name in self.names for id_ in name.entities))

    @property
    def speaks(self) -> bool:
        """Whether the question asks for words that somebody said."""
        return not _table().speech.isdisjoint(self.words)

    @property
    def looks_back(self) -> bool:
        """Whether the question asks for a former state."""
        inside = {place for name in self.names for place in range(name.start, name.end)}
        return any(word in _table().history for n, word in enumerate(self.words) if n not in inside)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The labels of the things that it asks for; empty = any."""
        entries = [_table().kinds[word] for word in self.words if word in _table().kinds]
        precise = [kinds for word, kinds in zip(self.words, map(_table().kinds.get, self.words), strict=True)
                   if kinds and word not in ("who", "where", "whose", "whom")]  # fmt: skip
        return frozenset().union(*(precise or entries))

    @cached_property
    def inner(self) -> frozenset[int]:
        """Places of the question words beside a name: "boss" in "the city of the boss of Ada"."""
        stops, entries = languages()["en"].stops, set[int]()
        for name in self.names:
            behind = name.end + 1 if self.words[name.end : name.end + 1] == ("s",) else 0
            before = name.start - 2 if self.words[name.start - 1 : name.start] == ("of",) else -1
            while before >= 0 and self.words[before] not in stops:
                entries.add(before)
                before -= 1
            while 0 < behind < len(self.words) and self.words[behind] not in stops:
                entries.add(behind)
                behind += 1
        return frozenset(entries & self.weights.keys())

    @cached_property
    def roles(self) -> Mapping[int, Role | None]:
        """The role of the nearest name beside each question word, as in a statement; None = not known."""
        return {place: self._role(place) for place in self.weights}

    def _role(self, place: int) -> Role | None:
        if not self.names:
            return None
        name = min(self.names, key=lambda one: min(abs(place - one.start), abs(place - one.end)))
        if place >= name.end:
            if self.words[name.end : name.end + 1] == ("s",):
                return "owner"
            return "after" if self.words[place + 1 : place + 2] == ("by",) else "before"
        between = self.words[place + 1 : name.start]
        if between and between[-1] == "of":
            return "owner"
        if not _AUXILIARIES.isdisjoint(between):  # "Which school is Ada at?": a noun, and no verb
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
    """Return the stem of a plain word: of "led" that of "lead"."""
    return _table().lemmas.get(word) or stem(word)


@lru_cache(maxsize=4_096)
def senses_of(word: str) -> frozenset[str]:
    """Return the lemmas of one sense with a lemma."""
    synonyms = [sense for sense in _table().senses if word in sense]
    synonyms += [words for words in _matters() if word in words]
    return frozenset().union(*synonyms)


@cache
def _matters() -> tuple[frozenset[str], ...]:
    return tuple(frozenset(map(lemma, words)) for words in words_of_matter().values())


class Vocabulary:
    """The words of relations: lemma -> (weight, role of a fact's source beside it)."""

    def __init__(self, ontology: Ontology) -> None:
        """Read nothing yet; each relation's words are computed at its first use."""
        self._ontology = ontology
        self._words: dict[str, dict[str, tuple[float, Role | None]]] = {}
        self._names: dict[str, list[str]] = {}
        for relation in ontology:
            self._names.setdefault(ontology.main_name(relation.name), []).append(relation.name)

    def of(self, relation: str) -> Mapping[str, tuple[float, Role | None]]:
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
                for noun in (*declared.nouns, *(one.replace("_", " ") for one in declared.fields)):
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
    """How well a fact answers: score, share of the question words that it covers, and their places."""

    score: float
    cover: float
    places: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """One question beside facts of one view.

    near    returns how far the vector of a statement stands out, 0 to 1
    """

    question: StateQuestion
    vocabulary: Vocabulary
    view: GraphView
    near: Callable[[str], float]

    def first(self, moment: Instant | None, others: Callable[[], Sequence[Fact]]) -> list[Fact]:
        """Return the facts that come first, best first: at most MOST; none where no fact answers.

        others  returns the best facts of the first stage; called where an entity has too many to read all
        """
        named = [entity.id for entity in self.view.entities(self.question.entities)]
        if not named or self.question.speaks:
            return []
        most = FACTS_READ * len(named)
        facts = {fact.id: fact for fact in self.view.facts_at(named, moment, most)}
        if len(facts) == most:
            facts |= {fact.id: fact for fact in others() if not set(fact.ends).isdisjoint(named)}
        if not facts:
            return []
        places = frozenset(self.question.weights)
        matches = self._matches([*facts.values()], set(named), places)
        answering = [(match, facts[id_]) for id_, match in matches.items() if self._answers(match, places)]
        best = self._best(answering)
        return self._chained(best, matches, named, moment)[:MOST]

    def _answers(self, match: Match, places: frozenset[int]) -> bool:
        kinds = _table().kinds
        if all(self.question.words[place] in kinds for place in places):  # "Which company is Ada with?"
            return match.score >= KIND
        return match.cover >= LEAST_COVER or match.score >= LEAST_COVER + KIND / 2

    def _best(self, answering: Sequence[tuple[Match, Fact]]) -> list[Fact]:
        if not answering:
            return []
        least = WITHIN * max(match.score for match, _ in answering)
        rows = [(match, fact) for match, fact in answering if match.score >= least]
        rows.sort(key=lambda row: (-round(row[0].score, 6), -(row[1].valid_at or 0), row[1].id))
        if self.question.looks_back:  # a question about the past: former facts first
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
        known = self.vocabulary.of(fact.relation)
        subject_is_named = fact.source in named
        covered: set[int] = set()
        got = total = 0.0
        for place in places:
            weight, word = weights[place], lemma(question.words[place])
            names_kind = question.words[place] in _table().kinds  # "which city": it need not be in the fact
            total += 0.0 if names_kind else weight
            if word in sentence_words:
                share, source_role = 1.0, sentence_words[word]
            elif word in known:
                share, source_role = known[word]
            else:
                synonyms = senses_of(word)
                synonym = next((one for one in (*sentence_words, *known) if one in synonyms), None)
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
        if inner and inner.isdisjoint(covered):  # the fact is about something else of what is named
            got *= WRONG_ROLE
        cover = got / total if total else 0.0
        # In steps: what little the vectors of two objects of one relation differ is noise.
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
        others = [end for end in fact.ends if end not in named] or list(fact.ends)
        return any(
            not entities[end].labels or not kinds.isdisjoint(entities[end].labels)
            for end in others
            if end in entities
        )

    def _sentence(self, fact: Fact, entities: Mapping[str, Entity]) -> dict[str, Role | None]:
        """Return the lemmas of a fact's sentence without its ends' names, with the role of the source."""
        text = plain_words(fact.text)
        source = _place_of(text, entities.get(fact.source))
        target = _place_of(text, entities.get(fact.target or ""))
        taken = {place for span in (source, target) if span for place in range(*span)}
        entries: dict[str, Role | None] = {}
        stops = languages()["en"].stops
        for place, word in enumerate(text):
            if place in taken or word in stops:
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
        """Return the best facts with those that answer the words which they leave open, one fact further."""
        weights = self.question.weights
        total = sum(weights.values())
        starts = best[:2]
        if not starts:  # the first fact of a chain may cover less than half of the words
            known = {
                fact.id: fact for fact in self.view.facts([id_ for id_, m in matches.items() if m.places])
            }
            ranked = sorted(known, key=lambda id_: (-matches[id_].cover, id_))
            starts = [known[id_] for id_ in ranked[:2]]
        for start in starts:
            inner = {lemma(self.question.words[place]) for place in self.question.inner}
            left = frozenset(weights) - matches[start.id].places
            # "The boss of the boss of Ada": the outer one is open.
            left |= {
                p for p in weights.keys() - self.question.inner if lemma(self.question.words[p]) in inner
            }
            left = (
                left
                if any(self.question.words[place] not in _table().kinds for place in left)
                else frozenset()
            )
            open_share = sum(weights[place] for place in left) / total if total else 0.0
            others = [end for end in start.ends if end not in named]
            if open_share < _CHAIN_LEFT or not matches[start.id].places or not others:
                continue
            facts = self.view.facts_at(others, moment, FACTS_READ)
            facts = [fact for fact in facts if set(fact.ends).isdisjoint(named)]
            further = self._matches(facts, set(others), left)
            rows = [(further[fact.id], fact) for fact in facts if further[fact.id].cover >= _CHAIN_COVER]
            if rows:
                chain = [start, *self._best(rows)[:2]]
                return [*chain, *(fact for fact in best if fact not in chain)]
        return best


def _contradict(source_role: Role, role: Role, subject_is_named: bool) -> bool:
    """Whether the fact states the relation in the opposite direction to the question."""
    if (role == "owner") != (source_role in ("owner", "bearer")):
        return False  # a noun beside a verb: "the owner of Apollo", "Apollo is owned by Ada"
    return role != _turned(source_role, turned=not subject_is_named)


def _owns(text: Sequence[str], span: tuple[int, int] | None, place: int) -> bool:
    """Whether the word at a place is a noun that a name owns: "the boss of Ada", "Ada's boss"."""
    if span is None:
        return False
    between = text[place + 1 : span[0]]
    if between and between[-1] == "of":
        return len(between) <= _NOUN_WORDS
    return text[span[1] : span[1] + 1] == ["s"] and span[1] < place <= span[1] + _NOUN_WORDS


def _place_of(text: Sequence[str], entity: Entity | None) -> tuple[int, int] | None:
    """Return the first span in the text of the longest name of an entity that occurs; None if none does."""
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
    """Read a question.

    text        read up to MAX_QUERY_WORDS words, as the other methods do
    surfaces    (recorded entity, the terms of one of its names); only names that may occur in the question
    weight_of   returns the weight of a term; None: each weighs 1
    """
    # Matching takes words x names for each fact: a pasted text of 800 names would take minutes.
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
    inside = {place for name in names for place in range(name.start, name.end)}
    left_out = languages()["en"].stops | _table().fillers
    weights = {
        place: max(weight_of(terms[place]), 1e-3) if weight_of else 1.0
        for place, word in enumerate(words)
        if place not in inside and word not in left_out
    }
    return StateQuestion(words=words, names=tuple(names), weights=weights)
