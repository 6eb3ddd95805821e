"""Corrections: merge, split, distinct, undo; retract, remove (R16, R25-R27).

A correction may affect records of any age, so the graph is derived again, and compared with the graph before:
for retractions and removals that of the whole group (R26), for the others the records around the entities.

Retractions and removals act on what is committed, and take what they name out of the log where it is pending.
The last sequence that had ended by then is kept with the result as "after": behind it the plain loop must
carry the operation out to get the same graph (R20).

A row of an erased sequence goes. A row that belongs to no sequence goes once no stored row names it; rows of
retracted episodes count, because a read with an earlier `known_at` may still see them:

    names, name_vectors     an entity's surface, while a mention bears it
    births                  an entity or statement, while a mention, evidence, merge or split names it
    statement_vectors       a statement, while evidence is about it
    answers                 a request, until one of the episodes that used it goes; then all its uses go too
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
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
from kgray.errors import InputError, KgrayError, NotFound, Outrun
from kgray.ingest import changes
from kgray.ingest.threads import off_the_loop
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
Step = tuple[Verb, Kind, Row]
_UNEMBEDDED = "unembedded"  # in the result of a removal: the statements that wait for their vectors


def _patches(column: str, value: object, places: Mapping[Kind, Iterable[Key]]) -> list[Patch]:
    """Return the patches that set a column of these rows to one value."""
    every = ((kind, ((*key, value) for key in sorted(keys))) for kind, keys in places.items())
    return [patch for kind, found in every for patch in changes.patched(kind, (column,), found)]


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

    One change, unless its rows are too many for one transaction of a server (R27). Then the first, of a small
    row an episode, ruling and verdict, takes the episodes out of the records and puts the result on the
    operation, which stays pending: from there on reads derive the group from its records (`stored.view_now`).
    The rows of those episodes and what is stale of the derived graph follow in pieces; the last ends the
    operation. After a crash whoever ingests finds it pending, and this goes on with what is left.
    """
    ((*_, begun),) = store.rows(kinds.OPERATIONS_AT, operation.group, [operation.sequence])
    if begun is None:
        whole, hidden = _whole(store, operation, recorded_at)
        if whole.clear or _size(whole) <= AT_ONCE:
            yield whole
            return
        yield _begun(whole, operation, hidden)
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
        drops = _rows_of(store, group, gone, records_of(store, group, within=[]).operations)
        waiting = _first_wordings(store, group, gone)
        drops[kinds.STATEMENT_VECTORS] = [*drops[kinds.STATEMENT_VECTORS], *((id_,) for id_ in waiting)]
        if waiting := sorted({*waiting, *result.get(_UNEMBEDDED, ())}):
            result[_UNEMBEDDED] = waiting
    puts, stale_rows, moved = stale(store, group)
    last = (kinds.MENTIONS, kinds.EVIDENCE, kinds.EXTRACTIONS, kinds.EPISODE_VECTORS, kinds.EPISODES)
    steps: list[Step] = [
        *_steps("drop", {kind: keys for kind, keys in drops.items() if kind not in last}),
        *_steps("put", puts),
        *_steps("drop", {kinds.FACTS: stale_rows.pop(kinds.FACTS)}),
        *_steps("moved", {kinds.EVIDENCE: [row for row in moved if row[0] not in gone]}),
        *_steps("drop", {kind: drops[kind] for kind in last if kind in drops}),
        *_steps("drop", stale_rows),
    ]
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


def _begun(whole: RowChanges, operation: Operation, hidden: Iterable[int]) -> RowChanges:
    """Return the first piece of a retraction or removal: what it says of episodes, rulings and corrections.

    The operation stays pending, with its result. hidden: the sequences of the removed episodes, none of which
    was ever committed from now on
    """
    kept = (kinds.OPERATIONS, kinds.RULINGS, kinds.VERDICTS, kinds.COMMUNITIES)
    (ended,) = whole.puts[kinds.OPERATIONS]
    at = whole.recorded_at
    marks = ((sequence, kinds.WITHDRAWN, at, at) for sequence in sorted(hidden))
    marked = changes.patched(kinds.EPISODES, ("state", "ended_at", "retired_at"), marks)
    return replace(
        whole,
        drops={kind: keys for kind, keys in whole.drops.items() if kind in kept},
        puts={kinds.OPERATIONS: ((*rows.operation_row(operation)[:4], *ended[4:]),)},
        patches=(*(p for p in whole.patches if p.kind is not kinds.EVIDENCE), *marked),
    )


