"""Corrections: merge, split, distinct, undo; retract, remove (R16, R25-R27).

A correction may affect records of any age, so the graph is derived again, and compared with the graph before:
for retractions and removals that of the whole group (R26), for the others the records around the entities.

Retractions and removals change committed episodes, and withdraw pending ones from the log. The result stores
the last sequence that had ended by then as "after": the plain loop must carry the operation out after this
sequence to get the same graph (R20).

A removal deletes the rows of the erased sequences. The row of its own sequence keeps the records of the
erased episodes that must survive: declarations, verdicts on statements with later evidence (without their
reasons), and the vectors of names that other episodes use. A retracted episode counts as stored, because a
read with an earlier `known_at` may still see it. A statement whose first stored wording is erased is embedded
again.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from kgray.domain import times
from kgray.domain.records import GroupRecords, Operation, Place, entity_id
from kgray.domain.times import Instant
from kgray.errors import InputError, KgrayError, NotFound, Outrun
from kgray.graph import names
from kgray.graph.change import Difference, borne, compare, retracted
from kgray.graph.group import GroupGraph
from kgray.graph.stored import records_of_entities, stale_rows, stored_records
from kgray.graph.texts import corrected_entities
from kgray.ingest.outbox import PENDING, check_width, correction_change, patches_of, row_changes
from kgray.ingest.removed_records import (
    keys_of,
    keys_of_episodes,
    remaining_records,
    removal_effects,
    saved_records,
    sequences_in,
    statements_to_embed,
)
from kgray.ports import Embed, Patch, RowChanges, Store
from kgray.schema import kinds, reads, rows
from kgray.schema.kinds import Key, Kind, OperationRow, Row
from kgray.schema.reads import TakenRow
from kgray.schema.record_rows import EntryRecords, TextVector, statement_texts, with_statement_vectors
from kgray.storage.ledger import named_episodes, pending_withdrawals
from kgray.system.garbage import let_go

# Rows: more than AT_ONCE are changed in pieces. On Neo4j 20,600 rows, of 3,000 facts with vectors of 1,024
# numbers, took 231 MB of the server's heap in one transaction.
AT_ONCE, A_PIECE = 20_000, 4_000
EMBEDDER_S = 2.0  # the wait for an embedder after removals; a later run embeds the missing texts
Verb = Literal["drop", "put"]
# In the result of a removal: the statements that wait for their vectors, each with the place of its wording.
_UNEMBEDDED = "unembedded"


async def withdraw_requested(store: Store, embed: Embed, group: str) -> None:
    """Carry out the requested retractions and removals of a group; call it inside `store.writing()`."""
    requested = pending_withdrawals(store, group)
    for operation in requested:
        while True:
            rests_on = store.heads([group])[group].last_recorded
            recorded_at = max(times.now(), rests_on + 1)
            with suppress(Outrun):  # another process has changed the group: read it again
                for change in withdraw(store, operation, recorded_at):
                    store.apply([replace(change, rests_on=rests_on if change.recorded_at else None)])
                break
    with suppress(KgrayError, TimeoutError):  # the removals are done; the next run will hit the same error
        async with asyncio.timeout(EMBEDDER_S):
            store.apply(
                await embed_missing(store, embed, group, {operation.sequence for operation in requested})
            )


def withdraw(store: Store, operation: Operation, recorded_at: Instant) -> Iterator[RowChanges]:
    """Yield the row changes of a retraction or removal; each must be durable before the next is requested.

    There is one change, unless it has too many rows for one transaction of a server (R27). In that case the
    first change takes the episodes out of the records and puts the result on the operation, which stays
    pending: from then on reads derive the group from its records (`stored.view_now`). The other rows of those
    episodes and the stale rows of the derived graph follow in pieces; the last piece ends the operation.
    After a crash the next run finds the operation pending, and this function continues with the remaining
    rows.
    """
    (stored,) = store.rows(reads.OPERATIONS_AT, operation.group, [operation.sequence])
    if stored.result is None:
        change, hidden = _whole_change(store, operation, recorded_at)
        changed = (*change.drops.values(), *change.puts.values(), *(patch.rows for patch in change.patches))
        if change.clear or sum(map(len, changed)) <= AT_ONCE:
            yield change
            return
        (row,) = change.puts[kinds.OPERATIONS]
        ended = OperationRow(*row)
        at = change.recorded_at
        # The records no longer say that the removed episodes were ever committed.
        marks = ((sequence, kinds.WITHDRAWN, at, at) for sequence in sorted(hidden))
        marked = patches_of(kinds.EPISODES, ("state", "ended_at", "retired_at"), marks)
        unjudged = ((sequence, None, None) for sequence in sorted(hidden))
        judged = patches_of(kinds.RECORDS, ("timed", "judged"), unjudged)
        erased = {(sequence,) for sequence in hidden}
        drops: dict[Kind[Any], Sequence[Key]] = {
            kinds.OPERATIONS: change.drops.get(kinds.OPERATIONS, ()),
            kinds.COMMUNITIES: change.drops.get(kinds.COMMUNITIES, ()),
            kinds.RECORDS: [key for key in change.drops.get(kinds.RECORDS, ()) if key not in erased],
        }
        begun = rows.operation_row(
            replace(operation, retired=rows.operation("", ended).retired), kinds.PENDING
        )
        yield replace(
            change,
            drops=drops,
            puts={
                kinds.OPERATIONS: (begun._replace(recorded_at=ended.recorded_at, result=ended.result),),
                kinds.RECORDS: change.puts.get(kinds.RECORDS, ()),
            },
            patches=(*change.patches, *marked, *judged),
        )
    yield from _pieces(store, operation)


def _pieces(store: Store, operation: Operation) -> Iterator[RowChanges]:
    """Yield the rest of a begun retraction or removal, in pieces; the last ends the operation.

    The episodes are deleted last, because a run that continues finds the other rows by them.
    """
    group = operation.group
    (begun,) = store.rows(reads.OPERATIONS_AT, group, [operation.sequence])
    operation = rows.operation(group, begun)
    drops: dict[Kind[Any], Sequence[Key]] = {}
    if operation.kind == "remove":
        drops = keys_of_episodes(store, group, {row.sequence for row in _named(store, operation)})
    different = stale_rows(store, group)
    steps: list[tuple[Verb, Kind[Any], Row]] = [
        *(("drop", kind, key) for kind, keys in drops.items() if kind is not kinds.EPISODES for key in keys),
        *(("put", kind, row) for kind, stale_rows in different.puts.items() for row in stale_rows),
        # A fact before its ends.
        *(("drop", kind, key) for kind, keys in reversed(different.drops.items()) for key in keys),
        *(("drop", kinds.EPISODES, key) for key in drops.get(kinds.EPISODES, ())),
    ]
    result: dict[str, Any] = json.loads(begun.result or "{}")
    for start in range(0, max(1, len(steps)), A_PIECE):
        dropped: dict[Kind[Any], list[Key]] = defaultdict(list)
        written: dict[Kind[Any], list[Row]] = defaultdict(list)
        for verb, kind, row in steps[start : start + A_PIECE]:
            (dropped if verb == "drop" else written)[kind].append(row)
        is_last = start + A_PIECE >= len(steps)
        state = kinds.DONE if is_last else kinds.PENDING
        written[kinds.OPERATIONS].append(rows.operation_row(operation, state, begun.recorded_at, result))
        flags = {"erases": operation.kind == "remove", "unsettles": kinds.RECORDS in dropped}
        yield row_changes(operation, PENDING, drops=dropped, puts=written, **flags)


def _named(store: Store, operation: Operation) -> list[TakenRow]:
    """Return the withdrawn episodes, without episodes accepted after the request."""
    return [row for row in named_episodes(store, operation) if row.sequence < operation.sequence]


def _whole_change(store: Store, operation: Operation, recorded_at: Instant) -> tuple[RowChanges, set[int]]:
    """Return a retraction or removal of committed episodes as one change, and the removed sequences."""
    group, hard = operation.group, operation.kind == "remove"
    stored = stored_records(store, group)
    records = stored.live
    old = GroupGraph.build(records)
    withdrawn = _named(store, operation)
    removed_sequences = {row.sequence for row in withdrawn}
    remaining = remaining_records(stored, removed_sequences) if hard else None
    changed = (
        retracted(records, removed_sequences) if remaining is None else removal_effects(stored, remaining)
    )
    new = GroupGraph.build(changed.records)
    difference = compare(old, new, records, changed.records)
    live = [row for row in withdrawn if row.retired_at is None]  # an earlier retirement stays
    requested = {withdrawal.sequence for withdrawal in pending_withdrawals(store, group)}
    pending = store.pending_sequences(group, 0, len(requested) + 1)
    last_ended = min([operation.sequence, *(at for at, _ in pending if at not in requested)]) - 1
    counted: dict[str, Any] = {"after": last_ended, "episodes": len(withdrawn if hard else live)}
    result = counted | _counts(old, new, difference) | ({"replaces": True} if operation.replaces else {})
    let_go(*vars(new).values(), *vars(old).values(), changed.records.heads)
    drops: dict[Kind[Any], Sequence[Key]] = {kinds.COMMUNITIES: _resting_on(store, group, removed_sequences)}
    if remaining is None:
        ended = replace(operation, retired=changed.retired)
        patches = _retired(live, recorded_at)
        return correction_change(ended, result, recorded_at, difference, drops=drops, patches=patches), set()
    if operation.everything:
        row = rows.operation_row(operation, kinds.DONE, recorded_at, result)
        cleared = {"recorded_at": recorded_at, "clear": True, "erases": True, "unsettles": True}
        return row_changes(operation, PENDING, puts={kinds.OPERATIONS: (row,)}, **cleared), set()
    saved, patches = saved_records(store, stored, remaining, changed, removed_sequences)
    waiting = statements_to_embed(stored, remaining, removed_sequences)
    saved.sequence, saved.recorded_at = operation.sequence, recorded_at
    saved.statements = {id_: vector for id_, vector in saved.statements.items() if id_ not in waiting}
    drops |= keys_of(store, stored, changed, removed_sequences)
    corrected = ((at, rows.operation_payload(o)) for at, o in sorted(changed.operations.items()) if o)
    patches += patches_of(kinds.OPERATIONS, ("payload",), corrected)
    result |= {_UNEMBEDDED: [(id_, *place) for id_, place in sorted(waiting.items())]} if waiting else {}
    puts = {kinds.RECORDS: (saved.row(),)} if saved else {}
    difference = difference.without_evidence(removed_sequences)
    change = correction_change(
        operation, result, recorded_at, difference, drops=drops, puts=puts, patches=patches, erases=True
    )
    return change, removed_sequences


def _resting_on(store: Store, group: str, removed: Set[int]) -> list[Key]:
    """Return the keys of the communities of all runs whose texts use words of removed episodes (R25)."""
    communities = store.rows(reads.COMMUNITY_SOURCES, group)
    return [(row.run, row.id) for row in communities if not removed.isdisjoint(sequences_in(row.sources))]


def _retired(live: Iterable[TakenRow], at: Instant) -> list[Patch]:
    """Return the patches of a retraction. Pending episodes end with it and are never committed."""
    live = list(live)
    ended = ((row.sequence, at) for row in live if row.state >= kinds.COMMITTED)
    pending = ((row.sequence, kinds.WITHDRAWN, at, at) for row in live if row.state < kinds.COMMITTED)
    return [
        *patches_of(kinds.EPISODES, ("retired_at",), ended),
        *patches_of(kinds.EPISODES, ("state", "ended_at", "retired_at"), pending),
    ]


def _unembedded(
    store: Store, group: str, removals: Set[int] | None
) -> list[tuple[OperationRow, dict[str, str]]]:
    """Return the removals whose statements wait for vectors, each with their first wordings by id."""
    waiting = []
    for row in store.rows(kinds.OPERATIONS.all, group):
        is_meant = removals is None or row.sequence in removals
        if not is_meant or row.kind != "remove" or row.state != kinds.DONE or not row.result:
            continue
        wanted_statements: list[tuple[str, int, int]] = json.loads(row.result).get(_UNEMBEDDED, ())
        if wanted_statements:
            sequences = sorted({sequence for _, sequence, _ in wanted_statements})
            texts = statement_texts(store.rows(reads.PACKED_AT, group, sequences))
            places = ((id_, texts.get((sequence, ordinal))) for id_, sequence, ordinal in wanted_statements)
            # A missing text was erased by a later removal, which waits for the next wording itself.
            waiting.append((row, {id_: text for id_, text in places if text is not None}))
    return waiting


async def embed_missing(
    store: Store, embed: Embed, group: str, removals: Set[int] | None = None
) -> list[RowChanges]:
    """Return the changes that add missing vectors of statements after removals (R27).

    removals  their sequences; None = all

    Decisions use these vectors, so ingestion calls it for all removals before it reads a group's state.
    Errors of the embedder pass through.
    """
    changed = []
    for row, texts in await asyncio.to_thread(_unembedded, store, group, removals):
        embeddings = await embed(list(texts.values())) if texts else []
        check_width((len(embedding.vector) for embedding in embeddings), store.dimensions)
        added = {
            id_: TextVector(rows.vector_bytes(embedding.vector), embedding.weights)
            for id_, embedding in zip(texts, embeddings, strict=True)
        }
        saved = next(iter(store.rows(reads.RECORDS_AT, group, [row.sequence])), None)
        if saved is None:
            saved = EntryRecords(sequence=row.sequence, recorded_at=row.recorded_at or 0).row()
        result = {
            name: value for name, value in json.loads(row.result or "{}").items() if name != _UNEMBEDDED
        }
        changed.append(
            RowChanges(
                group=group,
                sequence=row.sequence,
                ledger=kinds.OPERATIONS,
                states=frozenset({kinds.DONE}),
                puts={
                    kinds.RECORDS: [with_statement_vectors(saved, added)] if added else [],
                    kinds.OPERATIONS: [row._replace(result=rows.pack(result))],
                },
                unsettles=bool(added),
            )
        )
    return changed


def _counts(old: GroupGraph, new: GroupGraph, difference: Difference) -> dict[str, int]:
    """Return the result's counts by name; a fact counts as closed if it is deleted or ends earlier."""
    stored = {fact.statement for fact in difference.facts} & old.statements.keys()
    former_facts = {fact.id: fact for fact in old.facts_of(stored)}
    ends = [
        (former_facts[fact.id].invalid_at, fact.invalid_at)
        for fact in difference.facts
        if fact.id in former_facts
    ]
    moved = [(former_end, new_end) for former_end, new_end in ends if former_end != new_end]
    reopened = sum(
        new_end is None or (former_end is not None and new_end > former_end) for former_end, new_end in moved
    )
    return {
        "statements": len(old.statements.keys() - new.statements.keys()),
        "facts_closed": len(difference.gone_facts) + len(moved) - reopened,
        "facts_reopened": reopened,
        "entities": len(difference.gone_entities),
    }


