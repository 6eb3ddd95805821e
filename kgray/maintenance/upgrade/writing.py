"""The recorded and derived rows of the new store. No other step knows the kinds of this version."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from kgray.domain.records import Evidence, Place
from kgray.graph.change import mentioned_entities
from kgray.graph.group import GroupGraph
from kgray.graph.statements import moved_evidence
from kgray.graph.stored import ORDERED_KINDS
from kgray.graph.texts import summaries_of
from kgray.maintenance.upgrade.content import GroupContent, Timed
from kgray.schema import kinds, rows
from kgray.schema.kinds import Kind, OperationRow, Row
from kgray.schema.record_rows import EntryRecords, NameVector, TextVector

_UNEMBEDDED = "unembedded"  # in the result of a removal: the statements that wait for their vectors


def rows_of(content: GroupContent, graph: GroupGraph) -> Iterator[tuple[Kind[Any], Row]]:
    """Yield all rows of a group, kind by kind in the order of `KINDS`; graph: derived from its records."""
    by_kind = {**_recorded(content), **_derived(content, graph)}
    for kind in kinds.KINDS:
        rows_of_kind = by_kind.get(kind)
        if rows_of_kind is None:
            rows_of_kind = [
                # A column that the earlier version lacks has its default.
                kind.row(**{name: getattr(row, name) for name in kind.names if hasattr(row, name)})
                for row in content.rows[kind.name]
            ]
        yield from ((kind, row) for row in sorted(rows_of_kind, key=kind.key_of))


def _recorded(content: GroupContent) -> dict[Kind[Any], list[Row]]:
    first = {id_: items[0] for id_, items in content.evidence_of().items()}
    return {
        kinds.OPERATIONS: [_operation_row(row, content, first) for row in content.rows["operations"]],
        kinds.ANSWERS: [
            (
                min(answer.used_by, default=0),
                answer.request,
                *answer.cost,
                answer.body,
                _later_users(answer.used_by),
            )
            for answer in content.answers
        ],
        kinds.RECORDS: [entry.row() for entry in _entries(content, first).values() if entry],
    }


def _later_users(used_by: Iterable[int]) -> bytes:
    return np.array(sorted(used_by)[1:], "<u4").tobytes()


def _operation_row(row: Any, content: GroupContent, first: dict[str, Evidence]) -> OperationRow:  # noqa: ANN401 - of any version
    """Return a correction with the births of the entities in it, or with the records that it retired."""
    stored = OperationRow(*(getattr(row, name) for name in kinds.OPERATIONS.names))
    if stored.state != kinds.DONE:
        return stored
    operation = rows.operation(content.name, stored)
    if operation.kind in ORDERED_KINDS:
        ids = sorted({*operation.entities, operation.made} - {""})
        operation = replace(operation, births=tuple((id_, *content.births[id_]) for id_ in ids))
    elif operation.kind == "retract":
        retired = (
            *(("declaration", *_place(t)) for t in content.declarations if t.retired_at == row.recorded_at),
            *(("verdict", *_place(t)) for t in content.verdicts if t.retired_at == row.recorded_at),
        )
        operation = replace(operation, retired=retired)
    result = json.loads(stored.result or "{}")
    if waiting := result.pop(_UNEMBEDDED, None):
        places = [(id_, first[id_].sequence, first[id_].ordinal) for id_ in waiting if id_ in first]
        result |= {_UNEMBEDDED: places} if places else {}
    return stored._replace(payload=rows.operation_payload(operation), result=rows.pack(result))


def _place(timed: Timed[Any]) -> Place:
    return timed.value.sequence, timed.value.ordinal


def _entries(content: GroupContent, first: dict[str, Evidence]) -> dict[int, EntryRecords]:
    """Return the records by entry: of each committed episode, and the last removal's remaining records."""
    episodes = {row.sequence: row for row in content.rows["episodes"] if row.state == kinds.COMMITTED}
    removals = [row for row in content.rows["operations"] if row.kind == "remove" and row.state == kinds.DONE]
    entries = {
        at: EntryRecords(
            sequence=at,
            recorded_at=row.ended_at,
            births=content.births,
            text=" ".join(filter(None, (row.speaker, row.text))),
            vector=_vector(content.episodes[at]) if at in content.episodes else None,
        )
        for at, row in episodes.items()
    }
    last = removals[-1] if removals else None
    saved = EntryRecords(sequence=last.sequence if last else 0, recorded_at=last.recorded_at if last else 0)
    mentions, evidence, names, statements = (defaultdict[int, list[Any]](list) for _ in range(4))
    for mention in content.mentions:
        mentions[mention.sequence].append(mention)
    for item in content.evidence:
        evidence[item.sequence].append(item)
    for name in content.names:
        vector = NameVector(name.entity, name.surface, *name.place, name.vector)
        names[name.place[0] if name.place[0] in entries else saved.sequence].append(vector)
    for id_, text in content.statements.items():
        if id_ in first:
            statements[first[id_].sequence].append((id_, _vector(text)))
    entries[saved.sequence] = entries.get(saved.sequence, saved)
    subjects = {(m.sequence, m.ordinal): m.entity for m in content.mentions}
    for at, entry in entries.items():
        entry.mentions, entry.evidence, entry.names = mentions[at], evidence[at], names[at]
        entry.statements = dict(statements[at])
    for declared in content.declarations:
        entry = entries.get(declared.value.sequence, entries[saved.sequence])
        entry.judgements.declarations.append((declared.value, declared.recorded_at))
    for judged in content.verdicts:
        entry = entries.get(judged.value.sequence, entries[saved.sequence])
        judged_evidence = (first[id_] for id_ in (judged.value.a, judged.value.b) if id_ in first)
        ends = tuple(subjects[item.sequence, item.subject] for item in judged_evidence)
        entry.judgements.verdicts.append((replace(judged.value, subjects=ends), judged.recorded_at))
    return entries


def _vector(text: Any) -> TextVector:  # noqa: ANN401 - of any version
    return TextVector(text.vector, text.weights)


def _derived(content: GroupContent, graph: GroupGraph) -> dict[Kind[Any], list[Row]]:
    facts = graph.facts_of(graph.statements)
    summaries = summaries_of(facts)
    entities = (note.shown() for note in graph.entities.values())
    records = content.records()
    live = {head.sequence for head in records.heads}
    retired = [item for item in content.evidence if item.sequence not in live]
    return {
        kinds.ENTITIES: [rows.entity_row(replace(e, summary=summaries.get(e.id, ""))) for e in entities],
        kinds.SHOWN_ENTITIES: [*graph.shown_entities(graph.shows)],
        kinds.SHOWN_EVIDENCE: [*moved_evidence(graph.places(), records.evidence, retired).values()],
        kinds.MENTIONS: [*mentioned_entities(graph.fold, records.mentions)],
        kinds.FACTS: [rows.fact_row(fact) for fact in facts],
    }
