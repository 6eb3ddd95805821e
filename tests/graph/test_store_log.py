"""The log on every store: appending, pending rows, counters, previous context (R4, R19, R21, R22, R24)."""

from __future__ import annotations

from contextlib import closing

import pytest

from kgray.domain.records import Episode, ExtractedEntity, Extraction, Operation
from kgray.ports import GroupCounts, GroupHead, Patch
from kgray.schema import rows
from kgray.schema.kinds import ANSWERS, EPISODES, EXTRACTIONS, FAILED, OPERATIONS
from kgray.schema.reads import TAKEN_IDS
from kgray.storage.ledger import pending, pending_groups
from tests.graph.by_hand import (
    all_of,
    answered,
    append,
    ask,
    declined,
    draft,
    ended,
    episode_row,
    extracted,
    failed,
    head,
    metadata,
    remove,
    small,
    statement_commit,
    tell,
    worded,
)

READ = Extraction(entities=(ExtractedEntity(name="Al"),), calls=2, prompt_tokens=30, completion_tokens=4)


# ------------------------------------------------------------------------------------ appending


def test_an_appending_transaction_takes_the_sequences_of_its_groups(store, group, other_group):
    """R19: one sequence a group, 1, 2, 3 ..., from the first on."""
    sent = [draft("a", group=group), draft("b", group=other_group), draft("c", group=group)]
    assert append(store, *sent) == [1, 1, 2]
    assert append(store, draft("d", group=group)) == [3]
    assert [row.text for row in all_of(store, EPISODES, group)] == ["a", "c", "d"]
    assert store.heads([other_group, group, "none"]) == {
        "none": GroupHead(), group: GroupHead(named=True, last=3), other_group: GroupHead(named=True, last=1),
    }  # fmt: skip
    assert list(store.heads([other_group, group])) == [group, other_group]


def test_an_appending_transaction_reads_the_rows_of_its_start(store, group):
    first = draft("a", group=group)
    append(store, first)

    def work(log):
        for sent in (draft("b", group=group), draft("c", group=group)):
            log.put(EPISODES, group, episode_row(sent, log.take_sequence(group)))
        present = log.rows(TAKEN_IDS, group, [first.id, draft("b", group=group).id])
        return [row.sequence for row in present], log.rows(TAKEN_IDS, "none", [first.id])

    assert store.append([group], work) == ([1], [])
    assert store.pending_count(group) == 3


def test_a_failed_transaction_appends_nothing(store, group, other_group, mine):
    append(store, draft("a", group=group))

    def work(log):
        log.put(EPISODES, group, episode_row(draft("b", group=group), log.take_sequence(group)))
        log.take_record_time(group, 50)
        log.take_sequence(other_group)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.append([group, other_group], work)
    assert mine(store.heads()) == {group: GroupHead(named=True, last=1)}
    assert append(store, draft("b", group=group)) == [2]


def test_record_times_increase(store, group):
    """R4: the clock, or one microsecond past the group's last."""

    def times(*clock):
        return store.append([group], lambda log: [log.take_record_time(group, instant) for instant in clock])

    assert times(50, 50, 40, 90) == [50, 51, 52, 90]
    assert times(90) == [91]
    assert head(store, group).last_recorded == 91


def test_an_appending_transaction_can_change_existing_rows(store, group):
    """A retry: the failed row is retired at a record time of its own, its successor is appended (R24)."""
    append(store, draft("a", group=group))
    with store.writing():
        store.apply([failed(1, 10, group=group)])

    def work(log):
        retired = Patch(
            kind=EPISODES, columns=("retired_at",), rows=((1, log.take_record_time(group, 5)), (9, 1))
        )
        log.patch(group, retired)
        (row,) = all_of(store, EPISODES, group)
        log.put(EPISODES, group, rows.accepted_again(row, log.take_sequence(group)))

    store.append([group], work)
    result = all_of(store, EPISODES, group)
    assert [(row.sequence, row.state, row.attempts, row.retired_at) for row in result] == [
        (1, FAILED, 1, 11), (2, 0, 1, None),
    ]  # fmt: skip
    assert store.counts(group)[group] == GroupCounts(accepted=1)


def test_an_episode_is_read_back_unchanged(store, group):
    sent = draft("héllo \U0001f44d", source="chat", kind="message", speaker="Zoë", client_id="c/1",
                 metadata=metadata(mood="fine"), group=group)  # fmt: skip
    append(store, sent)
    expected = Episode(
        group=group, sequence=1, id=sent.id, source="chat", kind="message", text="héllo \U0001f44d",
        reference_time=5, content_sha256=sent.content_sha256, speaker="Zoë", client_id="c/1",
        metadata=metadata(mood="fine"), state="accepted",
    )  # fmt: skip
    assert pending(store, group, 5) == [expected]
    assert all_of(store, EPISODES, group) == [episode_row(sent, 1)]


