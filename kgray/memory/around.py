"""The part of a group's graph that `show` prints of one id."""

from __future__ import annotations

from kgray import kinds, rows
from kgray.derivation.around import records_around
from kgray.derivation.group import GroupGraph
from kgray.derivation.view import View
from kgray.graph import Entity
from kgray.ledger import Bearers, episodes_at
from kgray.ports import Store
from kgray.records import GroupRecords


class ViewAround(View):
    """The graph of some of a group's episodes. Entities show as the store has them, with all their names."""

    def __init__(self, store: Store, records: GroupRecords) -> None:
        """Derive the graph."""
        super().__init__(records, lambda sequences: episodes_at(store, records.group, sequences))
        self._store = store

    def all_entities(self) -> list[Entity]:
        """Return all entities of these episodes, by id."""
        ids = sorted(self.graph.entities)
        return [rows.entity(row) for row in self._store.rows(kinds.ENTITIES_OF, self.group, ids)]


def view_around(store: Store, group: str, identifier: str, found: Bearers) -> ViewAround:
    """Return a view in which what `reports.matches` shows of an id is as in the whole group.

    found   what has the id; inside `Store.reading`
    """
    facts = [
        row
        for read in (kinds.FACTS_OF, kinds.FACTS_OF_STATEMENTS)
        for row in store.rows(read, group, [identifier])
    ]
    told = {row[1] for row in store.rows(kinds.EVIDENCE_OF, group, [identifier])}

    def wanted(graph: GroupGraph) -> set[str]:
        """Return the statements with which `reports.matches` begins."""
        places = graph.places()
        shown = {places[place] for place in places if place[0] in {*found.episodes, *told}}
        subjects = {*graph.shows.get(identifier, ()), identifier}
        shown |= {s.id for s in graph.statements.values() if s.subject in subjects or s.object in subjects}
        return shown | ({identifier, *(row[1] for row in facts)} & graph.statements.keys())

    entities = {identifier, *(row[2] for row in facts)}
    episodes = {*found.episodes, *told}
    return ViewAround(store, records_around(store, group, wanted, episodes=episodes, entities=entities))
