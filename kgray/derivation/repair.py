"""Compare a stored group with what its records derive, and store that: the way out where either is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, get_args

from kgray import kinds, rows, times
from kgray.derivation.stored import DERIVED, TIMED, in_pieces, stale
from kgray.errors import Damaged
from kgray.kinds import Key, Kind, Row
from kgray.ports import Patch, RowChanges, Store, at_one_moment
from kgray.records import EvidenceKind, Operation, Place


def repaired(store: Store, group: str) -> list[str]:
    """Drop what contradicts itself, store what the rest derives; return what was done. Raises Damaged."""
    with store.writing():
        lines = _mended(store, group)
        puts, drops, moved = stale(store, group)
        wrong = []
        for kind in DERIVED:
            for what, count in (("written anew", len(puts[kind])), ("dropped", len(drops[kind]))):
                wrong += [f"{kind.name}: {count} {what}"] if count else []
        if moved:
            wrong.append(f"evidence: {len(moved)} pieces are about other statements than was stored")
        if wrong:
            patches = (Patch(kind=kinds.EVIDENCE, columns=("shown",), rows=tuple(moved)),)
            # A record time of its own: whoever has the group in memory reads it anew.
            at = max(times.now(), store.heads([group])[group].last_recorded + 1)
            _apply(store, group, drops=drops, puts=puts, patches=patches, recorded_at=at)
    return [*lines, *wrong]


def _mended(store: Store, group: str) -> list[str]:
    drops: dict[Kind, list[Key]] = {}
    lines: list[str] = []
    named: dict[str, Place] = {}  # the places that named them first
    for kind, row, why, ids in _checked(store, group):
        key = kind.key_of(row)
        if why:
            drops.setdefault(kind, []).append(key)
            lines.append(f"set aside {kind.name} {'.'.join(map(str, key))}: {why}")
        for id_ in () if why else ids:
            named.setdefault(id_, (row[0], key[-1] if len(key) > 1 else 0))
    born = {"", *(row[0] for row in store.rows(kinds.ALL["births"], group))}
    births = [(id_, *place) for id_, place in sorted(named.items()) if id_ not in born]
    lines += [f"wrote the birth of {id_} anew, at {a}.{b}" for id_, a, b in births]
    if lines:
        _apply(store, group, drops=drops, puts={kinds.BIRTHS: births})
    return lines


def _checked(store: Store, group: str) -> Iterator[tuple[Kind, Row, str, tuple[str, ...]]]:
    """Yield (kind, row, why it cannot be derived from, what it names); "" = it can be."""
    episodes = {row[0] for row in store.rows(kinds.EPISODE_HEADS, group)}
    places: set[Row] = set()
    for row in store.rows(kinds.ALL["mentions"], group):
        if row[0] in episodes:
            places.add(row[:2])
        yield kinds.MENTIONS, row, "" if row[0] in episodes else "its episode is not stored", (row[3],)
    known = frozenset(get_args(EvidenceKind))
    for row in store.rows(kinds.ALL["evidence"], group):
        why = ""
        if not places.issuperset((row[0], ordinal) for ordinal in row[7:9] if ordinal is not None):
            why = "a mention that it names is not stored"
        elif row[4] not in known or (row[8] is None and row[9] is None):
            why = "it says nothing of two ends"
        yield kinds.EVIDENCE, row, why, (row[2],)
    kept: dict[int, Operation] = {}
    for row in store.rows(kinds.ALL["operations"], group):
        if row[1] not in TIMED or row[3] != kinds.DONE:
            continue
        try:
            operation = rows.operation(group, row)
        except (ValueError, TypeError, AttributeError):
            yield kinds.OPERATIONS, row, "what it names cannot be read", ()
            continue
        why = _wrong(operation, kept)
        if not why:
            kept[operation.sequence] = operation
        yield kinds.OPERATIONS, row, why, (*operation.entities, operation.made)


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
    """Return a line for each way in which a group's stored graph is not what its records derive."""

    def compared() -> list[str]:
        if in_pieces(store, group):  # reads look at the records meanwhile
            return []
        puts, drops, moved = stale(store, group)
        wrong = {kind.name: len(puts[kind]) + len(drops[kind]) for kind in DERIVED}
        wrong["evidence"] = len(moved)
        return [f"{name}: {n} stored otherwise than the records derive" for name, n in wrong.items() if n]

    try:
        return at_one_moment(store, compared)
    except Damaged as fault:
        return [str(fault)]


def _apply(store: Store, group: str, **what: Any) -> None:  # noqa: ANN401
    """Apply a change tied to any entry of the log, which is there already."""
    episodes = ((row[0], kinds.EPISODES, row[5]) for row in store.rows(kinds.EPISODE_HEADS, group))
    operations = ((row[0], kinds.OPERATIONS, row[3]) for row in store.rows(kinds.ALL["operations"], group))
    for sequence, ledger, state in chain(episodes, operations):
        for name in ("drops", "puts"):
            what[name] = {kind: found for kind, found in what[name].items() if found}
        tied = {"group": group, "sequence": sequence, "ledger": ledger, "states": frozenset({state})}
        store.apply([RowChanges(**tied, **what)])
        return
