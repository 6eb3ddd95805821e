"""The record row of an entry: its records are unpacked unchanged, for any texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgray.domain.records import (
    Aspect,
    Declaration,
    Evidence,
    EvidenceKind,
    Mention,
    Place,
    ResolvedBy,
    Value,
    ValueType,
    Verdict,
)
from kgray.domain.times import Precision
from kgray.schema.record_rows import (
    LAYOUT,
    EntryRecords,
    Judgements,
    NameVector,
    TextVector,
    UnpackedRecords,
    faults_of,
    judgements,
    name_vectors,
    newest_vectors,
    search_columns,
    statement_texts,
    vector_at,
    with_statement_vectors,
    without_evidence,
)
from kgray.schema.rows import vector_bytes
from tests.tries import tries

WIDTH = 3
TEXTS = st.text(max_size=9) | st.sampled_from(["Zoë", "Дом Быта", "東京 2", "نص", "👩‍🚀", "a\x00b"])
IDS = st.sampled_from(["e1", "e2", "s1", "s2", "東京"])
INSTANTS = st.integers(-(1 << 62), 1 << 62)
PLACES = st.tuples(st.integers(1, 1 << 40), st.integers(0, 1 << 16))
VECTORS = st.lists(st.floats(-1, 1, width=32), min_size=WIDTH, max_size=WIDTH).map(
    lambda numbers: vector_bytes(np.array(numbers, np.float32))
)
TEXT_VECTORS = st.builds(TextVector, VECTORS, st.none() | st.binary(max_size=6))
STATEMENT_VECTORS = st.dictionaries(IDS, TEXT_VECTORS)


def one_of(literal: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(get_args(literal))


VALUES = st.builds(Value, one_of(ValueType), TEXTS, st.none() | TEXTS)
DECLARATIONS = st.builds(
    Declaration, sequence=st.integers(1, 9), ordinal=st.integers(0, 9), name=TEXTS, aspect=one_of(Aspect),
    value=TEXTS, other=TEXTS,
)  # fmt: skip
VERDICTS = st.builds(
    Verdict, sequence=st.integers(1, 9), ordinal=st.integers(0, 9), a=IDS, b=IDS, exclusive=st.booleans(),
    judge=TEXTS, reason=TEXTS, subjects=st.lists(IDS, max_size=2).map(tuple),
)  # fmt: skip
JUDGEMENTS = st.builds(
    Judgements,
    st.lists(st.tuples(DECLARATIONS, INSTANTS), max_size=2),
    st.lists(st.tuples(VERDICTS, INSTANTS), max_size=2),
)
NAMES = st.lists(st.builds(NameVector, IDS, TEXTS, st.integers(1, 9), st.integers(0, 9), VECTORS), max_size=2)


@st.composite
def entries(draw: st.DrawFn, sequence: int) -> EntryRecords:
    """Draw the records of an episode: each piece of evidence is about a mention and an object or a value."""
    mentions = [
        Mention(
            sequence=sequence, ordinal=ordinal, surface=draw(TEXTS), entity=draw(IDS), type=draw(TEXTS),
            sentence=draw(TEXTS), key=draw(st.booleans()), resolved_by=draw(one_of(ResolvedBy)),
            span=draw(st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99))),
        )
        for ordinal in range(draw(st.integers(0, 3)))
    ]  # fmt: skip
    evidence = [
        _evidence(draw, sequence, n, len(mentions)) for n in range(draw(st.integers(0, 3)) * bool(mentions))
    ]
    text = draw(st.none() | TEXTS)
    return EntryRecords(
        sequence=sequence,
        recorded_at=draw(INSTANTS),
        mentions=mentions,
        evidence=evidence,
        births={id_: draw(PLACES) for id_ in ("e1", "e2", "s1", "s2", "東京")},
        judgements=draw(JUDGEMENTS),
        names=draw(NAMES),
        statements=draw(STATEMENT_VECTORS),
        text=text,
        vector=None if text is None else draw(st.none() | TEXT_VECTORS),
    )


def _evidence(draw: st.DrawFn, sequence: int, ordinal: int, mentions: int) -> Evidence:
    dates: Any = st.none() | INSTANTS
    precisions: Any = st.none() | one_of(Precision)
    value = draw(st.none() | VALUES)
    return Evidence(
        sequence=sequence, ordinal=ordinal, statement=draw(IDS), variant=draw(st.integers(0, 1 << 32)),
        kind=draw(one_of(EvidenceKind)), relation=draw(TEXTS), text=draw(TEXTS),
        subject=draw(st.integers(0, mentions - 1)),
        object=draw(st.integers(0, mentions - 1)) if value is None else None, value=value,
        valid_from=draw(dates), valid_to=draw(dates), from_precision=draw(precisions),
        to_precision=draw(precisions), inferred=draw(st.booleans()),
        fact_group=draw(st.none() | st.integers(0, 9)), every_variant=draw(st.booleans()),
        is_reversed=draw(st.booleans()), is_field=draw(st.booleans()),
    )  # fmt: skip


def unpacked(*rows: Any) -> UnpackedRecords:
    """Return the unpacked rows."""
    records = UnpackedRecords()
    records.take(rows, {})
    return records


@settings(max_examples=tries(40))
@given(entries(sequence=7), entries(sequence=8))
def test_packed_records_are_unpacked_unchanged(first: EntryRecords, second: EntryRecords) -> None:
    second.births = first.births  # the birth place of an id is the same in every record
    rows = first.row(), second.row()
    result = unpacked(*rows)

    assert result.mentions == [*first.mentions, *second.mentions]
    assert result.evidence == [*first.evidence, *second.evidence]
    named = {item.entity for item in result.mentions} | {item.statement for item in result.evidence}
    assert result.births == {id_: first.births[id_] for id_ in named}
    assert statement_texts(rows) == {(item.sequence, item.ordinal): item.text for item in result.evidence}
    for records, row in zip((first, second), rows, strict=True):
        assert row.sequence == records.sequence
        assert row.statements == tuple(f"{item.ordinal} {item.statement}" for item in records.evidence)
        assert judgements(row.judged) == records.judgements
        assert row.timed == (records.recorded_at if any(records.judgements) else None)
        assert list(name_vectors(row.names)) == records.names
        assert faults_of(row) == {}


@given(entries(sequence=7))
def test_vectors_are_read_by_position_and_not_by_searches(records: EntryRecords) -> None:
    row = records.row()
    result, columns = unpacked(row), search_columns(row.search)

    vectors = newest_vectors(result.vectors)
    assert vectors.keys() == records.statements.keys()
    for id_, (sequence, position) in vectors.items():
        assert sequence == 7
        assert vector_at(row.vectors, position, WIDTH) == records.statements[id_].vector
    if records.vector:
        assert vector_at(row.vectors, len(records.statements), WIDTH) == records.vector.vector
    assert columns.recorded_at == records.recorded_at
    assert [item[:2] for item in columns.evidence] == [
        [item.ordinal, item.statement] for item in records.evidence
    ]
    assert [item[:4] for item in columns.names] == [
        [item.sequence, item.ordinal, item.entity, item.surface] for item in records.names
    ]
    assert [(id_, weights) for id_, weights, _ in columns.statements] == [
        (id_, item.weights) for id_, item in records.statements.items()
    ]
    assert (columns.episode is None) == (records.text is None)
    if columns.episode:
        assert columns.episode[1] == (records.vector.weights if records.vector else None)


def test_the_newest_vector_of_a_statement_is_used() -> None:
    def with_vector(sequence: int, at: int) -> EntryRecords:
        statements = {id_: TextVector(vector_bytes(np.ones(WIDTH, np.float32))) for id_ in ("s1", f"s{at}")}
        return EntryRecords(sequence=sequence, recorded_at=at, statements=statements)

    rows = [with_vector(sequence, at).row() for sequence, at in ((1, 30), (2, 20), (3, 30))]
    assert newest_vectors(unpacked(*rows).vectors) == {"s1": (3, 0), "s30": (3, 1), "s20": (2, 1)}


def test_an_entry_without_records_has_an_empty_row() -> None:
    empty = EntryRecords(sequence=1, recorded_at=5)
    assert not empty
    assert replace(empty, text="a text")
    assert replace(empty, judgements=Judgements([], [(verdict(), 5)]))
    row = empty.row()
    assert (row.timed, row.statements, row.judged, row.names, row.vectors) == (None, (), None, None, None)
    assert list(name_vectors(None)) == []


def verdict() -> Verdict:
    return Verdict(sequence=1, ordinal=0, a="s1", b="s2", exclusive=True, judge="j")


def full() -> EntryRecords:
    """Return records with something in each column."""
    births: dict[str, Place] = {"e1": (1, 0), "s1": (1, 0)}
    vector = vector_bytes(np.ones(WIDTH, np.float32))
    mentions = [Mention(sequence=1, ordinal=n, surface=f"N{n}", entity="e1") for n in range(2)]
    evidence = [
        Evidence(
            sequence=1, ordinal=n, statement="s1", variant=0, kind="holds", relation="SAYS", text=f"said {n}",
            subject=0, object=1,
        )
        for n in range(3)
    ]  # fmt: skip
    return EntryRecords(
        sequence=1, recorded_at=5, mentions=mentions, evidence=evidence, births=births,
        judgements=Judgements([], [(verdict(), 5)]), names=[NameVector("e1", "N0", 1, 0, vector)],
        statements={"s1": TextVector(vector)}, text="said", vector=TextVector(vector),
    )  # fmt: skip


READERS: dict[str, Callable[[Any], Any]] = {
    "packed": unpacked,
    "judged": lambda row: judgements(row.judged),
    "search": lambda row: search_columns(row.search),
    "names": lambda row: list(name_vectors(row.names)),
}


@pytest.mark.parametrize("column", READERS)
def test_an_unknown_layout_is_refused_with_its_number(column: str) -> None:
    row = full().row()
    _, *values = msgpack.unpackb(getattr(row, column))
    later = row._replace(**{column: msgpack.packb([LAYOUT + 1, *values])})
    READERS[column](row)
    with pytest.raises(ValueError, match=f"^a record of layout {LAYOUT + 1}: this version reads {LAYOUT}$"):
        READERS[column](later)


@given(entries(sequence=7), st.sets(st.integers(0, 3)))
def test_removing_evidence_from_a_row_gives_the_row_of_the_rest(
    records: EntryRecords, removed_ordinals: set[int]
) -> None:
    expected = replace(
        records, evidence=[item for item in records.evidence if item.ordinal not in removed_ordinals]
    )
    assert without_evidence(records.row(), removed_ordinals) == expected.row()


@given(JUDGEMENTS, NAMES, STATEMENT_VECTORS, STATEMENT_VECTORS)
def test_adding_vectors_to_a_row_gives_the_row_of_all_vectors(
    judged: Judgements,
    names: list[NameVector],
    known_vectors: dict[str, TextVector],
    new_vectors: dict[str, TextVector],
) -> None:
    saved = EntryRecords(sequence=7, recorded_at=5, judgements=judged, names=names, statements=known_vectors)
    added = {id_: item for id_, item in new_vectors.items() if id_ not in known_vectors}
    both = replace(saved, statements=known_vectors | added)
    assert with_statement_vectors(saved.row(), added) == both.row()


def test_unusable_evidence_is_reported_with_the_reason() -> None:
    records = full()
    first, second, third = records.evidence
    ends = "its kind is unknown, or it has neither an object nor a value"
    missing = "a mention that it names is not stored"

    def faults(**changed: Any) -> dict[int, str]:
        return faults_of(replace(records, **changed).row())

    assert faults() == {}
    assert faults(mentions=records.mentions[1:]) == dict.fromkeys(range(3), missing)
    assert faults(mentions=records.mentions[:1]) == dict.fromkeys(range(3), missing)
    assert faults(evidence=[first, second._replace(object=None), third]) == {1: ends}
    assert faults(evidence=[first._replace(kind="guess"), second, third]) == {0: ends}  # type: ignore[arg-type]
    assert faults(evidence=[first, second, third._replace(object=None, value=Value("text", "v"))]) == {}


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        *map(msgpack.packb, (5, [], [LAYOUT], [LAYOUT, 5, [3], [], []], [LAYOUT, 5, [[]], [], []])),
    ],
)
def test_an_invalid_record_column_is_refused(packed: bytes) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        faults_of(full().row()._replace(packed=packed))
