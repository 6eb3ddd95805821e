"""Batches and their writers, on every store: R4, R23."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgray.domain.records import ExtractedEntity, Extraction, Operation
from kgray.errors import Locked, Outrun, StaleWriter, StoreError
from kgray.ports import GroupCounts, Patch
from kgray.schema import kinds
from kgray.schema.kinds import EPISODES
from kgray.storage.ledger import pending, pending_groups
from tests.graph.by_hand import (
    PENDING,
    all_of,
    answered,
    append,
    ask,
    changes,
    declined,
    draft,
    ended,
    everything,
    extracted,
    failed,
    head,
    next_time,
    small,
    statement_commit,
    tell,
    worded,
)

READ = Extraction(entities=(ExtractedEntity(name="Al"),), calls=1)


def with_two_groups(store, group, other_group):
    """Append three episodes of a group, a correction requested between them, and two of a second group."""
    append(store, draft("Al says one", group=group), draft("Bo says two", group=group))
    ask(store, Operation(group=group, kind="merge", entities=("E1", "E2")))
    append(
        store, draft("c", group=group), draft("Cy says one", group=other_group), draft("b", group=other_group)
    )
    return store


@pytest.fixture
def two_groups(store, group, other_group):
    return with_two_groups(store, group, other_group)


@pytest.fixture
def visible_state(group, other_group):
    """Return a function that gives the state visible to a reader of both groups."""
    return lambda store: [everything(store, each) for each in (group, other_group)]


def of_all_kinds(group, other_group):
    """Return changes of each kind, of two groups, in the order of a run."""
    return [
        extracted(1, READ, group=group),
        answered(1, "k", {"duplicate_of": None}, calls=1, group=group),
        statement_commit(1, "Al", "one", 10, group=group),
        extracted(1, READ, group=other_group),
        statement_commit(1, "Cy", "one", 5, group=other_group),
        answered(2, "k", group=group),
        statement_commit(2, "Bo", "two", 20, group=group),
        declined(3, 25, "no such entity", group=group),
        failed(2, 30, group=other_group),
        extracted(4, READ, group=group),
        answered(4, "ahead", {"duplicate_of": 0}, group=group),
    ]


@pytest.fixture
def writes(group, other_group):
    return of_all_kinds(group, other_group)


@pytest.fixture
def reference(tmp_path):
    """Open a reference store of the embedded kind for the same groups."""
    opened = small(tmp_path / "reference")
    yield opened
    opened.close()


def test_a_batch_of_several_groups_equals_its_separate_writes(
    two_groups, reference, writes, visible_state, group, other_group, mine
):
    store = two_groups
    with store.writing():
        store.apply(writes)
        (declined_row,) = all_of(store, kinds.OPERATIONS, group)
        assert declined_row == (3, "merge", "{}", kinds.REFUSED, 25, '{"error":"no such entity"}')
        assert [row.failure_message for row in all_of(store, EPISODES, other_group)] == [None, "no"]
        assert mine(store.counts()) == {
            group: GroupCounts(extracted=1, committed=2, entities=2, facts=2, calls=3),
            other_group: GroupCounts(committed=1, failed=1, entities=1, facts=1, calls=1),
        }
        assert mine(pending_groups(store)) == {group: True}
        assert [head(store, each).last_recorded for each in (group, other_group)] == [25, 30]
        answers = [row[:2] for row in all_of(store, kinds.ANSWERS, group)]
        assert answers == [(1, "k"), (2, "k"), (4, "ahead")]
    with_two_groups(reference, group, other_group)
    with reference.writing():
        for change in writes:
            reference.apply([change])
    assert visible_state(store) == visible_state(reference)


def test_a_repeated_batch_changes_nothing(two_groups, writes, visible_state, group):
    """R23: its outcome was unknown, or an earlier batch had half of it."""
    store = two_groups
    with store.writing():
        store.apply(writes[:5])
        store.apply(writes)
        state_before = visible_state(store)
        store.apply(writes)
        store.apply([*writes, *writes])
        store.apply([statement_commit(1, "Someone else", "another thing", 999, group=group)])
        store.apply([])
        assert visible_state(store) == state_before


def test_repeated_batches_of_any_size_give_the_same_rows(stores, reference):
    """R23: a sender without acknowledgements sends its unacknowledged batches again."""
    store = stores.open()

    @settings(max_examples=stores.examples)
    @given(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 11)), max_size=6))
    def tried(batches):
        prefix = stores.fresh()
        both = f"{prefix}g", f"{prefix}h"
        writes, applied = of_all_kinds(*both), 0
        for each in (store, reference):
            with_two_groups(each, *both)
        with store.writing():
            for back, size in batches:
                start = max(0, applied - back)
                store.apply(writes[start : start + size])
                applied = max(applied, start + size)
            store.apply(writes[applied:])
        with reference.writing():
            reference.apply(writes)
        for group in both:
            assert everything(store, group) == everything(reference, group)

    tried()


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        pytest.param(
            lambda both: statement_commit(4, "Di", "three", 25, group=both[0]),
            Outrun,
            "record time",
            id="at-the-last",
        ),
        pytest.param(
            lambda both: statement_commit(4, "Di", "three", 3, group=both[0]),
            Outrun,
            "record time",
            id="before-it",
        ),
        pytest.param(
            lambda both: statement_commit(2, "Ed", "two", 29, group=both[1]),
            None,
            "",
            id="ended-in-the-batch",
        ),
        pytest.param(
            lambda both: statement_commit(5, "Di", "four", 99, group=both[0]),
            StoreError,
            "no such sequence",
            id="never-taken",
        ),
        pytest.param(
            lambda both: statement_commit(1, "Di", "one", 99, group=both[0] + "-none"),
            StoreError,
            "is empty",
            id="no-such-group",
        ),
        pytest.param(
            lambda both: changes(9, 99, {}, group=both[0], ledger=kinds.OPERATIONS, states=PENDING),
            StoreError,
            "no such sequence",
            id="a-correction-that-was-never-taken",
        ),
    ],
)
def test_a_batch_is_atomic(two_groups, writes, wrong, error, match, visible_state, group, other_group):
    """If a change of the batch fails, no group changes, and the rest can be sent separately."""
    store = two_groups
    wrong = wrong((group, other_group))
    state_before = visible_state(store)
    with store.writing():
        if error is not None:
            with pytest.raises(error, match=match):
                store.apply([*writes, wrong])
            assert visible_state(store) == state_before
        store.apply(writes)
        state_after = visible_state(store)
        if error is None:
            store.apply([wrong])
            assert visible_state(store) == state_after
    assert [head(store, each).last_recorded for each in (group, other_group)] == [25, 30]


def test_record_times_must_increase(store, group):
    """R4: a commit whose record time is not past the group's last is refused; a second read helps."""
    with store.writing():
        tell(store, "Al", "one", group=group)
        append(store, draft("Bo says two", group=group))
        for at in (0, 10):
            with pytest.raises(Outrun, match="record time"):
                store.apply([statement_commit(2, "Bo", "two", at, group=group)])
        store.apply([statement_commit(2, "Bo", "two", 11, group=group)])
    assert head(store, group).last_recorded == 11


