"""Corrections: merge, split, distinct, undo; retract, remove (R16, R25-R27).

A correction may affect records of any age, so the graph is derived again, and compared with the graph before:
for retractions and removals that of the whole group (R26), for the others the records around the entities.

Retractions and removals act on what is committed, and take what they name out of the log where it is pending.
The last sequence that had ended by then is kept with the result as "after": behind it the plain loop must
carry the operation out to get the same graph (R20).

A removal deletes the rows of the erased sequences. The row of its own sequence keeps the records of the
erased episodes that must survive: declarations, verdicts on statements with later evidence (without their
reasons), and the vectors of names that other episodes bear. A retracted episode counts as stored, because a
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
from typing import Any, Literal

from kgray import kinds, reads, rows, times
from kgray.derivation import names
from kgray.derivation.change import (
    Difference,
    borne,
    compare,
    retracted,
)
from kgray.derivation.group import GroupGraph
from kgray.derivation.stored import records_of_entities, stale, stored_records
from kgray.derivation.summaries import corrected_entities
from kgray.errors import InputError, KgrayError, NotFound, Outrun
from kgray.garbage import let_go
from kgray.ingest import changes
from kgray.ingest.removed_records import (
    keys_of,
    keys_of_episodes,
    left_without,
    removed_from,
    saved_records,
    sequences_in,
    statements_to_embed,
)
from kgray.kinds import Key, Kind, OperationRow, Row
from kgray.ledger import named, removals
from kgray.ports import Embed, Patch, RowChanges, Store
from kgray.reads import TakenRow
from kgray.record_rows import (
    EntryRecords,
    TextVector,
    statement_texts,
    with_statement_vectors,
)
from kgray.records import GroupRecords, Operation, Place, entity_id
from kgray.times import Instant

# Rows: more than AT_ONCE are changed in pieces. On Neo4j 20,600 rows, of 3,000 facts with vectors of 1,024
# numbers, took 231 MB of the server's heap in one transaction.
AT_ONCE, A_PIECE = 20_000, 4_000
EMBEDDER_S = 2.0  # how long an embedder is waited for after removals; a later run embeds what is missing
Verb = Literal["drop", "put"]
# In the result of a removal: the statements that wait for their vectors, each with the place of its wording.
_UNEMBEDDED = "unembedded"


async def withdraw_requested(store: Store, embed: Embed, group: str) -> None:
    """Carry out the requested retractions and removals of a group; call it inside `store.writing()`."""
    asked = removals(store, group)
    for operation in asked:
        while True:
            rests_on = store.heads([group])[group].last_recorded
            recorded_at = max(times.now(), rests_on + 1)
            with suppress(Outrun):  # another process has recorded something meanwhile: read it anew
                for change in withdraw(store, operation, recorded_at):
                    store.apply([replace(change, rests_on=rests_on if change.recorded_at else None)])
                break
    with suppress(KgrayError, TimeoutError):  # what was asked for is done: whoever decides next meets it
        async with asyncio.timeout(EMBEDDER_S):
            store.apply(await embed_missing(store, embed, group, {one.sequence for one in asked}))


def withdraw(store: Store, operation: Operation, recorded_at: Instant) -> Iterator[RowChanges]:
    """Yield the row changes of a retraction or removal; each must be durable before the next is asked for.

    One change, unless its rows are too many for one transaction of a server (R27). Then the first takes the
    episodes out of the records and puts the result on the operation, which stays pending: from there on reads
    derive the group from its records (`stored.view_now`). The other rows of those episodes and what is stale
    of the derived graph follow in pieces; the last ends the operation. After a crash whoever ingests finds it
    pending, and this goes on with what is left.
    """
    (stored,) = store.rows(reads.OPERATIONS_AT, operation.group, [operation.sequence])
    if stored.result is None:
        whole, hidden = _whole(store, operation, recorded_at)
        changed = (*whole.drops.values(), *whole.puts.values(), *(patch.rows for patch in whole.patches))
        if whole.clear or sum(map(len, changed)) <= AT_ONCE:
            yield whole
            return
        (row,) = whole.puts[kinds.OPERATIONS]
        ended = OperationRow(*row)
        at = whole.recorded_at
        # From now on none of the removed episodes was ever committed.
        marks = ((sequence, kinds.WITHDRAWN, at, at) for sequence in sorted(hidden))
        marked = changes.patched(kinds.EPISODES, ("state", "ended_at", "retired_at"), marks)
        unjudged = ((sequence, None, None) for sequence in sorted(hidden))
        judged = changes.patched(kinds.RECORDS, ("timed", "judged"), unjudged)
        erased = {(sequence,) for sequence in hidden}
        drops: dict[Kind[Any], Sequence[Key]] = {
            kinds.OPERATIONS: whole.drops.get(kinds.OPERATIONS, ()),
            kinds.COMMUNITIES: whole.drops.get(kinds.COMMUNITIES, ()),
            kinds.RECORDS: [key for key in whole.drops.get(kinds.RECORDS, ()) if key not in erased],
        }
        begun = rows.operation_row(replace(operation, retired=_retirements(ended)), kinds.PENDING)
        yield replace(
            whole,
            drops=drops,
            puts={
                kinds.OPERATIONS: (begun._replace(recorded_at=ended.recorded_at, result=ended.result),),
                kinds.RECORDS: whole.puts.get(kinds.RECORDS, ()),
            },
            patches=(*whole.patches, *marked, *judged),
        )
    yield from _pieces(store, operation)


def _retirements(ended: OperationRow) -> tuple[tuple[str, int, int], ...]:
    return rows.operation("", ended).retired


def _pieces(store: Store, operation: Operation) -> Iterator[RowChanges]:
    """Yield the rest of a begun retraction or removal, in pieces; the last ends the operation.

    The episodes go last, because a run that goes on finds the rest by them.
    """
    group = operation.group
    (begun,) = store.rows(reads.OPERATIONS_AT, group, [operation.sequence])
    operation = rows.operation(group, begun)
    drops: dict[Kind[Any], Sequence[Key]] = {}
    if operation.kind == "remove":
        drops = keys_of_episodes(store, group, {row.sequence for row in _named(store, operation)})
    different = stale(store, group)
    steps: list[tuple[Verb, Kind[Any], Row]] = [
        *(("drop", kind, key) for kind, keys in drops.items() if kind is not kinds.EPISODES for key in keys),
        *(("put", kind, row) for kind, made in different.puts.items() for row in made),
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
        rest = {"erases": operation.kind == "remove", "unsettles": kinds.RECORDS in dropped}
        yield changes.of(operation, changes.PENDING, drops=dropped, puts=written, **rest)


def _named(store: Store, operation: Operation) -> list[TakenRow]:
    """Return the episodes that are withdrawn: those accepted after the request are not."""
    return [row for row in named(store, operation) if row.sequence < operation.sequence]


def _whole(store: Store, operation: Operation, recorded_at: Instant) -> tuple[RowChanges, set[int]]:
    """Return a retraction or removal as one change, on what is committed now, and the removed sequences."""
    group, hard = operation.group, operation.kind == "remove"
    stored = stored_records(store, group)
    records = stored.live
    old = GroupGraph.build(records)
    withdrawn = _named(store, operation)
    gone = {row.sequence for row in withdrawn}
    left = left_without(stored, gone) if hard else None
    changed = retracted(records, gone) if left is None else removed_from(stored, left)
    new = GroupGraph.build(changed.records)
    difference = compare(old, new, records, changed.records)
    live = [row for row in withdrawn if row.retired_at is None]  # an earlier retirement is kept
    asked = {one.sequence for one in removals(store, group)}
    pending = store.pending_sequences(group, 0, len(asked) + 1)
    after = min([operation.sequence, *(at for at, _ in pending if at not in asked)]) - 1
    counted: dict[str, Any] = {"after": after, "episodes": len(withdrawn if hard else live)}
    result = counted | _counts(old, new, difference) | ({"replaces": True} if operation.replaces else {})
    let_go(*vars(new).values(), *vars(old).values(), changed.records.heads)
    # The communities of all runs whose texts rest on these episodes (R25).
    communities = store.rows(reads.COMMUNITY_SOURCES, group)
    rests = [(row.run, row.id) for row in communities if not gone.isdisjoint(sequences_in(row.sources))]
    drops: dict[Kind[Any], Sequence[Key]] = {kinds.COMMUNITIES: rests}
    if left is None:
        ended = replace(operation, retired=changed.retired)
        patches = _retired(live, recorded_at)
        return changes.corrected(ended, result, recorded_at, difference, drops=drops, patches=patches), set()
    if operation.everything:
        row = rows.operation_row(operation, kinds.DONE, recorded_at, result)
        cleared = {"recorded_at": recorded_at, "clear": True, "erases": True, "unsettles": True}
        return changes.of(operation, changes.PENDING, puts={kinds.OPERATIONS: (row,)}, **cleared), set()
    saved, patches = saved_records(store, stored, left, changed, gone)
    waiting = statements_to_embed(stored, left, gone)
    saved.sequence, saved.recorded_at = operation.sequence, recorded_at
    saved.statements = {id_: one for id_, one in saved.statements.items() if id_ not in waiting}
    drops |= keys_of(store, stored, changed, gone)
    corrected = ((at, rows.operation_payload(o)) for at, o in sorted(changed.operations.items()) if o)
    patches += changes.patched(kinds.OPERATIONS, ("payload",), corrected)
    result |= {_UNEMBEDDED: [(id_, *place) for id_, place in sorted(waiting.items())]} if waiting else {}
    whole = changes.corrected(
        operation,
        result,
        recorded_at,
        difference.without_evidence(gone),
        drops=drops,
        puts={kinds.RECORDS: (saved.row(),)} if saved else {},
        patches=patches,
        erases=True,
    )
    return whole, gone


def _retired(live: Iterable[TakenRow], at: Instant) -> list[Patch]:
    """Return the patches of a retraction. Episodes that are pending end with it, never committed."""
    live = list(live)
    ended = ((row.sequence, at) for row in live if row.state >= kinds.COMMITTED)
    pending = ((row.sequence, kinds.WITHDRAWN, at, at) for row in live if row.state < kinds.COMMITTED)
    return [
        *changes.patched(kinds.EPISODES, ("retired_at",), ended),
        *changes.patched(kinds.EPISODES, ("state", "ended_at", "retired_at"), pending),
    ]


def _unembedded(
    store: Store, group: str, left_by: Set[int] | None
) -> list[tuple[OperationRow, dict[str, str]]]:
    """Return the removals whose statements wait for vectors, each with the first wordings of these."""
    waiting = []
    for row in store.rows(kinds.OPERATIONS.all, group):
        is_meant = left_by is None or row.sequence in left_by
        if not is_meant or row.kind != "remove" or row.state != kinds.DONE or not row.result:
            continue
        asked: list[tuple[str, int, int]] = json.loads(row.result).get(_UNEMBEDDED, ())
        if asked:
            sequences = sorted({sequence for _, sequence, _ in asked})
            texts = statement_texts(store.rows(reads.PACKED_AT, group, sequences))
            places = ((id_, texts.get((sequence, ordinal))) for id_, sequence, ordinal in asked)
            # Without a text: a later removal has erased it, and waits for the next wording itself.
            waiting.append((row, {id_: text for id_, text in places if text is not None}))
    return waiting


async def embed_missing(
    store: Store, embed: Embed, group: str, left_by: Set[int] | None = None
) -> list[RowChanges]:
    """Return the changes that add the vectors of statements that removals have left without (R27).

    left_by: the removals by their sequences; None = all. A group is decided on these vectors, so whoever
    ingests calls it for all before it reads the group's state. Raises what the embedder raises.
    """
    changed = []
    for row, texts in await asyncio.to_thread(_unembedded, store, group, left_by):
        embeddings = await embed(list(texts.values())) if texts else []
        changes.check_width((len(one.vector) for one in embeddings), store.dimensions)
        added = {
            id_: TextVector(rows.vector_bytes(one.vector), one.weights)
            for id_, one in zip(texts, embeddings, strict=True)
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
    """Return the result's counts by name; a fact counts as closed where it is gone or ends earlier."""
    stored = {fact.statement for fact in difference.facts} & old.statements.keys()
    was = {fact.id: fact for fact in old.facts_of(stored)}
    ends = [(was[fact.id].invalid_at, fact.invalid_at) for fact in difference.facts if fact.id in was]
    moved = [(before, now) for before, now in ends if before != now]
    reopened = sum(now is None or (before is not None and now > before) for before, now in moved)
    return {
        "statements": len(old.statements.keys() - new.statements.keys()),
        "facts_closed": len(difference.gone_facts) + len(moved) - reopened,
        "facts_reopened": reopened,
        "entities": len(difference.gone_entities),
    }


