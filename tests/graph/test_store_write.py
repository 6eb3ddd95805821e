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
    small,
    tell,
    told,
)

READ = Extraction(entities=(ExtractedEntity(name="Al"),), calls=1)


def with_two_groups(store, group, other):
    """Append three episodes of a group, a correction asked between them, and two of another one."""
    store.accept([draft("a", group=group), draft("b", group=group)], now=1)
    store.request(Operation(group=group, kind="merge", entities=("E1", "E2")), now=1)
    store.accept([draft("c", group=group), draft("a", group=other), draft("b", group=other)], now=1)
    return store


@pytest.fixture
def two_groups(store, group, other):
    return with_two_groups(store, group, other)


@pytest.fixture
def seen(group, other):
    """Return a function that gives what a reader of both groups sees."""
    return lambda store: [everything(store, each) for each in (group, other)]


def of_all_kinds(group, other):
    """Return one write of each kind and more, of two groups, in an order that a run would have."""
    return [
        extracted(1, READ, group=group),
        answered(1, "k", {"duplicate_of": None}, calls=1, group=group),
        told(1, "Al", "one", 10, group=group),
        extracted(1, READ, group=other),
        told(1, "Cy", "one", 5, group=other),
        answered(2, "k", group=group),
        told(2, "Bo", "two", 20, group=group),
        declined(3, 15, "no such entity", group=group),
        failed(2, 30, group=other),
        extracted(4, READ, group=group),
        answered(4, "ahead", {"duplicate_of": 0}, group=group),
    ]


@pytest.fixture
def writes(group, other):
    return of_all_kinds(group, other)


@pytest.fixture
def reference(tmp_path):
    """Open an embedded store beside the one that is tested, for the same groups."""
    opened = small(tmp_path / "reference")
    yield opened
    opened.close()


def test_a_batch_of_several_groups_is_what_its_writes_are_one_by_one(
    two_groups, reference, writes, seen, group, other, mine
):
    store = two_groups
    with store.writing():
        store.write(writes)
        assert store.result(group, 3) == {"error": "no such entity"}
        assert [row.failure.message for row in store.failures(other)] == ["no"]
        assert mine(store.counts()) == {
            group: GroupCounts(extracted=1, committed=2, entities=2, facts=2, calls=3),
            other: GroupCounts(committed=1, failed=1, entities=1, facts=1, calls=1),
        }
        assert mine(store.pending_groups()) == {group: True}
        # R4: what ends in between takes its own record time, past the last.
        assert [store.last_recorded(each) for each in (group, other)] == [21, 30]
        assert store.recall(group, "ahead") == ({"duplicate_of": 0},)
    with_two_groups(reference, group, other)
    with reference.writing():
        for write in writes:
            reference.write([write])
    assert seen(store) == seen(reference)


def test_a_batch_sent_again_changes_nothing(two_groups, writes, seen, group):
    """R23: its outcome was not known, or half of it came in a batch before."""
    store = two_groups
    with store.writing():
        store.write(writes[:5])
        store.write(writes)
        before = seen(store)
        store.write(writes)
        store.write([*writes, *writes])
        store.write([told(1, "Someone else", "another thing", 999, group=group)])
        store.write([])
        assert seen(store) == before