def test_a_commit_behind_a_record_time_of_another_process_is_refused(store, stores, group):
    """A retry takes a record time, and a writer with an earlier record time gets an error."""
    other_memory = stores.open()
    append(store, draft("a", group=group), draft("Bo says two", group=group))

    def retry(log):
        retired = ((1, log.take_record_time(group, 50)),)
        log.patch(group, Patch(kind=EPISODES, columns=("retired_at",), rows=retired))

    with store.writing():
        store.apply([failed(1, 10, group=group)])
        other_memory.append([group], retry)
        with pytest.raises(Outrun):
            store.apply([statement_commit(2, "Bo", "two", 40, group=group)])
        store.apply([statement_commit(2, "Bo", "two", head(store, group).last_recorded + 1, group=group)])
    ended = [(row.ended_at, row.retired_at) for row in all_of(store, EPISODES, group)]
    assert ended == [(10, 50), (51, None)]


def test_later_changes_of_a_batch_see_earlier_changes(store, group):
    """The next changes of the same batch patch, replace and drop the rows of an earlier change."""
    append(store, draft("Al says one", group=group), draft("Bo says two", group=group))
    operation = Operation(group=group, kind="remove", episodes=("x",))
    operation = replace(operation, sequence=ask(store, operation))
    first, second = (
        statement_commit(1, "Al", "one", 10, group=group),
        statement_commit(2, "Bo", "two", 20, group=group),
    )
    (fact,), (record,) = first.puts[kinds.FACTS], first.puts[kinds.RECORDS]
    renewed = {
        kinds.FACTS: [fact._replace(invalid_at=7, expired_at=30), *second.puts[kinds.FACTS]],
        kinds.ENTITIES: [("E1", "Albert", ("Al",), (), 1, 0, ""), *second.puts[kinds.ENTITIES]],
        kinds.RECORDS: [record._replace(vectors=b"other"), *second.puts[kinds.RECORDS]],
        kinds.SHOWN_EVIDENCE: [(1, 0, "S1", "S2"), (2, 0, "S2", "S3")],
    }
    end = ended(
        operation, 40, result={"episodes": 1}, patches=(
            Patch(kind=kinds.SHOWN_EVIDENCE, columns=("shown",), rows=((2, 0, "S1"),)),
            Patch(kind=kinds.RECORDS, columns=("timed",), rows=((1, 40),)),
        ),
        drops={
            kinds.MENTIONS: [("E1", 1)], kinds.RECORDS: [(2,)], kinds.SHOWN_EVIDENCE: [(1, 0)],
            EPISODES: [(1,)],
        },
    )  # fmt: skip
    with store.writing():
        third = replace(second, puts={**second.puts, **renewed})
        store.apply([extracted(1, READ, group=group), first, third, end])
    assert [row.sequence for row in all_of(store, EPISODES, group)] == [2]
    assert all_of(store, kinds.SHOWN_EVIDENCE, group) == [(2, 0, "S2", "S1")]
    assert all_of(store, kinds.MENTIONS, group) == second.puts[kinds.MENTIONS]
    assert all_of(store, kinds.RECORDS, group) == [record._replace(vectors=b"other", timed=40)]
    assert all_of(store, kinds.FACTS, group) == renewed[kinds.FACTS]
    assert all_of(store, kinds.ENTITIES, group) == renewed[kinds.ENTITIES]
    assert worded(store, "episode", "says", group) == [1]
    assert worded(store, "entity", "al bo", group) == ["E1"]
    assert all_of(store, kinds.OPERATIONS, group)[0].result == '{"episodes":1}'