def _size(change: RowChanges) -> int:
    """Return how many rows a change drops, puts and patches."""
    lists = (*change.drops.values(), *change.puts.values(), *(patch.rows for patch in change.patches))
    return sum(map(len, lists))


def _steps(what: Verb, of: Mapping[Kind, Sequence[Row]]) -> Iterator[Step]:
    return ((what, kind, row) for kind, found in of.items() for row in found)


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
    rests = _texts_on(store, group, {row[0] for row in found})
    counted: dict[str, Any] = {"after": _after(store, operation), "episodes": len(found if hard else live)}
    result = counted | _counts(old, new, difference) | ({"replaces": True} if operation.replaces else {})
    for graph, its in ((new, changed.records), (old, records)):
        let_go(*vars(graph).values(), its.heads, its.mentions, its.evidence)
    if not hard:
        retired = {kinds.RULINGS: changed.rulings, kinds.VERDICTS: changed.verdicts}
        patches = (*_retired(live, recorded_at), *_patches("retired_at", recorded_at, retired))
        blanked = {kinds.COMMUNITIES: rests}
        return changes.corrected(
            operation, result, recorded_at, difference, drops=blanked, patches=patches
        ), ()
    if operation.everything:
        ended = {kinds.OPERATIONS: (rows.operation_row(operation, kinds.DONE, recorded_at, result),)}
        cleared = {"recorded_at": recorded_at, "clear": True, "erases": True}
        return changes.of(operation, changes.PENDING, puts=ended, **cleared), ()
    drops = _rows_of(store, group, gone, changed.records.operations)
    drops |= {kinds.COMMUNITIES: rests} | {
        kind: [key for key, left in sorted(rows_left.items()) if left is None]
        for kind, rows_left in (
            (kinds.OPERATIONS, {(at,): left for at, left in changed.operations.items()}),
            (kinds.RULINGS, changed.rulings),
            (kinds.VERDICTS, changed.verdicts),
        )
    }
    waiting = _first_wordings(store, group, gone)
    result |= {_UNEMBEDDED: waiting} if waiting else {}
    drops[kinds.STATEMENT_VECTORS] = [*drops[kinds.STATEMENT_VECTORS], *((id_,) for id_ in waiting)]
    whole = changes.corrected(
        operation, result, recorded_at, difference, drops=drops, patches=_restated(changed), erases=True
    )
    return whole, gone


def _removed(store: Store, records: GroupRecords, gone: set[int]) -> Withdrawn:
    """Return what a removal changes: with what all stored episodes hold, retracted ones included (R25)."""
    group = records.group
    heads = store.rows(kinds.EPISODE_HEADS, group)
    there = {row[0] for row in heads if row[5] == kinds.COMMITTED and row[0] not in gone}
    left = Left(episodes=there, erased_from=min(gone, default=0))
    for sequence, ordinal, statement, relation in store.rows(kinds.SAID, group):
        if sequence in left.episodes:
            left.use((sequence, ordinal), statement, relation)
    for sequence, entity, surface in store.rows(kinds.MENTIONED, group):
        if sequence in left.episodes:
            left.mentions.append((entity, surface, sequence))
        elif sequence in gone:
            left.erased.add(entity)
    return removed(
        records,
        left,
        rulings=[rows.ruling(row) for row in store.rows(kinds.ALL["rulings"], group)],
        verdicts=[rows.verdict(row) for row in store.rows(kinds.ALL["verdicts"], group)],
    )


def _restated(changed: Withdrawn) -> list[Patch]:
    """Return the patches of rulings, verdicts, merges and splits that stay, without what is erased."""
    ruled = ((*at, r.name, r.other, r.value, r.reason) for at, r in sorted(changed.rulings.items()) if r)
    judged = ((*place, v.reason) for place, v in sorted(changed.verdicts.items()) if v)
    corrected = ((at, rows.operation_payload(o)) for at, o in sorted(changed.operations.items()) if o)
    return [
        *changes.patched(kinds.RULINGS, ("name", "other", "value", "reason"), ruled),
        *changes.patched(kinds.VERDICTS, ("reason",), judged),
        *changes.patched(kinds.OPERATIONS, ("payload",), corrected),
    ]


def _texts_on(store: Store, group: str, gone: set[int]) -> list[Key]:
    """Return the keys of the communities, of all runs, whose texts rest on these episodes (R25)."""
    those = np.array(sorted(gone), "<u4")
    return [
        (run, id_)
        for run, id_, sources in store.rows(kinds.COMMUNITY_SOURCES, group)
        if np.isin(np.frombuffer(sources, "<u4"), those).any()
    ]


