"""The rows of the new store: recorded and derived ones. No other step knows the kinds of this version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kgray import kinds, rows
from kgray.derivation.group import GroupGraph
from kgray.derivation.summaries import summaries_of
from kgray.kinds import Kind, Row
from kgray.records import Mention
from kgray.upgrade.content import GroupContent, Timed


def rows_of(content: GroupContent, graph: GroupGraph) -> Iterator[tuple[Kind, Row]]:
    """Yield all rows of a group, kind by kind in the order of `KINDS`; graph: derived from its records."""
    by_kind = {**_recorded(content, graph), **_derived(graph)}
    for kind in kinds.KINDS:
        rows_of_kind = by_kind.get(kind.name)
        if rows_of_kind is None:
            rows_of_kind = [
                tuple(getattr(row, name) for name in kind.names) for row in content.rows[kind.name]
            ]
        columns = [kind.names.index(name) for name in kind.place]
        yield from ((kind, row) for row in sorted(rows_of_kind, key=lambda row: [row[n] for n in columns]))


def _recorded(content: GroupContent, graph: GroupGraph) -> dict[str, list[Row]]:
    bearers: dict[tuple[str, str], Mention] = {}
    for mention in content.mentions:
        bearers.setdefault((mention.entity, mention.surface), mention)
    places = graph.places()
    return {
        "answers": [(answer.request, *answer.cost, answer.body) for answer in content.answers],
        "answer_uses": [
            (sequence, answer.request) for answer in content.answers for sequence in answer.used_by
        ],
        "births": [(id_, *place) for id_, place in content.births.items()],
        "mentions": [rows.mention_row(mention) for mention in content.mentions],
        "evidence": [
            rows.evidence_row(item, places.get((item.sequence, item.ordinal))) for item in content.evidence
        ],
        "declarations": [
            _retired(rows.declaration_row(t.value, t.recorded_at), t) for t in content.declarations
        ],
        "verdicts": [_retired(rows.verdict_row(t.value, t.recorded_at), t) for t in content.verdicts],
        "names": [rows.name_row(mention) for mention in bearers.values()],
        "name_vectors": [(n.entity, n.surface, *n.place, n.vector) for n in content.names],
        "statement_vectors": [(id_, text.weights, text.vector) for id_, text in content.statements.items()],
        "episode_vectors": [(at, text.weights, text.vector) for at, text in content.episodes.items()],
    }


def _retired(row: Row, timed: Timed[Any]) -> Row:
    return (*row[:-1], timed.retired_at)


def _derived(graph: GroupGraph) -> dict[str, list[Row]]:
    facts = graph.facts_of(graph.statements)
    summaries = summaries_of(facts)
    entities = (note.shown() for note in graph.entities.values())
    recorded = {**graph.entities, **graph.shows}
    return {
        "entities": [rows.entity_row(replace(e, summary=summaries.get(e.id, ""))) for e in entities],
        "shown_entities": [(id_, visible) for id_ in recorded for visible in graph.shows_as(id_)],
        "facts": [rows.fact_row(fact) for fact in facts],
    }
