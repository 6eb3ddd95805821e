"""The text of a fact: the sentence of a supporter that reads true, else words composed from names (R18a)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kgray.domain.ontology import Ontology
from kgray.domain.records import Evidence, EvidenceKind, ExtractedEntity, ExtractedFact, Extraction
from kgray.domain.times import Instant, show
from kgray.graph.names import EntityNote, Relations
from kgray.graph.sentences import reads_true
from kgray.graph.statements import (
    NEGATIONS,
    NOT_ENDINGS,
    TIME_PHRASE,
    WORD,
    Marks,
    Statement,
    marks_of,
    remaining_marks,
)
from kgray.graph.verbs import verb_phrase
from kgray.timeline import Claim, Said, Span

OBJECT = "{object}"  # the place of the object in a relation's words; without it the object follows them
_DATES = {"year": ("in", 4), "month": ("in", 7), "day": ("on", 10), "instant": ("on", 10)}
_ALWAYS: Instant = -(1 << 62)  # before every instant
# Relations that say a "not" themselves: "I don't like tea" as DISLIKES is no variant of it.
_SAYS_NOT = re.compile(
    r"(?:^|_)(?:DISLIKES?|DISAGREES?|DISAPPROVES?|HATES?|AVOIDS?|LACKS?|REJECTS?|REFUSES?|NOT|NO|NEVER)(?:_|$)"
)


# Text, id of the episode, and the surfaces of the mentions that are subject and object (None beside a value).
# A plain tuple, because a group of 100,000 facts has one for each piece of evidence.
Sentence = tuple[str, str, str, str | None]


def fact_text(
    statement: Statement,
    span: Span,
    sentences: Mapping[Said, Sentence],
    entities: Mapping[str, EntityNote],
    relations: Relations,
) -> str:
    """Return the text of a span's fact: the first sentence in the order of points that reads true (R18a).

    It depends only on the span and on evidence, which never changes: a later name of an end changes composed
    texts alone. Without such a sentence the text is composed.
    """
    kind: EvidenceKind = "happened" if statement.is_event else "holds"
    for claim in _by_points(span):
        if claim.kind == kind:
            sentence, _, subject, surface = sentences[claim.said]
            target = surface if statement.value is None else statement.value
            if target is not None and reads_true(sentence, subject, target, kind == "happened"):
                return sentence
    return composed_text(statement, entities, relations)


def _by_points(span: Span) -> Iterator[Claim]:
    """Yield the supporters of a span in order of their first supporting points (R7).

    The opener comes first. Another claim has its start as this point, or, if it starts before the opener's
    point, its reference time, when it confirms the span.
    """
    opener = span.opened
    yield opener
    if len(span.support) == 1:
        return
    opening = opener.said[0] if span.point == "confirmation" else _start_of(opener)

    def point(claim: Claim) -> tuple[Instant, bool, tuple[Instant, int, int]]:
        start = _start_of(claim)
        return (start, True, claim.said) if start >= opening else (claim.said[0], False, claim.said)

    yield from sorted((claim for claim in span.support if claim is not opener), key=point)


def _start_of(claim: Claim) -> Instant:
    return _ALWAYS if claim.start is None else claim.start


def distinction(statement: Statement, names: Iterable[str]) -> str:
    """Return the words that set a statement's variant apart: qualifiers, digits, negations; "" = none.

    names: of the entities that it connects; their own words do not count.
    """
    return _distinguishing(statement.first, statement.relation, remaining_marks(names, statement.marks))


def default_sentence(fact: ExtractedFact, subject: str, target: str, words: str = "") -> str:
    """Return an extracted fact in words without its own sentence, for a sentence that says too much (R18a).

    words: of the relation; "" = its name. OBJECT in them stands for the target.
    The words that would set a variant apart stay, in brackets, because they decide which statement it is.
    Digits go.
    """
    _, negated, qualifiers = remaining_marks((subject, target), marks_of(fact))
    variant = _distinguishing(fact, fact.relation, (frozenset(), negated, qualifiers))
    sentence = f"{subject} {_predicate(words or fact.relation.lower().replace('_', ' '), target)}"
    return f"{sentence} ({variant})" if variant else sentence


def with_own_sentences(extraction: Extraction, ontology: Ontology) -> Extraction:
    """Return the extraction in which no two states of different relations share a sentence (R18a).

    "Alice works at Acme as a designer" would outlive the job in the text of the role, so each of these facts
    gets the words of its relation between its ends.
    """
    relations: dict[str, set[str]] = {}
    for fact in extraction.facts:
        if fact.kind == "holds":
            relations.setdefault(fact.text, set()).add(fact.relation)
    shared = {text for text, names in relations.items() if len(names) > 1}
    if not shared:
        return extraction

    def own(fact: ExtractedFact) -> ExtractedFact:
        if fact.kind != "holds" or fact.text not in shared:
            return fact
        declared, subject = ontology.get(fact.relation), extraction.entities[fact.source].name
        words, target = declared.text if declared else "", object_words(fact, extraction.entities)
        return replace(fact, text=default_sentence(fact, subject, target, words))

    return replace(extraction, facts=tuple(map(own, extraction.facts)))


def object_words(fact: ExtractedFact, entities: Sequence[ExtractedEntity]) -> str:
    """Return the object of a fact in words."""
    if fact.target is not None:
        return entities[fact.target].name
    return "" if fact.value is None else fact.value.shown()


def _predicate(words: str, target: str) -> str:
    return words.replace(OBJECT, target) if OBJECT in words else f"{words} {target}"


def _distinguishing(source: Evidence | ExtractedFact, relation: str, marks: Marks) -> str:
    """Return these marks in the words of a sentence. A number comes with the word that it counts.

    Events are set apart by their dates, so their numbers are left out; so is "always", which says when.
    """
    numbers, negated, qualifiers = marks
    negated = negated and not _SAYS_NOT.search(relation)
    if not (numbers or negated or qualifiers):
        return ""
    words = WORD.findall(TIME_PHRASE.sub(" ", source.text))
    distinct: dict[str, None] = {}
    for word, following in zip(words, (*words[1:], ""), strict=True):
        folded = word.casefold()
        if folded in qualifiers and folded != "always":
            distinct[folded] = None
        elif folded in numbers and source.kind != "happened":
            distinct[f"{word} {following}" if following.islower() else word] = None
        elif negated and word != words[0] and (folded in NEGATIONS or folded.endswith(NOT_ENDINGS)):
            distinct["not" if folded.endswith("t") else folded] = None
    return ", ".join(distinct)


def composed_text(statement: Statement, entities: Mapping[str, EntityNote], relations: Relations) -> str:
    """Return a statement's relation between the names of its ends, in the present (R18a).

    It reads true at every moment of a span, also where no sentence does ("sold", "will start"). The words
    that set a variant apart follow in brackets. An event is in the past, with its date.
    """
    subject, first = entities[statement.subject].name, statement.first
    declared = relations.aspect(statement.relation, "text")
    words = declared.value if declared else ""
    words = words or verb_phrase(statement.relation, event=statement.is_event)
    if statement.object is not None:
        object_text = entities[statement.object].name
        variant = distinction(statement, (subject, object_text))
    else:
        object_text = "" if statement.value is None else statement.value.shown()
        variant = distinction(statement, (subject,))
        if statement.value is not None and statement.value.type == "boolean" and OBJECT not in words:
            words += ":"
    predicate = _predicate(words, object_text)
    date = ""
    if statement.is_event and first.valid_from is not None:  # as precise as it was said, at most to the day
        word, length = _DATES[first.from_precision or "instant"]
        date = f"{word} {str(show(first.valid_from))[:length]}"
    return " ".join(filter(None, (subject, predicate, f"({variant})" if variant else "", date)))
