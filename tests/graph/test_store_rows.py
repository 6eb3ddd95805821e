"""Declared reads on every store: scans in their order, page by page; look-ups in the order asked."""

from __future__ import annotations

from dataclasses import replace

from kgray import kinds
from kgray.kinds import (
    ALL,
    BIRTHS,
    EPISODES_AT,
    EVIDENCE_IN,
    EVIDENCE_SHOWN,
    FACTS_OF,
    FACTS_OF_STATEMENTS,
    KINDS,
    MENTIONS,
    MENTIONS_IN,
    MENTIONS_OF,
    NAME_VECTORS,
    NAMED,
    NAMES,
    READS,
    SHOWN_OF,
    STATEMENT_VECTORS_OF,
    STATEMENTS_SHOWN,
    TAKEN_CLIENT_IDS,
    TAKEN_IDS,
)
from tests.graph.by_hand import WEIGHTS, all_of, append, changes, draft, stored, tell, told

MANY = 2_500  # rows: three pages


def test_a_scan_gives_every_row_once_in_the_order_of_its_kind(store, group):
    """However many pages it takes, whatever order the rows were put in."""
    append(store, draft("a", group=group))
    mentions = [
        (1 + n // 500, n % 500, f"name {n}", f"E{n % 7}", "", "", False, "name", None, None)
        for n in range(MANY)
    ]
    births = [(f"{n * 7919 % MANY:05}", 1 + n // 500, n % 500) for n in range(MANY)]
    names = [(f"E{-n % MANY}", "x", "x", 1, n) for n in range(MANY)]
    vectors = [(f"E{-n % MANY}", "x", 1, n, stored(n % 64)) for n in range(MANY)]
    facts = [
        (f"{n:05}", "S", "E", "R", "t", 1, *[None] * 7, ("b", "a"), False, None, None) for n in range(MANY)
    ]
    puts = {
        MENTIONS: mentions[::-1], BIRTHS: births[::-1], NAMES: names, NAME_VECTORS: vectors,
        kinds.FACTS: facts[::2] + facts[1::2],
        kinds.ENTITIES: [("E", "E", (), ("b", "a"), 1, 0, "a summary")],
    }  # fmt: skip
    with store.writing():
        store.apply([changes(1, 10, puts, group=group)])
    assert all_of(store, MENTIONS, group) == mentions
    assert all_of(store, BIRTHS, group) == sorted(births)
    assert all_of(store, NAMES, group) == names
    assert all_of(store, NAME_VECTORS, group) == vectors
    assert all_of(store, kinds.FACTS, group) == facts
    asked = [f"{n:05}" for n in range(MANY - 1, 0, -2)]
    assert [row[0] for row in store.rows(FACTS_OF, group, asked)] == asked


def test_a_look_up_gives_rows_in_the_order_of_the_values(store, group):
    with store.writing():
        for name in ("Al", "Bo", "Al", "Cy"):
            tell(store, name, "one", group=group, client_id=name)
    ids = {row[0]: row[1] for row in all_of(store, kinds.EPISODES, group)}

    def found(read, *values, columns=slice(None)):
        return [row[columns] for row in store.rows(read, group, values)]

    assert found(EPISODES_AT, 3, 1, 3, 9, columns=0) == [3, 1]
    assert found(TAKEN_IDS, ids[2], "none", ids[1], columns=0) == [2, 1, 3]
    assert found(TAKEN_CLIENT_IDS, "Cy", "Al", columns=0) == [4, 1, 3]
    assert found(MENTIONS_IN, 4, 2, columns=slice(0, 3)) == [(4, 0, "Cy"), (2, 0, "Bo")]
    assert found(MENTIONS_OF, "E3", "E1") == [("E3", "Al", 3), ("E1", "Al", 1)]
    assert found(NAMED, "cy", "al") == [("cy", "E4"), ("al", "E1"), ("al", "E3")]
    assert found(EVIDENCE_IN, 2, columns=2) == ["S2"]
    assert found(EVIDENCE_SHOWN, (3, 0), (9, 9), (1, 0)) == [(3, 0, "S3"), (1, 0, "S1")]
    assert found(STATEMENTS_SHOWN, "S2", "S1") == [("S2", "S2", 2), ("S1", "S1", 1)]
    assert found(FACTS_OF_STATEMENTS, "S4", "none", "S1", columns=0) == ["F4", "F1"]
    assert found(SHOWN_OF, "E2") == [("E2", "E2")]
    assert found(STATEMENT_VECTORS_OF, "S2", "S9") == [("S2", WEIGHTS, stored(2))]
    for read in READS:
        if read.by is not None:
            assert found(read) == []


def test_several_rows_of_one_value_come_in_the_order_of_their_kind(store, group):
    with store.writing():
        first = tell(store, "Al", "one", group=group)
        second = tell(store, "Bo", "two", group=group)
        evidence = all_of(store, kinds.EVIDENCE, group)
        again = {kinds.EVIDENCE: [(second, n, "S1", *evidence[1][3:]) for n in (2, 1)]}
        store.apply([changes(2, None, again, group=group, states=frozenset({kinds.COMMITTED}))])
    assert [row[:2] for row in store.rows(EVIDENCE_IN, group, [second, first])] == [
        (2, 0), (2, 1), (2, 2), (1, 0),
    ]  # fmt: skip
    assert [row[0::2] for row in store.rows(STATEMENTS_SHOWN, group, ["S1"])] == [
        ("S1", 1),
        ("S1", 2),
        ("S1", 2),
    ]


def test_no_value_reaches_another_group_or_is_an_error(store, group, other):
    """Promise 5: any text, and numbers beyond any sequence: a group's number stands in SQLite's keys."""
    texts = ["a\x00b", "' OR 1=1 --", "[1]", '"', "1"]
    numbers = [-1, 0, 1 << 39, 1 << 40, (1 << 40) + 1, (2 << 40) + 1, 1 << 62]
    strange = {"text": texts, "int": numbers, "pair": [(n, 0) for n in numbers] + [(1, -1)]}
    with store.writing():
        for each in (group, other):
            tell(store, "Al", "one", group=each)
    for read in READS:
        types = {column.name: column.type for column in read.kind.columns}
        if read.by is not None and read.by != "state":
            values = strange["pair" if isinstance(read.by, tuple) else types[read.by]]
            assert list(store.rows(read, group, values)) == [], read.name
            assert list(store.rows(read, f"{group}-none", values)) == [], read.name


def test_a_scan_is_of_one_group(store, group, other):
    append(store, draft("a", group=group), draft("b", group=other))
    with store.writing():
        store.apply([told(1, "Al", "one", 10, group=group)])
        one = {kind: all_of(store, kind, group) for kind in KINDS}
        store.apply([told(1, "Bo", "two", 10, group=other)])
    assert {kind: all_of(store, kind, group) for kind in KINDS} == one
    assert list(store.rows(ALL["episodes"], f"{group}-none")) == []


def test_a_row_that_is_put_again_keeps_its_place(store, group):
    with store.writing():
        for name in ("Al", "Bo", "Cy"):
            tell(store, name, "one", group=group)
        before = all_of(store, kinds.EVIDENCE, group)
        row = (*before[1][:6], "changed", *before[1][7:])
        change = changes(2, None, {kinds.EVIDENCE: [row]}, group=group)
        store.apply([replace(change, states=frozenset({kinds.COMMITTED}))])
    assert all_of(store, kinds.EVIDENCE, group) == [before[0], row, before[2]]
