"""Removal on every store: rows are dropped, a group is cleared; all other rows stay (R25, R27)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgray.domain.records import Declaration, Operation, Verdict
from kgray.ports import GroupCounts, GroupHead, Patch
from kgray.schema import kinds
from kgray.schema.kinds import ANSWERS, EPISODES, KINDS, OPERATIONS, RECORDS
from kgray.schema.reads import READS
from kgray.schema.record_rows import Judgements, judged_column
from kgray.storage.ledger import pending
from tests.graph.by_hand import (
    all_of,
    answered,
    append,
    ask,
    draft,
    ended,
    everything,
    failed,
    head,
    remove,
    rows_of,
    statement_commit,
    tell,
    with_judgements,
    worded,
)

SCOPES = ("fact", "entity", "episode")


@pytest.mark.seldom_on_neo4j
def test_no_read_finds_dropped_rows(store, group):
    """No word, id or vector of a removed episode is found; the rest of its group is unchanged."""
    sent = draft("zqtext", group=group, source="zqsource", client_id="zqclient", speaker="zqspeaker")
    kept_draft = draft("kept text", group=group, client_id="kept")
    append(store, sent, kept_draft)
    declared = Declaration(sequence=1, ordinal=0, name="SAYS", aspect="cardinality", value="many")
    verdict = Verdict(sequence=2, ordinal=0, a="S1", b="S2", exclusive=True, judge="j", reason="zqwhy")
    removed_commit, kept_commit = (
        statement_commit(1, "zqname", "zqvalue", 10, group=group, sent=sent),
        statement_commit(2, "Bo", "two", 20, group=group, sent=kept_draft),
    )
    removed_commit = with_judgements(removed_commit, declarations=[declared])
    kept_commit = with_judgements(kept_commit, verdicts=[verdict])
    with store.writing():
        store.apply([answered(1, "k", {"why": "zqanswer"}, group=group), removed_commit, kept_commit])
        blanked = judged_column(Judgements([], [(replace(verdict, reason=""), 20)]))
        blank = Patch(kind=RECORDS, columns=("judged",), rows=((2, blanked),))
        operation = Operation(group=group, kind="remove", episodes=("zqclient",))
        operation = replace(operation, sequence=ask(store, operation))
        end = ended(operation, 30, drops=rows_of(store, [1], group=group), patches=(blank,), erases=True)
        store.apply([end])
        store.apply([end])
    remaining_rows = {kind: all_of(store, kind, group) for kind in KINDS}
    expected = {kind: list(kept_commit.puts.get(kind, ())) for kind in KINDS}
    expected[RECORDS] = [row._replace(judged=blanked) for row in kept_commit.puts[RECORDS]]
    expected[OPERATIONS] = [(3, "remove", "{}", kinds.DONE, 30, "{}")]
    assert remaining_rows == expected
    words = ("zqtext", "zqspeaker", "zqname", "zqvalue", "zqclient", sent.id, "E1", "S1", "F1")
    for read in READS:
        if isinstance(read.by, str) and read.by != "state":
            values = [*words, "zqsource", "k"] if read.kind.types[read.by] == "text" else [1]
            assert list(store.rows(read, group, values)) == [], read.name
    for word in words:
        assert [worded(store, scope, word, group) for scope in SCOPES] == [[], [], []]
    assert store.facts_at(group, ["E1"], None, None) == []
    assert store.counts(group)[group] == GroupCounts(committed=1, entities=1, facts=1)


def test_a_cleared_group_keeps_only_its_sequence_and_record_time(store, group, other_group, mine):
    """R27: none of its sequences and record times is used again; no other group changes."""
    with store.writing():
        for each in (group, other_group):
            tell(store, "Al", "one", group=each, client_id="c")
            append(store, draft("failed", group=each))
            store.apply([failed(2, 50, group=each), answered(2, "k", {"a": 1}, group=each)])
        state_before = everything(store, other_group)
        removal = remove(store, [], group=group, everything=True)
        assert head(store, group) == GroupHead(named=False, last=removal, last_recorded=60, removals=1)
        assert list(mine(store.heads())) == list(mine(store.counts())) == [other_group]
        assert everything(store, other_group) == state_before
        remaining_rows = {kind: result for kind in KINDS if (result := all_of(store, kind, group))}
        assert remaining_rows == {OPERATIONS: [(removal, "remove", "{}", kinds.DONE, 60, '{"episodes":0}')]}
        assert [worded(store, scope, "al says one", group) for scope in SCOPES] == [[], [], []]
        # A late commit from before the removal belongs to an episode that has ended.
        store.apply([statement_commit(1, "Al", "late", 10**6, group=group)])
        assert all_of(store, EPISODES, group) == []
        assert append(store, draft("anew", group=group, client_id="c")) == [removal + 1]
        assert list(mine(store.heads())) == [group, other_group]
        assert head(store, group).last_recorded == 60


def test_episodes_accepted_after_the_request_survive_a_groups_removal(store, group, mine):
    """The order of requests defines the extent of the removal: later episodes are kept."""
    with store.writing():
        tell(store, "Al", "one", group=group)
        operation = Operation(group=group, kind="remove", everything=True)
        operation = replace(operation, sequence=ask(store, operation))
        append(store, draft("after", group=group, client_id="c"))
        store.apply([
            answered(1, "shared", {}, group=group), answered(3, "shared", {}, group=group),
            answered(3, "ahead", {"a": 1}, group=group),
            ended(operation, 99, clear=True, erases=True, unsettles=True),
        ])  # fmt: skip
        assert [item.sequence for item in pending(store, group, 9)] == [3]
        assert mine(store.heads()) == {group: GroupHead(named=True, last=3, last_recorded=99, removals=1)}
        assert all_of(store, ANSWERS, group) == []
        store.apply([statement_commit(3, "Bo", "two", 100, group=group)])
    assert worded(store, "fact", "says", group) == [(3, 0)]


def test_a_cleared_group_can_be_filled_again_by_the_same_batch(store, group):
    """A clear is complete before later changes of its batch."""
    with store.writing():
        tell(store, "Al", "one", group=group)
        operation = Operation(group=group, kind="remove", everything=True)
        operation = replace(operation, sequence=ask(store, operation))
        (later,) = append(store, draft("Bo says two", group=group))
        second_commit = statement_commit(later, "Bo", "two", 120, group=group)
        store.apply([ended(operation, 99, clear=True), second_commit])
    assert [row.name for row in all_of(store, kinds.ENTITIES, group)] == ["Bo"]
    assert [row.sequence for row in all_of(store, RECORDS, group)] == [later]
