"""Declared reads on every store: scans in their order, page by page; look-ups in the order asked."""

from __future__ import annotations

from typing import Any

import pytest

from kgray.schema import kinds
from kgray.schema.kinds import (
    ANSWERS,
    EPISODES,
    FACTS,
    KINDS,
    MENTIONS,
    RECORDS,
    SHOWN_ENTITIES,
    SHOWN_EVIDENCE,
    Kind,
    Read,
    Row,
)
from kgray.schema.reads import (
    ANSWERS_TO,
    EPISODES_AT,
    EVERYWHERE,
    FACTS_OF,
    FACTS_OF_STATEMENTS,
    JUDGED,
    MENTIONS_OF,
    NAME_VECTORS_AT,
    PACKED_AT,
    READS,
    SEARCHED_AT,
    SHOWN_BY_EVIDENCE,
    SHOWN_BY_STATEMENTS,
    SHOWN_OF,
    STATEMENTS_AT,
    TAKEN_CLIENT_IDS,
    TAKEN_IDS,
    VECTORS_AT,
)
from tests.graph.by_hand import all_of, append, changes, draft, statement_commit, stored, tell

THREE_PAGES = 2_500  # rows
COMMITTED = frozenset({kinds.COMMITTED})  # a change of an episode that is committed already
TYPES = {"int": int, "bool": bool, "text": str, "texts": tuple, "bytes": bytes}
SMALLEST = {"int": 1, "bool": False, "text": "a", "texts": (), "bytes": b""}
FILLED = {"int": 2, "bool": True, "text": "b", "texts": ("b", "a"), "bytes": b"\x00\xff"}


def samples(kind: Kind[Any]) -> list[Row]:
    """Return a row without a value in any optional column, and one with a value in every column."""
    smallest = (None if column.optional else SMALLEST[column.type] for column in kind.columns)
    return [kind.row._make(smallest), kind.row._make(FILLED[column.type] for column in kind.columns)]


def expected_of(read: Read[Any]) -> tuple[list[Any], list[Row]]:
    """Return the values to ask for, and the rows that a read returns, where the samples are stored."""
    named = [row._asdict() for row in samples(read.kind)]
    if read.by is None:
        chosen = [row for row in named if not read.since or row[read.since] is not None]
        return [], [read.row(**{name: row[name] for name in read.columns}) for row in chosen]
    columns = (read.by,) if isinstance(read.by, str) else read.by
    chosen = [row for row in reversed(named) if row[columns[0]] is not None]
    values = [
        row[columns[0]] if isinstance(read.by, str) else tuple(row[n] for n in columns) for row in chosen
    ]
    return values, [read.row(**{name: row[name] for name in read.columns}) for row in chosen]


def test_every_declared_read_returns_rows_of_its_class(store, group, mine):
    """Each column with a value of its own type (0 would equal False), or with None where it is optional."""
    append(store, draft("a", group=group), draft("b", group=group))
    with store.writing():
        store.apply([changes(1, 10, {kind: samples(kind) for kind in KINDS}, group=group)])
    with store.reading():
        returned = {read: list(store.rows(read, group, expected_of(read)[0])) for read in READS}
    appending = store.append(
        [group], lambda log: {read: list(log.rows(read, group, expected_of(read)[0])) for read in READS}
    )
    for read in READS:
        _, expected = expected_of(read)
        assert returned[read] == appending[read] == expected != [], read.name
        for row in (*returned[read], *appending[read]):
            assert type(row) is read.row, read.name
            types = {n: type(value) for n, value in row._asdict().items() if value is not None}
            assert types == {name: TYPES[read.kind.types[name]] for name in types}, read.name
    for read in EVERYWHERE:
        values, expected = expected_of(read)
        every = [(name, row) for name, row in store.everywhere(read, values) if mine([name])]
        assert [row for _, row in every] == sorted(expected), read.name
        assert {(name, type(row)) for name, row in every} == {(group, read.row)}, read.name


