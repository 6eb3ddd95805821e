"""Batches and who may write them, on every store: R4, R23."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgray.errors import Locked, Outrun, StaleWriter, StoreError
from kgray.graph import Entity
from kgray.ports import Commit, GroupCounts
from kgray.records import ExtractedEntity, Extraction, Operation
from tests.graph.by_hand import (
    answered,
    declined,
    draft,
    everything,
    extracted,
    failed,
    gone,
    tell,
    told,
)

READ = Extraction(entities=(ExtractedEntity(name="Al"),), calls=1)


def with_two_groups(store):
    """Append three episodes of g, a correction asked between them, and two of h; return the store."""
    store.accept([draft("a"), draft("b")], now=1)
    store.request(Operation(group="g", kind="merge", entities=("E1", "E2")), now=1)
    store.accept([draft("c"), draft("a", group="h"), draft("b", group="h")], now=1)
    return store


@pytest.fixture
def two_groups(store):
    return with_two_groups(store)


def of_all_kinds():
    """Return one write of each kind and more, of two groups, in an order that a run would have."""
    return [
        extracted(1, READ), answered(1, "k", {"duplicate_of": None}, calls=1), told(1, "Al", "one", 10),
        extracted(1, READ, group="h"), told(1, "Cy", "one", 5, group="h"), answered(2, "k"),
        told(2, "Bo", "two", 20), declined(3, 15, "no such entity"), failed(2, 30, group="h"),
        extracted(4, READ), answered(4, "ahead", {"duplicate_of": 0}),
    ]  # fmt: skip


def test_a_batch_of_several_groups_is_what_its_writes_are_one_by_one(two_groups, stores):
    store = two_groups
    with store.writing():
        store.write(of_all_kinds())
        at_once = [everything(store, group) for group in "gh"]
        assert store.result("g", 3) == {"error": "no such entity"}
        assert [row.failure.message for row in store.failures()] == ["no"]
        assert store.counts() == {
            "g": GroupCounts(extracted=1, committed=2, entities=2, facts=2, calls=3),
            "h": GroupCounts(committed=1, failed=1, entities=1, facts=1, calls=1),
        }
        assert store.pending_groups() == {"g": True}
        # R4: what ends in between takes its own record time, past the last.
        assert [store.last_recorded(group) for group in "gh"] == [21, 30]
        assert store.recall("g", "ahead") == ({"duplicate_of": 0},)
    stores.fresh()
    store = with_two_groups(stores.open())
    with store.writing():
        for write in of_all_kinds():
            store.write([write])
        assert [everything(store, group) for group in "gh"] == at_once


def test_a_batch_sent_again_changes_nothing(two_groups):
    """R23: its outcome was not known, or half of it came in a batch before."""
    store = two_groups
    with store.writing():
        store.write(of_all_kinds()[:5])
        store.write(of_all_kinds())
        before = [everything(store, group) for group in "gh"]
        store.write(of_all_kinds())
        store.write([*of_all_kinds(), *of_all_kinds()])
        store.write([told(1, "Someone else", "another thing", 999)])
        store.write([])
        assert [everything(store, group) for group in "gh"] == before


def test_any_cut_into_batches_sent_any_number_of_times_gives_the_same(stores):
    """R23: a sender that does not know what arrived sends again what it has not seen acknowledged."""
    writes = of_all_kinds()
    store = with_two_groups(stores.open())
    with store.writing():
        store.write(writes)
    expected = [everything(store, group) for group in "gh"]

    @settings(max_examples=stores.examples, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, len(writes)), st.integers(1, len(writes))), max_size=6))
    def tried(batches):
        stores.fresh()
        store, done = with_two_groups(stores.open()), 0
        with store.writing():
            for back, size in batches:
                start = max(0, done - back)
                store.write(writes[start : start + size])
                done = max(done, start + size)
            store.write(writes[done:])
        assert [everything(store, group) for group in "gh"] == expected

    tried()


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        pytest.param(told(4, "Di", "three", 21), Outrun, "record time", id="at-the-last-record-time"),
        pytest.param(told(4, "Di", "three", 3), Outrun, "record time", id="before-it"),
        pytest.param(told(2, "Ed", "two", 29, group="h"), None, "", id="ended-in-the-batch"),
        pytest.param(told(5, "Di", "four", 99), StoreError, "no such sequence", id="never-taken"),
        pytest.param(told(1, "Di", "one", 99, group="none"), StoreError, "is empty", id="no-such-group"),
        pytest.param(
            Commit(group="g", sequence=4, recorded_at=99, operation=Operation(group="g", kind="merge")),
            StoreError, "no such sequence", id="an-episode-as-a-correction",
        ),
    ],
)  # fmt: skip
def test_a_batch_is_all_or_nothing(two_groups, wrong, error, match):
    """One write of it cannot be done: nothing of any group is changed, and the rest can be sent alone."""
    store = two_groups
    before = [everything(store, group) for group in "gh"]
    with store.writing():
        if error is not None:
            with pytest.raises(error, match=match):
                store.write([*of_all_kinds(), wrong])
            assert [everything(store, group) for group in "gh"] == before
            assert [store.recall("g", key) for key in ("k", "ahead")] == [None, None]
            assert store.extraction("g", 1) is None
        store.write(of_all_kinds())
        after = [everything(store, group) for group in "gh"]
        if error is None:
            store.write([wrong])
            assert [everything(store, group) for group in "gh"] == after
    assert [store.last_recorded(group) for group in "gh"] == [21, 30]


def test_record_times_must_increase(store):
    """R4: a commit whose record time is not past the group's last is refused; reading anew helps."""
    with store.writing():
        tell(store, "Al", "one")
        store.accept([draft("b")], now=1)
        for at in (0, 10):
            with pytest.raises(Outrun, match="record time"):
                store.write([told(2, "Bo", "two", at)])
        store.write([told(2, "Bo", "two", 11)])
    assert store.last_recorded("g") == 11


