"""One sequence, one transaction: R4, R23, and what the view then shows."""

from __future__ import annotations

from dataclasses import replace

import apsw
import numpy as np
import pytest

from kgray.errors import Locked, StaleWriter, StoreError
from kgray.graph import Derived, Entity, Fact
from kgray.ports import Commit, GroupCounts, NamedVector
from kgray.records import EpisodeHead, Operation, Ruling, Verdict
from tests.graph.by_hand import draft, pointing, small, tell, told


@pytest.fixture
def store(tmp_path):
    opened = small(tmp_path)
    yield opened
    opened.close()


def everything(store):
    """Return what a reader can see of group g."""
    records = store.records("g")
    view = store.view("g")
    return (
        records, view.facts_at(["E1", "E2"], None, None), view.entities(["E1", "E2"]), store.counts(),
        store.lexical("g", "fact", "al says one", 9), list(store.name_vectors("g")).__len__(),
        store.last_recorded("g"),
    )  # fmt: skip


def test_a_commit_is_read_back_whole(store):
    commit = replace(
        told(1, "Al", "one", 100, episode="ep"),
        rulings=(
            Ruling(sequence=1, ordinal=0, name="SAYS", aspect="cardinality", value="single", judge="j"),
        ),
        verdicts=(Verdict(sequence=1, ordinal=1, a="S1", b="S9", exclusive=True, judge="j", reason="why"),),
    )
    (accepted,) = store.accept([draft("Al says one")], now=1)
    with store.writing():
        store.apply(commit)
    records = store.records("g")
    assert records.heads == [EpisodeHead(sequence=1, id=accepted.id, reference_time=5, recorded_at=100)]
    assert records.mentions == list(commit.mentions)
    assert records.evidence == list(commit.evidence)
    assert records.rulings == list(commit.rulings)
    assert records.verdicts == list(commit.verdicts)
    assert records.births == dict(commit.births)
    assert records.recorded == {1: 100}
    assert records.last_recorded == 100
    view = store.view("g")
    assert view.facts(["F1", "none"]) == list(commit.derived.facts)
    assert view.entities(["E1"]) == list(commit.derived.entities)
    assert [row.sequence for row in view.episodes([2, 1, 1])] == [1]
    assert view.supporters([accepted.id, "none"]) == {accepted.id: None}
    [(owner, surface, vector)] = store.name_vectors("g")
    assert (owner, surface) == ("E1", "Al")
    assert np.array_equal(vector, pointing(1))
    assert np.array_equal(store.statement_vectors("g", ["S1", "S9"])["S1"], pointing(1))
    assert store.counts("g")["g"] == GroupCounts(committed=1, entities=1, facts=1)
    assert store.find("g", "E1") == [("entity", "E1")]
    assert store.find("g", "S1") == [("statement", "S1")]
    assert store.find("g", "F1") == [("fact", "F1")]
    assert store.find("g", accepted.id) == [("episode", "1")]
    assert store.find("g", "\ud800") == []


def test_a_commit_again_changes_nothing(store):
    with store.writing():
        tell(store, "Al", "one")
        before = everything(store)
        store.apply(told(1, "Al", "one", 11))
        store.apply(told(1, "Someone else", "another thing", 999))
        assert everything(store) == before


def test_a_commit_that_breaks_at_its_last_statement_leaves_nothing(store):
    """Case k: the store fails at the last statement of a commit; running again completes it."""
    store.accept([draft("Al says one")], now=1)
    before = everything(store)
    store._db._writer.execute(
        "CREATE TEMP TRIGGER broken BEFORE UPDATE OF state ON main.episodes "
        "BEGIN SELECT raise(ABORT, 'x'); END"
    )
    with store.writing():
        with pytest.raises(apsw.ConstraintError):
            store.apply(told(1, "Al", "one", 100))
        assert everything(store) == before
        store._db._writer.execute("DROP TRIGGER temp.broken")
        store.apply(told(1, "Al", "one", 100))
    assert store.view("g").facts(["F1"])[0].text == "Al says one"