def correct(store: Store, operation: Operation, recorded_at: Instant) -> Iterator[RowChanges]:
    """Yield the row changes of the operation; each must be durable before the next is requested.

    Raises NotFound or InputError, one line for the caller, if the operation is impossible.
    """
    if operation.withdraws:
        yield from withdraw(store, operation, recorded_at)
        return
    correction = carried_out(store, operation, recorded_at)
    operation, old, new = correction.operation, correction.graph, GroupGraph.build(correction.after)
    difference = compare(old, new, correction.before, correction.after)
    changed = (
        entity for entity in difference.entities if old.entities.get(entity.id) != new.entities[entity.id]
    )
    entities = corrected_entities(store, operation.group, difference, changed)
    difference = replace(difference, entities=entities)
    result = {"sequence": operation.sequence, **correction.result}
    yield correction_change(operation, result, recorded_at, difference)


class Correction(NamedTuple):
    """A merge, distinction, split or undo as it is recorded, with its result.

    before, after   the records that it touches
    graph           derived from the records before it
    """

    operation: Operation
    result: dict[str, Any]
    before: GroupRecords
    after: GroupRecords
    graph: GroupGraph


def carried_out(store: Store, operation: Operation, recorded_at: Instant) -> Correction:
    """Return what a correction changes. Raises NotFound or InputError."""
    records = records_of_entities(store, operation.group, operation.entities, undone=operation.target)
    old = GroupGraph.build(records)
    births: dict[str, Place] = {}
    result: dict[str, Any] = {}
    if operation.kind in ("merge", "distinct"):
        shown_ids = tuple(_shown_id(old, i) for i in operation.entities)
        if len(set(shown_ids)) < 2:
            raise InputError(f"{' and '.join(operation.entities)} are one entity already: nothing to merge.")
        old.fold.check_together(operation, shown_ids)
        operation = replace(operation, entities=shown_ids)
        if operation.kind == "merge":
            result = {"entity": old.fold.first_born(shown_ids)}
    elif operation.kind == "split":
        operation, place = _split(operation, old, records)
        births = {operation.made: place} if operation.minted else {}
        result = {"entities": [operation.entities[0], operation.made]}
    else:
        undone = old.fold.check_undo(operation.target or 0)
        operation = replace(operation, entities=undone.entities)
        result = {"undone": undone.sequence, "kind": undone.kind}
    places = {**old.births, **records.births, **births}
    born = ((id_, *places[id_]) for id_ in sorted({*operation.entities, operation.made} - {""}))
    operation = replace(operation, births=tuple(born))
    later = replace(
        records,
        operations=[*records.operations, operation],
        recorded={**records.recorded, operation.sequence: recorded_at},
        births={**records.births, **births},
        last_recorded=recorded_at,
    )
    return Correction(operation, result, records, later, old)