@pytest.mark.seldom_on_neo4j
def test_a_scan_gives_every_row_once_in_the_order_of_its_key(store, group):
    """Over any number of pages, and after any order of insertion."""
    append(store, *(draft(str(n), group=group) for n in range(50)))
    texts = [f"{n:05}" for n in range(THREE_PAGES)]
    puts: dict[Kind[Any], list[Row]] = {
        RECORDS: [(n, None, (f"0 {n}",), bytes([n % 256]), None, b"", None, stored(n % 64))
                  for n in range(1, THREE_PAGES + 1)],
        SHOWN_EVIDENCE: [(1 + n // 500, n % 500, "S", None) for n in range(THREE_PAGES)],
        SHOWN_ENTITIES: [(f"{n // 50:05}", f"{n % 50:05}") for n in range(THREE_PAGES)],
        ANSWERS: [(1 + n // 500, f"{n % 500:05}", 1, 0, 0, "[]", b"") for n in range(THREE_PAGES)],
        kinds.ENTITIES: [(id_, "E", (), ("b", "a"), 1, 0, "a summary") for id_ in texts],
        FACTS: [(id_, "S", "00001", "R", "t", 1, *[None] * 7, ("b",), False, None, None) for id_ in texts],
        MENTIONS: [(f"{n // 50:05}", 1 + n % 50) for n in range(THREE_PAGES)],
    }  # fmt: skip
    mixed = {kind: list(map(kind.row._make, [*rows[::2], *rows[:0:-2]])) for kind, rows in puts.items()}
    with store.writing():
        store.apply([changes(1, 10, mixed, group=group)])
    for kind, rows in puts.items():
        assert all_of(store, kind, group) == rows, kind.name
    ids = [f"{n:05}" for n in range(THREE_PAGES - 1, 0, -2)]
    assert [row.id for row in store.rows(FACTS_OF, group, ids)] == ids


def test_a_look_up_gives_rows_in_the_order_of_the_values(store, group):
    with store.writing():
        for name in ("Al", "Bo", "Al", "Cy"):
            tell(store, name, "one", group=group, client_id=name)
        resolved = {SHOWN_ENTITIES: [("E2", "E3"), ("E2", "E1")], SHOWN_EVIDENCE: [(2, 0, "S2", "S1")]}
        store.apply([changes(2, None, resolved, group=group, states=COMMITTED)])
    ids = {row.sequence: row.id for row in all_of(store, EPISODES, group)}

    def sequences(read, *values):
        return [row.sequence for row in store.rows(read, group, values)]

    def fields_read(read, *values):
        return list(store.rows(read, group, values))

    for read in (EPISODES_AT, PACKED_AT, SEARCHED_AT, STATEMENTS_AT, VECTORS_AT, NAME_VECTORS_AT):
        assert sequences(read, 3, 1, 3, 9) == [3, 1], read.name
    assert sequences(TAKEN_IDS, ids[2], "none", ids[1]) == [2, 1, 3]
    assert sequences(TAKEN_CLIENT_IDS, "Cy", "Al") == [4, 1, 3]
    assert fields_read(MENTIONS_OF, "E3", "E1") == [("E3", 3), ("E1", 1)]
    assert fields_read(STATEMENTS_AT, 4, 2) == [(4, ("0 S4",)), (2, ("0 S2",))]
    assert (
        fields_read(SHOWN_BY_EVIDENCE, 3, 2)
        == fields_read(SHOWN_BY_STATEMENTS, "S1", "S2")
        == [(2, 0, "S2", "S1")]
    )
    assert [row.id for row in fields_read(FACTS_OF_STATEMENTS, "S4", "none", "S1")] == ["F4", "F1"]
    assert fields_read(SHOWN_OF, "E1", "E2") == [("E2", "E1"), ("E2", "E3")]
    for read in READS:
        if read.by is not None:
            assert fields_read(read) == []


def test_rows_with_one_value_are_ordered_by_key(store, group):
    with store.writing():
        first = tell(store, "Al", "one", group=group)
        second = tell(store, "Bo", "two", group=group)
        places = [(second, 2), (first, 0), (second, 1), (second, 0)]
        puts = {
            SHOWN_EVIDENCE: [(*place, "S1", None) for place in places],
            ANSWERS: [(n, "k", 0, 0, 0, "[]", b"") for n in (second, first)],
        }
        store.apply([changes(second, None, puts, group=group, states=COMMITTED)])
    assert [row[:2] for row in store.rows(SHOWN_BY_EVIDENCE, group, [second, first])] == [
        (2, 0), (2, 1), (2, 2), (1, 0),
    ]  # fmt: skip
    assert [row[:2] for row in store.rows(SHOWN_BY_STATEMENTS, group, ["S1"])] == sorted(places)
    assert [row.sequence for row in store.rows(ANSWERS_TO, group, ["k"])] == [first, second]


def test_a_scan_by_time_omits_rows_without_a_time_and_resumes_after_a_place(store, group):
    append(store, draft("a", group=group))
    timed = [(1, 30), (2, None), (3, 20), (4, 30), (5, 10)]
    puts = {RECORDS: [(n, at, (), b"", b"judged", b"", None, None) for n, at in timed]}
    with store.writing():
        store.apply([changes(1, 10, puts, group=group)])

    def scanned(*scanned_after):
        return [row[:2] for row in store.rows(JUDGED, group, scanned_after)]

    assert scanned() == [(10, 5), (20, 3), (30, 1), (30, 4)]
    assert (scanned(20), scanned(30, 1)) == ([(20, 3), (30, 1), (30, 4)], [(30, 4)])


def test_no_value_in_a_look_up_matches_another_group_or_fails(store, group, other_group):
    """Promise 5: any text, and numbers beyond any sequence: SQLite's keys contain a group's number."""
    texts = ["a\x00b", "' OR 1=1 --", "[1]", '"', "1"]
    numbers = [-1, 0, 1 << 39, 1 << 40, (1 << 40) + 1, (2 << 40) + 1, 1 << 62]
    strange = {"text": texts, "int": numbers, "pair": [(n, text) for n in (*numbers, 1) for text in texts]}
    with store.writing():
        for each in (group, other_group):
            tell(store, "Al", "one", group=each)
    for read in READS:
        if read.by is not None and read.by != "state":
            values = strange["pair" if isinstance(read.by, tuple) else read.kind.types[read.by]]
            assert list(store.rows(read, group, values)) == [], read.name
            assert list(store.rows(read, f"{group}-none", values)) == [], read.name


def test_a_scan_returns_rows_of_one_group(store, group, other_group):
    append(store, draft("a", group=group), draft("b", group=other_group))
    with store.writing():
        store.apply([statement_commit(1, "Al", "one", 10, group=group)])
        items = {kind: all_of(store, kind, group) for kind in KINDS}
        store.apply([statement_commit(1, "Bo", "two", 10, group=other_group)])
    assert {kind: all_of(store, kind, group) for kind in KINDS} == items
    assert list(store.rows(EPISODES.all, f"{group}-none")) == []


def test_a_replaced_row_keeps_its_position(store, group):
    with store.writing():
        for name in ("Al", "Bo", "Cy"):
            tell(store, name, "one", group=group)
        records_before = all_of(store, RECORDS, group)
        row = records_before[1]._replace(packed=b"changed")
        store.apply([changes(2, None, {RECORDS: [row]}, group=group, states=COMMITTED)])
    assert all_of(store, RECORDS, group) == [records_before[0], row, records_before[2]]