def test_record_times_must_increase(store):
    """R4: a commit whose record time is not past the group's last is refused."""
    with store.writing():
        tell(store, "Al", "one")
        store.accept([draft("b")], now=1)
        for at in (0, 10):
            with pytest.raises(StoreError, match="record time"):
                store.apply(told(2, "Bo", "two", at))
        store.apply(told(2, "Bo", "two", 11))
    assert store.last_recorded("g") == 11


def test_a_sequence_that_was_never_taken_is_an_error(store):
    with store.writing():
        with pytest.raises(StoreError, match="is empty"):
            store.apply(told(1, "Al", "one", 10))
        store.accept([draft("a")], now=1)
        with pytest.raises(StoreError, match="no such sequence"):
            store.apply(told(2, "Al", "one", 10))
        wrong = Commit(
            group="g", sequence=1, recorded_at=10, operation=Operation(group="g", sequence=1, kind="merge")
        )
        with pytest.raises(StoreError, match="no such sequence"):
            store.apply(wrong)


def test_vectors_of_another_width_are_refused(store):
    store.accept([draft("a")], now=1)
    wide = (NamedVector(kind="name", owner="E1", text="Al", vector=pointing(1, width=32)),)
    with store.writing(), pytest.raises(StoreError, match="16 numbers"):
        store.apply(replace(told(1, "Al", "one", 10), vectors=wide))


def test_a_stale_writer_changes_nothing(store, tmp_path):
    """R23: an older fencing epoch; the lock itself was lost, as on a file system without locks."""
    store.accept([draft("a"), draft("b")], now=1)
    newer = small(tmp_path)
    with store.writing():
        before = everything(newer)
        newer._db.take_epoch()
        with pytest.raises(StaleWriter, match="nothing was changed"):
            store.apply(told(1, "Al", "one", 10))
        with pytest.raises(StaleWriter):
            store.refuse("g", 1, "x", now=1)
        assert everything(newer) == before
        newer.apply(told(1, "Al", "one", 10))
    newer.close()


def test_applying_without_the_lock_is_refused(store):
    store.accept([draft("a")], now=1)
    with pytest.raises(StaleWriter):
        store.apply(told(1, "Al", "one", 10))


def test_one_holder_of_the_lock_in_a_process_too(store, tmp_path):
    other = small(tmp_path)
    with store.writing():
        for second in (store, other):
            with pytest.raises(Locked, match=r"process \d+ on .* is ingesting"), second.writing():
                pass
        other.accept([draft("appending goes on")], now=1)
    with other.writing():
        pass
    other.close()


def fact(id_, source, target, created, valid=None, invalid=None, statement=None):
    """Return a derived fact between two entities."""
    return Fact(
        id=id_, statement=statement or "S" + id_, source=source, relation="KNOWS", text=id_,
        created_at=created, target=target, valid_at=valid, invalid_at=invalid,
    )  # fmt: skip


def test_facts_at_an_entity_come_newest_first_and_hold_when_asked(store):
    store.accept([draft("a")], now=1)
    facts = (
        fact("a", "X", "Y", 10, 0, 50), fact("b", "Y", "X", 20, 50), fact("c", "X", "Z", 20),
        fact("d", "Z", "Y", 5), fact("zero", "X", "Y", 30, 7, 7),
    )  # fmt: skip
    entities = tuple(Entity(id=i, name=i, born=(1, n)) for n, i in enumerate("XYZ"))
    with store.writing():
        derived = Derived(entities=entities, facts=facts, shown_entities=(("X", "X"), ("old", "X")))
        store.apply(Commit(group="g", sequence=1, recorded_at=10, derived=derived))
    view = store.view("g")

    def found(ids, as_of, limit):
        return [f.id for f in view.facts_at(ids, as_of, limit)]

    assert found(["X"], None, None) == ["zero", "b", "c", "a"]
    assert found(["old"], None, 2) == ["zero", "b"]
    assert found(["X", "Y"], 49, None) == ["c", "a", "d"]
    assert found(["X", "Y"], 50, None) == ["b", "c", "d"]
    assert found(["X"], 7, None) == ["c", "a"]
    assert found(["none"], None, None) == []
    assert found([], None, None) == []


