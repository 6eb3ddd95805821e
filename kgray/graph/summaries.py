"""The summary of an entity: the sentences of its newest open facts as one short text. No model writes it.

A summary has at most `NEWEST` facts, the newest `created_at` first, then by id, and each sentence once. A
fact is open while no record names its end. A stored text cannot change because time passes. Therefore a fact
with a future end is left out at once, and a fact with a future start is written with its date. The summary
for a past moment has the newest facts that held at that moment (`summary_of`).

`update_summaries` keeps the summaries of a graph current at the cost of the facts that changed.
`corrected_entities` reads the newest facts from the store: a correction derives only a part of a group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

from kgray.domain.graph import Entity, Fact
from kgray.domain.times import Instant, show
from kgray.ports import GraphView, Store
from kgray.schema import reads, rows
from kgray.timeline import Span

if TYPE_CHECKING:
    from kgray.graph.change import Difference
    from kgray.graph.group import GroupGraph, SpanChanges

NEWEST = 5  # facts in a summary
LENGTH = 500  # maximal number of characters in a summary
# So many sentences are read after facts of a summary have ended, and the next end needs no new reading.
_SPARE = 2 * NEWEST
_FULL = 4 * NEWEST  # a longer list is cut to _SPARE
_FAR_FUTURE = 1 << 62  # an instant after all others: a fact that holds at it has no end
_STOPS = (".", "!", "?", "\u2026", "\u3002")


class FactSentence(NamedTuple):
    """The sentence of one fact in a summary. Sentences sort as their facts do, the newest first."""

    age: int  # minus the record time of the fact
    fact_id: str
    text: str


@dataclass(slots=True)
class NewestFacts:
    """The sentences of the newest open facts of an entity, sorted.

    The list has every open fact that is at least as new as its last; complete: it has all open facts.
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
    graph: GroupGraph,
    entity: str,
    former_spans: Mapping[str, Sequence[Span]] | None = None,
    count: int = 0,
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
        is_enough = len(sentences) >= count and -recorded[statement] > max(sentences).age
        if is_enough or len(sentences) > _FULL:
            sentences, complete = nsmallest(count, sentences), False
            if -recorded[statement] > sentences[-1].age:
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
    by_entity: dict[str, list[Fact]] = {}
    changed_ids = set(removed)
    for fact in facts:
        changed_ids.add(fact.id)
        for entity in set(fact.ends):
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
