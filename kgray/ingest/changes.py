"""What was decided, as row changes: the one place where values become changes of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kgray import rows
from kgray.derivation.change import Change, Difference
from kgray.errors import ContentError
from kgray.kinds import (
    ACCEPTED,
    ANSWER_USES,
    ANSWERS,
    BIRTHS,
    COMMITTED,
    DONE,
    ENTITIES,
    EPISODE_VECTORS,
    EPISODES,
    EVIDENCE,
    EXTRACTED,
    EXTRACTIONS,
    FACTS,
    FAILED,
    MENTIONS,
    NAME_VECTORS,
    NAMES,
    OPERATIONS,
    PENDING,
    REFUSED,
    RULINGS,
    SHOWN_ENTITIES,
    STATEMENT_VECTORS,
    VERDICTS,
    Key,
    Kind,
    Row,
)
from kgray.ports import Judged, Patch, RowChanges
from kgray.records import Episode, Extraction, Mention, Operation, Place
from kgray.times import Instant

_OPEN = frozenset({ACCEPTED, EXTRACTED})
_ANY = frozenset({ACCEPTED, EXTRACTED, COMMITTED, FAILED})

Drops = Mapping[Kind, Sequence[Key]]
Puts = Mapping[Kind, Sequence[Row]]


def extracted(episode: Episode, extraction: Row) -> RowChanges:
    """Return the move from accepted to extracted. The first extraction stays (R21)."""
    return RowChanges(
        group=episode.group,
        sequence=episode.sequence,
        ledger=EPISODES,
        states=frozenset({ACCEPTED}),
        puts={EXTRACTIONS: (extraction,)},
        patches=(Patch(kind=EPISODES, columns=("state",), rows=((episode.sequence, EXTRACTED),)),),
        durable=False,
    )


def answers_row(key: str, judged: Judged) -> Row:
    """Return the journal's row of a request's answers and of what they cost."""
    return rows.answers_row(key, judged.answers, judged.calls, judged.prompt_tokens, judged.completion_tokens)


def answered(episode: Episode, key: str, answers: Row | None = None) -> RowChanges:
    """Return a request's answers and the episode that uses them. The first answers stay (R21).

    answers: None where they came from the journal: the use alone is noted. Of an episode that was removed
    meanwhile nothing is kept: it would be a trace of it (R25).
    """
    puts: dict[Kind, Sequence[Row]] = {ANSWER_USES: ((episode.sequence, key),)}
    if answers is not None:
        puts[ANSWERS] = (answers,)
    return RowChanges(
        group=episode.group,
        sequence=episode.sequence,
        ledger=EPISODES,
        states=_ANY,
        puts=puts,
        durable=False,
    )


def failed(episode: Episode, error: ContentError, recorded_at: Instant) -> RowChanges:
    """Return the end of an episode that failed by its own content (R24)."""
    row = rows.failed_row(episode, recorded_at, type(error).__name__, str(error), error.raw)
    return RowChanges(
        group=episode.group,
        sequence=episode.sequence,
        ledger=EPISODES,
        states=_OPEN,
        recorded_at=recorded_at,
        puts={EPISODES: (row,)},
    )


def committed(change: Change, difference: Difference, recorded_at: Instant) -> RowChanges:
    """Return the commit of an episode: its records, their vectors and names, what they derive (R23)."""
    episode = change.episode
    spoken = dict(difference.spoken)
    own = {(item.sequence, item.ordinal) for item in change.evidence}
    births = dict((*change.entity_births, *change.statement_births))
    vectors: dict[Key, Row] = {}
    for mention, vector in change.name_vectors:
        vectors.setdefault((mention.entity, mention.surface), rows.name_vector_row(mention, vector))
    puts: dict[Kind, Sequence[Row]] = {
        EPISODES: (rows.committed_row(episode, recorded_at),),
        BIRTHS: [(id_, *place) for id_, place in births.items()],
        MENTIONS: [rows.mention_row(mention) for mention in change.mentions],
        EVIDENCE: [rows.evidence_row(e, spoken.get((e.sequence, e.ordinal))) for e in change.evidence],
        RULINGS: [rows.ruling_row(ruling, recorded_at) for ruling in change.rulings],
        VERDICTS: [rows.verdict_row(verdict, recorded_at) for verdict in change.verdicts],
        NAMES: [rows.name_row(mention) for mention in _first_bearers(change.mentions)],
        NAME_VECTORS: list(vectors.values()),
        STATEMENT_VECTORS: [(id_, rows.vector_bytes(vector)) for id_, vector in change.statement_vectors],
        **_derived_puts(difference),
    }
    if change.episode_vector is not None:
        puts[EPISODE_VECTORS] = ((episode.sequence, rows.vector_bytes(change.episode_vector)),)
    return RowChanges(
        group=episode.group,
        sequence=episode.sequence,
        ledger=EPISODES,
        states=_OPEN,
        recorded_at=recorded_at,
        drops=_filled(_derived_drops(difference)),
        puts=_filled(puts),
        patches=_spoken_patch((place, shown) for place, shown in difference.spoken if place not in own),
    )


def corrected(
    operation: Operation,
    result: Mapping[str, Any],
    recorded_at: Instant,
    difference: Difference,
    *,
    births: Iterable[tuple[str, Place]] = (),
    drops: Drops | None = None,
    puts: Puts | None = None,
    patches: Sequence[Patch] = (),
    erases: bool = False,
) -> RowChanges:
    """Return the end of a correction: its result, what it derives, and what else goes, comes, changes."""
    return RowChanges(
        group=operation.group,
        sequence=operation.sequence,
        ledger=OPERATIONS,
        states=frozenset({PENDING}),
        recorded_at=recorded_at,
        drops=_filled({**_derived_drops(difference), **(drops or {})}),
        puts=_filled(
            {
                **_derived_puts(difference),
                **(puts or {}),
                OPERATIONS: (rows.operation_row(operation, DONE, recorded_at, result),),
                BIRTHS: [(id_, *place) for id_, place in births],
            }
        ),
        patches=(*_spoken_patch(difference.spoken), *patches),
        erases=erases,
    )


def cleared(operation: Operation, result: Mapping[str, Any], recorded_at: Instant) -> RowChanges:
    """Return the removal of a whole group (R27)."""
    return RowChanges(
        group=operation.group,
        sequence=operation.sequence,
        ledger=OPERATIONS,
        states=frozenset({PENDING}),
        recorded_at=recorded_at,
        clear=True,
        puts={OPERATIONS: (rows.operation_row(operation, DONE, recorded_at, result),)},
        erases=True,
    )


def refused(operation: Operation, reason: str, recorded_at: Instant) -> RowChanges:
    """Return the end of a correction that cannot be carried out; what it named is not kept (R25)."""
    row = rows.operation_row(operation, REFUSED, recorded_at, {"error": reason})
    return RowChanges(
        group=operation.group,
        sequence=operation.sequence,
        ledger=OPERATIONS,
        states=frozenset({PENDING}),
        recorded_at=recorded_at,
        puts={OPERATIONS: (row,)},
        erases=True,
    )


def extraction_as_kept(episode: Episode, found: Extraction) -> tuple[Row, Extraction]:
    """Return the row of an extraction, and the extraction as that row gives it back.

    They differ where a model's output is no valid Unicode: what cannot be stored becomes a question mark, and
    a replay must decide on the same text.
    """
    row = rows.extraction_row(episode.sequence, found)
    return row, rows.extraction(row) if "?" in row[-1] else found


def _first_bearers(mentions: Sequence[Mention]) -> list[Mention]:
    """Return the first mention of each surface of each entity, in order."""
    first: dict[tuple[str, str], Mention] = {}
    for mention in mentions:
        first.setdefault((mention.entity, mention.surface), mention)
    return list(first.values())


def _derived_puts(difference: Difference) -> dict[Kind, Sequence[Row]]:
    return {
        ENTITIES: [rows.entity_row(entity) for entity in difference.entities],
        SHOWN_ENTITIES: difference.shown,
        FACTS: [rows.fact_row(fact) for fact in difference.facts],
    }


def _derived_drops(difference: Difference) -> dict[Kind, Sequence[Key]]:
    return {
        FACTS: [(id_,) for id_ in difference.gone_facts],
        ENTITIES: [(id_,) for id_ in difference.gone_entities],
        SHOWN_ENTITIES: difference.unshown,
    }


def _spoken_patch(spoken: Iterable[tuple[Place, str | None]]) -> tuple[Patch, ...]:
    """Return the change of what stored evidence speaks of; evidence that is not stored is left out."""
    moved = tuple((*place, shown) for place, shown in spoken)
    return (Patch(kind=EVIDENCE, columns=("shown",), rows=moved),) if moved else ()


def _filled(changes: Mapping[Kind, Sequence[Row]]) -> dict[Kind, Sequence[Row]]:
    return {kind: found for kind, found in changes.items() if found}