def correct(store: Store, operation: Operation, recorded_at: Instant) -> Iterator[RowChanges]:
    """Yield the row changes of the operation; each must be durable before the next is asked for.

    Raises NotFound or InputError, one line for the caller, where it cannot be done.
    """
    if operation.withdraws:
        yield from withdraw(store, operation, recorded_at)
        return
    operation, result, records, later = carried_out(store, operation, recorded_at)
    old, new = GroupGraph.build(records), GroupGraph.build(later)
    difference = compare(old, new, records, later)
    changed = (one for one in difference.entities if old.entities.get(one.id) != new.entities[one.id])
    entities = corrected_entities(store, operation.group, difference, changed)
    difference = replace(difference, entities=entities)
    result = {"sequence": operation.sequence, **result}
    yield changes.corrected(operation, result, recorded_at, difference)


def carried_out(
    store: Store, operation: Operation, recorded_at: Instant
) -> tuple[Operation, dict[str, Any], GroupRecords, GroupRecords]:
    """Return a correction as it is recorded, its result, and the records before and after it.

    It is a merge, distinction, split or undo; the records are those of what it touches.
    Raises NotFound or InputError.
    """
    records = records_of_entities(store, operation.group, operation.entities, undone=operation.target)
    old = GroupGraph.build(records)
    births: dict[str, Place] = {}
    result: dict[str, Any] = {}
    if operation.kind in ("merge", "distinct"):
        shown = tuple(_shown(old, i) for i in operation.entities)
        if len(set(shown)) < 2:
            raise InputError(f"{' and '.join(operation.entities)} are one entity already: nothing to merge.")
        old.fold.check_together(operation, shown)
        operation = replace(operation, entities=shown)
        if operation.kind == "merge":
            result = {"entity": old.fold.first_born(shown)}
    elif operation.kind == "split":
        operation, place = _split(operation, old, records)
        births = {operation.made: place} if operation.minted else {}
        result = {"entities": [operation.entities[0], operation.made]}
    else:
        undone = old.fold.check_undo(operation.target or 0)
        operation = replace(operation, entities=undone.entities)
        result = {"undone": undone.sequence, "kind": undone.kind}
    known = {**old.births, **records.births, **births}
    born = ((id_, *known[id_]) for id_ in sorted({*operation.entities, operation.made} - {""}))
    operation = replace(operation, births=tuple(born))
    later = replace(
        records,
        operations=[*records.operations, operation],
        recorded={**records.recorded, operation.sequence: recorded_at},
        births={**records.births, **births},
        last_recorded=recorded_at,
    )
    return operation, result, records, later


def _shown(graph: GroupGraph, asked: str) -> str:
    if asked in graph.entities:
        return asked
    shows = graph.shows.get(asked, set())
    if len(shows) == 1:
        return next(iter(shows))
    raise NotFound(
        f"no entity {asked!r} in group {graph.group!r}: see `kgray search` or `kgray history` for ids."
    )


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
