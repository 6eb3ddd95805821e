"""Corrections: merge, split, distinct, undo, retract, remove (R16, R25-R27).

Each is one transaction (a large removal: several): the first four at their place in the group's order, the
others at once. A correction
may affect records of any age, so the graph is derived again from the remaining records, and compared with the
graph before. For a removal that costs a walk over the group, and makes R26 hold by construction; for the
first four it is done for the records around the entities alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from kgray.derivation import names
from kgray.derivation.around import records_of_entities
from kgray.derivation.change import compare
from kgray.derivation.group import GroupGraph
from kgray.derivation.withdrawn import borne
from kgray.errors import InputError, NotFound
from kgray.ingest import changes
from kgray.ingest.withdraw import withdraw
from kgray.ports import Embed, RowChanges, Store
from kgray.records import GroupRecords, Operation, Place, entity_id
from kgray.times import Instant


async def correct(
    store: Store, embed: Embed, operation: Operation, recorded_at: Instant
) -> AsyncIterator[RowChanges]:
    """Yield the row changes of the operation; each must be durable before the next is asked for.

    Raises NotFound or InputError, one line for the caller, where it cannot be done.
    """
    if operation.withdraws:
        async for change in withdraw(store, embed, operation, recorded_at):
            yield change
    else:
        yield _corrected(store, operation, recorded_at)


def _corrected(store: Store, operation: Operation, recorded_at: Instant) -> RowChanges:
    records = records_of_entities(store, operation.group, operation.entities, undone=operation.target)
    old = GroupGraph.build(records)
    births: tuple[tuple[str, Place], ...] = ()
    if operation.kind == "merge":
        operation = replace(operation, entities=_merged(operation, old))
        result: dict[str, Any] = {"entity": old.fold.first_born(operation.entities)}
    elif operation.kind == "distinct":
        operation, result = replace(operation, entities=_merged(operation, old)), {}
    elif operation.kind == "split":
        operation, place = _split(operation, old, records)
        births = ((operation.made, place),) if operation.minted else ()
        result = {"entities": [operation.entities[0], operation.made]}
    else:
        undone = old.fold.check_undo(operation.target or 0)
        operation = replace(operation, entities=undone.entities)
        result = {"undone": undone.sequence, "kind": undone.kind}
    later = replace(
        records,
        operations=[*records.operations, operation],
        recorded={**records.recorded, operation.sequence: recorded_at},
        births={**records.births, **dict(births)},
        last_recorded=recorded_at,
    )
    after = GroupGraph.build(later)
    result = {"sequence": operation.sequence, **result}
    return changes.corrected(operation, result, recorded_at, compare(old, after), births=births)


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
    graph.fold.check_together(operation, shown)
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
    surfaces = tuple(dict.fromkeys(borne(s, list(note.surfaces)) or s for s in operation.surfaces))
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
        operation, entities=(entity,), surfaces=surfaces, moved=tuple(sorted(moved)), made=made, minted=minted
    )
    return operation, place
