"""Matching of facts with questions: a valid fact comes before messages with outdated statements.

A fact answers a question that names one of its entities and has the words of its relation: words of its
sentence and name, of the ontology's phrases and nouns, or their synonyms. Roles count: "Alice reports to Bob"
does not answer "Who reports to Alice?". A chain of two facts can answer, too: "Where does the head of Apollo
live?". The words of a name in the question that is no end of the fact count like other words: if "dogs" is
the name of an entity, "James loves football" does not answer "How many dogs does James have?". Nothing is
learnt from data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Literal, NamedTuple

from kgray.domain.graph import Entity, Fact
from kgray.domain.ontology import Ontology
from kgray.domain.times import Instant
from kgray.language.words import MAX_QUERY_WORDS, languages, plain_words, stem, term
from kgray.ports import GraphView
from kgray.search.query import asking, kinds_of, lemma, senses_of

# Role of a name next to a word. "before", "after": subject, object of a verb. In "Bob is the boss of Ada",
# Ada is the owner of the noun "boss", and Bob its bearer.
Role = Literal["before", "after", "owner", "bearer"]
_OPPOSITE: Mapping[Role, Role] = {"before": "after", "after": "before", "owner": "bearer", "bearer": "owner"}
_AUXILIARIES = frozenset("is are was were be been am do does did has have had will would can could".split())
_JOINING = frozenset({"and", "or", "s"})  # words between names of one unit: "Ada's and Bob's"
LEAST_COVER = 0.5  # least share of the question words, by weight, in a fact that answers
# Weight of a synonym and of a word of the relation's description; the word itself has 1.
OF_SENSE, OF_DESCRIPTION = 0.6, 0.35
WRONG_ROLE = 0.35  # factor for a word that states the relation in the other direction
KIND = 0.25  # added to the score for a fitting kind, subtracted for an unfitting kind
NEAR = 0.3  # added to the score for a vector of nearness 1
EQUAL_SHARE = 0.85  # facts from this share of the best score up answer equally well
MAX_FIRST = 5  # facts that come first
# The most facts that are read, times the number of named entities; in a chain, for all other ends together.
FACTS_READ = 64
_NOUN_WORDS = 3  # words of a noun such as "chief executive"
# Verbs that begin or end any state: "start at {org}" does not make "start" a word of employment alone.
_ASPECT = frozenset("start begin become stop cease continue finish".split())
_STEPS = 2  # values of a vector's nearness, apart from 0
_CHAIN_LEFT = 0.1  # least share of the question words that the first fact of a chain leaves open
_CHAIN_COVER = 0.6  # least share of these open words in the second fact


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
    def asks_for_speech(self) -> bool:
        """Whether the question asks for messages ("What did Ada say?"): then no fact comes first."""
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


class Vocabulary:
    """The words of relations: lemma -> (weight, role that the source of the fact has next to this word)."""

    def __init__(self, ontology: Ontology) -> None:
        """Group the relation names by main name; the words of a relation are computed at its first use."""
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
                share = min(weight, OF_DESCRIPTION) if word in _ASPECT else weight
                if word not in languages()["en"].stops and entries.get(lemma(word), (0.0, None))[0] < share:
                    entries[lemma(word)] = (share, role)

        main, turned_here = self._ontology.folded(relation)
        for name in dict.fromkeys([relation, *self._names.get(main, ())]):
            declared = self._ontology.get(name)
            turned = self._ontology.folded(name)[1] != turned_here
            if declared is not None:
                wordings = (*declared.phrases, *declared.starts, *declared.ends, *declared.events)
                for phrase in (*wordings, declared.text):
                    plain = phrase.partition("{")[0]
                    passive = plain.split()[:1] in (["be"], ["is"]) and "by" in plain
                    put(plain.replace("|", " "), 1.0, turned_role("after" if passive else "before", turned))
                for noun in (*declared.nouns, *(name.replace("_", " ") for name in declared.fields)):
                    put(noun, 1.0, turned_role("owner", turned))
                put(declared.description, OF_DESCRIPTION, None)
            if name.startswith("HAS_"):
                put(name[4:].replace("_", " "), 1.0, turned_role("owner", turned))
            else:
                passive = name.endswith("_BY")
                put(name.replace("_", " "), 1.0, turned_role("after" if passive else "before", turned))
        return entries


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
        if not named or self.question.asks_for_speech:
            return []
        limit = FACTS_READ * len(named)
        facts = {fact.id: fact for fact in self.view.facts_at(named, moment, limit)}
        if len(facts) == limit:
            facts |= {fact.id: fact for fact in top_facts() if not set(fact.ends).isdisjoint(named)}
        if not facts:
            return []
        places = frozenset(self.question.weights)
        matches = self._matches([*facts.values()], set(named), places, by_name=True)
        answering = [(match, facts[id_]) for id_, match in matches.items() if self._answers(match, places)]
        best = self._best(answering)
        return self._chained(best, matches, named, moment)[:MAX_FIRST]

    def _answers(self, match: Match, places: frozenset[int]) -> bool:
        only_kinds = all(kinds_of(self.question.words[place]) for place in places)
        if only_kinds and len(self.question.units) <= 1:  # "Which company is Ada with?"
            return match.score >= KIND
        return match.cover >= LEAST_COVER or match.score >= LEAST_COVER + KIND / 2

    def _best(self, answering: Sequence[tuple[Match, Fact]]) -> list[Fact]:
        if not answering:
            return []
        joined = self.question.joined
        # By joined names: "Where do Ann and Ben live?" has two answers.
        best: dict[frozenset[str], float] = {}
        for match, fact in answering:
            about = joined.intersection(fact.ends)
            best[about] = max(match.score, best.get(about, match.score))
        rows = [
            (match, fact)
            for match, fact in answering
            if match.score >= EQUAL_SHARE * best[joined.intersection(fact.ends)]
        ]
        rows.sort(key=lambda row: (-round(row[0].score, 6), -(row[1].valid_at or 0), row[1].id))
        if self.question.looks_back:  # former facts come first
            rows.sort(key=lambda row: row[1].invalid_at is None)
        return [fact for _, fact in rows]

    def _matches(
        self, facts: Sequence[Fact], named: set[str], places: frozenset[int], *, by_name: bool = False
    ) -> dict[str, Match]:
        """Return the matches of facts, by id. by_name: the question's names must be matched, too."""
        ends = list(dict.fromkeys(end for fact in facts for end in fact.ends))
        entities = {entity.id: entity for entity in self.view.entities(ends)}
        own, matches = {place: self.question.weights[place] for place in places}, {}
        for fact in facts:
            weights = dict(own)
            end_weights: list[float] = []
            for unit in self.question.units if by_name else ():
                if unit.entities.isdisjoint(fact.ends):
                    weights |= unit.weights
                else:
                    end_weights.append(unit.weight)
            matches[fact.id] = self._match(fact, named, weights, sum(sorted(end_weights)[1:]), entities)
        return matches

    def _match(
        self, fact: Fact, named: set[str], weights: Mapping[int, float], names_weight: float,
        entities: Mapping[str, Entity],
    ) -> Match:  # fmt: skip
        """Return the match of a fact.

        weights        place of a question word that the fact should have -> its weight: also the words of
                       names that are no end of the fact
        names_weight   sum of the weights of the names that are ends of the fact, without the smallest weight
        """
        question = self.question
        sentence_words = self._sentence(fact, entities)
        vocabulary = self.vocabulary.words_of(fact.relation)
        subject_is_named = fact.source in named
        covered: set[int] = set()
        got = total = names_weight
        for place, weight in weights.items():
            word = lemma(question.words[place])
            # A word of kind ("which city") counts only if the fact has it.
            asked_kinds = kinds_of(question.words[place])
            total += 0.0 if asked_kinds else weight
            share, source_role = _share_of(word, sentence_words, vocabulary)
            if not share:
                continue
            total += weight if asked_kinds else 0.0
            role = question.roles.get(place)
            is_both = len(named.intersection(fact.ends)) == len(set(fact.ends)) > 1
            if source_role and role and not is_both and _contradict(source_role, role, subject_is_named):
                share *= WRONG_ROLE
            got += weight * share
            if share >= OF_SENSE:
                covered.add(place)
        inner = question.inner & weights.keys()
        if inner and inner.isdisjoint(covered):  # the fact is about another relation of the named entity
            got *= WRONG_ROLE
        cover = got / total if total else 0.0
        # Nearness is rounded, because small differences between two objects of one relation are noise.
        score = cover + NEAR * round(_STEPS * self.near(fact.statement)) / _STEPS
        kinds = question.kinds
        if kinds:
            score += KIND if self._is_kind(fact, named, entities, kinds) else -KIND
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
                    role = turned_role(role, turned=True)
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
            if all(kinds_of(self.question.words[place]) for place in open_places):
                open_places = frozenset()
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


def _share_of(
    word: str, sentence: Mapping[str, Role | None], vocabulary: Mapping[str, tuple[float, Role | None]]
) -> tuple[float, Role | None]:
    """Return how well a fact covers a word, 0 to 1, and the role of the fact's source next to the word."""
    if word in sentence:
        return 1.0, sentence[word]
    if word in vocabulary:
        return vocabulary[word]
    synonyms = senses_of(word)
    return (OF_SENSE if any(other in synonyms for other in (*sentence, *vocabulary)) else 0.0), None


def _contradict(source_role: Role, role: Role, subject_is_named: bool) -> bool:
    """Return whether the fact states the relation in the opposite direction to the question."""
    if (role == "owner") != (source_role in ("owner", "bearer")):
        return False  # a noun and a verb: "the owner of Apollo", "Apollo is owned by Ada"
    return role != turned_role(source_role, turned=not subject_is_named)


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
