"""The records of removed episodes: the records that survive, and the rows that are deleted (R25)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kgray.domain.records import Place
from kgray.graph.change import RemainingRecords, Withdrawn, removed
from kgray.graph.stored import StoredRecords
from kgray.ingest.outbox import patches_of
from kgray.ports import Patch, Store
from kgray.schema import kinds, reads
from kgray.schema.kinds import Key, Kind, Row
from kgray.schema.record_rows import (
    EntryRecords,
    Judgements,
    NameVector,
    TextVector,
    judged_column,
    name_vectors,
    search_columns,
    vector_at,
)


def sequences_in(packed: bytes) -> list[int]:
    """Return the sequences of a column `sources`."""
    sequences: list[int] = np.frombuffer(packed, "<u4").tolist()
    return sequences


def remaining_records(stored: StoredRecords, removed_sequences: set[int]) -> RemainingRecords:
    """Return the contents of the episodes that remain after a removal, retracted ones included (R25)."""
    heads = stored.heads.values()
    sequences = {
        row.sequence
        for row in heads
        if row.state == kinds.COMMITTED and row.sequence not in removed_sequences
    }
    remaining = RemainingRecords(episodes=sequences, erased_from=min(removed_sequences, default=0))
    for evidence in (*stored.live.evidence, *stored.retired.evidence):
        if evidence.sequence in sequences:
            remaining.use(evidence.sequence, evidence.statement)
    mentions = sorted(
        (*stored.live.mentions, *stored.retired.mentions),
        key=lambda mention: (mention.sequence, mention.ordinal),
    )
    for mention in mentions:
        if mention.sequence in sequences:
            remaining.mentions.append((mention.entity, mention.surface, mention.sequence))
        elif mention.sequence in removed_sequences:
            remaining.erased.add(mention.entity)
    return remaining


def removal_effects(stored: StoredRecords, remaining: RemainingRecords) -> Withdrawn:
    """Return the effect of a removal on the records; remaining: the contents of the other episodes."""
    judged = stored.judged.values()
    return removed(
        stored.live,
        remaining,
        declarations=[record for judgements in judged for record, _ in judgements.declarations],
        verdicts=[record for judgements in judged for record, _ in judgements.verdicts],
    )


def saved_records(
    store: Store,
    stored: StoredRecords,
    remaining: RemainingRecords,
    changed: Withdrawn,
    removed_sequences: set[int],
) -> tuple[EntryRecords, list[Patch]]:
    """Return the records of removed episodes and earlier removals that must survive, and patches.

    The patches are for rows of other episodes that lose verdicts, or the reasons of verdicts (R25).
    """
    saved = EntryRecords(sequence=0, recorded_at=0)
    patches: list[Row] = []
    for sequence, stored_judgements in stored.judged.items():
        judgements = Judgements(
            [
                (record, at)
                for record, at in stored_judgements.declarations
                if _place(record) not in changed.declarations
            ],
            [
                (current, at)
                for record, at in stored_judgements.verdicts
                if (current := changed.verdicts.get(_place(record), record)) is not None
            ],
        )
        if sequence in removed_sequences or sequence in stored.saved_at:
            saved.judgements.declarations.extend(judgements.declarations)
            saved.judgements.verdicts.extend(judgements.verdicts)
        elif judgements != stored_judgements:
            timed = stored.heads[sequence].ended_at if any(judgements) else None
            patches.append((sequence, timed, judged_column(judgements)))
    group = stored.live.group
    erased = sorted({*removed_sequences, *stored.saved_at})
    borne_names = {(entity, surface) for entity, surface, _ in remaining.mentions}
    names_of: dict[Key, NameVector] = {}
    for row in store.rows(reads.NAME_VECTORS_AT, group, erased):
        for name in name_vectors(row.names):
            if (name.entity, name.surface) in borne_names:
                names_of.setdefault((name.entity, name.surface), name)
    saved.names = list(names_of.values())
    statements: dict[str, TextVector] = {}
    for texts in store.rows(reads.TEXT_VECTORS_AT, group, stored.saved_at):
        for position, (id_, weights, _) in enumerate(search_columns(texts.search).statements):
            if id_ in remaining.statements and stored.vectors.get(id_) == (texts.sequence, position):
                vector = vector_at(texts.vectors, position, store.dimensions)
                statements[id_] = TextVector(vector, weights)
    saved.statements = statements
    return saved, list(patches_of(kinds.RECORDS, ("timed", "judged"), patches))


def _place(record: Any) -> Place:  # noqa: ANN401 - a declaration or a verdict
    return record.sequence, record.ordinal


def statements_to_embed(
    stored: StoredRecords, remaining: RemainingRecords, removed_sequences: set[int]
) -> dict[str, Place]:
    """Return the statements that stay and lose their vector, with the place of their first stored wording."""
    first: dict[str, Place] = {}
    lost = {id_ for id_, (sequence, _) in stored.vectors.items() if sequence in removed_sequences}
    for evidence in (*stored.live.evidence, *stored.retired.evidence):
        place = (evidence.sequence, evidence.ordinal)
        if evidence.sequence in removed_sequences:
            lost.add(evidence.statement)
        elif place < first.get(evidence.statement, (1 << 62, 0)):
            first[evidence.statement] = place
    began: dict[str, Place] = {}
    for evidence in (*stored.live.evidence, *stored.retired.evidence):
        place = (evidence.sequence, evidence.ordinal)
        began[evidence.statement] = min(place, began.get(evidence.statement, place))
    return {
        id_: first[id_]
        for id_ in lost
        if id_ in remaining.statements
        and (began[id_][0] in removed_sequences or stored.vectors.get(id_, (0,))[0] in removed_sequences)
    }


def keys_of(
    store: Store, stored: StoredRecords, changed: Withdrawn, removed_sequences: set[int]
) -> dict[Kind[Any], Sequence[Key]]:
    """Return the keys of the rows that a removal of these episodes deletes, without derived rows."""
    keys = keys_of_episodes(store, stored.live.group, removed_sequences)
    # The records that earlier removals saved are in the row of this removal from now on.
    keys[kinds.RECORDS] = [*keys[kinds.RECORDS], *((sequence,) for sequence in stored.saved_at)]
    keys[kinds.OPERATIONS] = [
        (at,) for at, changed_operation in sorted(changed.operations.items()) if changed_operation is None
    ]
    return keys


def keys_of_episodes(store: Store, group: str, sequences: set[int]) -> dict[Kind[Any], Sequence[Key]]:
    """Return the keys of the rows that are deleted with these episodes, the episodes last."""
    by_sequence = [(sequence,) for sequence in sorted(sequences)]
    answers = store.rows(reads.ANSWER_SOURCES, group)
    moved = store.rows(reads.SHOWN_BY_EVIDENCE, group, sorted(sequences)) if sequences else ()
    return {
        kinds.ANSWERS: [
            (row.sequence, row.request)
            for row in answers
            if row.sequence in sequences or not sequences.isdisjoint(sequences_in(row.sources))
        ],
        kinds.EXTRACTIONS: by_sequence,
        kinds.SHOWN_EVIDENCE: [(row.sequence, row.ordinal) for row in moved],
        kinds.RECORDS: by_sequence,
        kinds.EPISODES: by_sequence,
    }
