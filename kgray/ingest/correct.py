"""Corrections: merge, split, undo, retract, remove (R16, R25-R27).

Each takes its place in the group's order and is one transaction. They may move records of any age,
so the graph is derived anew from the records as they will stand, and compared with what stood: the
price is a walk over the group, the gain is that R26 holds by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kgray.derivation import names
from kgray.derivation.absorb import compare
from kgray.derivation.group import GroupGraph
from kgray.errors import InputError, NotFound
from kgray.graph import Derived
from kgray.ingest.state import with_operation
from kgray.ports import Commit, Embedder, NamedVector, Store
from kgray.records import GroupRecords, Operation, Place, Ruling, Verdict, entity_id
from kgray.times import Instant


async def correct(store: Store, embedder: Embedder, operation: Operation, recorded_at: Instant) -> Commit:
    """Return what the operation changes.

    Raises NotFound or InputError, one line for its caller, where it cannot be done; the graph stays.
    """
    records = store.records(operation.group)
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
    after = with_operation(records, operation, recorded_at)
    after.births = {**after.births, **dict(births)}
    return Commit(
        group=operation.group,
        sequence=operation.sequence,
        recorded_at=recorded_at,
        births=births,
        derived=compare(old, GroupGraph.build(after)),
        operation=operation,
        result={"sequence": operation.sequence, **result},
    )


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
    """Return the split with the part that leaves worked out, and the place that names it."""
    entity = _shown(graph, operation.entities[0])
    note = graph.entities[entity]
    keys = {names.key(s) for s in note.surfaces}
    asked = {names.key(s) for s in operation.surfaces}
    # What is refused is kept: it names the entity by its id, and quotes no surface (R25).
    for number, surface in enumerate(operation.surfaces, 1):
        if names.key(surface) not in keys:
            raise InputError(
                f"entity {entity} has no such surface (number {number} of those asked): "
                f"`kgray history {entity} --group {operation.group}` shows its names."
            )
    if not asked or asked == keys:
        raise InputError(f"a split needs some, not all, of the surfaces of entity {entity}.")
    # Recorded as they are stored: a removal then finds each of them among the stored mentions.
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
    """Return the surface if it is stored, else the first that is the same name, else None."""
    if surface in stored:
        return surface
    return next((s for s in stored if names.key(s) == names.key(surface)), None)


# ------------------------------------------------------------------ retract and remove


@dataclass(slots=True)
class _Judged:
    """Rulings and verdicts that a withdrawn episode raised: those that go, those that lose their reason."""

    rulings: list[Ruling]
    verdicts: list[Verdict]
    blanked: list[Place]


async def _withdraw(
    store: Store,
    embedder: Embedder,
    operation: Operation,
    records: GroupRecords,
    old: GroupGraph,
    recorded_at: Instant,
) -> Commit:
    named = store.sequences(
        operation.group,
        ids=operation.episodes,
        source=operation.source,
        everything=operation.everything,
    )
    # What was accepted after the request stands after it in the order: it is not withdrawn.
    rows = [s for s in named if s < operation.sequence]
    live = {head.sequence for head in records.heads}
    hard = operation.kind == "remove"
    gone = set(rows)
    judged = _raised_by(gone, records)
    after = _without(records, gone, judged)
    forgotten = hard and operation.everything
    rewritten = _rewritten(store, records, rows) if hard and not forgotten else {}
    after.operations = [rewritten.get(o.sequence, o) for o in records.operations]
    new = GroupGraph.build(after)
    derived = compare(old, new)
    commit = Commit(
        group=operation.group,
        sequence=operation.sequence,
        recorded_at=recorded_at,
        derived=derived,
        operation=operation,
        result=_counts(old, new, derived, rows if hard else [s for s in rows if s in live]),
        retired=() if hard else tuple(rows),
        erased=tuple(rows) if hard else (),
        forgotten=forgotten,
        blanked=tuple(judged.blanked),
    )
    rulings = tuple((r.sequence, r.ordinal) for r in judged.rulings)
    verdicts = tuple((v.sequence, v.ordinal) for v in judged.verdicts)
    if not hard:
        return replace(commit, retired_rulings=rulings, retired_verdicts=verdicts)
    return replace(
        commit,
        erased_rulings=rulings,
        erased_verdicts=verdicts,
        gone_births=_unmentioned(records, after, gone),
        rewritten=tuple(rewritten.values()),
        vectors=() if forgotten else await _first_wordings(embedder, records, after),
    )


def _raised_by(gone: set[int], records: GroupRecords) -> _Judged:
    """Sort withdrawn episodes' rulings and verdicts: used by a later, remaining sequence or not (R25)."""
    used: dict[str, int] = {}
    spoken: dict[str, int] = {}
    for evidence in records.evidence:
        if evidence.sequence not in gone:
            used[evidence.relation] = evidence.sequence
            spoken[evidence.statement] = evidence.sequence
    judged = _Judged([], [], [])
    for ruling in records.rulings:
        if ruling.sequence in gone:
            later = max(used.get(ruling.name, 0), used.get(ruling.other, 0))
            if later > ruling.sequence:
                judged.blanked.append((ruling.sequence, ruling.ordinal))
            else:
                judged.rulings.append(ruling)
    for verdict in records.verdicts:
        if verdict.sequence in gone:
            if max(spoken.get(verdict.a, 0), spoken.get(verdict.b, 0)) > verdict.sequence:
                judged.blanked.append((verdict.sequence, verdict.ordinal))
            else:
                judged.verdicts.append(verdict)
    return judged


