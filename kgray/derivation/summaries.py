"""The summary of an entity: its newest facts without a known end, as one short text without a model.

`NEWEST` facts at most, the newest `created_at` first, then by id; equal sentences once. A fact counts while
no record names its end: a stored text cannot change because time passes, so an end that lies ahead takes the
fact out at once, and a start that lies ahead is told with its date. A text for a past moment has the newest
facts that held then (`summary_of`).

`after_changes` keeps the texts of a graph current at the cost of the facts that changed. `after_correction`
does so from the stored facts, because a correction derives a part of the group only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

from kgray import kinds, rows
from kgray.graph import Entity, Fact
from kgray.ports import GraphView, Store
from kgray.timeline import Span, Sweep
from kgray.times import Instant, show

if TYPE_CHECKING:
    from kgray.derivation.change import Difference
    from kgray.derivation.group import GroupGraph, SpanChanges

NEWEST = 5  # facts of a summary
LENGTH = 500  # characters of a summary, at most
_SPARE = 2 * NEWEST  # kept in memory of an entity whose facts ended, so that it seldom needs another look
_FULL = 4 * NEWEST  # above this the older ones are let go
_ENDLESS = 1 << 62  # an instant after all others: what holds then has no known end
_STOPS = (".", "!", "?", "\u2026", "\u3002")


class Sentence(NamedTuple):
    """What a summary says of one fact; sentences sort as their facts do, the newest first."""

    age: int  # minus the record time of the fact
    fact: str
    text: str


@dataclass(slots=True)
class Newest:
    """The newest open facts of an entity, sorted; is_all: the entity has no others."""

    sentences: list[Sentence]
    is_all: bool
    _text: str | None = None

    def text(self) -> str:
        """Return the summary."""
        if self._text is None:
            self._text = _joined(self.sentences)
        return self._text

    def change(self, gone: Collection[str], fresh: Iterable[Sentence]) -> bool:
        """Take facts out, then others in; return whether the newest are still known."""
        floor = None if self.is_all or not self.sentences else self.sentences[-1]
        kept = [one for one in self.sentences if one.fact not in gone]
        kept += [one for one in fresh if self.is_all or (floor is not None and one[:2] <= floor[:2])]
        kept.sort()
        if len(kept) > _FULL:
            del kept[_SPARE:]
            self.is_all = False
        if kept[:NEWEST] != self.sentences[:NEWEST]:
            self._text = None
        self.sentences = kept
        return self.is_all or len(kept) >= NEWEST


def _joined(sentences: Iterable[Sentence]) -> str:
    """Return the text of sorted sentences; one that is longer than a whole summary is cut."""
    found = dict.fromkeys(one.text for one in list(sentences)[:NEWEST])
    text = ""
    for sentence in found:
        longer = f"{text} {sentence}" if text else sentence
        if len(longer) > LENGTH:
            return text or f"{sentence[: LENGTH - 1]}\u2026"
        text = longer
    return text


def _sentence(fact: Fact, *, is_past: bool = False) -> Sentence:
    text = fact.text.strip()
    if not fact.event and not is_past and fact.valid_at is not None and fact.valid_at > fact.created_at:
        text = f"{text.rstrip('.')} (from {str(show(fact.valid_at))[:10]})"
    return Sentence(-fact.created_at, fact.id, text if text.endswith(_STOPS) else f"{text}.")


def summary_of(facts: Iterable[Fact], as_of: Instant | None = None) -> str:
    """Return the summary of an entity with these facts: of those that held then, else of the open ones."""
    chosen = (f for f in facts if (f.invalid_at is None if as_of is None else f.holds_at(as_of)))
    return _joined(nsmallest(NEWEST, {_sentence(fact, is_past=as_of is not None) for fact in chosen}))


def summaries_of(facts: Iterable[Fact]) -> dict[str, str]:
    """Return entity id -> its summary, of all facts of a graph; an entity without an open fact is missing."""
    of: dict[str, list[Fact]] = {}
    for fact in facts:
        for end in set(fact.ends) if fact.invalid_at is None else ():
            of.setdefault(end, []).append(fact)
    return {entity: summary_of(those) for entity, those in of.items()}


def summarised(view: GraphView, entities: Iterable[Entity], as_of: Instant | None) -> list[Entity]:
    """Return entities with their summaries as of a moment, a read for each; None: as the view has them."""
    if as_of is None:
        return list(entities)
    return [
        replace(one, summary=summary_of(view.facts_at([one.id], as_of, NEWEST), as_of)) for one in entities
    ]


def newest_of(
    graph: GroupGraph, entity: str, earlier: Mapping[str, Sequence[Span]] | None = None, most: int = 0
) -> Newest:
    """Return the newest open facts of an entity, from as few of its statements as possible.

    earlier: the spans of some statements to be taken in place of the current ones.
    most: about how many facts; 0: those of a summary.
    """
    most = most or NEWEST
    found: list[Sentence] = []
    is_all, swept = True, dict[str, Sweep]()
    statements = [graph.statements[id_] for id_ in dict.fromkeys(graph.about.get(entity, ()))]
    # No fact of a statement is newer than its newest claim: so those behind need not be swept.
    last = {one.id: max((claim.recorded for claim in one.claims), default=0) for one in statements}
    for id_ in sorted(last, key=lambda one: (-last[one], one)):
        if len(found) > _FULL or (len(found) >= most and -last[id_] > max(found).age):
            found, is_all = nsmallest(most, found), False
            if -last[id_] > found[-1].age:
                break
        if earlier is not None and id_ in earlier:
            spans: Sequence[Span] = earlier[id_]
        else:
            if id_ not in swept:
                sweep, members = graph.sweep_of(id_)
                swept.update(dict.fromkeys(members, sweep))
            spans = swept[id_].spans(id_)
        found += [_sentence(graph.fact(span)) for span in spans if span.end is None]
    return Newest(sorted(found), is_all)


def summary_in(graph: GroupGraph, entity: str) -> str:
    """Return the summary of an entity of a graph."""
    if entity not in graph.newest:
        graph.newest[entity] = newest_of(graph, entity)
    return graph.newest[entity].text()


def after_changes(
    graph: GroupGraph,
    changes: SpanChanges,
    facts: Iterable[Fact],
    gone: Iterable[str],
    retold: Iterable[str],
) -> set[str]:
    """Bring the newest facts up to date with a change of the graph; return whose summaries differ now.

    changes         the spans of statements before and after
    facts, gone     the facts that differ, as they are now, and the ids of those that are gone
    retold          other statements whose facts have another text now
    """
    again = set(retold)
    fresh: dict[str, list[Fact]] = {}
    for fact in facts:
        for end in set(fact.ends):
            fresh.setdefault(end, []).append(fact)
    others = {fact.id for of in fresh.values() for fact in of} | set(gone)
    earlier = {statement: spans for statement, (spans, _) in changes.items()}
    statements = (graph.statements[id_] for id_ in {*changes, *again})
    touched = {end for one in statements for end in (one.subject, one.object) if end is not None}
    found = set()
    for entity in touched:
        known = graph.newest.get(entity)
        newest = newest_of(graph, entity, earlier) if known is None else known
        was, now = newest.text(), fresh.get(entity, ())
        if newest.change(others, (_sentence(fact) for fact in now if fact.invalid_at is None)):
            graph.newest[entity] = newest
        else:
            newest = graph.newest[entity] = newest_of(graph, entity, most=_SPARE)
        # Of one that was not kept, the former text is not known where facts were told otherwise.
        if newest.text() != was or (known is None and any(fact.statement in again for fact in now)):
            found.add(entity)
    return found


def after_correction(
    store: Store, group: str, difference: Difference, changed: Iterable[Entity]
) -> tuple[Entity, ...]:
    """Return the entities of a difference: those that changed, and others whose summary did, by id.

    The graphs of a merge or a split have all facts of the corrected entities alone. The newest facts of the
    others are read from the store, which has them as they were: two reads, and one more for each entity.
    """
    facts = {fact.id: fact for fact in difference.facts}
    others = {*facts, *difference.gone_facts}
    before = [rows.fact(row) for row in store.rows(kinds.FACTS_OF, group, sorted(others))] if others else []
    shown = {one.id: one for one in changed}
    touched = {end for fact in (*before, *facts.values()) for end in fact.ends} | shown.keys()
    left = sorted(touched - {*difference.gone_entities})
    stored = {row[0]: rows.entity(row) for row in store.rows(kinds.ENTITIES_OF, group, left)} if left else {}
    found = []
    for id_ in left:
        most = NEWEST + sum(id_ in fact.ends for fact in before)
        kept = [f for f in store.facts_at(group, [id_], _ENDLESS, most) if f.id not in others]
        summary = summary_of([*kept, *(fact for fact in facts.values() if id_ in fact.ends)])
        now = replace(shown.get(id_) or stored[id_], summary=summary)
        if now != stored.get(id_):
            found.append(now)
    return tuple(found)