# --------------------------------------------------------------------------------------- pending


def test_pending_rows_come_in_the_order_of_the_log(store, group, mine):
    merge = Operation(group=group, kind="merge", entities=("x", "y"))
    append(store, draft("a", group=group))
    ask(store, merge)
    append(store, draft("b", group=group), draft("c", group=group))
    assert [item.sequence for item in pending(store, group, 99)] == [1, 2, 3, 4]
    assert pending(store, group, 1, after=1) == [Operation(group=group, sequence=2, kind="merge",
                                                          entities=("x", "y"))]  # fmt: skip
    assert pending(store, group, 0) == []
    assert store.pending_sequences(group, 0, 9) == [(1, True), (2, False), (3, True), (4, True)]
    assert store.pending_sequences(group, 1, 2) == [(2, False), (3, True)]
    assert (store.pending_sequences(group, 4, 9), store.pending_sequences("none", 0, 9)) == ([], [])
    assert (store.pending_count(group), store.pending_count("none")) == (4, 0)
    with store.writing():
        store.apply([
            extracted(1, READ, group=group), declined(2, 10, "no such entity", group=group),
            failed(3, 20, group=group), statement_commit(4, "Al", "one", 30, group=group),
        ])  # fmt: skip
        assert [(item.sequence, item.state) for item in pending(store, group, 99)] == [(1, "extracted")]
        store.apply([statement_commit(1, "Bo", "two", 40, group=group)])
    assert pending(store, group, 99) == []
    assert mine(pending_groups(store)) == {}


def test_a_group_is_live_while_rows_other_than_its_backfill_are_pending(store, group, other_group, mine):
    append(store, draft("a", group=group), draft("a", group=other_group), bulk=True)
    assert [row.bulk for row in pending(store, group, 9)] == [True]
    assert mine(pending_groups(store)) == {group: False, other_group: False}
    append(store, draft("b", group=group))
    sequence = ask(store, Operation(group=other_group, kind="undo", target=1))
    assert mine(pending_groups(store)) == {group: True, other_group: True}
    with store.writing():
        store.apply(
            [
                statement_commit(2, "Al", "one", 10, group=group),
                declined(sequence, 10, "no", group=other_group),
            ]
        )
    assert mine(pending_groups(store)) == {group: False, other_group: False}


def test_groups_with_a_requested_withdrawal_are_listed(store, group, other_group, mine):
    append(store, draft("a", group=group), draft("a", group=other_group))
    ask(store, Operation(group=other_group, kind="merge", entities=("x", "y")))
    assert mine(store.withdrawing()) == []
    sequence = ask(store, Operation(group=group, kind="remove", source="s"))
    assert mine(store.withdrawing()) == [group]
    ask(store, Operation(group=other_group, kind="retract", episodes=("x",)))
    assert mine(store.withdrawing()) == sorted([group, other_group])
    with store.writing():
        store.apply([declined(sequence, 10, "no", group=group)])
    assert mine(store.withdrawing()) == [other_group]


def of_all_groups(store):
    """Assert the answers about all groups of a store without other users: groups, counts, pending."""
    assert (store.heads(), store.counts(), store.pending_count()) == ({}, {}, 0)
    append(store, draft("a"), draft("b"), draft("a", group="h"))
    with store.writing():
        store.apply([failed(1, 9), statement_commit(1, "Al", "one", 9, group="h")])
    assert store.heads() == {
        "g": GroupHead(named=True, last=2, last_recorded=9),
        "h": GroupHead(named=True, last=1, last_recorded=9),
    }
    assert store.counts() == {
        "g": GroupCounts(accepted=1, failed=1),
        "h": GroupCounts(committed=1, entities=1, facts=1),
    }
    assert pending_groups(store) == {"g": True}
    assert store.pending_count() == 1


def test_queries_about_all_groups_cover_all_groups(tmp_path):
    with closing(small(tmp_path)) as store:
        of_all_groups(store)


def test_reads_of_a_missing_group_are_empty(store, group):
    assert store.counts(group) == {group: GroupCounts()}
    assert store.heads([group]) == {group: GroupHead()}
    assert store.heads([]) == {}
    assert pending(store, group, 5) == []
    assert all_of(store, EPISODES, group) == []
    assert store.facts_at(group, ["E1"], None, None) == []
    assert worded(store, "fact", "says", group) == []


