"""Drop facts that say nothing new: loops, second directions, and facts of the previous context (R18).

A small model reads PREVIOUS as if it were the episode. A fact is a repetition only if all these conditions
hold. In all other cases it stays, because an answer, or a sentence with "she", is about names that only a
previous episode has.

- The episode has no telling word of the fact (the words of its sentence and its relation, without names and
  stop words), lacks at least one end of it, and has no date for it.
- A previous episode has both ends and a telling word.
- No previous episode with a question mark has a telling word, or an end that the episode lacks.
- The episode has no word that points to a previous episode, and its language has a list of such words.

A small model also writes "Bob manages Alice" beside "Alice manages Bob". Two facts that exchange their ends,
and agree in kind, dates and variant, count once in these cases only; in all others both stay:

- The ontology says that their relations are inverse, or that their relation is symmetric.
- They have one relation, in the same telling words. The episode has these words once, and nothing that says
  that they hold both ways, such as "each other".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from kgray.domain.ontology import Ontology
from kgray.domain.records import Episode, ExtractedFact, Extraction
from kgray.graph import names
from kgray.graph.statements import says_same
from kgray.ingest.extract import ReadTexts, is_form
from kgray.language.words import language_of, languages, plain_words, stem
from kgray.ports import ExtractionRequest

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
    first: ExtractedFact, second: ExtractedFact, extraction: Extraction, episode: Episode, ontology: Ontology
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


# Words, by language, that point to something said before, or confirm or deny it.
_POINTERS = {
    "en": """\
he she it they him her them his hers its their theirs there here this that these those one ones too also
either neither same so yes yeah yep yup ok okay no nope nah not never still sure right correct exactly indeed
true agreed confirmed absolutely definitely ditto likewise again anymore back both we us our ours""",
    "de": """\
er sie es ihn ihm ihr ihre ihren ihnen sein seine dort da hier das dies diese dieser dieses jene auch
ebenfalls ebenso ja nein doch nicht nie noch immer stimmt genau richtig klar wieder mehr beide daran dabei wir
uns unser unsere""",
}
_POINTING = {language: frozenset(plain_words(text)) for language, text in _POINTERS.items()}
# "I have.", "Alice does": a verb is missing.
_ELLIPSIS = re.compile(
    r"\b(?:do|does|did|am|are|is|was|were|has|have|had|will|would|can|could|should)(?:n['’]t)?\s*(?:[.!,;:)]|$)",
    re.IGNORECASE | re.MULTILINE,
)


def without_repeats(extraction: Extraction, request: ExtractionRequest, ontology: Ontology) -> Extraction:
    """Return the extraction without facts that say nothing new, with a line in `dropped` for each.

    Only messages and texts are searched. The order of the other facts, and all entities, stay.
    """
    if request.episode.kind not in {"message", "text"} or not extraction.facts:
        return extraction
    context = _Context(request)
    lines: dict[int, str] = {}
    for place, fact in enumerate(extraction.facts):
        ends = end_names(extraction, fact)
        if fact.target is not None and names.key(ends[0]) == names.key(ends[1]):
            lines[place] = f"it connects {ends[0]!r} with itself"
        elif context.has(fact, ends):
            lines[place] = "an earlier episode says it, and this one does not"
    for place, rival in second_directions(extraction, request.episode, ontology):
        lines.setdefault(place, f"facts[{rival}] says it in the other direction")
    if not lines:
        return extraction
    return replace(
        extraction,
        facts=tuple(fact for place, fact in enumerate(extraction.facts) if place not in lines),
        dropped=(*extraction.dropped, *(f"facts[{place}]: {line}" for place, line in sorted(lines.items()))),
    )


class _Context:
    """The episode and its previous context, prepared for the search."""

    def __init__(self, request: ExtractionRequest) -> None:
        self._episode, self._previous = request.episode, request.previous

    @cached_property
    def _current(self) -> ReadTexts:
        return ReadTexts(ExtractionRequest(episode=self._episode))

    @cached_property
    def _earlier(self) -> list[tuple[ReadTexts, frozenset[str], bool]]:
        """The previous episodes: their texts, the stems of their words, and whether they ask."""
        return [
            (
                ReadTexts(ExtractionRequest(episode=episode)),
                frozenset(map(stem, plain_words(episode.text))),
                "?" in episode.text,
            )
            for episode in self._previous
        ]

    @cached_property
    def _stands_alone(self) -> bool:
        """Return whether the episode has no pointer to others, in a language with a list of pointers."""
        words = set(plain_words(self._episode.text))
        language = language_of(list(words))
        pointing = _POINTING.get(language)
        if pointing is None or words & pointing or not words & languages()[language].stops:
            return False
        return not _ELLIPSIS.search(self._episode.text)

    def has(self, fact: ExtractedFact, ends: list[str]) -> bool:
        """Return whether a fact repeats the previous context; ends: the names of its ends."""
        if not self._previous or not self._stands_alone or self._has_date(fact):
            return False
        absent = [end for end in ends if not self._is_named(end, fact)]
        telling = telling_words(f"{fact.text} {fact.relation.replace('_', ' ')}", ends)
        if not absent or any(is_form(word, spoken) for word in telling for spoken in self._current.words):
            return False
        stems = frozenset(map(stem, telling))
        if any(
            asks and (stems & words or any(map(texts.has_name, absent)))
            for texts, words, asks in self._earlier
        ):
            return False
        return any(stems & words and all(map(texts.has_name, ends)) for texts, words, _ in self._earlier)

    def _is_named(self, end: str, fact: ExtractedFact) -> bool:
        number = fact.value if fact.value is not None and fact.value.type == "number" else None
        if number is not None and end == number.shown():
            return self._current.has_number(number.value)
        return self._current.has_name(end)

    def _has_date(self, fact: ExtractedFact) -> bool:
        """Return whether a stated date of the fact may come from the episode."""
        dates = (date for date in (fact.valid_from, fact.valid_to) if date is not None)
        return any(date != self._episode.reference_time and self._current.has_date(date) for date in dates)