def test_a_retry_from_another_process_outruns_a_commit(store, stores):
    """A retry takes a record time, and the writer that did not know of it is told."""
    other = stores.open()
    store.accept([draft("a"), draft("b")], now=1)
    with store.writing():
        store.write([failed(1, 10)])
        assert other.retry("g", [], now=50) == 1
        with pytest.raises(Outrun):
            store.write([told(2, "Bo", "two", 40)])
        store.write([told(2, "Bo", "two", store.last_recorded("g") + 1)])
    assert [head.recorded_at for head in store.records("g").heads] == [51]


def test_later_writes_of_a_batch_see_the_earlier_ones(store):
    """A commit that changes, drops and shows again what one before it in the same batch made."""
    store.accept([draft("a"), draft("b"), draft("c")], now=1)
    asked = Operation(group="g", kind="remove", episodes=("x",))
    removal = store.request(asked, now=1)
    third = told(3, "Albert", "three", 30)
    name, *others = third.vectors
    third = replace(
        third,
        births=(("S3", (3, 0)),),
        mentions=(replace(third.mentions[0], entity="E1"),),
        vectors=(replace(name, owner="E1"), *others),
        derived=replace(
            third.derived,
            entities=(Entity(id="E1", name="Albert", aliases=("Al",), born=(1, 0)),),
            shown_entities=(),
            facts=(
                replace(third.derived.facts[0], source="E1"),
                replace(told(1, "Al", "one", 10).derived.facts[0], invalid_at=7, expired_at=30),
            ),
        ),
    )
    done = Commit(
        group="g", sequence=removal, recorded_at=40, operation=asked, result={"episodes": 1}, erased=(2,),
        gone_births=("E2", "S2"), derived=gone(2),
    )  # fmt: skip
    with store.writing():
        store.write([told(1, "Al", "one", 10), told(2, "Bo", "two", 20), third, done])
    records = store.records("g")
    assert [head.sequence for head in records.heads] == [1, 3]
    assert [(m.surface, m.entity) for m in records.mentions] == [("Al", "E1"), ("Albert", "E1")]
    assert set(records.births) == {"E1", "S1", "S3"}
    view = store.view("g")
    assert [(e.id, e.name, e.aliases) for e in view.entities(["E1", "E2"])] == [("E1", "Albert", ("Al",))]
    assert [(f.id, f.invalid_at) for f in view.facts(["F1", "F2", "F3"])] == [("F1", 7), ("F3", None)]
    assert [fact.id for fact in view.facts_at(["E1", "E2"], None, None)] == ["F3", "F1"]
    assert [[e.id for e in store.entities_named("g", name)] for name in ("albert", "AL", "bo")] == [
        ["E1"], ["E1"], [],
    ]  # fmt: skip
    assert [row[:2] for row in store.name_vectors("g")] == [("E1", "Al"), ("E1", "Albert")]
    assert sorted(store.statement_vectors("g", ["S1", "S2", "S3"])) == ["S1", "S3"]
    assert store.lexical("g", "fact", "says", 9) == [(1, 0), (3, 0)]
    assert store.result("g", removal) == {"episodes": 1}


