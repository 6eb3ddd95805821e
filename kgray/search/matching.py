"""Matching of facts with questions: a valid fact comes before messages with outdated statements.

A fact answers a question that names one of its entities and has the words of its relation: words of its
sentence and name, of the ontology's phrases and nouns, or their synonyms. Roles count: "Alice reports to Bob"
does not answer "Who reports to Alice?". A chain of two facts can answer, too: "Where does the head of Apollo
live?". A name in the question that is no end of a fact must match like any other word: if "dogs" is the name
of an entity, "James loves football" does not answer "How many dogs does James have?". Nothing is learnt from
data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kgray.domain.graph import Entity, Fact
from kgray.domain.ontology import Ontology
from kgray.domain.times import Instant
from kgray.language.words import languages, plain_words
from kgray.ports import GraphView
from kgray.search.state_question import Role, StateQuestion, kinds_of, lemma, senses_of, turned_role

LEAST_COVER = 0.5  # least share of the question words, by weight, in a fact that answers
# Weight of a synonym and of a word of the relation's description; the word itself has 1.
OF_SENSE, OF_DESCRIPTION = 0.6, 0.35
WRONG_ROLE = 0.35  # factor for a word that states the relation in the other direction
KIND = 0.25  # added to the score for a fitting kind, subtracted for an unfitting kind
NEAR = 0.3  # added to the score for a vector of nearness 1
EQUAL_SHARE = 0.85  # facts from this share of the best score up answer equally well
MAX_FIRST = 5  # facts that come first
FACTS_READ = 64  # facts that are read for each entity
_NOUN_WORDS = 3  # words of a noun such as "chief executive"
# Verbs that begin or end any state: "start at {org}" does not make "start" a word of employment alone.
_ASPECT = frozenset("start begin become stop cease continue finish".split())
_STEPS = 2  # values of a vector's nearness, apart from 0
_CHAIN_LEFT = 0.1  # least share of the question words that the first fact of a chain leaves open
_CHAIN_COVER = 0.6  # least share of these open words in the second fact


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
                for phrase in (
                    *declared.phrases,
                    *declared.starts,
                    *declared.ends,
                    *declared.events,
                    declared.text,
                ):
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
        if not named or self.question.speaks:
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
            is_end: list[float] = []
            for unit in self.question.units if by_name else ():
                if unit.entities.isdisjoint(fact.ends):
                    weights |= unit.weights
                else:
                    is_end.append(unit.weight)
            matches[fact.id] = self._match(fact, named, weights, sum(sorted(is_end)[1:]), entities)
        return matches

    def _match(
        self,
        fact: Fact,
        named: set[str],
        weights: Mapping[int, float],
        names: float,
        entities: Mapping[str, Entity],
    ) -> Match:
        """Return the match of a fact.

        weights   place of a question word that the fact should have -> its weight: also the words of names
                  that are no end of the fact
        names     sum of the weights of the names that are ends of the fact, without the smallest weight
        """
        question = self.question
        sentence_words = self._sentence(fact, entities)
        vocabulary = self.vocabulary.words_of(fact.relation)
        subject_is_named = fact.source in named
        covered: set[int] = set()
        got = total = names
        for place, weight in weights.items():
            word = lemma(question.words[place])
            names_kind = kinds_of(question.words[place])  # "which city": optional in the fact
            total += 0.0 if names_kind else weight
            share, source_role = _share_of(word, sentence_words, vocabulary)
            if not share:
                continue
            total += weight if names_kind else 0.0
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
            open_places = (
                open_places
                if not all(kinds_of(self.question.words[place]) for place in open_places)
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
