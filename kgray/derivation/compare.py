"""Two graphs of one group compared: before and after a correction."""

from __future__ import annotations

from collections.abc import Iterable

from kgray.derivation.change import Difference, SpanChanges, fact_changes
from kgray.derivation.group import GroupGraph
from kgray.derivation.statements import Statement


def compare(old: GroupGraph, new: GroupGraph) -> Difference:
    """Return the difference between two graphs of one group; sweeps only the statements that changed."""
    was, now = old.places(), new.places()
    places = sorted(was.keys() | now.keys())
    spoken = tuple((place, now.get(place)) for place in places if was.get(place) != now.get(place))
    moved = {s for p in places if old.moved.get(p) != new.moved.get(p) for s in (was.get(p), now.get(p)) if s}
    facts, gone = fact_changes(old.fact, new.fact, _changed_spans(old, new, moved | _touched(old, new)))
    before, after = ({e: note.shown() for e, note in graph.entities.items()} for graph in (old, new))
    shows_before, shows_now = _shown_pairs(old), _shown_pairs(new)
    return Difference(
        entities=tuple(entity for i, entity in sorted(after.items()) if before.get(i) != entity),
        gone_entities=tuple(sorted(before.keys() - after.keys())),
        facts=facts,
        gone_facts=gone,
        shown=tuple(sorted(shows_now - shows_before)),
        unshown=tuple(sorted(shows_before - shows_now)),
        spoken=spoken,
    )


def _touched(old: GroupGraph, new: GroupGraph) -> set[str]:
    touched = set(old.statements.keys() ^ new.statements.keys())
    for statement, now in new.statements.items():
        was = old.statements.get(statement)
        if was is not None and _key_facts(was) != _key_facts(now):
            touched.add(statement)
    for name in old.by_relation.keys() | new.by_relation.keys():
        words, words_now = (graph.relations.aspect(name, "text") for graph in (old, new))
        if old.relations.traits(name) != new.relations.traits(name) or words != words_now:
            touched.update(old.by_relation.get(name, ()), new.by_relation.get(name, ()))
    for entity in old.entities.keys() & new.entities.keys():
        if old.entities[entity].name != new.entities[entity].name:
            touched.update(old.about.get(entity, ()), new.about.get(entity, ()))
    for statement in old.verdicts.keys() | new.verdicts.keys():
        if old.verdicts.get(statement) != new.verdicts.get(statement):
            touched.add(statement)
    return touched


def _key_facts(statement: Statement) -> tuple[object, ...]:
    return statement.key, statement.variant, statement.first, statement.claims


def _changed_spans(old: GroupGraph, new: GroupGraph, touched: Iterable[str]) -> SpanChanges:
    """Return old and new spans of the touched statements and of their components in either graph."""
    asked = set(touched)
    while True:
        was = old.spans_of(s for s in sorted(asked) if s in old.statements)
        now = new.spans_of(s for s in sorted(asked) if s in new.statements)
        reached = was.keys() | now.keys()
        if reached <= asked:
            return {s: (was.get(s, ()), now.get(s, ())) for s in sorted(asked)}
        asked |= reached


def _shown_pairs(graph: GroupGraph) -> set[tuple[str, str]]:
    return {(recorded, i) for recorded, shown in graph.shown_by_recorded().items() for i in shown}
