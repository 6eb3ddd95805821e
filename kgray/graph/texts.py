"""The texts of the graph: of a fact, and of an entity its summary. No model writes them.

The text of a fact is the sentence of a supporter that reads true, else words composed from names (R18a).

A summary has the sentences of at most `NEWEST` open facts of an entity, the newest `created_at` first, then
by id, and each sentence once. A fact is open while no record names its end. A stored text cannot change
because time passes. Therefore a fact with a future end is left out at once, and a fact with a future start is
written with its date. The summary for a past moment has the newest facts that held at it (`summary_of`).

`update_summaries` keeps the summaries of a graph current at the cost of the facts that changed.
`corrected_entities` reads the newest facts from the store: a correction derives only a part of a group.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

from kgray.domain.graph import Entity, Fact
from kgray.domain.ontology import Ontology
from kgray.domain.records import Evidence, EvidenceKind, ExtractedEntity, ExtractedFact, Extraction
from kgray.domain.times import Instant, show
from kgray.graph.names import EntityNote, Relations
from kgray.graph.sentences import reads_true, verb_phrase
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
from kgray.ports import GraphView, Store
from kgray.schema import reads, rows
from kgray.timeline import Claim, Said, Span

if TYPE_CHECKING:
    from kgray.graph.change import Difference
    from kgray.graph.group import GroupGraph, SpanChanges


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

    It depends only on the span and on evidence, which never changes: if an entity gets another name
    later, only composed texts change. Without such a sentence the text is composed.
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

    The opener is first. Another claim is placed at its start; if it starts before the point that opened the
    span, it is placed at its reference time, because its confirmation supports the span.
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


NEWEST = 5  # facts in a summary
LENGTH = 500  # maximal number of characters in a summary
# If fewer than NEWEST sentences are left, this number is read again, so that the next facts that end cause no
# further reading.
_SPARE = 2 * NEWEST
_FULL = 4 * NEWEST  # a longer list is cut to _SPARE
_FAR_FUTURE = 1 << 62  # an instant after all others: a fact that holds at it has no end
_STOPS = (".", "!", "?", "\u2026", "\u3002")


class FactSentence(NamedTuple):
    """The sentence of one fact in a summary. Sentences sort as their facts do, the newest first."""

    order: int  # minus the record time of the fact
    fact_id: str
    text: str


@dataclass(slots=True)
class NewestFacts:
    """The sentences of the newest open facts of an entity, sorted.

    It has every open fact that is at least as new as the oldest fact in the list; complete: all open facts.
    """

    sentences: list[FactSentence]
    complete: bool
    _text: str | None = None

    def text(self) -> str:
        """Return the summary."""
        if self._text is None:
            self._text = _joined(self.sentences)
        return self._text

    def replace(self, changed: Collection[str], sentences: Iterable[FactSentence]) -> bool:
        """Remove the changed facts, add their new sentences; return whether a summary can still be made."""
        last = self.sentences[-1][:2] if self.sentences else None
        result = [sentence for sentence in self.sentences if sentence.fact_id not in changed]
        for sentence in sentences:
            if self.complete or (last is not None and sentence[:2] <= last):
                result.append(sentence)
        result.sort()
        if len(result) > _FULL:
            del result[_SPARE:]
            self.complete = False
        if result[:NEWEST] != self.sentences[:NEWEST]:
            self._text = None
        self.sentences = result
        return self.complete or len(result) >= NEWEST


def _joined(sentences: Iterable[FactSentence]) -> str:
    """Return the text of sorted sentences. A first sentence that is too long for a summary is cut."""
    distinct = dict.fromkeys(sentence.text for sentence in list(sentences)[:NEWEST])
    text = ""
    for sentence in distinct:
        longer = f"{text} {sentence}" if text else sentence
        if len(longer) > LENGTH:
            return text or f"{sentence[: LENGTH - 1]}\u2026"
        text = longer
    return text


def _sentence(fact: Fact, *, dated: bool = True) -> FactSentence:
    """Return the sentence of a fact; dated: with the date of its start, if that was then in the future."""
    text = fact.text.strip()
    if dated and not fact.event and fact.valid_at is not None and fact.valid_at > fact.created_at:
        text = f"{text.rstrip('.')} (from {str(show(fact.valid_at))[:10]})"
    return FactSentence(-fact.created_at, fact.id, text if text.endswith(_STOPS) else f"{text}.")


def summary_of(facts: Iterable[Fact], as_of: Instant | None = None) -> str:
    """Return the summary of an entity with these facts: at a past moment, or (None) of its open facts."""
    if as_of is None:
        sentences = {_sentence(fact) for fact in facts if fact.invalid_at is None}
    else:
        sentences = {_sentence(fact, dated=False) for fact in facts if fact.holds_at(as_of)}
    return _joined(nsmallest(NEWEST, sentences))


def summaries_of(facts: Iterable[Fact]) -> dict[str, str]:
    """Return the summaries by entity id, from all facts of a graph; none for an entity without open facts."""
    by_entity: dict[str, list[Fact]] = {}
    for fact in facts:
        if fact.invalid_at is None:
            for entity in set(fact.ends):
                by_entity.setdefault(entity, []).append(fact)
    return {entity: summary_of(facts) for entity, facts in by_entity.items()}


def summarised(view: GraphView, entities: Iterable[Entity], as_of: Instant | None) -> list[Entity]:
    """Return entities with their summaries at a past moment, by one read for each; None: as they are."""
    if as_of is None:
        return list(entities)
    result = []
    for entity in entities:
        facts = view.facts_at([entity.id], as_of, NEWEST)
        result.append(replace(entity, summary=summary_of(facts, as_of)))
    return result


def newest_facts(
    graph: GroupGraph, entity: str, former_spans: Mapping[str, Sequence[Span]] | None = None, count: int = 0
) -> NewestFacts:
    """Return the newest open facts of an entity; sweep as few statements as possible.

    former_spans    spans of some statements that replace their present ones
    count           the minimum number of facts, unless the entity has fewer; 0: the number of a summary
    """
    count = count or NEWEST
    sentences: list[FactSentence] = []
    complete = True
    # No fact of a statement is newer than its newest claim, so the statements are taken in that order.
    statements = (graph.statements[id_] for id_ in dict.fromkeys(graph.about.get(entity, ())))
    recorded = {
        statement.id: max((claim.recorded for claim in statement.claims), default=0)
        for statement in statements
    }
    for statement in sorted(recorded, key=lambda id_: (-recorded[id_], id_)):
        is_enough = len(sentences) >= count and -recorded[statement] > max(sentences).order
        if is_enough or len(sentences) > _FULL:
            sentences, complete = nsmallest(count, sentences), False
            if -recorded[statement] > sentences[-1].order:
                break
        if former_spans is not None and statement in former_spans:
            spans = former_spans[statement]
        else:
            spans = graph.spans_now(statement)
        sentences += [_sentence(graph.fact(span)) for span in spans if span.end is None]
    return NewestFacts(sorted(sentences), complete)


def summary_in(graph: GroupGraph, entity: str) -> str:
    """Return the summary of an entity in a graph."""
    if entity not in graph.newest:
        graph.newest[entity] = newest_facts(graph, entity)
    return graph.newest[entity].text()


def update_summaries(
    graph: GroupGraph,
    changes: SpanChanges,
    facts: Iterable[Fact],
    removed: Iterable[str],
    reworded: Iterable[str],
) -> set[str]:
    """Update the newest facts of the entities that a change touched; return the ids with a new summary.

    changes     the former and the present spans by statement
    facts       the facts that are new or differ; removed: the ids of facts that no longer exist
    reworded    statements whose facts have a new text with the same spans
    """
    reworded = set(reworded)
    by_entity: dict[str | None, list[Fact]] = {}
    changed_ids = set(removed)
    for fact in facts:
        changed_ids.add(fact.id)
        for entity in {fact.source, fact.target}:
            by_entity.setdefault(entity, []).append(fact)
    former_spans = {statement: spans for statement, (spans, _) in changes.items()}
    statements = [graph.statements[id_] for id_ in {*changes, *reworded}]
    entities = {
        end for statement in statements for end in (statement.subject, statement.object) if end is not None
    }
    result = set()
    for entity in entities:
        is_new_here = entity not in graph.newest
        newest = newest_facts(graph, entity, former_spans) if is_new_here else graph.newest[entity]
        former_text, changed_facts = newest.text(), by_entity.get(entity, ())
        open_facts = (fact for fact in changed_facts if fact.invalid_at is None)
        if not newest.replace(changed_ids, map(_sentence, open_facts)):
            newest = newest_facts(graph, entity, count=_SPARE)
        graph.newest[entity] = newest
        # The former words of a reworded fact are not known here, if the entity had no list.
        is_reworded = is_new_here and any(fact.statement in reworded for fact in changed_facts)
        if is_reworded or newest.text() != former_text:
            result.add(entity)
    return result


def corrected_entities(
    store: Store, group: str, difference: Difference, changed: Iterable[Entity]
) -> tuple[Entity, ...]:
    """Return the entities that a merge, a split or an undo changes, or gives a new summary, sorted by id.

    difference  of the graphs before and after the correction; changed: the entities that differ in themselves

    These graphs have all facts of the corrected entities, but only some facts of their neighbours. Therefore
    the newest facts are read from the store, as they were before: two reads, and one more for each entity.
    """
    facts = {fact.id: fact for fact in difference.facts}
    changed_ids = {*facts, *difference.gone_facts}
    former_rows = store.rows(reads.FACTS_OF, group, sorted(changed_ids)) if changed_ids else ()
    former_facts = list(map(rows.fact, former_rows))
    present = {entity.id: entity for entity in changed}
    touched = {end for fact in (*former_facts, *facts.values()) for end in fact.ends} | present.keys()
    ids = sorted(touched - {*difference.gone_entities})
    entity_rows = store.rows(reads.ENTITIES_OF, group, ids) if ids else ()
    stored = {row.id: rows.entity(row) for row in entity_rows}
    result = []
    for id_ in ids:
        limit = NEWEST + sum(id_ in fact.ends for fact in former_facts)
        read = store.facts_at(group, [id_], _FAR_FUTURE, limit)
        unchanged = [fact for fact in read if fact.id not in changed_ids]
        new_facts = [fact for fact in facts.values() if id_ in fact.ends]
        entity = replace(present.get(id_) or stored[id_], summary=summary_of([*unchanged, *new_facts]))
        if entity != stored.get(id_):
            result.append(entity)
    return tuple(result)
