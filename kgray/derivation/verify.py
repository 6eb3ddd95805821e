"""Compare the stored graph with the one that the records derive."""

from __future__ import annotations

from kgray.derivation.stored import StoredView, records_of
from kgray.derivation.view import View
from kgray.ports import GroupCounts, Store, at_one_moment


def differences(store: Store, group: str) -> list[str]:
    """Return one line for each difference between a group's stored graph and the one its records derive."""

    def compared() -> list[str]:
        view, stored = View(records_of(store, group), lambda _: []), StoredView(store, group)
        facts, entities = view.all_facts(), view.all_entities()
        held = store.counts(group).get(group, GroupCounts())
        sums = (("entities", held.entities, len(entities)), ("facts", held.facts, len(facts)))
        lines = [f"{n} {what} are stored, {m} follow from the records" for what, n, m in sums if n != m]
        there = {fact.id: fact for fact in stored.facts([fact.id for fact in facts])}
        lines += [f"fact {fact.id} differs" for fact in facts if there.get(fact.id) != fact]
        shown = {entity.id: entity for entity in stored.entities([entity.id for entity in entities])}
        return lines + [
            f"entity {entity.id} differs" for entity in entities if shown.get(entity.id) != entity
        ]

    return at_one_moment(store, compared)
