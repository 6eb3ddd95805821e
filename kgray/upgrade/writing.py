"""The rows of the new store: the content of a group, and what it derives. Only this step knows the kinds."""

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
    """Yield all rows of a group, kind by kind in the order of `KINDS`; graph: what its records derive now."""
    made = {**_recorded(content, graph), **_derived(graph)}
    for kind in kinds.KINDS:
        found = made.get(kind.name)
        if found is None:
            found = [tuple(getattr(row, name) for name in kind.names) for row in content.rows[kind.name]]
        columns = [kind.names.index(name) for name in kind.place]
        yield from ((kind, row) for row in sorted(found, key=lambda row: [row[n] for n in columns]))


def _recorded(content: GroupContent, graph: GroupGraph) -> dict[str, list[Row]]:
    bearers: dict[tuple[str, str], Mention] = {}
    for mention in content.mentions:
        bearers.setdefault((mention.entity, mention.surface), mention)
    places = graph.places()
    return {
        "answers": [(one.request, *one.cost, one.body) for one in content.answers],
        "answer_uses": [(sequence, one.request) for one in content.answers for sequence in one.used_by],
        "births": [(id_, *place) for id_, place in content.births.items()],
        "mentions": [rows.mention_row(mention) for mention in content.mentions],
        "evidence": [
            rows.evidence_row(one, places.get((one.sequence, one.ordinal))) for one in content.evidence
        ],
        "declarations": [
            _retired(rows.declaration_row(t.value, t.recorded_at), t) for t in content.declarations
        ],
        "verdicts": [_retired(rows.verdict_row(t.value, t.recorded_at), t) for t in content.verdicts],
        "names": [rows.name_row(mention) for mention in bearers.values()],
        "name_vectors": [(one.entity, one.surface, *one.place, one.vector) for one in content.names],
        "statement_vectors": [(id_, one.weights, one.vector) for id_, one in content.statements.items()],
        "episode_vectors": [(at, one.weights, one.vector) for at, one in content.episodes.items()],
    }


def _retired(row: Row, timed: Timed[Any]) -> Row:
    return (*row[:-1], timed.retired_at)


def _derived(graph: GroupGraph) -> dict[str, list[Row]]:
    facts = graph.facts_of(graph.statements)
    summaries = summaries_of(facts)
    entities = (note.shown() for note in graph.entities.values())
    recorded = {**graph.entities, **graph.shows}
    return {
        "entities": [rows.entity_row(replace(one, summary=summaries.get(one.id, ""))) for one in entities],
        "shown_entities": [(one, shown) for one in recorded for shown in graph.shows_as(one)],
        "facts": [rows.fact_row(fact) for fact in facts],
    }