def test_recorded_ids_show_as_what_derivation_says_and_moves_replace(store):
    """R16: a merge folds E2 into E1, a split shows E1 as two; absolute rows replace what was there."""
    with store.writing():
        tell(store, "Al", "one")
        tell(store, "Bo", "two")
        merged = Derived(
            entities=(Entity(id="E1", name="Al", aliases=("Bo",), born=(1, 0)),),
            gone_entities=("E2",),
            facts=(replace(told(2, "Bo", "two", 20).derived.facts[0], source="E1", statement="S1"),),
            shown_entities=(("E2", "E1"),),
            shown_statements=(((2, 0), "S1"),),
        )
        asked = Operation(group="g", kind="merge", entities=("E1", "E2"))
        sequence = store.request(asked, now=1)
        store.apply(Commit(group="g", sequence=sequence, recorded_at=50, derived=merged, operation=asked))
    view = store.view("g")
    assert [e.id for e in view.entities(["E2", "E1"])] == ["E1"]
    assert [f.id for f in view.facts_of(["S2"], None)] == ["F1", "F2"]
    assert [f.id for f in view.facts_of_evidence([(2, 0), (9, 9)], 6)] == ["F1", "F2"]
    assert [e.id for e in store.entities_named("g", " bO ")] == ["E1"]
    with store.writing():
        parts = Derived(
            entities=(Entity(id="E1", name="Al", born=(1, 0)), Entity(id="new", name="Bo", born=(2, 0))),
            shown_entities=(("E1", "E1"), ("E1", "new"), ("E2", None)),
        )
        asked = Operation(group="g", kind="split", entities=("E1",), surfaces=("Bo",))
        sequence = store.request(asked, now=1)
        store.apply(Commit(group="g", sequence=sequence, recorded_at=60, derived=parts, operation=asked))
    assert [e.id for e in view.entities(["E1"])] == ["E1", "new"]
    assert [e.id for e in view.entities(["new", "E2"])] == ["new"]
    assert [e.id for e in store.entities_named("g", "Bo")] == ["new"]


def test_retracted_rulings_are_seen_before_only(store):
    with store.writing():
        store.accept([draft("a", client_id="c")], now=1)
        ruling = Ruling(
            sequence=1, ordinal=0, name="R", aspect="cardinality", value="many", judge="j", reason="w"
        )
        verdict = Verdict(sequence=1, ordinal=1, a="A", b="B", exclusive=False, judge="j", reason="w")
        store.apply(Commit(group="g", sequence=1, recorded_at=10, rulings=(ruling,), verdicts=(verdict,)))
        asked = Operation(group="g", kind="retract", episodes=("c",))
        sequence = store.request(asked, now=1)
        store.apply(
            Commit(group="g", sequence=sequence, recorded_at=20, operation=asked, retired=(1,),
                   retired_rulings=((1, 0),), blanked=((1, 1),))
        )  # fmt: skip
    assert store.records("g").rulings == []
    assert store.records("g", 19).rulings == [ruling]
    assert store.records("g").verdicts == [replace(verdict, reason="")]
    assert store.records("g", 9).verdicts == []


def test_a_snapshot_sees_one_moment_while_commits_go_on(store, tmp_path):
    with store.writing():
        tell(store, "Al", "one")
        with store.reading(), store.reading():
            before = everything(store)
            tell(store, "Bo", "two")
            other = small(tmp_path)
            other.accept([draft("from elsewhere")], now=1)
            other.close()
            assert everything(store) == before
        assert everything(store) != before
        assert store.counts()["g"] == GroupCounts(accepted=1, committed=2, entities=2, facts=2)
