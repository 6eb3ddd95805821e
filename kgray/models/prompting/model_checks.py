"""Checks of an extraction against its text: entities of other messages, facts from questions.

Small models copy from the previous context, and turn "Has anyone seen my mug?" into a fact. Both checks leave
out what the text itself does not say, with a line in `Extraction.dropped`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from kgray.domain.records import Episode, EpisodeKind, ExtractedFact, Extraction, with_entities

_WORDS = re.compile(r"[^\W_]+")
_CLAUSES = re.compile(r"[^.!?;:,\n\u3002\uff1f\uff01]+[.!?;:,\n\u3002\uff1f\uff01]*")
_QUESTION = re.compile(r"[?\uff1f][.!?]*\s*$")
# Words of a sentence that say nothing by themselves.
_EMPTY = frozenset(
    """the an is are was were be been has have had do does did of to in on at for and or not with by from as
    that this it its his her their new role""".split()
)
_SHARED = 4  # letters that two forms of one word share at least: "owe", "owes"; "repair", "repaired"
# Pronouns and words of place, in the languages of `_COMMON`.
_REFERENCE = re.compile(
    r"\b(?:he|him|his|she|her|hers|they|them|their|theirs|it|its|there|those|these|both|same"
    r"|er|ihn|ihm|sein|seine|seiner|sie|ihr|ihre|ihren|dort|él|ella|ellos|ellas|su|sus|allí|il|elle|lui|leur|leurs"
    r"|son|sa|ses)\b",
    re.IGNORECASE,
)
_COMMON = re.compile(
    r"\b(?:the|a|an|is|are|was|i|i'm|my|we|you|to|in|on|at|with|for|not|and|of|have|has|der|die|das|und|ist|ich|ein|eine|el|los|las|una|es|que|y"
    r"|le|les|une|est|et|je)\b",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<![.!?:]\s)(?<!^)\b[A-Z\u00c0-\u00de][\w'’-]+|\b[A-Z][\w'’-]+ [A-Z][\w'’-]+")


class Message(Protocol):
    """The part of an episode that decides whether it needs its context."""

    @property
    def kind(self) -> EpisodeKind:
        """Its kind."""

    @property
    def text(self) -> str:
        """Its text; of a previous message at least the end."""

    @property
    def speaker(self) -> str | None:
        """Its speaker, None where it has none."""


_M = TypeVar("_M", bound=Message)


def needed_context(episode: Message, previous: Sequence[_M]) -> Sequence[_M]:
    """Return the previous episodes that a prompt shows: all of them or, where the text explains itself, none.

    They are shown where a word such as "she" or "there" stands before the first name of the text, where the
    text names nothing and answers a question of another speaker, and with texts in a language that is not
    listed here. Records explain themselves.
    Read by a model of 1.5 billion parameters, ten messages with such words had an F1 of facts of .46 without
    context, of .30 with one message of it, and of .37 with four that stood in a chat turn of their own: it
    copies the facts of the context.
    """
    if episode.kind == "json" or not previous:
        return ()
    name = _NAME.search(episode.text)
    reference = _REFERENCE.search(episode.text)
    is_open = reference is not None and (name is None or reference.start() < name.start())
    is_answer = name is None and _answers(episode, previous)
    return previous if is_open or is_answer or not _COMMON.search(episode.text) else ()


def _answers(episode: Message, previous: Sequence[Message]) -> bool:
    """Return whether the message before is a question of another speaker."""
    last = previous[-1]
    return last.speaker != episode.speaker and _QUESTION.search(last.text) is not None


def without_previous(extraction: Extraction, previous: Sequence[Episode]) -> Extraction:
    """Leave out entities that only the previous context names, and that no fact needs.

    A name that shares no word with either text, such as a nickname, stays.
    """
    context = words_of(" ".join(f"{episode.speaker or ''} {episode.text}" for episode in previous))
    needed = {fact.source for fact in extraction.facts} | {fact.target for fact in extraction.facts}
    places = []
    for place, entity in enumerate(extraction.entities):
        words = words_of(entity.name)
        is_of_context = place > 0 and entity.span is None and bool(words) and words <= context
        if place in needed or not is_of_context:
            places.append(place)
    return extraction if len(places) == len(extraction.entities) else with_entities(extraction, places)


def without_foreign_facts(
    extraction: Extraction, episode: Episode, previous: Sequence[Episode]
) -> Extraction:
    """Leave out facts without a word of the text: no name but the speaker's, no value, no other word.

    It applies only if the prompt shows previous episodes, because small models copy facts out of them. It
    keeps the facts of answers ("Yes.") and of texts in a language that is not listed here.
    """
    if not previous or _answers(episode, previous) or not _COMMON.search(episode.text):
        return extraction
    text = words_of(episode.text)

    def is_foreign(fact: ExtractedFact) -> bool:
        ends = [extraction.entities[end].name for end in (fact.source, fact.target) if end is not None]
        foreign = words_of(" ".join((*ends, episode.speaker or "")))
        named = words_of(" ".join(name for name in ends if name != episode.speaker))
        words = named | (words_of(f"{fact.text} {fact.relation.replace('_', ' ')}") - foreign - _EMPTY)
        return bool(words) and not _overlap(words, text)

    return _drop_facts(extraction, is_foreign, "has no word of the text")


def without_questions(extraction: Extraction, episode: Episode) -> Extraction:
    """Leave out facts that were read in a question: the clause that shares most words with the fact asks."""
    if episode.kind == "json" or not re.search(r"[?\uff1f]", episode.text):
        return extraction
    clauses = [match[0] for match in _CLAUSES.finditer(episode.text)]
    return _drop_facts(extraction, lambda fact: _is_asked(fact, extraction, clauses), "stands in a question")


def _drop_facts(extraction: Extraction, is_dropped: Callable[[ExtractedFact], bool], why: str) -> Extraction:
    """Return an extraction without the facts of a kind, each noted as dropped with the reason."""
    checked = [(fact, is_dropped(fact)) for fact in extraction.facts]
    notes = tuple(f"facts: {fact.text[:80]!r} {why}" for fact, drops in checked if drops)
    if not notes:
        return extraction
    facts = tuple(fact for fact, drops in checked if not drops)
    return replace(extraction, facts=facts, dropped=(*extraction.dropped, *notes))


def _is_asked(fact: ExtractedFact, extraction: Extraction, clauses: Sequence[str]) -> bool:
    ends = [extraction.entities[end].name for end in (fact.source, fact.target) if end is not None]
    words = words_of(" ".join((fact.text, fact.relation.replace("_", " "), *ends)))
    scores = [_overlap(words, words_of(clause)) for clause in clauses]
    best = max(scores, default=0)
    likely = [clause for clause, score in zip(clauses, scores, strict=True) if score == best]
    return best > 0 and all(_QUESTION.search(clause) for clause in likely)


def _overlap(words: frozenset[str], clause: frozenset[str]) -> int:
    """Return how many words have a form in a clause."""
    return sum(any(_is_form(word, form) for form in clause) for word in words)


def _is_form(word: str, form: str) -> bool:
    if word == form:
        return True
    shared = min(len(word), len(form), max(_SHARED, min(len(word), len(form)) - 1))
    return shared >= _SHARED and word[:shared] == form[:shared]


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text in lower case, without words of one letter."""
    return frozenset(word.casefold() for word in _WORDS.findall(text) if len(word) > 1)
