"""Row changes of decisions: the only code that turns values into `RowChanges`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from kgray.domain.records import Episode, Operation, Place
from kgray.domain.times import Instant
from kgray.errors import ContentError, Cost, StoreError
from kgray.graph.change import Difference, EpisodeChange
from kgray.ports import Embedding, Patch, RowChanges
from kgray.schema import kinds, rows
from kgray.schema.kinds import AnswerRow, ExtractionRow, Key, Kind, Row
from kgray.schema.record_rows import EntryRecords, Judgements, NameVector, TextVector

_OPEN = frozenset({kinds.ACCEPTED, kinds.EXTRACTED})
PENDING = frozenset({kinds.PENDING})
# Without removed episodes: a stored answer about such an episode would be a trace of it (R25).
_ANY = frozenset({kinds.ACCEPTED, kinds.EXTRACTED, kinds.COMMITTED, kinds.FAILED})


def extracted(episode: Episode, extraction: ExtractionRow) -> RowChanges:
    """Return the move from accepted to extracted. The first extraction stays (R21)."""
    moved = patched(kinds.EPISODES, ("state",), [(episode.sequence, kinds.EXTRACTED)])
    accepted, puts = frozenset({kinds.ACCEPTED}), {kinds.EXTRACTIONS: (extraction,)}
    return row_changes(episode, accepted, puts=puts, patches=moved, durable=False)


def answered(episode: Episode, answers: AnswerRow) -> RowChanges:
    """Return the answers to a request that an episode uses (R21)."""
    return row_changes(episode, _ANY, puts={kinds.ANSWERS: [answers]}, durable=False)


def spent(episode: Episode, cost: Cost) -> RowChanges:
    """Return the cost of model calls without a usable reply, as an answer to no request (R24)."""
    key = f"spent {episode.sequence} {uuid4().hex}"
    return answered(episode, rows.answers_row(episode.sequence, key, (), *cost))


def failed(episode: Episode, error: ContentError, recorded_at: Instant) -> RowChanges:
    """Return the failure of an episode by its own content (R24)."""
    row = rows.failed_row(episode, recorded_at, type(error).__name__, str(error), error.raw)
    return row_changes(episode, _OPEN, recorded_at=recorded_at, puts={kinds.EPISODES: (row,)})


def committed(
    change: EpisodeChange, difference: Difference, recorded_at: Instant, births: Mapping[str, Place]
) -> RowChanges:
    """Return the commit of an episode: its records and the rows derived from them (R23).

    births: the birth places of the entities and statements that it names
    """
    episode = change.episode
    names: dict[Key, NameVector] = {}  # of each surface of each entity the first mention
    for mention, vector in change.name_vectors:
        name = (mention.entity, mention.surface)
        place = (mention.sequence, mention.ordinal)
        names.setdefault(name, NameVector(*name, *place, rows.vector_bytes(vector)))
    records = EntryRecords(
        sequence=episode.sequence,
        recorded_at=recorded_at,
        mentions=change.mentions,
        evidence=change.evidence,
        births=births,
        judgements=Judgements(
            [(record, recorded_at) for record in change.declarations],
            [(record, recorded_at) for record in change.verdicts],
        ),
        names=list(names.values()),
        statements={id_: _text_vector(record) for id_, record in change.statement_vectors},
        text=" ".join(filter(None, (episode.speaker, episode.text))),
        vector=None if change.episode_vector is None else _text_vector(change.episode_vector),
    )
    drops, puts = _derived(difference)
    puts |= {kinds.EPISODES: (rows.committed_row(episode, recorded_at),), kinds.RECORDS: (records.row(),)}
    born = {id_ for id_, _ in change.statement_births}
    return row_changes(
        episode,
        _OPEN,
        recorded_at=recorded_at,
        drops=drops,
        puts=puts,
        # A stored statement whose evidence is retracted gets a new vector, from its new first wording.
        unsettles=not born.issuperset(id_ for id_, _ in change.statement_vectors),
    )


def births_of(change: EpisodeChange, stored: Mapping[str, Place]) -> dict[str, Place]:
    """Return the birth places of the recorded entities and statements that an episode names."""
    new = dict((*change.entity_births, *change.statement_births))
    named = {record.entity for record in change.mentions} | {record.statement for record in change.evidence}
    return {id_: stored[id_] if id_ in stored else new[id_] for id_ in named}


def check_widths(change: EpisodeChange, dimensions: int) -> None:
    """Raise StoreError for a vector that the store cannot hold: the embedder changed during a run."""
    vectors = [vector for _, vector in change.name_vectors]
    vectors += [embedding.vector for _, embedding in change.statement_vectors]
    vectors += [] if change.episode_vector is None else [change.episode_vector.vector]
    check_width((len(vector) for vector in vectors), dimensions)


def check_width(widths: Iterable[int], dimensions: int) -> None:
    """Raise StoreError if a width differs from the width of the store."""
    for width in widths:
        if width != dimensions:
            raise StoreError(
                f"a vector of {width} numbers in a store of {dimensions} numbers a vector: nothing was "
                f"changed"
            )


def _text_vector(embedding: Embedding) -> TextVector:
    return TextVector(rows.vector_bytes(embedding.vector), embedding.weights)


def corrected(
    operation: Operation,
    result: Mapping[str, Any],
    recorded_at: Instant,
    difference: Difference,
    *,
    drops: Mapping[Kind[Any], Sequence[Key]] | None = None,
    puts: Mapping[Kind[Any], Sequence[Row]] | None = None,
    patches: Sequence[Patch] = (),
    erases: bool = False,
) -> RowChanges:
    """Return a correction: its result, the difference in the graph, and further changes of rows."""
    dropped, derived = _derived(difference)
    for kind, keys in (drops or {}).items():
        dropped[kind] = [*dropped.get(kind, ()), *keys]
    ended = rows.operation_row(operation, kinds.DONE, recorded_at, result)
    return row_changes(
        operation,
        PENDING,
        recorded_at=recorded_at,
        drops=dropped,
        puts={**derived, **(puts or {}), kinds.OPERATIONS: (ended,)},
        patches=tuple(patches),
        erases=erases,
        unsettles=bool(puts and puts.get(kinds.RECORDS)) or kinds.RECORDS in dropped,
    )


def refused(operation: Operation, reason: str, recorded_at: Instant) -> RowChanges:
    """Return the refusal of a correction that cannot be carried out, without the names in it (R25)."""
    row = rows.operation_row(operation, kinds.REFUSED, recorded_at, {"error": reason})
    return row_changes(
        operation, PENDING, recorded_at=recorded_at, puts={kinds.OPERATIONS: (row,)}, erases=True
    )


def row_changes(entry: Episode | Operation, states: frozenset[int], **changes: Any) -> RowChanges:  # noqa: ANN401
    """Return a change of rows that belongs to an entry of the log and requires a state of it.

    states  the change is refused if the entry's state is not among them
    """
    ledger = kinds.EPISODES if isinstance(entry, Episode) else kinds.OPERATIONS
    for name in changes.keys() & {"drops", "puts"}:
        changes[name] = {kind: changed for kind, changed in changes[name].items() if changed}
    return RowChanges(group=entry.group, sequence=entry.sequence, ledger=ledger, states=states, **changes)


def _derived(
    difference: Difference,
) -> tuple[dict[Kind[Any], Sequence[Key]], dict[Kind[Any], Sequence[Row]]]:
    drops: dict[Kind[Any], Sequence[Key]] = {
        kinds.FACTS: [(id_,) for id_ in difference.gone_facts],
        kinds.MENTIONS: difference.unmentioned,
        kinds.ENTITIES: [(id_,) for id_ in difference.gone_entities],
        kinds.SHOWN_ENTITIES: difference.unshown,
        kinds.SHOWN_EVIDENCE: difference.unmoved,
    }
    return drops, {
        kinds.ENTITIES: [rows.entity_row(entity) for entity in difference.entities],
        kinds.MENTIONS: difference.mentioned,
        kinds.SHOWN_ENTITIES: difference.shown,
        kinds.SHOWN_EVIDENCE: difference.moved,
        kinds.FACTS: [rows.fact_row(fact) for fact in difference.facts],
    }


def patched(kind: Kind[Any], columns: tuple[str, ...], rows_of: Iterable[Row]) -> tuple[Patch, ...]:
    """Return the patch of these rows (key and columns), or () if there is no row."""
    changed_rows = tuple(rows_of)
    return (Patch(kind=kind, columns=columns, rows=changed_rows),) if changed_rows else ()
