"""Compare a stored group with the graph that its records derive, and repair records and graph."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from kgray.domain import times
from kgray.domain.records import Operation
from kgray.errors import Damaged
from kgray.graph.stored import DERIVED, ORDERED_KINDS, in_pieces, stale_rows
from kgray.ports import RowChanges, Store, at_one_moment
from kgray.schema import kinds, reads, rows
from kgray.schema.kinds import Key, Kind, OperationRow, RecordRow
from kgray.schema.record_rows import faults_of, without_evidence

_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)


def repaired(store: Store, group: str) -> list[str]:
    """Drop records that contradict themselves, store the graph that the rest derives; return a line for each.

    Raises Damaged.
    """
    with store.writing():
        lines = _mended(store, group)
        different = stale_rows(store, group)
        wrong = []
        for kind in DERIVED:
            for verb, rows_of in (("written anew", different.puts[kind]), ("dropped", different.drops[kind])):
                wrong += [f"{kind.name}: {len(rows_of)} {verb}"] if rows_of else []
        if wrong:
            # A new record time makes every process that has the group in memory read it again.
            at = max(times.now(), store.heads([group])[group].last_recorded + 1)
            _apply(store, group, drops=different.drops, puts=different.puts, recorded_at=at)
    return [*lines, *wrong]


def _mended(store: Store, group: str) -> list[str]:
    drops: dict[Kind[Any], list[Key]] = {kinds.RECORDS: [], kinds.OPERATIONS: []}
    puts: list[RecordRow] = []
    lines: list[str] = []
    entries = {row.sequence for row in store.rows(reads.EPISODE_HEADS, group)}
    entries |= {row.sequence for row in store.rows(kinds.OPERATIONS.all, group)}
    for row in store.rows(kinds.RECORDS.all, group):
        why, faults = "", dict[int, str]()
        try:
            faults = faults_of(row)
        except _UNREADABLE:
            why = "its content cannot be read"
        if row.sequence not in entries:
            why = "its entry is not stored"
        if why:
            drops[kinds.RECORDS].append((row.sequence,))
            lines.append(f"set aside records {row.sequence}: {why}")
        elif faults:
            puts.append(without_evidence(row, faults))
            lines += [f"set aside evidence {row.sequence}.{at}: {fault}" for at, fault in faults.items()]
    for operation, why in _checked(store, group):
        if why:
            drops[kinds.OPERATIONS].append((operation.sequence,))
            lines.append(f"set aside operations {operation.sequence}: {why}")
    if lines:
        _apply(store, group, drops=drops, puts={kinds.RECORDS: puts}, unsettles=True)
    return lines


def _checked(store: Store, group: str) -> Iterator[tuple[OperationRow, str]]:
    """Yield the corrections that derivation applies, with the reason why each cannot be applied, or ""."""
    applicable: dict[int, Operation] = {}
    for row in store.rows(kinds.OPERATIONS.all, group):
        if row.kind not in ORDERED_KINDS or row.state != kinds.DONE:
            continue
        try:
            operation = rows.operation(group, row)
        except _UNREADABLE:
            yield row, "its names cannot be read"
            continue
        why = _wrong(operation, applicable)
        if not why:
            applicable[operation.sequence] = operation
        yield row, why


def _wrong(operation: Operation, earlier: dict[int, Operation]) -> str:
    match operation.kind:
        case "merge" | "distinct" if len(set(operation.entities)) < 2:
            return "it names fewer than two entities"
        case "split" if len(operation.entities) != 1 or not operation.made:
            return "it names no entity, or none that it made"
        case "undo" if operation.target not in earlier:
            return "what it undid is not stored"
    return ""


def differences(store: Store, group: str) -> list[str]:
    """Return a line for each difference between a group's stored graph and the graph of its records."""

    def compared() -> list[str]:
        if in_pieces(store, group):  # reads derive the graph from the records then
            return []
        different = stale_rows(store, group)
        wrong = {kind.name: len(different.puts[kind]) + len(different.drops[kind]) for kind in DERIVED}
        return [f"{name}: {n} stored otherwise than the records derive" for name, n in wrong.items() if n]

    try:
        return at_one_moment(store, compared)
    except Damaged as fault:
        return [str(fault)]


def _apply(store: Store, group: str, **changes: Any) -> None:  # noqa: ANN401
    """Apply a change tied to any stored entry of the log."""
    heads, corrections = store.rows(reads.EPISODE_HEADS, group), store.rows(kinds.OPERATIONS.all, group)
    episodes = ((row.sequence, kinds.EPISODES, row.state) for row in heads)
    operations = ((row.sequence, kinds.OPERATIONS, row.state) for row in corrections)
    for sequence, ledger, state in chain[tuple[int, Kind[Any], int]](episodes, operations):
        for name in ("drops", "puts"):
            changes[name] = {kind: changed for kind, changed in changes[name].items() if changed}
        tied: Any = {"group": group, "sequence": sequence, "ledger": ledger, "states": frozenset({state})}
        store.apply([RowChanges(**tied, **changes)])
        return
