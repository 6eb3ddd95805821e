"""Row changes of what was decided: the only code that turns values into `RowChanges`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from kgray import kinds, rows
from kgray.derivation.change import Difference, EpisodeChange
from kgray.errors import ContentError, Cost
from kgray.kinds import Key, Kind, Row
from kgray.ports import Patch, RowChanges
from kgray.records import Episode, Mention, Operation, Place
from kgray.times import Instant

_OPEN = frozenset({kinds.ACCEPTED, kinds.EXTRACTED})
PENDING = frozenset({kinds.PENDING})
# Not of an episode that was removed meanwhile: what is kept would be a trace of it (R25).
_ANY = frozenset({kinds.ACCEPTED, kinds.EXTRACTED, kinds.COMMITTED, kinds.FAILED})


def extracted(episode: Episode, extraction: Row) -> RowChanges:
    """Return the move from accepted to extracted. The first extraction stays (R21)."""
    moved = patched(kinds.EPISODES, ("state",), [(episode.sequence, kinds.EXTRACTED)])
    accepted, puts = frozenset({kinds.ACCEPTED}), {kinds.EXTRACTIONS: (extraction,)}
    return of(episode, accepted, puts=puts, patches=moved, durable=False)


def answered(episode: Episode, key: str, answers: Row | None = None) -> RowChanges:
    """Return a request's answers (None: the journal has them) and the episode that uses them (R21)."""
    puts = {kinds.ANSWER_USES: [(episode.sequence, key)], kinds.ANSWERS: [] if answers is None else [answers]}
    return of(episode, _ANY, puts=puts, durable=False)


def spent(episode: Episode, cost: Cost) -> RowChanges:
    """Return what calls of a model cost that gave nothing to keep: an answer that no request has (R24)."""
    key = f"spent {episode.sequence} {uuid4().hex}"
    return answered(episode, key, rows.answers_row(key, (), *cost))


def failed(episode: Episode, error: ContentError, recorded_at: Instant) -> RowChanges:
    """Return the failure of an episode by its own content (R24)."""
    row = rows.failed_row(episode, recorded_at, type(error).__name__, str(error), error.raw)
    return of(episode, _OPEN, recorded_at=recorded_at, puts={kinds.EPISODES: (row,)})


def committed(change: EpisodeChange, difference: Difference, recorded_at: Instant) -> RowChanges:
    """Return the commit of an episode: its records, their vectors and names, what they derive (R23)."""
    episode = change.episode
    spoken = dict(difference.spoken)
    own = {(said.sequence, said.ordinal) for said in change.evidence}
    births = dict((*change.entity_births, *change.statement_births))
    own_vectors = [] if change.episode_vector is None else [change.episode_vector]
    bearers: dict[Key, Mention] = {}  # of each surface of each entity the first mention
    for mention in change.mentions:
        bearers.setdefault((mention.entity, mention.surface), mention)
    vectors: dict[Key, Row] = {}
    for mention, vector in change.name_vectors:
        vectors.setdefault((mention.entity, mention.surface), rows.name_vector_row(mention, vector))
    gone, derived = _derived(difference)
    puts: dict[Kind, Sequence[Row]] = {
        kinds.EPISODES: (rows.committed_row(episode, recorded_at),),
        kinds.BIRTHS: [(id_, *place) for id_, place in births.items()],
        kinds.MENTIONS: [rows.mention_row(mention) for mention in change.mentions],
        kinds.EVIDENCE: [rows.evidence_row(e, spoken.get((e.sequence, e.ordinal))) for e in change.evidence],
        kinds.DECLARATIONS: [rows.declaration_row(one, recorded_at) for one in change.declarations],
        kinds.VERDICTS: [rows.verdict_row(verdict, recorded_at) for verdict in change.verdicts],
        kinds.NAMES: [rows.name_row(mention) for mention in bearers.values()],
        kinds.NAME_VECTORS: list(vectors.values()),
        kinds.STATEMENT_VECTORS: [rows.vector_row(id_, *found) for id_, found in change.statement_vectors],
        kinds.EPISODE_VECTORS: [rows.vector_row(episode.sequence, *found) for found in own_vectors],
        **derived,
    }
    moved = shown_patch((*place, shown) for place, shown in difference.spoken if place not in own)
    return of(episode, _OPEN, recorded_at=recorded_at, drops=gone, puts=puts, patches=moved)


def corrected(
    operation: Operation,
    result: Mapping[str, Any],
    recorded_at: Instant,
    difference: Difference,
    *,
    births: Iterable[tuple[str, Place]] = (),
    drops: Mapping[Kind, Sequence[Key]] | None = None,
    patches: Sequence[Patch] = (),
    erases: bool = False,
) -> RowChanges:
    """Return a correction: its result, the difference in the graph, and further changes of rows."""
    gone, derived = _derived(difference)
    return of(
        operation,
        PENDING,
        recorded_at=recorded_at,
        drops={**gone, **(drops or {})},
        puts={
            **derived,
            kinds.OPERATIONS: (rows.operation_row(operation, kinds.DONE, recorded_at, result),),
            kinds.BIRTHS: [(id_, *place) for id_, place in births],
        },
        patches=(*shown_patch((*place, shown) for place, shown in difference.spoken), *patches),
        erases=erases,
    )


def refused(operation: Operation, reason: str, recorded_at: Instant) -> RowChanges:
    """Return the refusal of a correction that cannot be carried out; what it named is not kept (R25)."""
    row = rows.operation_row(operation, kinds.REFUSED, recorded_at, {"error": reason})
    return of(operation, PENDING, recorded_at=recorded_at, puts={kinds.OPERATIONS: (row,)}, erases=True)


def of(entry: Episode | Operation, states: frozenset[int], **what: Any) -> RowChanges:  # noqa: ANN401
    """Return a change of rows that belongs to an entry of the log, which must be in one of these states."""
    ledger = kinds.EPISODES if isinstance(entry, Episode) else kinds.OPERATIONS
    for name in what.keys() & {"drops", "puts"}:
        what[name] = {kind: found for kind, found in what[name].items() if found}
    return RowChanges(group=entry.group, sequence=entry.sequence, ledger=ledger, states=states, **what)


def _derived(difference: Difference) -> tuple[dict[Kind, Sequence[Key]], dict[Kind, Sequence[Row]]]:
    drops: dict[Kind, Sequence[Key]] = {
        kinds.FACTS: [(id_,) for id_ in difference.gone_facts],
        kinds.ENTITIES: [(id_,) for id_ in difference.gone_entities],
        kinds.SHOWN_ENTITIES: difference.unshown,
    }
    return drops, {
        kinds.ENTITIES: [rows.entity_row(entity) for entity in difference.entities],
        kinds.SHOWN_ENTITIES: difference.shown,
        kinds.FACTS: [rows.fact_row(fact) for fact in difference.facts],
    }


def patched(kind: Kind, columns: tuple[str, ...], rows_of: Iterable[Row]) -> tuple[Patch, ...]:
    """Return the patch of these rows: key and columns; none of no row."""
    found = tuple(rows_of)
    return (Patch(kind=kind, columns=columns, rows=found),) if found else ()


def shown_patch(moved: Iterable[Row]) -> tuple[Patch, ...]:
    """Return the patch of (sequence, ordinal, what stored evidence shows as)."""
    return patched(kinds.EVIDENCE, ("shown",), moved)
