"""One commit, whole, and what the view then shows, on every store: R4, R16, R23."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kgray.errors import StoreError
from kgray.graph import Derived, Entity, Fact
from kgray.ports import Commit, GroupCounts, NamedVector
from kgray.records import EpisodeHead, Operation, Ruling, Verdict
from tests.graph.by_hand import draft, failed, pointing, tell, told


def test_a_commit_is_read_back_whole(store, group):
    commit = replace(
        told(1, "Al", "one", 100, episode="ep", group=group),
        rulings=(
            Ruling(sequence=1, ordinal=0, name="SAYS", aspect="cardinality", value="single", judge="j"),
        ),
        verdicts=(Verdict(sequence=1, ordinal=1, a="S1", b="S9", exclusive=True, judge="j", reason="why"),),
    )
    (accepted,) = store.accept([draft("Al says one", group=group)], now=1)
    with store.writing():
        store.write([commit])
    records = store.records(group)
    assert records.heads == [EpisodeHead(sequence=1, id=accepted.id, reference_time=5, recorded_at=100)]
    assert records.mentions == list(commit.mentions)
    assert records.evidence == list(commit.evidence)
    assert records.rulings == list(commit.rulings)
    assert records.verdicts == list(commit.verdicts)
    assert records.births == dict(commit.births)
    assert records.recorded == {1: 100}
    assert records.last_recorded == 100
    view = store.view(group)
    assert view.facts(["F1", "none"]) == list(commit.derived.facts)
    assert view.entities(["E1"]) == list(commit.derived.entities)
    assert [row.sequence for row in view.episodes([2, 1, 1])] == [1]
    assert view.supporters([accepted.id, "none"]) == {accepted.id: None}
    [(owner, surface, vector)] = store.name_vectors(group)
    assert (owner, surface) == ("E1", "Al")
    assert np.array_equal(vector, pointing(1))
    assert np.array_equal(store.statement_vectors(group, ["S1", "S9"])["S1"], pointing(1))
    assert store.counts(group)[group] == GroupCounts(committed=1, entities=1, facts=1)
    assert store.find(group, "E1") == [("entity", "E1")]
    assert store.find(group, "S1") == [("statement", "S1")]
    assert store.find(group, "F1") == [("fact", "F1")]
    assert store.find(group, accepted.id) == [("episode", "1")]
    assert store.find(group, "\ud800") == []


def test_a_sequence_that_was_never_taken_is_an_error(store, group):
    with store.writing():
        with pytest.raises(StoreError, match="is empty"):
            store.write([told(1, "Al", "one", 10, group=group)])
        store.accept([draft("a", group=group)], now=1)
        with pytest.raises(StoreError, match="no such sequence"):
            store.write([told(2, "Al", "one", 10, group=group)])
        wrong = Commit(
            group=group,
            sequence=1,
            recorded_at=10,
            operation=Operation(group=group, sequence=1, kind="merge"),
        )
        with pytest.raises(StoreError, match="no such sequence"):
            store.write([wrong])


def test_vectors_of_another_width_are_refused(store, group):
    store.accept([draft("a", group=group)], now=1)
    wide = (NamedVector(kind="name", owner="E1", text="Al", vector=pointing(1, width=32)),)
    with store.writing(), pytest.raises(StoreError, match="64 numbers"):
        store.write([replace(told(1, "Al", "one", 10, group=group), vectors=wide)])


def fact(id_, source, target, created, valid=None, invalid=None, statement=None):
    """Return a derived fact between two entities."""
    return Fact(
        id=id_, statement=statement or "S" + id_, source=source, relation="KNOWS", text=id_,
        created_at=created, target=target, valid_at=valid, invalid_at=invalid,
    )  # fmt: skip


def test_facts_at_an_entity_come_newest_first_and_hold_when_asked(store, group):
    store.accept([draft("a", group=group)], now=1)
    facts = (
        fact("a", "X", "Y", 10, 0, 50), fact("b", "Y", "X", 20, 50), fact("c", "X", "Z", 20),
        fact("d", "Z", "Y", 5), fact("zero", "X", "Y", 30, 7, 7),
    )  # fmt: skip
    entities = tuple(Entity(id=i, name=i, born=(1, n)) for n, i in enumerate("XYZ"))
    with store.writing():
        derived = Derived(entities=entities, facts=facts, shown_entities=(("X", "X"), ("old", "X")))
        store.write([Commit(group=group, sequence=1, recorded_at=10, derived=derived)])
    view = store.view(group)

    def found(ids, as_of, limit):
        return [f.id for f in view.facts_at(ids, as_of, limit)]

    assert found(["X"], None, None) == ["zero", "b", "c", "a"]
    assert found(["old"], None, 2) == ["zero", "b"]
    assert found(["X", "Y"], 49, None) == ["c", "a", "d"]
    assert found(["X", "Y"], 50, None) == ["b", "c", "d"]
    assert found(["X"], 7, None) == ["c", "a"]
    assert found(["none"], None, None) == []
    assert found([], None, None) == []


def test_recorded_ids_show_as_what_derivation_says_and_moves_replace(store, group):
    """R16: a merge folds E2 into E1, a split shows E1 as two; absolute rows replace what was there."""
    with store.writing():
        tell(store, "Al", "one", group=group)
        tell(store, "Bo", "two", group=group)
        merged = Derived(
            entities=(Entity(id="E1", name="Al", aliases=("Bo",), born=(1, 0)),),
            gone_entities=("E2",),
            facts=(
                replace(told(2, "Bo", "two", 20, group=group).derived.facts[0], source="E1", statement="S1"),
            ),
            shown_entities=(("E2", "E1"),),
            shown_statements=(((2, 0), "S1"),),
        )
        asked = Operation(group=group, kind="merge", entities=("E1", "E2"))
        sequence = store.request(asked, now=1)
        store.write([Commit(group=group, sequence=sequence, recorded_at=50, derived=merged, operation=asked)])
    view = store.view(group)
    assert [e.id for e in view.entities(["E2", "E1"])] == ["E1"]
    assert [f.id for f in view.facts_of(["S2"], None)] == ["F1", "F2"]
    assert [f.id for f in view.facts_of_evidence([(2, 0), (9, 9)], 6)] == ["F1", "F2"]
    assert [e.id for e in store.entities_named(group, " bO ")] == ["E1"]
    with store.writing():
        store.accept([draft("Bo says three", group=group)], now=1)
        said = told(4, "Bo", "three", 55, group=group)
        name, *others = said.vectors
        fourth = replace(
            said,
            births=(("S4", (4, 0)),),
            mentions=(replace(said.mentions[0], entity="E1"),),
            vectors=(replace(name, owner="E1"), *others),
            derived=replace(
                said.derived,
                entities=(),
                shown_entities=(),
                facts=(replace(said.derived.facts[0], source="E1"),),
            ),
        )
        asked = Operation(group=group, kind="split", entities=("E1",), surfaces=("Bo",))
        sequence = store.request(asked, now=1)
        parts = Derived(
            entities=(Entity(id="E1", name="Al", born=(1, 0)), Entity(id="new", name="Bo", born=(2, 0))),
            facts=tuple(replace(f, source="new") for f in (merged.facts[0], fourth.derived.facts[0])),
            shown_entities=(("E1", "E1"), ("E1", "new"), ("E2", "new")),
        )
        done = Commit(group=group, sequence=sequence, recorded_at=60, derived=parts, operation=asked)
        store.write([fourth, done])
    assert [e.id for e in view.entities(["E1"])] == ["E1", "new"]
    assert [e.id for e in view.entities(["new", "E2"])] == ["new"]
    assert [f.id for f in view.facts_at(["new"], None, None)] == ["F4", "F2"]
    assert [e.id for e in store.entities_named(group, "Bo")] == ["new"]
    assert [e.id for e in store.entities_named(group, "AL")] == ["E1"]


def test_retracted_rulings_are_seen_before_only(store, group):
    with store.writing():
        store.accept([draft("a", client_id="c", group=group)], now=1)
        ruling = Ruling(
            sequence=1, ordinal=0, name="R", aspect="cardinality", value="many", judge="j", reason="w"
        )
        verdict = Verdict(sequence=1, ordinal=1, a="A", b="B", exclusive=False, judge="j", reason="w")
        store.write([Commit(group=group, sequence=1, recorded_at=10, rulings=(ruling,), verdicts=(verdict,))])
        asked = Operation(group=group, kind="retract", episodes=("c",))
        sequence = store.request(asked, now=1)
        done = Commit(
            group=group, sequence=sequence, recorded_at=20, operation=asked, retired=(1,),
            retired_rulings=((1, 0),), blanked=((1, 1),),
        )  # fmt: skip
        store.write([done])
    assert store.records(group).rulings == []
    assert store.records(group, 19).rulings == [ruling]
    assert store.records(group).verdicts == [replace(verdict, reason="")]
    assert store.records(group, 9).verdicts == []


def test_the_same_ids_in_two_groups_are_two_things(store, group, other):
    with store.writing():
        for each, name in ((group, "Al"), (other, "Bo")):
            tell(store, name, "one", group=each, client_id="c")
    for mine, theirs, name in ((group, other, "Al"), (other, group, "Bo")):
        view = store.view(mine)
        assert [entity.name for entity in view.entities(["E1"])] == [name]
        assert [fact.text for fact in view.facts_at(["E1"], None, None)] == [f"{name} says one"]
        assert [fact.text for fact in view.facts_of_evidence([(1, 0)], None)] == [f"{name} says one"]
        assert [row.text for row in view.episodes([1])] == [f"{name} says one"]
        assert [surface for _, surface, _ in store.name_vectors(mine)] == [name]
        assert store.surfaces(mine, []) == [name]
        assert [mention.surface for mention in store.records(mine).mentions] == [name]
        (episode,) = store.episode_rows(mine)
        assert store.find(mine, "c") == store.find(mine, episode.id) == [("episode", "1")]
        assert store.find(theirs, episode.id) == []


def test_what_an_operation_names_is_found_by_id_source_or_all(store, group):
    store.accept(
        [
            draft("a", client_id="x", group=group),
            draft("b", source="mail", group=group),
            draft("c", source="mail", group=group),
        ],
        now=1,
    )
    with store.writing():
        store.write([told(1, "Al", "one", 10, group=group), failed(2, 20, group=group)])
    assert store.sequences(group, ids=["x"]) == [1]
    assert store.sequences(group, ids=["x", draft("b", source="mail", group=group).id, "none", "\ud800"]) == [
        1,
        2,
    ]
    assert store.sequences(group, source="mail") == [2, 3]
    assert store.sequences(group, everything=True) == [1, 2, 3]
    assert store.sequences(group) == []


def test_surfaces_come_oldest_first_each_once(store, group):
    with store.writing():
        for name in ("Cy", "Al", "Cy", "Bo"):
            tell(store, name, "one", client_id=str(store.last_recorded(group)), group=group)
    assert store.surfaces(group, []) == ["Cy", "Al", "Bo"]
    assert store.surfaces(group, [1, 4]) == ["Al", "Cy"]


def test_an_earlier_split_is_rewritten_without_a_name_that_goes(store, group):
    """R25: what a removal takes away is not kept in the words of a correction either."""
    split = Operation(group=group, kind="split", entities=("E1",), surfaces=("Al", "Zebulon"), made="new")
    with store.writing():
        tell(store, "Al", "one", group=group)
        sequence = store.request(split, now=1)
        done = Commit(
            group=group, sequence=sequence, recorded_at=20, operation=replace(split, sequence=sequence)
        )
        store.write([done])
        asked = Operation(group=group, kind="remove", episodes=("x",))
        removal = store.request(asked, now=1)
        rewritten = replace(split, sequence=sequence, surfaces=("Al",))
        done = Commit(group=group, sequence=removal, recorded_at=30, operation=asked, rewritten=(rewritten,))
        store.write([done])
    assert store.records(group).operations == [rewritten]
    assert store.records(group).recorded == {sequence: 20}


def test_a_snapshot_nests_and_what_is_closed_stays_closed(store, stores, group):
    with store.writing():
        tell(store, "Al", "one", group=group)
        with store.reading(), store.reading():
            assert store.view(group).entities(["E1"])[0].name == "Al"
        store.compact()
    store.close()
    store.close()
    assert stores.open().counts(group)[group] == GroupCounts(committed=1, entities=1, facts=1)