def test_appenders_and_the_writer_share_one_order(store, stores):
    """R19: one sequence a group, without a gap, each appender in its own order, while commits go on."""

    def append(name, groups):
        appender = stores.open()
        taken = {group: [] for group in groups}
        for n in range(12):
            batch = [draft(f"{name} {n} {group}", group=group) for group in groups]
            for draft_, answer in zip(batch, appender.accept(batch, now=1), strict=True):
                taken[draft_.group].append(answer.sequence)
        return taken

    with ThreadPoolExecutor(2) as pool, store.writing():
        appending = [pool.submit(append, "a", "gh"), pool.submit(append, "b", "hg")]
        while not all(part.done() for part in appending) or store.pending_count():
            for group in store.pending_groups():
                rows, at = store.pending(group, 5), store.last_recorded(group)
                store.write(
                    [told(r.sequence, "Al", "one", at + n, group=group) for n, r in enumerate(rows, 1)]
                )
    for group in "gh":
        taken = [done.result()[group] for done in appending]
        assert all(part == sorted(part) for part in taken)
        assert sorted(taken[0] + taken[1]) == list(range(1, 25))
        assert store.counts(group)[group] == GroupCounts(committed=24, entities=24, facts=24)


# ------------------------------------------------------------------------------------- the fence


def test_an_older_epoch_changes_nothing(two_groups, stores):
    """R23: its hold was lost unseen, and another writes."""
    store, newer = two_groups, stores.open()
    with store.writing() as old:
        before = [everything(newer, group) for group in "gh"]
        stores.lose_hold()
        with newer.writing() as new:
            assert new > old
            for batch in ([told(1, "Al", "one", 10)], [declined(3, 9, "x")], [extracted(1, READ)], []):
                with pytest.raises(StaleWriter, match="nothing was changed"):
                    store.write(batch)
            assert [everything(newer, group) for group in "gh"] == before
            newer.write([told(1, "Al", "one", 10)])
            assert store.accept([draft("appending goes on")], now=1)[0].status == "accepted"
    assert [head.sequence for head in store.records("g").heads] == [1]


def test_an_adopted_epoch_goes_on(two_groups, stores):
    """A writer that was restarted serves the run that it served before."""
    with two_groups.writing() as epoch:
        two_groups.write(of_all_kinds()[:3])
    again = stores.open()
    with again.writing(epoch=epoch) as held:
        assert held == epoch
        again.write(of_all_kinds())
        # Who left does not write beside the one that took its epoch over.
        with pytest.raises(StaleWriter):
            two_groups.write([told(4, "Di", "three", 99)])
    assert again.pending_groups() == {"g": True}


def test_an_epoch_that_is_not_the_newest_cannot_be_adopted(store, stores):
    with store.writing() as first:
        pass
    with store.writing() as second:
        pass
    assert second == first + 1
    other = stores.open()
    for epoch in (first, second + 1, 0):
        with pytest.raises(StaleWriter, match="nothing was changed"), other.writing(epoch=epoch):
            pass
    with other.writing(epoch=second):
        pass


def test_writing_without_the_hold_is_refused(store):
    store.accept([draft("a")], now=1)
    with pytest.raises(StaleWriter):
        store.write([told(1, "Al", "one", 10)])
    with store.writing():
        pass
    for batch in ([told(1, "Al", "one", 10)], [extracted(1, READ)], [answered(1, "k", {})]):
        with pytest.raises(StaleWriter):
            store.write(batch)
    assert store.counts("g")["g"] == GroupCounts(accepted=1)


def test_one_holder_in_a_process_too(store, stores):
    other = stores.open()
    with store.writing():
        for second in (store, other):
            with pytest.raises(Locked, match=r"process \d+ on .* is ingesting"), second.writing():
                pass
        other.accept([draft("appending goes on")], now=1)
        store.write([told(1, "Al", "one", 10)])  # who was refused took nothing
    with other.writing():
        pass