def test_any_cut_into_batches_sent_any_number_of_times_gives_the_same(stores, reference):
    """R23: a sender that does not know what arrived sends again what it has not seen acknowledged."""
    store = stores.open()

    @settings(max_examples=stores.examples, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 11)), max_size=6))
    def tried(batches):
        prefix = stores.fresh()
        both = f"{prefix}g", f"{prefix}h"
        writes, done = of_all_kinds(*both), 0
        for each in (store, reference):
            with_two_groups(each, *both)
        with store.writing():
            for back, size in batches:
                start = max(0, done - back)
                store.write(writes[start : start + size])
                done = max(done, start + size)
            store.write(writes[done:])
        with reference.writing():
            reference.write(writes)
        for group in both:
            assert everything(store, group) == everything(reference, group)

    tried()


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        pytest.param(
            lambda both: told(4, "Di", "three", 21, group=both[0]), Outrun, "record time", id="at-the-last"
        ),
        pytest.param(
            lambda both: told(4, "Di", "three", 3, group=both[0]), Outrun, "record time", id="before-it"
        ),
        pytest.param(lambda both: told(2, "Ed", "two", 29, group=both[1]), None, "", id="ended-in-the-batch"),
        pytest.param(
            lambda both: told(5, "Di", "four", 99, group=both[0]),
            StoreError,
            "no such sequence",
            id="never-taken",
        ),
        pytest.param(
            lambda both: told(1, "Di", "one", 99, group=both[0] + "-none"),
            StoreError,
            "is empty",
            id="no-such-group",
        ),
        pytest.param(
            lambda both: Commit(
                group=both[0], sequence=4, recorded_at=99, operation=Operation(group=both[0], kind="merge")
            ),
            StoreError,
            "no such sequence",
            id="an-episode-as-a-correction",
        ),
    ],
)
def test_a_batch_is_all_or_nothing(two_groups, writes, wrong, error, match, seen, group, other):
    """One write of it cannot be done: nothing of any group is changed, and the rest can be sent alone."""
    store = two_groups
    wrong = wrong((group, other))
    before = seen(store)
    with store.writing():
        if error is not None:
            with pytest.raises(error, match=match):
                store.write([*writes, wrong])
            assert seen(store) == before
            assert [store.recall(group, key) for key in ("k", "ahead")] == [None, None]
            assert store.extraction(group, 1) is None
        store.write(writes)
        after = seen(store)
        if error is None:
            store.write([wrong])
            assert seen(store) == after
    assert [store.last_recorded(each) for each in (group, other)] == [21, 30]


def test_record_times_must_increase(store, group):
    """R4: a commit whose record time is not past the group's last is refused; reading anew helps."""
    with store.writing():
        tell(store, "Al", "one", group=group)
        store.accept([draft("b", group=group)], now=1)
        for at in (0, 10):
            with pytest.raises(Outrun, match="record time"):
                store.write([told(2, "Bo", "two", at, group=group)])
        store.write([told(2, "Bo", "two", 11, group=group)])
    assert store.last_recorded(group) == 11


def test_a_retry_from_another_process_outruns_a_commit(store, stores, group):
    """A retry takes a record time, and the writer that did not know of it is told."""
    other = stores.open()
    store.accept([draft("a", group=group), draft("b", group=group)], now=1)
    with store.writing():
        store.write([failed(1, 10, group=group)])
        assert other.retry(group, [], now=50) == 1
        with pytest.raises(Outrun):
            store.write([told(2, "Bo", "two", 40, group=group)])
        store.write([told(2, "Bo", "two", store.last_recorded(group) + 1, group=group)])
    assert [head.recorded_at for head in store.records(group).heads] == [51]


def test_later_writes_of_a_batch_see_the_earlier_ones(store, group):
    """A commit that changes, drops and shows again what one before it in the same batch made."""
    store.accept([draft("a", group=group), draft("b", group=group), draft("c", group=group)], now=1)
    asked = Operation(group=group, kind="remove", episodes=("x",))
    removal = store.request(asked, now=1)
    third = told(3, "Albert", "three", 30, group=group)
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
                replace(told(1, "Al", "one", 10, group=group).derived.facts[0], invalid_at=7, expired_at=30),
            ),
        ),
    )
    done = Commit(
        group=group, sequence=removal, recorded_at=40, operation=asked, result={"episodes": 1}, erased=(2,),
        gone_births=("E2", "S2"), derived=gone(2),
    )  # fmt: skip
    with store.writing():
        store.write(
            [told(1, "Al", "one", 10, group=group), told(2, "Bo", "two", 20, group=group), third, done]
        )
    records = store.records(group)
    assert [head.sequence for head in records.heads] == [1, 3]
    assert [(m.surface, m.entity) for m in records.mentions] == [("Al", "E1"), ("Albert", "E1")]
    assert set(records.births) == {"E1", "S1", "S3"}
    view = store.view(group)
    assert [(e.id, e.name, e.aliases) for e in view.entities(["E1", "E2"])] == [("E1", "Albert", ("Al",))]
    assert [(f.id, f.invalid_at) for f in view.facts(["F1", "F2", "F3"])] == [("F1", 7), ("F3", None)]
    assert [fact.id for fact in view.facts_at(["E1", "E2"], None, None)] == ["F3", "F1"]
    assert [[e.id for e in store.entities_named(group, name)] for name in ("albert", "AL", "bo")] == [
        ["E1"], ["E1"], [],
    ]  # fmt: skip
    assert [row[:2] for row in store.name_vectors(group)] == [("E1", "Al"), ("E1", "Albert")]
    assert sorted(store.statement_vectors(group, ["S1", "S2", "S3"])) == ["S1", "S3"]
    assert store.lexical(group, "fact", "says", 9) == [(1, 0), (3, 0)]
    assert store.result(group, removal) == {"episodes": 1}


