"""Compare a stored group with what its records derive, and store that: the way out where either is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any, get_args

from kgray import kinds, rows, times
from kgray.derivation.stored import DERIVED, TIMED, in_pieces, stale
from kgray.errors import Damaged
from kgray.kinds import Key, Kind, Row
from kgray.ports import Patch, RowChanges, Store, at_one_moment
from kgray.records import EvidenceKind, Operation


@dataclass(slots=True)
class _Faults:
    """What the records of a group lack or hold too much. lines: what is told of it."""

    drops: dict[Kind, list[Key]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def set_aside(self, kind: Kind, row: Row, why: str) -> None:
        """Drop a row, and tell of it."""
        key = kind.key_of(row)
        self.drops.setdefault(kind, []).append(key)
        self.lines.append(f"set aside {kind.name} {'.'.join(map(str, key))}: {why}")


def repaired(store: Store, group: str) -> list[str]:
    """Drop what contradicts itself, store what the rest derives; return what was done. Raises Damaged."""
    with store.writing():
        mended, lines = _mended(store, group)
        store.apply([mended] if mended else [])
        anew, further = _derived_anew(store, group)
        store.apply([anew] if anew else [])
    return [*lines, *further]


def _mended(store: Store, group: str) -> tuple[RowChanges | None, list[str]]:
    """Return the change (None: none) that frees a group's records of contradictions, and what it does."""
    found = _Faults()
    mentions, evidence = _sayings(store, group, found)
    operations = _operations(store, group, found)
    born = {row[0] for row in store.rows(kinds.ALL["births"], group)}
    named = [*((row[3], row[:2]) for row in mentions), *((row[2], row[:2]) for row in evidence)]
    named += [(id_, (o.sequence, 0)) for o in operations for id_ in (*o.entities, o.made)]
    missing = {id_: place for id_, place in sorted(dict(named[::-1]).items()) if id_ and id_ not in born}
    found.lines += [f"wrote the birth of {id_} anew, at {a}.{b}" for id_, (a, b) in missing.items()]
    if not found.lines:
        return None, []
    births = [(id_, *place) for id_, place in missing.items()]
    return _change(store, group, drops=found.drops, puts={kinds.BIRTHS: births}), found.lines


def _sayings(store: Store, group: str, found: _Faults) -> tuple[list[Row], list[Row]]:
    """Return the rows of mentions and evidence that can be derived from."""
    episodes = {row[0] for row in store.rows(kinds.EPISODE_HEADS, group)}
    mentions, evidence = [], []
    for row in store.rows(kinds.ALL["mentions"], group):
        if row[0] in episodes:
            mentions.append(row)
        else:
            found.set_aside(kinds.MENTIONS, row, "its episode is not stored")
    places = {row[:2] for row in mentions}
    known = frozenset(get_args(EvidenceKind))
    for row in store.rows(kinds.ALL["evidence"], group):
        ends = [(row[0], ordinal) for ordinal in row[7:9] if ordinal is not None]
        if not places.issuperset(ends):
            found.set_aside(kinds.EVIDENCE, row, "a mention that it names is not stored")
        elif row[4] not in known or (row[8] is None and row[9] is None):
            found.set_aside(kinds.EVIDENCE, row, "it says nothing of two ends")
        else:
            evidence.append(row)
    return mentions, evidence


def _operations(store: Store, group: str, found: _Faults) -> list[Operation]:
    """Return the corrections that can be applied, in order."""
    kept: dict[int, Operation] = {}
    for row in store.rows(kinds.ALL["operations"], group):
        if row[1] not in TIMED or row[3] != kinds.DONE:
            continue
        try:
            operation = rows.operation(group, row)
        except (ValueError, TypeError, AttributeError):
            found.set_aside(kinds.OPERATIONS, row, "what it names cannot be read")
            continue
        if why := _wrong(operation, kept):
            found.set_aside(kinds.OPERATIONS, row, why)
        else:
            kept[operation.sequence] = operation
    return list(kept.values())


def _wrong(operation: Operation, earlier: dict[int, Operation]) -> str:
    """Return why a correction cannot be applied; "" where it can."""
    match operation.kind:
        case "merge" | "distinct" if len(set(operation.entities)) < 2:
            return "it names fewer than two entities"
        case "split" if len(operation.entities) != 1 or not operation.made:
            return "it names no entity, or none that it made"
        case "undo" if operation.target not in earlier:
            return "what it undid is not stored"
    return ""


def _derived_anew(store: Store, group: str) -> tuple[RowChanges | None, list[str]]:
    """Return the change (None: none) that stores what the records derive, and what differed."""
    puts, drops, moved = stale(store, group)
    lines = []
    for kind in DERIVED:
        for what, count in (("written anew", len(puts[kind])), ("dropped", len(drops[kind]))):
            lines += [f"{kind.name}: {count} {what}"] if count else []
    lines += [f"evidence: {len(moved)} pieces are about other statements than was stored"] if moved else []
    if not lines:
        return None, []
    patches = (Patch(kind=kinds.EVIDENCE, columns=("shown",), rows=tuple(moved)),)
    # A record time of its own: whoever has the group in memory reads it anew.
    at = max(times.now(), store.heads([group])[group].last_recorded + 1)
    return _change(store, group, drops=drops, puts=puts, patches=patches, recorded_at=at), lines


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


def _change(store: Store, group: str, **what: Any) -> RowChanges | None:  # noqa: ANN401
    """Return a change tied to any entry of the log, which is there already; None where the log is empty."""
    episodes = ((row[0], kinds.EPISODES, row[5]) for row in store.rows(kinds.EPISODE_HEADS, group))
    operations = ((row[0], kinds.OPERATIONS, row[3]) for row in store.rows(kinds.ALL["operations"], group))
    for sequence, ledger, state in chain(episodes, operations):
        for name in ("drops", "puts"):
            what[name] = {kind: found for kind, found in what[name].items() if found}
        return RowChanges(group=group, sequence=sequence, ledger=ledger, states=frozenset({state}), **what)
    return None