def _shown_id(graph: GroupGraph, entity: str) -> str:
    if entity in graph.entities:
        return entity
    shows = graph.shows.get(entity, set())
    if len(shows) == 1:
        return next(iter(shows))
    raise NotFound(
        f"no entity {entity!r} in group {graph.group!r}: see `kgray search` or `kgray history` for ids."
    )


def _split(operation: Operation, graph: GroupGraph, records: GroupRecords) -> tuple[Operation, Place]:
    """Return the split with its new part filled in, and the place that gives the new part its id."""
    entity = _shown_id(graph, operation.entities[0])
    note = graph.entities[entity]
    keys = {names.key(s) for s in note.surfaces}
    requested = {names.key(s) for s in operation.surfaces}
    # A refusal is stored, so its message quotes no surface (R25).
    for number, surface in enumerate(operation.surfaces, 1):
        if names.key(surface) not in keys:
            raise InputError(
                f"entity {entity} has no such surface (number {number} of those asked): "
                f"`kgray history {entity} --group {operation.group}` shows its names."
            )
    if not requested or requested == keys:
        raise InputError(f"a split needs some, not all, of the surfaces of entity {entity}.")
    # Record the surfaces as stored, so that a removal finds each of them among the stored mentions.
    surfaces = tuple(dict.fromkeys(borne(s, list(note.surfaces)) or s for s in operation.surfaces))
    founding = names.key(next(iter(note.surfaces)))
    moved = keys - requested if founding in requested else requested
    first = next(
        m
        for m in records.mentions
        if names.key(m.surface) in moved and graph.fold.shown(m.entity, m.surface, m.sequence)[0] == entity
    )
    place = (first.sequence, first.ordinal)
    new_id = entity_id(operation.group, place)
    minted = first.entity != new_id
    operation = replace(
        operation,
        entities=(entity,),
        surfaces=surfaces,
        moved=tuple(sorted(moved)),
        made=new_id,
        minted=minted,
    )
    return operation, place
