"""Row changes of what was decided: the only code that turns values into `RowChanges`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal
from uuid import uuid4

from kgray import kinds, rows
from kgray.derivation.change import Difference, EpisodeChange
from kgray.errors import ContentError, Cost
from kgray.kinds import Key, Kind, Row
from kgray.ports import Patch, RowChanges
from kgray.records import Episode, Evidence, Mention, Operation, Place
from kgray.times import Instant

_OPEN = frozenset({kinds.ACCEPTED, kinds.EXTRACTED})
_PENDING = frozenset({kinds.PENDING})
_ANY = frozenset({kinds.ACCEPTED, kinds.EXTRACTED, kinds.COMMITTED, kinds.FAILED})

Drops = Mapping[Kind, Sequence[Key]]
Puts = Mapping[Kind, Sequence[Row]]


def extracted(episode: Episode, extraction: Row) -> RowChanges:
    """Return the move from accepted to extracted. The first extraction stays (R21)."""
    state = Patch(kind=kinds.EPISODES, columns=("state",), rows=((episode.sequence, kinds.EXTRACTED),))
    accepted, puts = frozenset({kinds.ACCEPTED}), {kinds.EXTRACTIONS: (extraction,)}
    return _of(episode, accepted, puts=puts, patches=(state,), durable=False)


def answered(episode: Episode, key: str, answers: Row | None = None) -> RowChanges:
    """Return a request's answers and the episode that uses them. The first answers stay (R21).

    answers: None where they came from the journal, so that only the use is noted. Nothing is kept of an
    episode that was removed meanwhile: it would be a trace of it (R25).
    """
    puts: dict[Kind, Sequence[Row]] = {kinds.ANSWER_USES: ((episode.sequence, key),)}
    if answers is not None:
        puts[kinds.ANSWERS] = (answers,)
    return _of(episode, _ANY, puts=puts, durable=False)


def spent(episode: Episode, cost: Cost) -> RowChanges:
    """Return what an episode's calls of a model cost that gave nothing to keep (R24).

    It stands in the journal as an answer that no request has: it is counted, copied and erased as one.
    """
    key = f"spent {episode.sequence} {uuid4().hex}"
    return answered(episode, key, rows.answers_row(key, (), *cost))


def failed(episode: Episode, error: ContentError, recorded_at: Instant) -> RowChanges:
    """Return the failure of an episode by its own content (R24)."""
    row = rows.failed_row(episode, recorded_at, type(error).__name__, str(error), error.raw)
    return _of(episode, _OPEN, recorded_at=recorded_at, puts={kinds.EPISODES: (row,)})


def committed(change: EpisodeChange, difference: Difference, recorded_at: Instant) -> RowChanges:
    """Return the commit of an episode: its records, their vectors and names, what they derive (R23)."""
    episode = change.episode
    spoken = dict(difference.spoken)
    own = {_place(said) for said in change.evidence}
    births = dict((*change.entity_births, *change.statement_births))
    bearers: dict[Key, Mention] = {}  # of each surface of each entity the first mention
    for mention in change.mentions:
        bearers.setdefault((mention.entity, mention.surface), mention)
    vectors: dict[Key, Row] = {}
    for mention, vector in change.name_vectors:
        vectors.setdefault((mention.entity, mention.surface), rows.name_vector_row(mention, vector))
    puts: dict[Kind, Sequence[Row]] = {
        kinds.EPISODES: (rows.committed_row(episode, recorded_at),),
        kinds.BIRTHS: [(id_, *place) for id_, place in births.items()],
        kinds.MENTIONS: [rows.mention_row(mention) for mention in change.mentions],
        kinds.EVIDENCE: [rows.evidence_row(said, spoken.get(_place(said))) for said in change.evidence],
        kinds.RULINGS: [rows.ruling_row(ruling, recorded_at) for ruling in change.rulings],
        kinds.VERDICTS: [rows.verdict_row(verdict, recorded_at) for verdict in change.verdicts],
        kinds.NAMES: [rows.name_row(mention) for mention in bearers.values()],
        kinds.NAME_VECTORS: list(vectors.values()),
        kinds.STATEMENT_VECTORS: [rows.vector_row(id_, *found) for id_, found in change.statement_vectors],
        **_derived_puts(difference),
    }
    if change.episode_vector is not None:
        puts[kinds.EPISODE_VECTORS] = (rows.vector_row(episode.sequence, *change.episode_vector),)
    return _of(
        episode,
        _OPEN,
        recorded_at=recorded_at,
        drops=_filled(_derived_drops(difference)),
        puts=_filled(puts),
        patches=shown_patch((*place, shown) for place, shown in difference.spoken if place not in own),
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
    """Return a correction: its result, the difference in the graph, and further changes of rows."""
    return _of(
        operation,
        _PENDING,
        recorded_at=recorded_at,
        drops=_filled({**_derived_drops(difference), **(drops or {})}),
        puts=_filled(
            {
                **_derived_puts(difference),
                **(puts or {}),
                kinds.OPERATIONS: (rows.operation_row(operation, kinds.DONE, recorded_at, result),),
                kinds.BIRTHS: [(id_, *place) for id_, place in births],
            }
        ),
        patches=(*shown_patch((*place, shown) for place, shown in difference.spoken), *patches),
        erases=erases,
    )


Verb = Literal["drop", "put", "moved"]  # moved: a piece of evidence, and what it shows as now
Step = tuple[Verb, Kind, Row]


def begun(whole: RowChanges, operation: Operation, hidden: Iterable[int]) -> RowChanges:
    """Return the first piece of a retraction or removal: what it says of episodes, rulings and corrections.

    whole       all that it changes; the operation stays pending, with its result
    hidden      the sequences of the removed episodes: from now on none was ever committed
    """
    kept = (kinds.OPERATIONS, kinds.RULINGS, kinds.VERDICTS, kinds.COMMUNITIES)
    (ended,) = whole.puts[kinds.OPERATIONS]
    at = whole.recorded_at
    marks = ((sequence, kinds.WITHDRAWN, at, at) for sequence in sorted(hidden))
    marked = patched(kinds.EPISODES, ("state", "ended_at", "retired_at"), marks)
    return replace(
        whole,
        drops={kind: keys for kind, keys in whole.drops.items() if kind in kept},
        puts={kinds.OPERATIONS: ((*rows.operation_row(operation)[:4], *ended[4:]),)},
        patches=(*(p for p in whole.patches if p.kind is not kinds.EVIDENCE), *marked),
    )


def pieces(
    operation: Operation, result: Mapping[str, Any], recorded_at: Instant, steps: Sequence[Step], most: int
) -> Iterator[RowChanges]:
    """Yield steps of a begun retraction or removal, so many at a time; the last piece ends the operation."""
    for start in range(0, max(1, len(steps)), most):
        drops: dict[Kind, list[Key]] = defaultdict(list)
        puts: dict[Kind, list[Row]] = defaultdict(list)
        moved: list[Row] = []
        for what, kind, row in steps[start : start + most]:
            (moved if what == "moved" else (drops if what == "drop" else puts)[kind]).append(row)
        state = kinds.DONE if start + most >= len(steps) else kinds.PENDING
        puts[kinds.OPERATIONS].append(rows.operation_row(operation, state, recorded_at, result))
        erases = operation.kind == "remove"
        yield _of(operation, _PENDING, drops=drops, puts=puts, patches=shown_patch(moved), erases=erases)


def size(change: RowChanges) -> int:
    """Return how many rows a change drops, puts and patches."""
    lists = (*change.drops.values(), *change.puts.values(), *(patch.rows for patch in change.patches))
    return sum(map(len, lists))


def cleared(operation: Operation, result: Mapping[str, Any], recorded_at: Instant) -> RowChanges:
    """Return the removal of a whole group (R27)."""
    puts = {kinds.OPERATIONS: (rows.operation_row(operation, kinds.DONE, recorded_at, result),)}
    return _of(operation, _PENDING, recorded_at=recorded_at, clear=True, puts=puts, erases=True)


def refused(operation: Operation, reason: str, recorded_at: Instant) -> RowChanges:
    """Return the refusal of a correction that cannot be carried out; what it named is not kept (R25)."""
    row = rows.operation_row(operation, kinds.REFUSED, recorded_at, {"error": reason})
    return _of(operation, _PENDING, recorded_at=recorded_at, puts={kinds.OPERATIONS: (row,)}, erases=True)


def _of(entry: Episode | Operation, states: frozenset[int], **what: Any) -> RowChanges:  # noqa: ANN401
    ledger = kinds.EPISODES if isinstance(entry, Episode) else kinds.OPERATIONS
    return RowChanges(group=entry.group, sequence=entry.sequence, ledger=ledger, states=states, **what)


def _place(evidence: Evidence) -> Place:
    return evidence.sequence, evidence.ordinal


def _derived_puts(difference: Difference) -> dict[Kind, Sequence[Row]]:
    return {
        kinds.ENTITIES: [rows.entity_row(entity) for entity in difference.entities],
        kinds.SHOWN_ENTITIES: difference.shown,
        kinds.FACTS: [rows.fact_row(fact) for fact in difference.facts],
    }


def _derived_drops(difference: Difference) -> dict[Kind, Sequence[Key]]:
    return {
        kinds.FACTS: [(id_,) for id_ in difference.gone_facts],
        kinds.ENTITIES: [(id_,) for id_ in difference.gone_entities],
        kinds.SHOWN_ENTITIES: difference.unshown,
    }


def patched(kind: Kind, columns: tuple[str, ...], rows_of: Iterable[Row]) -> tuple[Patch, ...]:
    """Return the patch of these rows: key and columns; none of no row."""
    found = tuple(rows_of)
    return (Patch(kind=kind, columns=columns, rows=found),) if found else ()


def shown_patch(moved: Iterable[Row]) -> tuple[Patch, ...]:
    """Return the patch of (sequence, ordinal, what stored evidence shows as)."""
    return patched(kinds.EVIDENCE, ("shown",), moved)


def _filled(changes: Mapping[Kind, Sequence[Row]]) -> dict[Kind, Sequence[Row]]:
    return {kind: found for kind, found in changes.items() if found}
