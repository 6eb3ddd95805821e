"""Which rows are deleted with erased episodes (R25), found by declared reads of their sequences.

A row of an erased sequence goes. A row that belongs to no sequence goes once no stored row names it; rows of
retracted episodes count, because a read with an earlier `known_at` may still see them:

    names, name_vectors     an entity's surface, while a mention bears it
    births                  an entity or statement, while a mention, evidence, merge or split names it
    statement_vectors       a statement, while evidence is about it
    answers                 a request, until one of the episodes that used it goes; then all its uses go too

Which rulings and verdicts stay is decided with the graph, in `correct`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kgray import kinds
from kgray.kinds import Key, Kind, Read, Row
from kgray.ports import Store
from kgray.records import Operation, Place


def erased_rows(
    store: Store,
    group: str,
    sequences: Sequence[int],
    operations: Iterable[Operation],
    *,
    kept_rulings: set[Place],
    kept_verdicts: set[Place],
) -> dict[Kind, Sequence[Key]]:
    """Return the keys of all recorded rows that go with these episodes.

    operations  the group's merges and splits: the births of what they name stay
    kept_*      places of these episodes' rulings and verdicts that stay
    """
    erased = set(sequences)

    def read(of: Read, values: Iterable[Any]) -> list[Row]:
        asked = sorted(set(values))
        return list(store.rows(of, group, asked)) if asked else []

    mentions, evidence = read(kinds.MENTIONS_IN, erased), read(kinds.EVIDENCE_IN, erased)
    # Names in erased rows, without those that other rows name too.
    others = [row for row in read(kinds.MENTIONS_OF, {row[3] for row in mentions}) if row[2] not in erased]
    surfaces = {(row[3], row[2]) for row in mentions} - {(entity, surface) for entity, surface, _ in others}
    entities = {row[3] for row in mentions} - {entity for entity, _, _ in others}
    said = read(kinds.STATEMENTS_SHOWN, {row[2] for row in evidence})
    statements = {row[2] for row in evidence} - {row[0] for row in said if row[2] not in erased}
    named = {id_ for operation in operations for id_ in (*operation.entities, operation.made)}
    requests = {request for _, request in read(kinds.USES_BY, erased)}
    by_sequence = [(sequence,) for sequence in sorted(erased)]
    return {
        kinds.EPISODES: by_sequence,
        kinds.EXTRACTIONS: by_sequence,
        kinds.EPISODE_VECTORS: by_sequence,
        kinds.MENTIONS: [row[:2] for row in mentions],
        kinds.EVIDENCE: [row[:2] for row in evidence],
        kinds.RULINGS: [row[:2] for row in read(kinds.RULINGS_IN, erased) if row[:2] not in kept_rulings],
        kinds.VERDICTS: [row[:2] for row in read(kinds.VERDICTS_IN, erased) if row[:2] not in kept_verdicts],
        kinds.NAMES: sorted(surfaces),
        kinds.NAME_VECTORS: sorted(surfaces),
        kinds.BIRTHS: [(id_,) for id_ in sorted((entities - named) | statements)],
        kinds.STATEMENT_VECTORS: [(id_,) for id_ in sorted(statements)],
        kinds.ANSWERS: [(request,) for request in sorted(requests)],
        kinds.ANSWER_USES: sorted(read(kinds.USES_OF, requests)),
    }