def test_previous_context_has_the_latest_earlier_messages_of_its_source(store, group):
    """R22: same source, smaller sequence, no later reference time, live; greatest (time, sequence) first."""
    times_and_sources = [(30, "s"), (10, "s"), (20, "other"), (20, "s"), (20, "s"), (40, "s")]
    append(
        store,
        *(
            draft(str(n), reference_time=t, source=s, group=group)
            for n, (t, s) in enumerate(times_and_sources, 1)
        ),
    )
    items = {item.sequence: item for item in pending(store, group, 9)}

    def context_of(sequence, limit):
        return store.said_before([items[sequence]], limit)[sequence]

    assert context_of(6, 9) == [1, 5, 4, 2]
    assert context_of(6, 2) == [1, 5]
    assert store.said_before(list(items.values()), 2) == {n: context_of(n, 2) for n in items}
    assert context_of(5, 9) == [4, 2]
    assert (context_of(2, 9), context_of(6, 0)) == ([], [])
    retirement = Patch(kind=EPISODES, columns=("retired_at",), rows=((1, 50), (4, 50)))
    store.append([group], lambda log: log.patch(group, retirement))
    assert context_of(6, 9) == [5, 2]


# ------------------------------------------------------------------------- extractions and answers


def test_the_first_extraction_of_an_episode_is_kept(store, group):
    append(store, draft("a", group=group))
    with store.writing():
        store.apply([extracted(1, READ, group=group)])
        store.apply([extracted(1, Extraction(), group=group)])
        assert [item.state for item in pending(store, group, 9)] == ["extracted"]
        assert all_of(store, EXTRACTIONS, group) == [rows.extraction_row(1, READ)]
        assert store.counts(group) == {
            group: GroupCounts(extracted=1, calls=2, prompt_tokens=30, completion_tokens=4)
        }
        store.apply(
            [statement_commit(1, "Al", "one", 10, group=group), extracted(1, Extraction(), group=group)]
        )
    assert all_of(store, EXTRACTIONS, group) == [rows.extraction_row(1, READ)]


def test_the_first_answers_of_each_episode_are_kept(store, group):
    """R21: first write wins, even if the requesting entry changed; each entry that uses them has a row."""
    first, second = {"duplicate_of": None}, {"duplicate_of": 0}
    with store.writing():
        tell(store, "Al", "one", group=group)
        tell(store, "Bo", "two", group=group)
        (sequence,) = append(store, draft("asks", group=group))
        store.apply([
            answered(1, "k", first, calls=1, group=group), answered(1, "k", second, calls=7, group=group),
            answered(sequence, "merge", second, first, group=group), answered(2, "k", first, group=group),
        ])  # fmt: skip
        store.apply([answered(1, "k", second, calls=7, group=group)])
        stored_answers = [
            rows.answers_row(1, "k", [first], 1, 0, 0),
            rows.answers_row(2, "k", [first], 0, 0, 0),
        ]
        stored_answers += [rows.answers_row(3, "merge", [second, first], 0, 0, 0)]
        assert all_of(store, ANSWERS, group) == stored_answers
        assert store.counts(group)[group].calls == 1
        # An answer requested for an entry that was removed since leaves no trace.
        remove(store, [2], group=group, source="s")
        store.apply([answered(2, "late", first, group=group), answered(2, "k", group=group)])
    assert all_of(store, ANSWERS, group) == [stored_answers[0], stored_answers[2]]


def test_an_operation_ends_once(store, group):
    operation = Operation(group=group, kind="split", entities=("x",), surfaces=("S",))
    ask(store, operation)
    end = ended(Operation(group=group, sequence=1, kind="split", made="m"), 50, result={"sequence": 1})
    with store.writing():
        store.apply([end])
        store.apply([declined(1, 99, "again", group=group)])
    ((sequence, kind, payload, state, recorded_at, result),) = all_of(store, OPERATIONS, group)
    assert (sequence, kind, state, recorded_at, result) == (1, "split", 1, 50, '{"sequence":1}')
    assert payload == '{"made":"m"}'
    assert head(store, group).last_recorded == 50


def test_a_failure_is_recorded_once(store, group):
    """R24: a failed row does not fail again, and takes only one record time."""
    append(store, draft("a", group=group))
    with store.writing():
        store.apply([failed(1, 100, "no JSON", group=group, raw="bad output")])
        store.apply(
            [failed(1, 200, "again", group=group), statement_commit(1, "Al", "one", 300, group=group)]
        )
    failure = {"failure_kind": "Refused", "failure_message": "no JSON", "failure_raw": "bad output"}
    row = episode_row(draft("a", group=group), 1, state=FAILED, attempts=1, ended_at=100, **failure)
    assert all_of(store, EPISODES, group) == [row]
    assert head(store, group) == GroupHead(named=True, last=1, last_recorded=100)
