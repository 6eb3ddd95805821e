"""Corrections: merge, split, undo, retract, remove (R16, R25-R27).

Each has its place in the group's order and is one transaction. A correction may affect records of any age, so
the graph is derived again from the remaining records, and compared with the graph before. That costs a walk
over the group, and makes R26 hold by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kgray import rows
from kgray.derivation import names
from kgray.derivation.absorb import compare
from kgray.derivation.change import Difference, with_operation
from kgray.derivation.group import GroupGraph
from kgray.derivation.stored import records_of
from kgray.errors import InputError, NotFound
from kgray.ingest import changes
from kgray.ingest.erase import erased_rows
from kgray.kinds import (
    EPISODE_HEADS,
    EPISODES,
    EVIDENCE_IN,
    EVIDENCE_OF,
    OPERATIONS,
    RULINGS,
    STATEMENT_VECTORS,
    SURFACES,
    VERDICTS,
    Row,
)
from kgray.ledger import sequences_of
from kgray.ports import Embedder, Patch, RowChanges, Store
from kgray.records import GroupRecords, Operation, Place, Ruling, Verdict, entity_id
from kgray.times import Instant


async def correct(store: Store, embedder: Embedder, operation: Operation, recorded_at: Instant) -> RowChanges:
    """Return the row changes of the operation.

    Raises NotFound or InputError, one line for the caller, where it cannot be done.
    """
    records = records_of(store, operation.group)
    old = GroupGraph.build(records)
    if operation.kind in {"retract", "remove"}:
        return await _withdraw(store, embedder, operation, records, old, recorded_at)
    births: tuple[tuple[str, Place], ...] = ()
    if operation.kind == "merge":
        operation = replace(operation, entities=_merged(operation, old))
        result: dict[str, Any] = {"entity": old.fold.first_born(operation.entities)}
    elif operation.kind == "split":
        operation, place = _split(operation, old, records)
        births = ((operation.made, place),) if operation.minted else ()
        result = {"entities": [operation.entities[0], operation.made]}
    else:
        undone = old.fold.check_undo(operation.target or 0)
        operation = replace(operation, entities=undone.entities)
        result = {"undone": undone.sequence, "kind": undone.kind}
    after = GroupGraph.build(with_operation(records, operation, recorded_at, births))
    result = {"sequence": operation.sequence, **result}
    return changes.corrected(operation, result, recorded_at, compare(old, after), births=births)


# ------------------------------------------------------------------ merge and split


def _shown(graph: GroupGraph, asked: str) -> str:
    if asked in graph.entities:
        return asked
    shows = graph.shows.get(asked, set())
    if len(shows) == 1:
        return next(iter(shows))
    raise NotFound(
        f"no entity {asked!r} in group {graph.group!r}: see `kgray search` or `kgray history` for ids."
    )


def _merged(operation: Operation, graph: GroupGraph) -> tuple[str, ...]:
    shown = tuple(_shown(graph, i) for i in operation.entities)
    if len(set(shown)) < 2:
        raise InputError(f"{' and '.join(operation.entities)} are one entity already: nothing to merge.")
    return shown


def _split(operation: Operation, graph: GroupGraph, records: GroupRecords) -> tuple[Operation, Place]:
    """Return the split with the leaving part filled in, and the place that gives that part its id."""
    entity = _shown(graph, operation.entities[0])
    note = graph.entities[entity]
    keys = {names.key(s) for s in note.surfaces}
    asked = {names.key(s) for s in operation.surfaces}
    # A refusal is stored, so its message quotes no surface (R25).
    for number, surface in enumerate(operation.surfaces, 1):
        if names.key(surface) not in keys:
            raise InputError(
                f"entity {entity} has no such surface (number {number} of those asked): "
                f"`kgray history {entity} --group {operation.group}` shows its names."
            )
    if not asked or asked == keys:
        raise InputError(f"a split needs some, not all, of the surfaces of entity {entity}.")
    # Record the surfaces as stored, so that a removal finds each of them among the stored mentions.
    surfaces = tuple(dict.fromkeys(_borne(s, list(note.surfaces)) or s for s in operation.surfaces))
    founding = names.key(next(iter(note.surfaces)))
    moved = keys - asked if founding in asked else asked
    first = next(
        m
        for m in records.mentions
        if names.key(m.surface) in moved and graph.fold.shown(m.entity, m.surface, m.sequence)[0] == entity
    )
    place = (first.sequence, first.ordinal)
    made = entity_id(operation.group, place)
    minted = first.entity != made
    operation = replace(
        operation,
        entities=(entity,),
        surfaces=surfaces,
        moved=tuple(sorted(moved)),
        made=made,
        minted=minted,
    )
    return operation, place


def _borne(surface: str, stored: Sequence[str]) -> str | None:
    """Return the surface if it is stored, else the first stored one with the same name key, else None."""
    if surface in stored:
        return surface
    return next((s for s in stored if names.key(s) == names.key(surface)), None)


# ------------------------------------------------------------------ retract and remove


@dataclass(frozen=True, slots=True, kw_only=True)
class _Raised:
    """Rulings and verdicts of withdrawn episodes: those that go, and the places of those that stay.

    Those stay that a later sequence uses; they lose their reason (R25).
    """

    rulings: frozenset[Ruling]
    verdicts: frozenset[Verdict]
    kept_rulings: frozenset[Place]
    kept_verdicts: frozenset[Place]

    @property
    def blanks(self) -> tuple[Patch, ...]:
        """The patches that blank the reasons of those that stay."""
        kept = ((RULINGS, self.kept_rulings), (VERDICTS, self.kept_verdicts))
        return tuple(
            Patch(kind=kind, columns=("reason",), rows=tuple((*place, "") for place in sorted(places)))
            for kind, places in kept
            if places
        )

    def retired(self, recorded_at: Instant) -> tuple[Patch, ...]:
        """Return the patches that retire those that go."""
        gone = ((RULINGS, self.rulings), (VERDICTS, self.verdicts))
        return tuple(
            Patch(
                kind=kind,
                columns=("retired_at",),
                rows=tuple(sorted((one.sequence, one.ordinal, recorded_at) for one in raised)),
            )
            for kind, raised in gone
            if raised
        )


async def _withdraw(
    store: Store,
    embedder: Embedder,
    operation: Operation,
    records: GroupRecords,
    old: GroupGraph,
    recorded_at: Instant,
) -> RowChanges:
    group = operation.group
    chosen = {"ids": operation.episodes, "source": operation.source, "everything": operation.everything}
    # Episodes accepted after the request come after it in the order, and are not withdrawn.
    named = [s for s in sequences_of(store, group, **chosen) if s < operation.sequence]  # type: ignore[arg-type]
    gone = set(named)
    raised = _raised_by(gone, records)
    hard = operation.kind == "remove"
    left = _without(records, gone, raised)
    rewritten = _rewritten(store, records, named) if hard and not operation.everything else {}
    left = replace(left, operations=[rewritten.get(o.sequence, o) for o in records.operations])
    new = GroupGraph.build(left)
    difference = compare(old, new)
    live = [head.sequence for head in records.heads if head.sequence in gone]
    result = _counts(old, new, difference, named if hard else live)
    if not hard:
        patches = (*_retired_episodes(store, group, named, recorded_at), *raised.retired(recorded_at))
        return changes.corrected(
            operation, result, recorded_at, difference,
            patches=(*patches, *raised.blanks), erases=bool(raised.blanks),
        )  # fmt: skip
    if operation.everything:
        return changes.cleared(operation, result, recorded_at)
    payloads = tuple((o.sequence, rows.operation_payload(o)) for o in rewritten.values())
    patches = (Patch(kind=OPERATIONS, columns=("payload",), rows=payloads),) if payloads else ()
    return changes.corrected(
        operation,
        result,
        recorded_at,
        difference,
        drops=erased_rows(
            store,
            group,
            named,
            left.operations,
            kept_rulings=set(raised.kept_rulings),
            kept_verdicts=set(raised.kept_verdicts),
        ),
        puts={STATEMENT_VECTORS: await _first_wordings(store, group, embedder, gone)},
        patches=(*patches, *raised.blanks),
        erases=True,
    )


def _retired_episodes(
    store: Store, group: str, sequences: Sequence[int], recorded_at: Instant
) -> tuple[Patch, ...]:
    """Return the patch that retires these episodes; an earlier retirement is kept."""
    gone = set(sequences)
    heads = store.rows(EPISODE_HEADS, group)
    retired = tuple((row[0], recorded_at) for row in heads if row[0] in gone and row[7] is None)
    return (Patch(kind=EPISODES, columns=("retired_at",), rows=retired),) if retired else ()


def _raised_by(gone: set[int], records: GroupRecords) -> _Raised:
    """Return withdrawn episodes' rulings and verdicts; those a later remaining sequence uses stay (R25)."""
    used: dict[str, int] = {}
    spoken: dict[str, int] = {}
    for evidence in records.evidence:
        if evidence.sequence not in gone:
            used[evidence.relation] = evidence.sequence
            spoken[evidence.statement] = evidence.sequence
    rulings = [r for r in records.rulings if r.sequence in gone]
    verdicts = [v for v in records.verdicts if v.sequence in gone]
    kept_rulings = {r for r in rulings if max(used.get(r.name, 0), used.get(r.other, 0)) > r.sequence}
    kept_verdicts = {v for v in verdicts if max(spoken.get(v.a, 0), spoken.get(v.b, 0)) > v.sequence}
    return _Raised(
        rulings=frozenset(rulings) - kept_rulings,
        verdicts=frozenset(verdicts) - kept_verdicts,
        kept_rulings=frozenset((r.sequence, r.ordinal) for r in kept_rulings),
        kept_verdicts=frozenset((v.sequence, v.ordinal) for v in kept_verdicts),
    )


