"""One complete change and the reads after it, on every store: R4, R21, R23."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import Declaration, Operation, Verdict
from kgray.errors import StoreError
from kgray.ports import GroupCounts, Patch
from kgray.schema import kinds, rows
from kgray.schema.kinds import (
    ANSWERS,
    ENTITIES,
    EPISODES,
    FACTS,
    KINDS,
    OPERATIONS,
    RECORDS,
    SHOWN_ENTITIES,
    SHOWN_EVIDENCE,
)
from kgray.schema.reads import PACKED
from kgray.schema.record_rows import judgements, statement_texts
from tests.graph.by_hand import (
    PENDING,
    all_of,
    append,
    ask,
    changes,
    draft,
    everything,
    head,
    next_time,
    statement_commit,
    tell,
    with_judgements,
    worded,
)

COMMITTED = frozenset({kinds.COMMITTED})  # a change of an episode that is committed already


def test_a_change_is_read_back_unchanged(store, group):
    """Every kind of row comes back as it was put, in its own types."""
    declared = Declaration(sequence=1, ordinal=0, name="SAYS", aspect="cardinality", value="single")
    verdict = Verdict(sequence=1, ordinal=1, a="S1", b="S9", exclusive=True, judge="j", reason="why")
    commit = statement_commit(1, "Al", "one", 100, group=group)
    commit = with_judgements(commit, declarations=[declared], verdicts=[verdict])
    puts = {
        **commit.puts,
        ANSWERS: [rows.answers_row(1, "k", [{"a": 1}], 3, 4, 5, b"\x07\x00\x00\x00")],
        SHOWN_EVIDENCE: [(1, 0, "S1", None)],
        SHOWN_ENTITIES: [("E1", "E1"), ("E1", "E9")],
        ENTITIES: [("E1", "Al", ("Albert", "Zoë"), (), 1, 0, "Al is one.")],
    }
    append(store, draft("Al says one", group=group))
    with store.writing():
        store.apply([replace(commit, puts=puts)])
    read = {kind: all_of(store, kind, group) for kind in KINDS}
    assert read == {kind: list(puts.get(kind, ())) for kind in KINDS}
    (record,) = read[RECORDS]
    assert judgements(record.judged) == ([(declared, 100)], [(verdict, 100)])
    assert store.counts(group)[group] == GroupCounts(
        committed=1, entities=1, facts=1, calls=3, prompt_tokens=4, completion_tokens=5
    )
    assert head(store, group).last_recorded == 100
    results = {scope: worded(store, scope, "al one", group) for scope in ("fact", "entity", "episode")}
    assert results == {"fact": [(1, 0)], "entity": ["E1"], "episode": [1]}


def test_drops_precede_puts_and_puts_precede_patches(store, group):
    with store.writing():
        tell(store, "Al", "one", group=group)
        shown_before = {SHOWN_ENTITIES: [("E1", "E1"), ("E1", "E2")]}
        store.apply([changes(1, None, shown_before, group=group, states=COMMITTED)])
        sequence = ask(store, Operation(group=group, kind="merge"))
        (row,) = all_of(store, RECORDS, group)
        change = changes(
            sequence, 50, {RECORDS: [row._replace(packed=b"other")], SHOWN_ENTITIES: [("E1", "new")]},
            group=group, ledger=OPERATIONS, states=PENDING,
            drops={RECORDS: [(1,), (9,)], SHOWN_ENTITIES: [("E1", "E1")], FACTS: [("F1",)]},
            patches=(
                Patch(
                    kind=RECORDS, columns=("timed", "statements"),
                    rows=((1, 50, ("0 S7",)), (9, 50, ("0 S7",))),
                ),
                Patch(kind=ENTITIES, columns=("aliases",), rows=(("E1", ("Bo", "Cy")), ("none", ()))),
            ),
        )  # fmt: skip
        store.apply([change])
    assert all_of(store, RECORDS, group) == [row._replace(packed=b"other", timed=50, statements=("0 S7",))]
    assert all_of(store, SHOWN_ENTITIES, group) == [("E1", "E2"), ("E1", "new")]
    assert all_of(store, FACTS, group) == []
    assert all_of(store, ENTITIES, group) == [("E1", "Al", ("Bo", "Cy"), (), 1, 0, "")]


def test_a_put_replaces_rows_and_words_except_write_once_rows(store, group):
    with store.writing():
        tell(store, "Al", "one", group=group)
        tell(store, "Bo", "two", group=group)
        (_, second) = all_of(store, RECORDS, group)
        (renewed,) = statement_commit(1, "Albert", "bees", 10, group=group).puts[RECORDS]
        first = {ANSWERS: [rows.answers_row(1, "k", [{"a": 1}], 1, 0, 0)]}
        puts = {
            RECORDS: [renewed],
            ANSWERS: [rows.answers_row(n, "k", [{"a": 2}], 7, 0, 0) for n in (1, 2)],
            ENTITIES: [("E1", "Albert", ("Al",), ("Person",), 1, 0, "Al is another.")],
        }
        for each in (first, puts):
            store.apply([changes(2, None, each, group=group, states=COMMITTED)])
    assert all_of(store, RECORDS, group) == [renewed, second]
    assert worded(store, "fact", "bees", group) == [(1, 0)]
    assert worded(store, "fact", "one", group) == []
    assert worded(store, "entity", "albert", group) == ["E1"]
    assert all_of(store, ANSWERS, group) == [*first[ANSWERS], puts[ANSWERS][1]]
    assert all_of(store, ENTITIES, group)[0] == ("E1", "Albert", ("Al",), ("Person",), 1, 0, "Al is another.")


def test_a_change_without_a_record_time_takes_none(store, group):
    with store.writing():
        tell(store, "Al", "one", group=group)
        head_before = head(store, group)
        store.apply([changes(1, None, {RECORDS: []}, group=group, states=COMMITTED)])
    assert head(store, group) == head_before


def test_a_change_for_an_unused_sequence_is_an_error(store, group):
    with store.writing():
        with pytest.raises(StoreError, match="is empty"):
            store.apply([statement_commit(1, "Al", "one", 10, group=group)])
        append(store, draft("a", group=group))
        with pytest.raises(StoreError, match="no such sequence"):
            store.apply([statement_commit(2, "Al", "one", 10, group=group)])


def test_a_change_for_an_entry_of_the_other_kind_is_ignored(store, group):
    """A sequence is an episode or an operation; to a change of the other kind it was removed."""
    append(store, draft("a", group=group))
    state_before = everything(store, group)
    with store.writing():
        store.apply([changes(1, 10, {}, group=group, ledger=OPERATIONS, states=PENDING)])
    assert everything(store, group) == state_before


def fact(id_, source, target, created, valid=None, invalid=None):
    """Return the row of a derived fact between two entities."""
    return rows.fact_row(
        Fact(id=id_, statement="S" + id_, source=source, relation="KNOWS", text=id_, created_at=created,
             target=target, valid_at=valid, invalid_at=invalid)
    )  # fmt: skip


def test_facts_at_an_entity_are_newest_first_and_filtered_by_as_of(store, group):
    append(store, draft("a", group=group))
    facts = [
        fact("a", "X", "Y", 10, 0, 50), fact("b", "Y", "X", 20, 50), fact("c", "X", "Z", 20),
        fact("d", "Z", "Y", 5), fact("zero", "X", "Y", 30, 7, 7),
    ]  # fmt: skip
    entities = [rows.entity_row(Entity(id=i, name=i, born=(1, n))) for n, i in enumerate("XYZ")]
    with store.writing():
        store.apply([changes(1, 10, {ENTITIES: entities, FACTS: facts}, group=group)])

    def fact_names(ids, as_of, limit):
        return [f.id for f in store.facts_at(group, ids, as_of, limit)]

    assert fact_names(["X"], None, None) == ["zero", "b", "c", "a"]
    assert fact_names(["X"], None, 2) == ["zero", "b"]
    assert fact_names(["X", "Y", "X"], 49, None) == ["c", "a", "d"]
    assert fact_names(["X", "Y"], 50, None) == ["b", "c", "d"]
    assert fact_names(["X"], 7, None) == ["c", "a"]
    assert fact_names(["none"], None, None) == []
    assert fact_names([], None, None) == []
    assert [rows.fact_row(f) for f in store.facts_at(group, ["Y"], None, 1)] == [facts[4]]


def test_equal_ids_in_two_groups_are_separate_rows(store, group, other_group):
    with store.writing():
        for each, name in ((group, "Al"), (other_group, "Bo")):
            tell(store, name, "one", group=each, client_id="c")
    for each, name in ((group, "Al"), (other_group, "Bo")):
        assert [row.name for row in all_of(store, ENTITIES, each)] == [name]
        assert [*statement_texts(store.rows(PACKED, each)).values()] == [f"{name} says one"]
        assert [row.text for row in all_of(store, EPISODES, each)] == [f"{name} says one"]
        assert [fact.text for fact in store.facts_at(each, ["E1"], None, None)] == [f"{name} says one"]
        assert worded(store, "fact", name, each) == [(1, 0)]


def test_snapshots_nest_and_a_store_can_be_closed_twice(store, stores, group):
    with store.writing():
        tell(store, "Al", "one", group=group)
        with store.reading(), store.reading():
            assert [row.name for row in all_of(store, ENTITIES, group)] == ["Al"]
        store.compact()
    assert next_time(store, group) == 20
    store.close()
    store.close()
    assert stores.open().counts(group)[group] == GroupCounts(committed=1, entities=1, facts=1)
