"""The records of removed episodes: which of them survive, and which rows go with the episodes (R25)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kgray import kinds, reads
from kgray.derivation.change import RemainingRecords, Withdrawn, removed
from kgray.derivation.stored import StoredRecords
from kgray.ingest import changes
from kgray.kinds import Key, Kind, Row
from kgray.ports import Patch, Store
from kgray.record_rows import (
    EntryRecords,
    Judgements,
    NameVector,
    TextVector,
    judged_column,
    name_vectors,
    search_columns,
    vector_at,
)
from kgray.records import Place


def sequences_in(packed: bytes) -> list[int]:
    """Return the sequences of a column `sources`."""
    sequences: list[int] = np.frombuffer(packed, "<u4").tolist()
    return sequences


def left_without(stored: StoredRecords, gone: set[int]) -> RemainingRecords:
    """Return what the episodes that are stored without these hold, retracted ones included (R25)."""
    heads = stored.heads.values()
    there = {row.sequence for row in heads if row.state == kinds.COMMITTED and row.sequence not in gone}
    left = RemainingRecords(episodes=there, erased_from=min(gone, default=0))
    for said in (*stored.live.evidence, *stored.retired.evidence):
        if said.sequence in there:
            left.use(said.sequence, said.statement)
    mentions = sorted(
        (*stored.live.mentions, *stored.retired.mentions), key=lambda one: (one.sequence, one.ordinal)
    )
    for mention in mentions:
        if mention.sequence in there:
            left.mentions.append((mention.entity, mention.surface, mention.sequence))
        elif mention.sequence in gone:
            left.erased.add(mention.entity)
    return left


def removed_from(stored: StoredRecords, left: RemainingRecords) -> Withdrawn:
    """Return what a removal changes in the records; left: what the other episodes hold."""
    judged = stored.judged.values()
    return removed(
        stored.live,
        left,
        declarations=[one for each in judged for one, _ in each.declarations],
        verdicts=[one for each in judged for one, _ in each.verdicts],
    )


def saved_records(
    store: Store, stored: StoredRecords, left: RemainingRecords, changed: Withdrawn, gone: set[int]
) -> tuple[EntryRecords, list[Patch]]:
    """Return the records of removed episodes, and of earlier removals, that must survive.

    And the patches of the rows of other episodes, from which verdicts go, or lose their reasons (R25).
    """
    saved = EntryRecords(sequence=0, recorded_at=0)
    patches: list[Row] = []
    for sequence, each in stored.judged.items():
        judgements = Judgements(
            [(one, at) for one, at in each.declarations if _place(one) not in changed.declarations],
            [
                (kept, at)
                for one, at in each.verdicts
                if (kept := changed.verdicts.get(_place(one), one)) is not None
            ],
        )
        if sequence in gone or sequence in stored.saved_at:
            saved.judgements.declarations.extend(judgements.declarations)
            saved.judgements.verdicts.extend(judgements.verdicts)
        elif judgements != each:
            timed = stored.heads[sequence].ended_at if any(judgements) else None
            patches.append((sequence, timed, judged_column(judgements)))
    group = stored.live.group
    erased = sorted({*gone, *stored.saved_at})
    borne_names = {(entity, surface) for entity, surface, _ in left.mentions}
    names_of: dict[Key, NameVector] = {}
    for row in store.rows(reads.NAME_VECTORS_AT, group, erased):
        for name in name_vectors(row.names):
            if (name.entity, name.surface) in borne_names:
                names_of.setdefault((name.entity, name.surface), name)
    saved.names = list(names_of.values())
    statements: dict[str, TextVector] = {}
    for texts in store.rows(reads.TEXT_VECTORS_AT, group, stored.saved_at):
        for position, (id_, weights, _) in enumerate(search_columns(texts.search).statements):
            if id_ in left.statements and stored.vectors.get(id_) == (texts.sequence, position):
                vector = vector_at(texts.vectors, position, store.dimensions)
                statements[id_] = TextVector(vector, weights)
    saved.statements = statements
    return saved, list(changes.patched(kinds.RECORDS, ("timed", "judged"), patches))


def _place(one: Any) -> Place:  # noqa: ANN401 - a declaration or a verdict
    return one.sequence, one.ordinal


def statements_to_embed(stored: StoredRecords, left: RemainingRecords, gone: set[int]) -> dict[str, Place]:
    """Return the statements that stay and lose their vector, with the place of their first stored wording."""
    first: dict[str, Place] = {}
    lost = {id_ for id_, (sequence, _) in stored.vectors.items() if sequence in gone}
    for said in (*stored.live.evidence, *stored.retired.evidence):
        place = (said.sequence, said.ordinal)
        if said.sequence in gone:
            lost.add(said.statement)
        elif place < first.get(said.statement, (1 << 62, 0)):
            first[said.statement] = place
    began: dict[str, Place] = {}
    for said in (*stored.live.evidence, *stored.retired.evidence):
        place = (said.sequence, said.ordinal)
        began[said.statement] = min(place, began.get(said.statement, place))
    return {
        id_: first[id_]
        for id_ in lost
        if id_ in left.statements and (began[id_][0] in gone or stored.vectors.get(id_, (0,))[0] in gone)
    }


def keys_of(
    store: Store, stored: StoredRecords, changed: Withdrawn, gone: set[int]
) -> dict[Kind[Any], Sequence[Key]]:
    """Return the keys of the rows that a removal of these episodes deletes, beside derived rows."""
    keys = keys_of_episodes(store, stored.live.group, gone)
    # The records that earlier removals saved are in the row of this removal from now on.
    keys[kinds.RECORDS] = [*keys[kinds.RECORDS], *((sequence,) for sequence in stored.saved_at)]
    keys[kinds.OPERATIONS] = [(at,) for at, kept in sorted(changed.operations.items()) if kept is None]
    return keys


def keys_of_episodes(store: Store, group: str, gone: set[int]) -> dict[Kind[Any], Sequence[Key]]:
    """Return the keys of the rows that go with the episodes of these sequences, the episodes last."""
    by_sequence = [(sequence,) for sequence in sorted(gone)]
    answers = store.rows(reads.ANSWER_SOURCES, group)
    moved = store.rows(reads.SHOWN_BY_EVIDENCE, group, sorted(gone)) if gone else ()
    return {
        kinds.ANSWERS: [
            (row.sequence, row.request)
            for row in answers
            if row.sequence in gone or not gone.isdisjoint(sequences_in(row.sources))
        ],
        kinds.EXTRACTIONS: by_sequence,
        kinds.SHOWN_EVIDENCE: [(row.sequence, row.ordinal) for row in moved],
        kinds.RECORDS: by_sequence,
        kinds.EPISODES: by_sequence,
    }