def test_appenders_and_the_writer_share_one_order(store, stores, group, other, mine):
    """R19: one sequence a group, without a gap, each appender in its own order, while commits go on."""

    def append(name, groups):
        appender = stores.open()
        taken = {each: [] for each in groups}
        for n in range(12):
            batch = [draft(f"{name} {n} {each}", group=each) for each in groups]
            for draft_, answer in zip(batch, appender.accept(batch, now=1), strict=True):
                taken[draft_.group].append(answer.sequence)
        return taken

    with ThreadPoolExecutor(2) as pool, store.writing():
        appending = [pool.submit(append, "a", (group, other)), pool.submit(append, "b", (other, group))]
        while (pending := mine(store.pending_groups())) or not all(part.done() for part in appending):
            for each in pending:
                rows, at = store.pending(each, 5), store.last_recorded(each)
                store.write(
                    [told(r.sequence, "Al", "one", at + n, group=each) for n, r in enumerate(rows, 1)]
                )
    for each in (group, other):
        taken = [done.result()[each] for done in appending]
        assert all(part == sorted(part) for part in taken)
        assert sorted(taken[0] + taken[1]) == list(range(1, 25))
        assert store.counts(each)[each] == GroupCounts(committed=24, entities=24, facts=24)


# ------------------------------------------------------------------------------------- the fence


def test_an_older_epoch_changes_nothing(two_groups, stores, seen, group):
    """R23: its hold was lost unseen, and another writes."""
    store, newer = two_groups, stores.open()
    with store.writing() as old:
        before = seen(newer)
        stores.lose_hold()
        with newer.writing() as new:
            assert new > old
            for batch in (
                [told(1, "Al", "one", 10, group=group)],
                [declined(3, 9, "x", group=group)],
                [extracted(1, READ, group=group)],
                [],
            ):
                with pytest.raises(StaleWriter, match="nothing was changed"):
                    store.write(batch)
            assert seen(newer) == before
            newer.write([told(1, "Al", "one", 10, group=group)])
            assert store.accept([draft("appending goes on", group=group)], now=1)[0].status == "accepted"
    assert [head.sequence for head in store.records(group).heads] == [1]


def test_an_adopted_epoch_goes_on(two_groups, stores, writes, group, mine):
    """A writer that was restarted serves the run that it served before."""
    with two_groups.writing() as epoch:
        two_groups.write(writes[:3])
    again = stores.open()
    with again.writing(epoch=epoch) as held:
        assert held == epoch
        again.write(writes)
        # Who left does not write beside the one that took its epoch over.
        with pytest.raises(StaleWriter):
            two_groups.write([told(4, "Di", "three", 99, group=group)])
    assert mine(again.pending_groups()) == {group: True}


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


def test_writing_without_the_hold_is_refused(store, group):
    store.accept([draft("a", group=group)], now=1)
    with pytest.raises(StaleWriter):
        store.write([told(1, "Al", "one", 10, group=group)])
    with store.writing():
        pass
    for batch in (
        [told(1, "Al", "one", 10, group=group)],
        [extracted(1, READ, group=group)],
        [answered(1, "k", {}, group=group)],
    ):
        with pytest.raises(StaleWriter):
            store.write(batch)
    assert store.counts(group)[group] == GroupCounts(accepted=1)


def test_one_holder_in_a_process_too(store, stores, group):
    other = stores.open()
    with store.writing():
        for second in (store, other):
            with pytest.raises(Locked, match=r"process \d+ on .* is ingesting"), second.writing():
                pass
        other.accept([draft("appending goes on", group=group)], now=1)
        store.write([told(1, "Al", "one", 10, group=group)])  # who was refused took nothing
    with other.writing():
        pass
