"""Find facts that another fact of the same extraction tells in the other direction (R18).

A small model writes "Bob manages Alice" beside "Alice manages Bob". Two facts that exchange their ends, and
agree in kind, dates and variant, count once in these cases only; in all others both stay:

- The ontology says that their relations are inverse, or that their relation is symmetric.
- They have one relation, in the same telling words (those of a sentence without names and stop words). The
  episode has these words once, and nothing that says that they hold both ways, such as "each other".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kgray.domain.ontology import Ontology
from kgray.domain.records import Episode, ExtractedFact, Extraction
from kgray.graph import names
from kgray.graph.statements import says_same
from kgray.language.words import plain_words, stem
from kgray.search.query import language_of, languages

# The languages of `_BOTH_WAYS`: in any other, such words would not be recognised.
_LANGUAGES = frozenset({"en", "de"})
_BOTH_WAYS = re.compile(
    r"\b(?:each other|one another|mutual\w*|vice versa|both|together|back|too|also|likewise|same|einander|"
    r"gegenseitig\w*|beide\w*|auch|ebenso|zurück)\b",
    re.IGNORECASE,
)
_AGENT = re.compile(r"\b(?:by|von|durch) ")


def end_names(extraction: Extraction, fact: ExtractedFact) -> list[str]:
    """Return the names of a fact's ends; a value has its text."""
    ends = [extraction.entities[end].name for end in (fact.source, fact.target) if end is not None]
    return ends if fact.value is None else [*ends, fact.value.shown()]


def telling_words(text: str, ends: list[str]) -> frozenset[str]:
    """Return the words of a sentence that are neither stop words nor words of its ends."""
    words = plain_words(text)
    end_words = {word for name in ends for word in plain_words(name)}
    stops = languages()[language_of(words)].stops
    return frozenset(word for word in words if word not in stops and word not in end_words and len(word) > 2)


def second_directions(
    extraction: Extraction, episode: Episode, ontology: Ontology
) -> Iterator[tuple[int, int]]:
    """Yield pairs of places of facts: a fact that repeats another in the other direction, and that other."""
    by_ends: dict[frozenset[int], list[int]] = {}
    for place, fact in enumerate(extraction.facts):
        if fact.target is None:
            continue
        earlier = by_ends.setdefault(frozenset((fact.source, fact.target)), [])
        for number, first in enumerate(earlier):
            pair = extraction.facts[first], fact
            if not (_is_exchanged(*pair) and _is_stated_once(*pair, extraction, episode, ontology)):
                continue
            if _fit(fact, extraction, episode) > _fit(pair[0], extraction, episode):
                earlier[number] = place
                yield first, place
            else:
                yield place, first
            break
        else:
            earlier.append(place)


def _is_exchanged(first: ExtractedFact, second: ExtractedFact) -> bool:
    """Return whether two facts differ in their direction, and agree in kind, dates and variant."""
    return (
        first.source == second.target
        and first.target == second.source
        and first.kind == second.kind
        and (first.valid_from, first.valid_to) == (second.valid_from, second.valid_to)
        and says_same(first, second)
    )


def _is_stated_once(
    first: ExtractedFact,
    second: ExtractedFact,
    extraction: Extraction,
    episode: Episode,
    ontology: Ontology,
) -> bool:
    """Return whether two exchanged facts have one meaning, or come from a single statement of the episode."""
    name, is_turned = _declared(first.relation, ontology)
    rival, rival_is_turned = _declared(second.relation, ontology)
    if name != rival:
        return False
    relation = ontology.get(name)
    if is_turned != rival_is_turned or (relation is not None and relation.symmetric):
        return True
    telling = telling_words(first.text, end_names(extraction, first))
    words = plain_words(episode.text)
    if not telling or telling != telling_words(second.text, end_names(extraction, second)):
        return False
    if language_of(words) not in _LANGUAGES:
        return False
    if any(_BOTH_WAYS.search(text) for text in (episode.text, first.text, second.text)):
        return False
    stems = [stem(word) for word in words]
    return min(stems.count(stem(word)) for word in telling) == 1


def _declared(relation: str, ontology: Ontology) -> tuple[str, bool]:
    """Return the ontology's name for a relation, and whether that name has the other direction."""
    is_turned = False
    while (declared := ontology.get(relation)) and (name := declared.same_as or declared.inverse_of):
        relation, is_turned = name, is_turned ^ bool(declared.inverse_of)
    return relation, is_turned


def _fit(fact: ExtractedFact, extraction: Extraction, episode: Episode) -> tuple[bool, bool]:
    """Return whether the episode has a fact's sentence, and whether its subject comes first."""
    subject, target = (names.folded(name) for name in end_names(extraction, fact))
    text = names.folded(fact.text)
    agent = _AGENT.search(text)
    if agent is not None and text.startswith((subject, target), agent.end()):
        return fact.text in episode.text, text.startswith(subject, agent.end())  # "Bob is managed by Alice"
    return fact.text in episode.text, text.startswith(subject)