def _after(store: Store, operation: Operation) -> int:
    """Return the last sequence that is committed, failed or carried out, before the first that is pending."""
    asked = {one.sequence for one in removals(store, operation.group)}
    pending = store.pending_sequences(operation.group, 0, len(asked) + 1)
    waiting = [at for at, _ in pending if at not in asked]
    return min([operation.sequence, *waiting]) - 1


def _retired(live: Iterable[Row], recorded_at: Instant) -> list[Patch]:
    """Return the patches that retire episodes; those that are pending end with it, never committed."""
    ended = [row[:1] for row in live if row[6] >= kinds.COMMITTED]
    both = (recorded_at, recorded_at)
    pending = ((row[0], kinds.WITHDRAWN, *both) for row in live if row[6] < kinds.COMMITTED)
    columns = ("state", "ended_at", "retired_at")
    patches = _patches("retired_at", recorded_at, {kinds.EPISODES: ended})
    return [*patches, *changes.patched(kinds.EPISODES, columns, pending)]


def _first_wordings(store: Store, group: str, erased: set[int]) -> list[str]:
    """Return the remaining statements whose first stored wording is erased, and with it their vector (R25).

    Retracted evidence counts: a statement keeps the vector of its first wording when that is retracted.
    """
    touched = {row[2] for row in _read(store, group, kinds.EVIDENCE_IN, erased)}
    said: dict[str, list[int]] = {}
    for statement, sequence, _ in _read(store, group, kinds.EVIDENCE_OF, touched):
        said.setdefault(statement, []).append(sequence)
    return [statement for statement, at in said.items() if at[0] in erased and not erased.issuperset(at)]


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
    for row, texts in await off_the_loop(store, lambda: _unembedded(store, group, left_by), much=True):
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
        "statements": len(old.statements.keys() - new.statements.keys()),
        "facts_closed": closed,
        "facts_reopened": reopened,
        "entities": len(difference.gone_entities),
    }


def _rows_of(
    store: Store, group: str, erased: set[int], operations: Iterable[Operation]
) -> dict[Kind, Sequence[Key]]:
    """Return the keys of the recorded rows that go with the episodes of these sequences.

    operations: the merges and splits that are left. The births stay of what they name.
    """
    read = partial(_read, store, group)
    mentions, evidence = read(kinds.MENTIONS_IN, erased), read(kinds.EVIDENCE_IN, erased)
    # Names in erased rows, without those that other rows name too.
    others = [row for row in read(kinds.MENTIONS_OF, {row[3] for row in mentions}) if row[2] not in erased]
    surfaces = {(row[3], row[2]) for row in mentions} - {(entity, surface) for entity, surface, _ in others}
    entities = {row[3] for row in mentions} - {entity for entity, _, _ in others}
    said = read(kinds.STATEMENTS_SHOWN, {row[2] for row in evidence})
    statements = {row[2] for row in evidence} - {row[0] for row in said if row[2] not in erased}
    named = {i for o in operations for i in (*o.entities, o.made)}
    requests = {request for _, request in read(kinds.USES_BY, erased)}
    by_sequence = [(sequence,) for sequence in sorted(erased)]
    return {
        kinds.EPISODES: by_sequence,
        kinds.EXTRACTIONS: by_sequence,
        kinds.EPISODE_VECTORS: by_sequence,
        kinds.MENTIONS: [row[:2] for row in mentions],
        kinds.EVIDENCE: [row[:2] for row in evidence],
        kinds.NAMES: sorted(surfaces),
        kinds.NAME_VECTORS: sorted(surfaces),
        kinds.BIRTHS: [(id_,) for id_ in sorted((entities - named) | statements)],
        kinds.STATEMENT_VECTORS: [(id_,) for id_ in sorted(statements)],
        kinds.ANSWERS: [(request,) for request in sorted(requests)],
        kinds.ANSWER_USES: sorted(read(kinds.USES_OF, requests)),
    }


def _read(store: Store, group: str, of: Read, values: Iterable[Any]) -> list[Row]:
    """Return the rows of a declared read; none for no value."""
    asked = sorted(set(values))
    return list(store.rows(of, group, asked)) if asked else []


def correct(store: Store, operation: Operation, recorded_at: Instant) -> Iterator[RowChanges]:
    """Yield the row changes of the operation; each must be durable before the next is asked for.

    Raises NotFound or InputError, one line for the caller, where it cannot be done.
    """
    if operation.withdraws:
        yield from withdraw(store, operation, recorded_at)
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
