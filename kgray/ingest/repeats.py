"""Drop facts that say nothing new: loops, second directions, and facts of the previous context (R18).

A small model reads PREVIOUS as if it were the episode. A fact is a repetition only if all these conditions
hold. In all other cases it stays, because an answer, or a sentence with "she", is about names that only a
previous episode has.

- The episode has no telling word of the fact (the words of its sentence and its relation, without names and
  stop words), lacks at least one end of it, and has no date for it.
- A previous episode has both ends and a telling word.
- No previous episode with a question mark has a telling word, or an end that the episode lacks.
- The episode has no word that points to a previous episode, and its language has a list of such words.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property

from kgray.domain.ontology import Ontology
from kgray.domain.records import ExtractedFact, Extraction
from kgray.graph import names
from kgray.ingest.directions import end_names, second_directions, telling_words
from kgray.ingest.extract import ReadTexts, is_form
from kgray.language.words import plain_words, stem
from kgray.ports import ExtractionRequest
from kgray.search.query import language_of, languages

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
