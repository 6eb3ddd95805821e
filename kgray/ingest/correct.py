"""Corrections: merge, split, distinct, undo; retract, remove (R16, R25-R27).

A correction may affect records of any age, so the graph is derived again, and compared with the graph before:
for retractions and removals that of the whole group (R26), for the others the records around the entities.

Retractions and removals act on what is committed, and take what they name out of the log where it is pending.
The last sequence that had ended by then is kept with the result as "after": behind it the plain loop must
carry the operation out to get the same graph (R20).

A row of an erased sequence goes. A row of no sequence goes once no stored row names it, those of retracted
episodes included, because a read with an earlier `known_at` may still see them:

    names, name_vectors     an entity's surface, while a mention bears it
    births                  an entity or statement, while a mention, evidence, merge or split names it
    statement_vectors       a statement, while evidence is about it
    answers                 a request, until one of the episodes that used it goes; then all its uses go too
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from kgray import kinds, rows, times
from kgray.derivation import names
from kgray.derivation.change import (
    Difference,
    Left,
    Withdrawn,
    borne,
    compare,
    removed,
    retracted,
)
from kgray.derivation.group import GroupGraph
from kgray.derivation.stored import let_go, records_of, records_of_entities, stale
from kgray.derivation.summaries import corrected_entities
from kgray.errors import InputError, KgrayError, NotFound, Outrun
from kgray.ingest import changes
from kgray.kinds import Key, Kind, Read, Row
from kgray.ledger import named, removals
from kgray.ports import Embed, Patch, RowChanges, Store
from kgray.records import GroupRecords, Operation, Place, entity_id
from kgray.times import Instant

# Rows: more than AT_ONCE are changed in pieces. On Neo4j 20,600 rows, of 3,000 facts with vectors of 1,024
# numbers, took 231 MB of the server's heap in one transaction.
AT_ONCE, A_PIECE = 20_000, 4_000
EMBEDDER_S = 2.0  # how long an embedder is waited for after removals; a later run embeds what is missing
Verb = Literal["drop", "put", "moved"]  # moved: a piece of evidence, and what it shows as now
_UNEMBEDDED = "unembedded"  # in the result of a removal: the statements that wait for their vectors


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
    ((*_, begun),) = store.rows(kinds.OPERATIONS_AT, operation.group, [operation.sequence])
    if begun is None:
        whole, hidden = _whole(store, operation, recorded_at)
        changed = (*whole.drops.values(), *whole.puts.values(), *(patch.rows for patch in whole.patches))
        if whole.clear or sum(map(len, changed)) <= AT_ONCE:
            yield whole
            return
        kept = (kinds.OPERATIONS, kinds.DECLARATIONS, kinds.VERDICTS, kinds.COMMUNITIES)
        (ended,) = whole.puts[kinds.OPERATIONS]
        at = whole.recorded_at
        # From now on none of the removed episodes was ever committed.
        marks = ((sequence, kinds.WITHDRAWN, at, at) for sequence in sorted(hidden))
        marked = changes.patched(kinds.EPISODES, ("state", "ended_at", "retired_at"), marks)
        yield replace(
            whole,
            drops={kind: keys for kind, keys in whole.drops.items() if kind in kept},
            puts={kinds.OPERATIONS: ((*rows.operation_row(operation)[:4], *ended[4:]),)},
            patches=(*(patch for patch in whole.patches if patch.kind is not kinds.EVIDENCE), *marked),
        )
    yield from _pieces(store, operation)


def _pieces(store: Store, operation: Operation) -> Iterator[RowChanges]:
    """Yield what is left to do of a begun retraction or removal, in pieces; the last ends the operation.

    Mentions and evidence go after what is found through them, so that a run that goes on finds it, too.
    """
    group = operation.group
    ((*_, recorded_at, found),) = store.rows(kinds.OPERATIONS_AT, group, [operation.sequence])
    result: dict[str, Any] = json.loads(found)
    gone: set[int] = set()
    drops: dict[Kind, Sequence[Key]] = {}
    if operation.kind == "remove":
        gone = {row[0] for row in _named(store, operation)}
        drops, waiting = _rows_of(store, group, gone, records_of(store, group, within=[]).operations)
        if waiting := sorted({*waiting, *result.get(_UNEMBEDDED, ())}):
            result[_UNEMBEDDED] = waiting
    puts, stale_rows, moved = stale(store, group)
    last = (kinds.MENTIONS, kinds.EVIDENCE, kinds.EXTRACTIONS, kinds.EPISODE_VECTORS, kinds.EPISODES)
    parts: list[tuple[Verb, Kind, Sequence[Row]]] = [
        *(("drop", kind, keys) for kind, keys in drops.items() if kind not in last),
        *(("put", kind, made) for kind, made in puts.items()),
        ("drop", kinds.FACTS, stale_rows.pop(kinds.FACTS)),
        ("moved", kinds.EVIDENCE, [row for row in moved if row[0] not in gone]),
        *(("drop", kind, drops[kind]) for kind in last if kind in drops),
        *(("drop", kind, keys) for kind, keys in stale_rows.items()),
    ]
    steps = [(what, kind, row) for what, kind, part in parts for row in part]
    for start in range(0, max(1, len(steps)), A_PIECE):
        dropped: dict[Kind, list[Key]] = defaultdict(list)
        written: dict[Kind, list[Row]] = defaultdict(list)
        shown: list[Row] = []
        for what, kind, row in steps[start : start + A_PIECE]:
            (shown if what == "moved" else (dropped if what == "drop" else written)[kind]).append(row)
        state = kinds.DONE if start + A_PIECE >= len(steps) else kinds.PENDING
        written[kinds.OPERATIONS].append(rows.operation_row(operation, state, recorded_at, result))
        rest = {"patches": changes.shown_patch(shown), "erases": operation.kind == "remove"}
        yield changes.of(operation, changes.PENDING, drops=dropped, puts=written, **rest)


def _named(store: Store, operation: Operation) -> list[Row]:
    """Return the episodes that are withdrawn: those accepted after the request are not."""
    return [row for row in named(store, operation) if row[0] < operation.sequence]


def _whole(store: Store, operation: Operation, recorded_at: Instant) -> tuple[RowChanges, Iterable[int]]:
    """Return a retraction or removal as one change, on what is committed now, and the removed sequences."""
    group, hard = operation.group, operation.kind == "remove"
    records = records_of(store, group)
    old = GroupGraph.build(records)
    found = _named(store, operation)
    gone = {row[0] for row in found}
    changed = _removed(store, records, gone) if hard else retracted(records, gone)
    new = GroupGraph.build(changed.records)
    difference = compare(old, new)
    live = [row for row in found if row[5] is None]  # an earlier retirement is kept
    asked = {one.sequence for one in removals(store, group)}
    pending = store.pending_sequences(group, 0, len(asked) + 1)
    after = min([operation.sequence, *(at for at, _ in pending if at not in asked)]) - 1
    counted: dict[str, Any] = {"after": after, "episodes": len(found if hard else live)}
    result = counted | _counts(old, new, difference) | ({"replaces": True} if operation.replaces else {})
    for graph, its in ((new, changed.records), (old, records)):
        let_go(*vars(graph).values(), its.heads, its.mentions, its.evidence)
    # The communities of all runs whose texts rest on these episodes (R25).
    those = np.array(sorted(gone), "<u4")
    texts = store.rows(kinds.COMMUNITY_SOURCES, group)
    rests = [(run, id_) for run, id_, on in texts if np.isin(np.frombuffer(on, "<u4"), those).any()]
    if not hard:
        patches, blanked = _retired(live, changed, recorded_at), {kinds.COMMUNITIES: rests}
        whole = changes.corrected(operation, result, recorded_at, difference, drops=blanked, patches=patches)
        return whole, ()
    if operation.everything:
        ended = {kinds.OPERATIONS: (rows.operation_row(operation, kinds.DONE, recorded_at, result),)}
        cleared = {"recorded_at": recorded_at, "clear": True, "erases": True}
        return changes.of(operation, changes.PENDING, puts=ended, **cleared), ()
    drops, waiting = _rows_of(store, group, gone, changed.records.operations)
    drops[kinds.COMMUNITIES] = rests
    drops[kinds.OPERATIONS] = [(at,) for at, left in sorted(changed.operations.items()) if left is None]
    drops[kinds.DECLARATIONS] = sorted(changed.declarations)
    drops[kinds.VERDICTS] = [place for place, left in sorted(changed.verdicts.items()) if left is None]
    result |= {_UNEMBEDDED: waiting} if waiting else {}
    patches = _restated(changed)
    whole = changes.corrected(
        operation, result, recorded_at, difference, drops=drops, patches=patches, erases=True
    )
    return whole, gone


def _removed(store: Store, records: GroupRecords, gone: set[int]) -> Withdrawn:
    """Return what a removal changes: with what all stored episodes hold, retracted ones included (R25)."""
    group = records.group
    heads = store.rows(kinds.EPISODE_HEADS, group)
    there = {row[0] for row in heads if row[5] == kinds.COMMITTED and row[0] not in gone}
    left = Left(episodes=there, erased_from=min(gone, default=0))
    for sequence, _, statement in store.rows(kinds.STATEMENTS_BY_PLACE, group):
        if sequence in left.episodes:
            left.use(sequence, statement)
    for sequence, entity, surface in store.rows(kinds.MENTIONED, group):
        if sequence in left.episodes:
            left.mentions.append((entity, surface, sequence))
        elif sequence in gone:
            left.erased.add(entity)
    return removed(
        records,
        left,
        declarations=[rows.declaration(row) for row in store.rows(kinds.ALL["declarations"], group)],
        verdicts=[rows.verdict(row) for row in store.rows(kinds.ALL["verdicts"], group)],
    )


def _restated(changed: Withdrawn) -> list[Patch]:
    """Return the patches of verdicts, merges and splits that stay, without what is erased."""
    judged = ((*place, v.reason) for place, v in sorted(changed.verdicts.items()) if v)
    corrected = ((at, rows.operation_payload(o)) for at, o in sorted(changed.operations.items()) if o)
    return [
        *changes.patched(kinds.VERDICTS, ("reason",), judged),
        *changes.patched(kinds.OPERATIONS, ("payload",), corrected),
    ]


def _retired(live: Iterable[Row], changed: Withdrawn, at: Instant) -> list[Patch]:
    """Return the patches of a retraction. Episodes that are pending end with it, never committed."""
    ended = ((row[0], at) for row in live if row[6] >= kinds.COMMITTED)
    pending = ((row[0], kinds.WITHDRAWN, at, at) for row in live if row[6] < kinds.COMMITTED)
    return [
        *changes.patched(kinds.EPISODES, ("retired_at",), ended),
        *changes.patched(kinds.EPISODES, ("state", "ended_at", "retired_at"), pending),
        *changes.patched(
            kinds.DECLARATIONS, ("retired_at",), ((*key, at) for key in sorted(changed.declarations))
        ),
        *changes.patched(kinds.VERDICTS, ("retired_at",), ((*key, at) for key in sorted(changed.verdicts))),
    ]


def _unembedded(store: Store, group: str, left_by: Set[int] | None) -> list[tuple[Row, dict[str, str]]]:
    """Return the removals whose statements wait for vectors, each with the first wordings of these."""
    found = []
    for row in store.rows(kinds.ALL["operations"], group):
        is_meant = left_by is None or row[0] in left_by
        if is_meant and row[1] == "remove" and row[3] == kinds.DONE and _UNEMBEDDED in row[5]:
            texts: dict[str, str] = {}
            for statement, _, text in _read(store, group, kinds.EVIDENCE_OF, json.loads(row[5])[_UNEMBEDDED]):
                texts.setdefault(statement, text)
            found.append((row, texts))
    return found


async def embed_missing(
    store: Store, embed: Embed, group: str, left_by: Set[int] | None = None
) -> list[RowChanges]:
    """Return the changes that add the vectors of what is left by removals, which wait for no embedder (R27).

    left_by: the removals by their sequences; None = all. A group is decided on these vectors, so whoever
    ingests calls it for all before it reads the group's state. Raises what the embedder raises.
    """
    changed = []
    for row, texts in await asyncio.to_thread(_unembedded, store, group, left_by):
        said = await embed(list(texts.values())) if texts else []
        vectors = [rows.vector_row(id_, *one) for id_, one in zip(texts, said, strict=True)]
        result = {name: value for name, value in json.loads(row[5]).items() if name != _UNEMBEDDED}
        changed.append(
            RowChanges(
                group=group,
                sequence=row[0],
                ledger=kinds.OPERATIONS,
                states=frozenset({kinds.DONE}),
                puts={kinds.STATEMENT_VECTORS: vectors, kinds.OPERATIONS: [(*row[:5], rows.pack(result))]},
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


def _rows_of(
    store: Store, group: str, erased: set[int], operations: Iterable[Operation]
) -> tuple[dict[Kind, Sequence[Key]], list[str]]:
    """Return the keys of the recorded rows that go with the episodes of these sequences.

    And the statements that stay and lose their vector, because their first stored wording is erased (R25); a
    retracted one counts as stored. operations: the merges and splits that are left, whose births stay.
    """
    read = partial(_read, store, group)
    mentions, evidence = read(kinds.MENTIONS_IN, erased), read(kinds.EVIDENCE_IN, erased)
    # Names in erased rows, without those that other rows name too.
    others = [row for row in read(kinds.MENTIONS_OF, {row[3] for row in mentions}) if row[2] not in erased]
    surfaces = {(row[3], row[2]) for row in mentions} - {(entity, surface) for entity, surface, _ in others}
    entities = {row[3] for row in mentions} - {entity for entity, _, _ in others}
    said: dict[str, list[int]] = defaultdict(list)
    for statement, sequence, _ in read(kinds.EVIDENCE_OF, {row[2] for row in evidence}):
        said[statement].append(sequence)
    statements = {id_ for id_, at in said.items() if erased.issuperset(at)}
    waiting = [id_ for id_, at in said.items() if at[0] in erased and id_ not in statements]
    named = {i for o in operations for i in (*o.entities, o.made)}
    requests = {request for _, request in read(kinds.USES_BY, erased)}
    by_sequence = [(sequence,) for sequence in sorted(erased)]
    keys: dict[Kind, Sequence[Key]] = {
        kinds.EPISODES: by_sequence,
        kinds.EXTRACTIONS: by_sequence,
        kinds.EPISODE_VECTORS: by_sequence,
        kinds.MENTIONS: [row[:2] for row in mentions],
        kinds.EVIDENCE: [row[:2] for row in evidence],
        kinds.NAMES: sorted(surfaces),
        kinds.NAME_VECTORS: sorted(surfaces),
        kinds.BIRTHS: [(id_,) for id_ in sorted((entities - named) | statements)],
        kinds.STATEMENT_VECTORS: [(id_,) for id_ in (*sorted(statements), *waiting)],
        kinds.ANSWERS: [(request,) for request in sorted(requests)],
        kinds.ANSWER_USES: sorted(read(kinds.USES_OF, requests)),
    }
    return keys, waiting


def _read(store: Store, group: str, of: Read, values: Iterable[Any]) -> list[Row]:
    asked = sorted(set(values))
    return list(store.rows(of, group, asked)) if asked else []


def correct(store: Store, operation: Operation, recorded_at: Instant) -> Iterator[RowChanges]:
    """Yield the row changes of the operation; each must be durable before the next is asked for.

    Raises NotFound or InputError, one line for the caller, where it cannot be done.
    """
    if operation.withdraws:
        yield from withdraw(store, operation, recorded_at)
        return
    records = records_of_entities(store, operation.group, operation.entities, undone=operation.target)
    old = GroupGraph.build(records)
    births: tuple[tuple[str, Place], ...] = ()
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
    new = GroupGraph.build(later)
    difference = compare(old, new)
    changed = (one for one in difference.entities if old.entities.get(one.id) != new.entities[one.id])
    entities = corrected_entities(store, operation.group, difference, changed)
    difference = replace(difference, entities=entities)
    result = {"sequence": operation.sequence, **result}
    yield changes.corrected(operation, result, recorded_at, difference, births=births)


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