def retracted(records: GroupRecords, gone: set[int]) -> GroupRecords:
    """Return the records without these sequences."""
    return _without(records, gone, _raised_by(gone, records))


def _without(records: GroupRecords, gone: set[int], raised: _Raised) -> GroupRecords:
    return replace(
        records,
        heads=[h for h in records.heads if h.sequence not in gone],
        mentions=[m for m in records.mentions if m.sequence not in gone],
        evidence=[e for e in records.evidence if e.sequence not in gone],
        rulings=[r for r in records.rulings if r not in raised.rulings],
        verdicts=[v for v in records.verdicts if v not in raised.verdicts],
    )


def _rewritten(store: Store, records: GroupRecords, erased: Sequence[int]) -> dict[int, Operation]:
    """Return, by sequence, the splits (undone ones too) without names that no remaining mention bears (R25).

    The graph stays the same: a dropped name moves no remaining mention.
    """
    splits = [o for o in records.operations if o.surfaces or o.moved]
    if not splits:
        return {}
    gone = set(erased)
    found = store.rows(SURFACES, records.group)
    stored = list(dict.fromkeys(surface for sequence, surface in found if sequence not in gone))
    keys = {names.key(s) for s in stored}
    changed = {}
    for split in splits:
        surfaces = tuple(dict.fromkeys(s for name in split.surfaces if (s := _borne(name, stored))))
        kept = replace(split, surfaces=surfaces, moved=tuple(k for k in split.moved if k in keys))
        if kept != split:
            changed[split.sequence] = kept
    return changed


