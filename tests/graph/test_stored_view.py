"""The stored graph as a reader sees it, for any recorded ids (R16); above the stores."""

from __future__ import annotations

from itertools import chain

import pytest

from kgray.domain.records import Operation
from kgray.graph.stored import StoredView
from kgray.schema import kinds
from tests.graph.by_hand import all_of, append, ask, draft, ended, small, tell


@pytest.fixture
def store(tmp_path):
    opened = small(tmp_path)
    yield opened
    opened.close()


def carried_out(store, at, puts, drops=None):
    """Apply rows like a correction."""
    operation = Operation(group="g", kind="merge")
    operation = Operation(group="g", kind="merge", sequence=ask(store, operation))
    store.apply([ended(operation, at, puts=puts, drops=drops or {})])


def test_recorded_ids_resolve_to_merged_and_split_entities(store):
    """R16: a merge folds E2 into E1, a split shows E1 as two."""
    view = StoredView(store, "g")
    with store.writing():
        tell(store, "Al", "one")
        tell(store, "Bo", "two")
        facts = {row.id: row for row in all_of(store, kinds.FACTS)}
        carried_out(store, 50, {
            kinds.ENTITIES: [("E1", "Al", ("Bo",), (), 1, 0, "Al is there.")],
            kinds.SHOWN_ENTITIES: [("E2", "E1")],
            kinds.FACTS: [facts["F2"]._replace(statement="S1", source="E1")],
            kinds.SHOWN_EVIDENCE: [(2, 0, "S2", "S1")],
        }, {kinds.ENTITIES: [("E2",)]})  # fmt: skip
    assert [entity.id for entity in view.entities(["E2", "E1"])] == ["E1"]
    assert [fact.id for fact in view.facts_of(["S2"], None)] == ["F1", "F2"]
    assert [fact.id for fact in view.facts_of(["S2", "S1"], 4)] == []
    assert [fact.id for fact in chain(*view.facts_of_evidence([(2, 0), (9, 9)], 6))] == ["F1", "F2"]
    assert [fact.id for fact in view.facts_at(["E2"], None, 1)] == ["F2"]
    assert [entity.id for entity in view.entities_named(" bO ")] == ["E1"]
    with store.writing():
        carried_out(store, 60, {
            kinds.ENTITIES: [("E1", "Al", (), (), 1, 0, ""), ("new", "Bo", (), (), 2, 0, "")],
            kinds.SHOWN_ENTITIES: [("E1", "E1"), ("E1", "new"), ("E2", "new")],
            kinds.FACTS: [facts["F2"]._replace(statement="S1", source="new")],
        }, {kinds.SHOWN_ENTITIES: [("E2", "E1")]})  # fmt: skip
    assert [entity.id for entity in view.entities(["E1"])] == ["E1", "new"]
    assert [entity.id for entity in view.entities(["new", "E2"])] == ["new"]
    assert [fact.id for fact in view.facts_at(["new"], None, None)] == ["F2"]
    assert [fact.id for fact in view.facts(["F2", "none", "F1", "F2"])] == ["F2", "F1"]
    assert [entity.id for entity in view.entities_named("Bo")] == ["new"]
    assert [entity.id for entity in view.entities_named("AL")] == ["E1"]


def test_a_view_returns_only_committed_live_rows(store):
    with store.writing():
        tell(store, "Al", "one", client_id="c")
        append(store, draft("pending"))
    view = StoredView(store, "g")
    ids = {row.sequence: row.id for row in all_of(store, kinds.EPISODES)}
    assert [row.sequence for row in view.episodes([2, 1, 1])] == [1]
    assert view.supporters([ids[1], "none"]) == {ids[1]: "c"}
    assert (view.entities([]), view.facts([]), view.facts_of([], None), view.supporters([])) == (
        [],
        [],
        [],
        {},
    )
    assert StoredView(store, "none").facts_at(["E1"], None, None) == []
