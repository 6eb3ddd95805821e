"""Retract and remove: which rows go with withdrawn episodes, and what the graph is without them (R25-R27).

Small ones are one transaction, large ones several (`withdraw`).

Neither waits for what is pending: both act on what is committed, and take what they name out of the log where
it is pending. The last sequence that had ended by then is kept with the result as "after": behind it the
plain loop must carry the operation out to get the same graph (R20).

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
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kgray import kinds, rows, times
from kgray.derivation.change import Difference, compare
from kgray.derivation.group import GroupGraph
from kgray.derivation.repair import stale
from kgray.derivation.stored import let_go, records_of
from kgray.derivation.withdrawn import Left, Withdrawn, removed, retracted
from kgray.errors import Outrun, Unavailable
from kgray.ingest import changes
from kgray.ingest.changes import Step, Verb
from kgray.kinds import Key, Kind, Read, Row
from kgray.ledger import named, removals
from kgray.ports import Embed, Patch, RowChanges, Store
from kgray.records import GroupRecords, Operation
from kgray.times import Instant

# Rows: more than AT_ONCE are changed in pieces. On Neo4j 20,600 rows, of 3,000 facts with vectors of 1,024
# numbers, took 231 MB of the server's heap in one transaction.
AT_ONCE, A_PIECE = 20_000, 4_000
_EMBEDDER_S = 2.0  # how long a removal waits for an embedder; a later run embeds what it could not
_UNEMBEDDED = "unembedded"  # in the result of a removal: the statements that wait for their vectors


def _patches(column: str, value: object, places: Mapping[Kind, Iterable[Key]]) -> list[Patch]:
    """Return the patches that set a column of these rows to one value."""
    every = ((kind, ((*key, value) for key in sorted(keys))) for kind, keys in places.items())
    return [patch for kind, found in every for patch in changes.patched(kind, (column,), found)]


async def withdraw_requested(store: Store, embed: Embed, group: str) -> None:
    """Carry out the requested retractions and removals of a group; call it inside `store.writing()`."""
    for operation in removals(store, group):
        while True:
            rests_on = store.heads([group])[group].last_recorded
            recorded_at = max(times.now(), rests_on + 1)
            with suppress(Outrun):  # another process has recorded something meanwhile: read it anew
                async for change in withdraw(store, embed, operation, recorded_at):
                    store.apply([replace(change, rests_on=rests_on if change.recorded_at else None)])
                break


async def withdraw(
    store: Store, embed: Embed, operation: Operation, recorded_at: Instant
) -> AsyncIterator[RowChanges]:
    """Yield the row changes of a retraction or removal; each must be durable before the next is asked for.

    One change, unless its rows are too many for one transaction of a server (R27). Then the first takes the
    episodes out of the records, so that nothing of them is read, and puts the result on the operation, which
    stays pending. From there on reads derive the group from its records (`stored.view_now`), while the rows
    of those episodes and what is stale of the derived graph follow in pieces; the last ends the operation.
    Whoever ingests after a crash finds it pending, and this goes on with what is left. The first change holds
    a small row an episode, ruling and verdict, and no vector.
    """
    ((*_, begun),) = store.rows(kinds.OPERATIONS_AT, operation.group, [operation.sequence])
    if begun is None:
        whole, hidden = await _whole(store, embed, operation, recorded_at)
        if whole.clear or changes.size(whole) <= AT_ONCE:
            yield whole
            return
        yield changes.begun(whole, operation, hidden)
    for piece in await _pieces(store, embed, operation):
        yield piece


async def _pieces(store: Store, embed: Embed, operation: Operation) -> Iterator[RowChanges]:
    """Return what is left to do of a begun retraction or removal, in pieces.

    Mentions and evidence go after what is found through them, so that a run that goes on finds it, too.
    """
    group = operation.group
    ((*_, recorded_at, found),) = store.rows(kinds.OPERATIONS_AT, group, [operation.sequence])
    result: dict[str, Any] = json.loads(found)
    gone: set[int] = set()
    drops: dict[Kind, Sequence[Key]] = {}
    vectors: list[Row] = []
    if operation.kind == "remove":
        gone = {row[0] for row in _named(store, operation)}
        drops = _rows_of(store, group, gone, records_of(store, group, within=[]).operations)
        vectors, waiting = await _renewed(store, embed, group, gone)
        drops[kinds.STATEMENT_VECTORS] = [*drops[kinds.STATEMENT_VECTORS], *((id_,) for id_ in waiting)]
        if waiting := sorted({*waiting, *result.get(_UNEMBEDDED, ())}):
            result[_UNEMBEDDED] = waiting
    puts, stale_rows, moved = stale(store, group)
    last = (kinds.MENTIONS, kinds.EVIDENCE, kinds.EXTRACTIONS, kinds.EPISODE_VECTORS, kinds.EPISODES)
    steps: list[Step] = [
        *_steps("drop", {kind: keys for kind, keys in drops.items() if kind not in last}),
        *_steps("put", {kinds.STATEMENT_VECTORS: vectors, **puts}),
        *_steps("drop", {kinds.FACTS: stale_rows.pop(kinds.FACTS)}),
        *_steps("moved", {kinds.EVIDENCE: [row for row in moved if row[0] not in gone]}),
        *_steps("drop", {kind: drops[kind] for kind in last if kind in drops}),
        *_steps("drop", stale_rows),
    ]
    return changes.pieces(operation, result, recorded_at, steps, A_PIECE)


def _steps(what: Verb, of: Mapping[Kind, Sequence[Row]]) -> Iterator[Step]:
    return ((what, kind, row) for kind, found in of.items() for row in found)


def _named(store: Store, operation: Operation) -> list[Row]:
    """Return the episodes that are withdrawn: those accepted after the request are not."""
    return [row for row in named(store, operation) if row[0] < operation.sequence]


async def _whole(
    store: Store, embed: Embed, operation: Operation, recorded_at: Instant
) -> tuple[RowChanges, Iterable[int]]:
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
        return changes.cleared(operation, result, recorded_at), ()
    drops = _rows_of(store, group, gone, changed.records.operations)
    drops |= {kinds.COMMUNITIES: rests} | {
        kind: [key for key, left in sorted(rows_left.items()) if left is None]
        for kind, rows_left in (
            (kinds.OPERATIONS, {(at,): left for at, left in changed.operations.items()}),
            (kinds.RULINGS, changed.rulings),
            (kinds.VERDICTS, changed.verdicts),
        )
    }
    vectors, waiting = await _renewed(store, embed, group, gone)
    result |= {_UNEMBEDDED: waiting} if waiting else {}
    drops[kinds.STATEMENT_VECTORS] = [*drops[kinds.STATEMENT_VECTORS], *((id_,) for id_ in waiting)]
    whole = changes.corrected(
        operation,
        result,
        recorded_at,
        difference,
        drops=drops,
        puts={kinds.STATEMENT_VECTORS: vectors},
        patches=_restated(changed),
        erases=True,
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


def _first_wordings(store: Store, group: str, erased: set[int]) -> dict[str, str]:
    """Return remaining statement -> its first wording, of those whose first stored wording is erased (R25).

    Retracted evidence counts: a statement keeps the vector of its first wording when that is retracted.
    """
    touched = {row[2] for row in _read(store, group, kinds.EVIDENCE_IN, erased)}
    wordings: dict[str, list[tuple[int, str]]] = {}
    for statement, sequence, text in _read(store, group, kinds.EVIDENCE_OF, touched):
        wordings.setdefault(statement, []).append((sequence, text))
    texts: dict[str, str] = {}
    for statement, said in wordings.items():
        left = [text for sequence, text in said if sequence not in erased]
        if left and said[0][0] in erased:
            texts[statement] = left[0]
    return texts


async def _renewed(store: Store, embed: Embed, group: str, erased: set[int]) -> tuple[list[Row], list[str]]:
    """Return the new vectors of statements whose first wording is erased; or, without them, the statements.

    They wait for their vectors where the embedder does not answer soon (R27).
    """
    texts = _first_wordings(store, group, erased)
    with suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(_EMBEDDER_S):
            return (await _vector_rows(embed, texts) if texts else []), []
    return [], list(texts)


async def _vector_rows(embed: Embed, texts: Mapping[str, str]) -> list[Row]:
    found = await embed(list(texts.values()))
    return [rows.vector_row(id_, *said) for id_, said in zip(texts, found, strict=True)]


async def embed_missing(store: Store, embed: Embed, group: str) -> list[RowChanges]:
    """Return the changes that add the vectors that removals could not compute. Raises Unavailable.

    A group is decided on these vectors, so whoever ingests calls it before it reads the group's state.
    """
    found = []
    for row in store.rows(kinds.ALL["operations"], group):
        ended = row[1] == "remove" and row[3] == kinds.DONE
        result = json.loads(row[5]) if ended and _UNEMBEDDED in row[5] else {}
        if _UNEMBEDDED not in result:
            continue
        texts: dict[str, str] = {}
        for statement, _, text in _read(store, group, kinds.EVIDENCE_OF, result.pop(_UNEMBEDDED)):
            texts.setdefault(statement, text)
        vectors = await _vector_rows(embed, texts)
        found.append(
            RowChanges(
                group=group,
                sequence=row[0],
                ledger=kinds.OPERATIONS,
                states=frozenset({kinds.DONE}),
                puts={kinds.STATEMENT_VECTORS: vectors, kinds.OPERATIONS: [(*row[:5], rows.pack(result))]},
            )
        )
    return found


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