async def _first_wordings(store: Store, group: str, embedder: Embedder, erased: set[int]) -> list[Row]:
    """Return new vectors for remaining statements whose first stored wording is erased (R25).

    Retracted evidence counts: a statement keeps the vector of its first wording when that is retracted.
    """
    touched = sorted({row[2] for row in store.rows(EVIDENCE_IN, group, sorted(erased))}) if erased else []
    wordings: dict[str, list[tuple[int, str]]] = {}
    for statement, sequence, text in store.rows(EVIDENCE_OF, group, touched) if touched else ():
        wordings.setdefault(statement, []).append((sequence, text))
    texts: dict[str, str] = {}
    for statement, said in wordings.items():
        left = [text for sequence, text in said if sequence not in erased]
        if left and said[0][0] in erased:
            texts[statement] = left[0]
    if not texts:
        return []
    vectors = await embedder.embed(list(texts.values()))
    return [(s, rows.vector_bytes(vector)) for s, vector in zip(texts, vectors, strict=True)]


def _counts(
    old: GroupGraph, new: GroupGraph, difference: Difference, episodes: Iterable[int]
) -> dict[str, int]:
    """Return the result's counts by name; a fact counts as closed where it is gone or ends earlier."""
    was = {
        f.id: f
        for f in old.facts_of(s for s in {f.statement for f in difference.facts} if s in old.statements)
    }
    closed, reopened = len(difference.gone_facts), 0
    for fact in difference.facts:
        earlier = was.get(fact.id)
        if earlier is None or earlier.invalid_at == fact.invalid_at:
            continue
        longer = fact.invalid_at is None or (
            earlier.invalid_at is not None and fact.invalid_at > earlier.invalid_at
        )
        reopened += longer
        closed += not longer
    return {
        "episodes": len(list(episodes)),
        "statements": len(old.statements.keys() - new.statements.keys()),
        "facts_closed": closed,
        "facts_reopened": reopened,
        "entities": len(difference.gone_entities),
    }