def test_appenders_and_the_writer_share_one_order(store, stores, group, other_group, mine):
    """R19: one sequence a group, without a gap, each appender in its own order, while commits go on."""

    def appended(name, groups):
        appender = stores.open()
        sequences = {each: [] for each in groups}
        for n in range(6):
            batch = [draft(f"{name} {n} {each}", group=each) for each in groups]
            for each, sequence in zip(groups, append(appender, *batch), strict=True):
                sequences[each].append(sequence)
        return sequences

    with ThreadPoolExecutor(2) as pool, store.writing():
        appending = [
            pool.submit(appended, "a", (group, other_group)),
            pool.submit(appended, "b", (other_group, group)),
        ]
        ended, waiting = False, {}
        while waiting or not ended:
            ended = all(part.done() for part in appending)  # first: the look then sees all of theirs
            waiting = mine(pending_groups(store))
            for each in waiting:
                results, at = pending(store, each, 5), next_time(store, each)
                store.apply(
                    [
                        statement_commit(r.sequence, "Al", "one", at + n, group=each)
                        for n, r in enumerate(results, 1)
                    ]
                )
    for each in (group, other_group):
        sequences = [future.result()[each] for future in appending]
        assert all(part == sorted(part) for part in sequences)
        assert sorted(sequences[0] + sequences[1]) == list(range(1, 13))
        assert store.counts(each)[each] == GroupCounts(committed=12, entities=12, facts=12)


# ------------------------------------------------------------------------------------- the fence


def test_an_older_epoch_changes_nothing(two_groups, stores, visible_state, group):
    """R23: the writer lost its lease without notice, and another process writes."""
    store, newer = two_groups, stores.open()
    with store.writing() as old:
        state_before = visible_state(newer)
        stores.lose_hold()
        with newer.writing() as new:
            assert new > old
            for batch in (
                [statement_commit(1, "Al", "one", 10, group=group)],
                [declined(3, 9, "x", group=group)],
                [extracted(1, READ, group=group)],
            ):
                with pytest.raises(StaleWriter, match="nothing was changed"):
                    store.apply(batch)
            assert visible_state(newer) == state_before
            newer.apply([statement_commit(1, "Al", "one", 10, group=group)])
            assert append(store, draft("appending goes on", group=group)) == [5]
    assert store.counts(group)[group].committed == 1


def test_an_adopted_epoch_can_write(two_groups, stores, writes, group, mine):
    """A restarted writer continues its earlier run."""
    with two_groups.writing() as epoch:
        two_groups.apply(writes[:3])
    second_memory = stores.open()
    with second_memory.writing(epoch=epoch) as held_epoch:
        assert held_epoch == epoch
        second_memory.apply(writes)
        # A former writer cannot write while its epoch has a new holder.
        with pytest.raises(StaleWriter):
            two_groups.apply([statement_commit(4, "Di", "three", 99, group=group)])
    assert mine(pending_groups(second_memory)) == {group: True}


def test_an_outdated_epoch_cannot_be_adopted(store, stores):
    with store.writing() as first:
        pass
    with store.writing() as second:
        pass
    assert second == first + 1
    other_memory = stores.open()
    for epoch in (first, second + 1, 0):
        with pytest.raises(StaleWriter, match="nothing was changed"), other_memory.writing(epoch=epoch):
            pass
    with other_memory.writing(epoch=second):
        pass


def test_writing_without_a_lease_is_refused(store, group):
    append(store, draft("a", group=group))
    with pytest.raises(StaleWriter):
        store.apply([statement_commit(1, "Al", "one", 10, group=group)])
    with store.writing():
        pass
    for batch in (
        [statement_commit(1, "Al", "one", 10, group=group)],
        [extracted(1, READ, group=group)],
        [answered(1, "k", {}, group=group)],
    ):
        with pytest.raises(StaleWriter):
            store.apply(batch)
    assert store.counts(group)[group] == GroupCounts(accepted=1)


def test_a_second_writer_in_the_same_process_is_refused(store, stores, group):
    other_memory = stores.open()
    with store.writing():
        for second in (store, other_memory):
            with pytest.raises(Locked, match=r"process \d+ on .* is ingesting"), second.writing():
                pass
        append(other_memory, draft("Al says one", group=group))
        store.apply([statement_commit(1, "Al", "one", 10, group=group)])  # the refused writer took nothing
    with other_memory.writing():
        pass
