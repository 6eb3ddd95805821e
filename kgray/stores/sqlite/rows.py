"""Rows to values and back. Column orders here are those of statements.py."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from sys import intern
from typing import Any, TypeVar

from kgray.graph import Entity, Fact
from kgray.records import (
    Episode,
    Evidence,
    EvidenceKind,
    Mention,
    Operation,
    State,
    Value,
)
from kgray.stores import packing
from kgray.stores.sqlite.database import MASK, Row
from kgray.times import Precision

Built = TypeVar("Built", Mention, Evidence)

STATES: tuple[State, ...] = ("accepted", "extracted", "committed", "failed")
ACCEPTED, EXTRACTED, COMMITTED, FAILED = range(4)
PENDING, DONE, REFUSED = range(3)  # operations
# Stored by their index: append, never reorder.
KINDS: tuple[EvidenceKind, ...] = ("holds", "ended", "denied")
PRECISIONS: tuple[Precision, ...] = ("instant", "day", "month", "year")
_KIND_NUMBERS = {kind: n for n, kind in enumerate(KINDS)}
_PRECISION_NUMBERS: dict[Precision | None, int | None] = {
    None: None,
    **{precision: n for n, precision in enumerate(PRECISIONS)},
}
_PRECISION_NAMES: dict[int | None, Precision | None] = {
    None: None,
    **dict(enumerate(PRECISIONS)),
}


def array(values: Any) -> str:  # noqa: ANN401 - any sequence of JSON values
    """Return a JSON array for json_each: escaped, so that any string passes, lone surrogates too."""
    return json.dumps(list(values), separators=(",", ":"))


def episode(group: str, row: Row) -> Episode:
    """Read the columns of EPISODE."""
    return Episode(
        group=group,
        sequence=row[0] & MASK,
        id=row[1],
        source=row[2],
        kind=row[3],
        text=row[4],
        reference_time=row[5],
        content_sha256=row[6],
        speaker=row[7],
        client_id=row[8],
        metadata=row[9],
        state=STATES[row[10]],
        bulk=bool(row[11]),
    )


def operation(group: str, row: Row) -> Operation:
    """Read (key, kind, payload)."""
    return packing.operation(group, row[0] & MASK, row[1], row[2])


def mention_row(no: int, key: int, mention: Mention) -> Row:
    """Return the row of a mention."""
    start, end = mention.span or (None, None)
    return (
        key, no, mention.sequence, mention.ordinal, mention.surface, mention.entity, mention.type,
        mention.sentence, start, end,
    )  # fmt: skip


def mentions(found: Sequence[Row], strings: dict[str, str]) -> list[Mention]:
    """Read the columns of MENTIONS; `strings` keeps one object a repeated string (100k of them at load)."""
    if not found:
        return []
    sequence, ordinal, surface, entity, type_, sentence, start, end = zip(*found, strict=True)
    return _built(
        Mention,
        len(found),
        sequence=sequence,
        ordinal=ordinal,
        surface=map(strings.setdefault, surface, surface),
        entity=map(strings.setdefault, entity, entity),
        type=map(strings.setdefault, type_, type_),
        sentence=map(strings.setdefault, sentence, sentence),
        span=[None if a is None else (a, b) for a, b in zip(start, end, strict=True)],
    )


def evidence_row(no: int, key: int, item: Evidence, shown: str | None) -> Row:
    """Return the row of a piece of evidence."""
    value = item.value
    return (
        key, no, item.sequence, item.ordinal, item.statement, item.variant, _KIND_NUMBERS[item.kind],
        item.relation, item.text, item.subject, item.object,
        value and value.type, value and value.value, value and value.unit,
        item.valid_from, item.valid_to,
        _PRECISION_NUMBERS[item.from_precision], _PRECISION_NUMBERS[item.to_precision],
        int(item.inferred), item.fact_group, shown,
    )  # fmt: skip


def evidence(found: Sequence[Row], strings: dict[str, str]) -> list[Evidence]:
    """Read the columns of EVIDENCE; `strings` as in `mentions`."""
    if not found:
        return []
    (
        sequence, ordinal, statement, variant, kind, relation, text, subject, object_, value_type, value,
        unit, valid_from, valid_to, from_precision, to_precision, inferred, fact_group,
    ) = zip(*found, strict=True)  # fmt: skip
    values = zip(value_type, value, unit, strict=True)
    return _built(
        Evidence,
        len(found),
        sequence=sequence,
        ordinal=ordinal,
        statement=map(strings.setdefault, statement, statement),
        variant=variant,
        kind=map(KINDS.__getitem__, kind),
        relation=map(strings.setdefault, relation, relation),
        text=text,
        subject=subject,
        object=object_,
        value=[None if typed is None else Value(intern(typed), held, of) for typed, held, of in values],  # type: ignore[arg-type]
        valid_from=valid_from,
        valid_to=valid_to,
        from_precision=map(_PRECISION_NAMES.__getitem__, from_precision),
        to_precision=map(_PRECISION_NAMES.__getitem__, to_precision),
        inferred=map(bool, inferred),
        fact_group=fact_group,
    )


def _built(made_as: type[Built], count: int, /, **columns: Iterable[object]) -> list[Built]:
    """Return `count` slotted values from their columns, field by field.

    A third of the time of calling the class 300,000 times: the loops run in C. It passes by
    `__init__`, which in these classes only assigns; a field left out would fail at first use.
    """
    made = list(map(object.__new__, repeat(made_as, count)))
    for name, column in columns.items():
        deque(map(getattr(made_as, name).__set__, made, column), maxlen=0)
    return made


def entity(row: Row) -> Entity:
    """Read the columns of ENTITY."""
    return Entity(
        id=row[0],
        name=row[1],
        aliases=tuple(json.loads(row[2])),
        labels=tuple(json.loads(row[3])),
        born=(row[4], row[5]),
    )


def fact_row(no: int, fact: Fact) -> Row:
    """Return the row of a fact."""
    value = fact.value
    episode_id, ordinal = fact.ended_by or (None, None)
    return (
        no, fact.id, fact.statement, fact.source, fact.relation, fact.text, fact.created_at, fact.target,
        value and value.type, value and value.value, value and value.unit,
        fact.valid_at, fact.invalid_at, fact.expired_at, packing.pack(fact.episodes), episode_id, ordinal,
    )  # fmt: skip


def fact(row: Row) -> Fact:
    """Read the columns of FACT."""
    (
        id_, statement, source, relation, text, created_at, target, value_type, value, unit, valid_at,
        invalid_at, expired_at, episodes, ended_episode, ended_ordinal,
    ) = row  # fmt: skip
    return Fact(
        id=id_,
        statement=statement,
        source=source,
        relation=relation,
        text=text,
        created_at=created_at,
        target=target,
        value=None if value_type is None else Value(value_type, value, unit),
        valid_at=valid_at,
        invalid_at=invalid_at,
        expired_at=expired_at,
        episodes=tuple(json.loads(episodes)),
        ended_by=None if ended_episode is None else (ended_episode, ended_ordinal),
    )