def retracted(records: GroupRecords, gone: set[int]) -> GroupRecords:
    """Return the records as they would stand without these sequences."""
    return _without(records, gone, _raised_by(gone, records))


def _without(records: GroupRecords, gone: set[int], judged: _Judged) -> GroupRecords:
    dropped_rulings, dropped_verdicts = set(judged.rulings), set(judged.verdicts)
    return GroupRecords(
        group=records.group,
        heads=[h for h in records.heads if h.sequence not in gone],
        mentions=[m for m in records.mentions if m.sequence not in gone],
        evidence=[e for e in records.evidence if e.sequence not in gone],
        rulings=[r for r in records.rulings if r not in dropped_rulings],
        verdicts=[v for v in records.verdicts if v not in dropped_verdicts],
        operations=records.operations,
        recorded=records.recorded,
        births=records.births,
        last_recorded=records.last_recorded,
    )


def _rewritten(store: Store, records: GroupRecords, erased: Sequence[int]) -> dict[int, Operation]:
    """Return the splits, undone ones too, that name what no stored mention bears once these are erased (R25).

    Nothing that shows changes: what is dropped moves no mention that remains.
    """
    splits = [o for o in records.operations if o.surfaces or o.moved]
    if not splits:
        return {}
    stored = store.surfaces(records.group, erased)
    keys = {names.key(s) for s in stored}
    found = {}
    for split in splits:
        surfaces = tuple(dict.fromkeys(s for name in split.surfaces if (s := _borne(name, stored))))
        kept = replace(split, surfaces=surfaces, moved=tuple(k for k in split.moved if k in keys))
        if kept != split:
            found[split.sequence] = kept
    return found


def _unmentioned(before: GroupRecords, after: GroupRecords, gone: set[int]) -> tuple[str, ...]:
    """Return the recorded ids that the erased rows named and no live row names any more."""
    kept = {m.entity for m in after.mentions} | {e.statement for e in after.evidence}
    kept |= {o.made for o in after.operations}
    named = {m.entity for m in before.mentions if m.sequence in gone}
    named |= {e.statement for e in before.evidence if e.sequence in gone}
    return tuple(sorted(named - kept))


async def _first_wordings(
    embedder: Embedder, before: GroupRecords, after: GroupRecords
) -> tuple[NamedVector, ...]:
    """Return new vectors for surviving statements whose first wording goes (R25: its card goes with it)."""
    was = _firsts(before)
    texts = {s: text for s, (place, text) in _firsts(after).items() if was[s][0] != place}
    if not texts:
        return ()
    vectors = await embedder.embed(list(texts.values()))
    rows: Sequence[tuple[str, str]] = list(texts.items())
    return tuple(
        NamedVector(kind="statement", owner=s, text=text, vector=v)
        for (s, text), v in zip(rows, vectors, strict=True)
    )


def _firsts(records: GroupRecords) -> dict[str, tuple[Place, str]]:
    firsts: dict[str, tuple[Place, str]] = {}
    for evidence in records.evidence:
        firsts.setdefault(evidence.statement, ((evidence.sequence, evidence.ordinal), evidence.text))
    return firsts


def _counts(old: GroupGraph, new: GroupGraph, derived: Derived, rows: Iterable[int]) -> dict[str, int]:
    """Return what the caller reads (cli.md): a fact is closed where it no longer stands or ends earlier."""
    was = {
        f.id: f for f in old.facts_of(s for s in {f.statement for f in derived.facts} if s in old.statements)
    }
    closed, reopened = len(derived.gone_facts), 0
    for fact in derived.facts:
        earlier = was.get(fact.id)
        if earlier is None or earlier.invalid_at == fact.invalid_at:
            continue
        longer = fact.invalid_at is None or (
            earlier.invalid_at is not None and fact.invalid_at > earlier.invalid_at
        )
        reopened += longer
        closed += not longer
    return {
        "episodes": len(list(rows)),
        "statements": len(old.statements.keys() - new.statements.keys()),
        "facts_closed": closed,
        "facts_reopened": reopened,
        "entities": len(derived.gone_entities),
    }
