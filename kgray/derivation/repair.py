"""Compare a stored group with what its records derive, and store that: the way out where either is wrong.

Records that contradict each other are set aside, which drops them; what follows from the rest is stored.
Every step is told in a line without any text of the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, get_args

from kgray import kinds, rows, times
from kgray.derivation.group import GroupGraph
from kgray.derivation.stored import TIMED, in_pieces, records_of
from kgray.errors import Damaged
from kgray.kinds import Key, Kind, Row
from kgray.ports import Patch, RowChanges, Store, at_one_moment
from kgray.records import EvidenceKind, Operation

_DERIVED = (kinds.ENTITIES, kinds.SHOWN_ENTITIES, kinds.FACTS)
_SHOWN = kinds.EVIDENCE.names.index("shown")


@dataclass(slots=True)
class _Faults:
    """What the records of a group lack or hold too much. lines: what is told of it."""

    drops: dict[Kind, list[Key]] = field(default_factory=dict)
    births: dict[str, tuple[int, int]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def set_aside(self, kind: Kind, row: Row, why: str) -> None:
        """Drop a row, and tell of it."""
        key = kind.key_of(row)
        self.drops.setdefault(kind, []).append(key)
        self.lines.append(f"set aside {kind.name} {'.'.join(map(str, key))}: {why}")


def repaired(store: Store, group: str) -> list[str]:
    """Set aside what contradicts itself, store what the rest derives; return what was done, in lines.

    Raises Locked where another process ingests, and Damaged where nothing can be derived.
    """
    with store.writing():
        mended, lines = _mended(store, group)
        store.apply([mended] if mended else [])
        anew, further = _derived_anew(store, group)
        store.apply([anew] if anew else [])
    return [*lines, *further]


def _mended(store: Store, group: str) -> tuple[RowChanges | None, list[str]]:
    """Return the change that makes the records of a group free of contradictions, and what it does, in lines.

    None where there is nothing to do.
    """
    found = _Faults()
    mentions, evidence = _sayings(store, group, found)
    operations = _operations(store, group, found)
    born = {row[0] for row in store.rows(kinds.ALL["births"], group)}
    for row in mentions:
        found.births.setdefault(row[3], row[:2])
    for row in evidence:
        found.births.setdefault(row[2], row[:2])
    for operation in operations:
        for id_ in (*operation.entities, operation.made):
            found.births.setdefault(id_, (operation.sequence, 0))
    missing = {id_: place for id_, place in sorted(found.births.items()) if id_ and id_ not in born}
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
    """Return the change that stores what the records derive, and what differed, in lines; None = nothing.

    Raises Damaged where nothing can be derived.
    """
    puts, drops, moved = stale(store, group)
    lines = []
    for kind in _DERIVED:
        for what, count in (("written anew", len(puts[kind])), ("dropped", len(drops[kind]))):
            lines += [f"{kind.name}: {count} {what}"] if count else []
    lines += [f"evidence: {len(moved)} pieces are about other statements than was stored"] if moved else []
    if not lines:
        return None, []
    patches = (Patch(kind=kinds.EVIDENCE, columns=("shown",), rows=tuple(moved)),) if moved else ()
    # A record time of its own: whoever has the group in memory reads it anew.
    at = max(times.now(), store.heads([group])[group].last_recorded + 1)
    return _change(store, group, drops=drops, puts=puts, patches=patches, recorded_at=at), lines


def differences(store: Store, group: str) -> list[str]:
    """Return a line for each way in which a group's stored graph is not what its records derive.

    None while a removal goes in pieces: whoever ingests next finishes it, and reads look at the records.
    """

    def compared() -> list[str]:
        if in_pieces(store, group):
            return []
        puts, drops, moved = stale(store, group)
        wrong = {kind.name: len(puts[kind]) + len(drops[kind]) for kind in _DERIVED}
        wrong["evidence"] = len(moved)
        return [f"{name}: {n} stored otherwise than the records derive" for name, n in wrong.items() if n]

    try:
        return at_one_moment(store, compared)
    except Damaged as fault:
        return [str(fault)]


def stale(store: Store, group: str) -> tuple[dict[Kind, Sequence[Row]], dict[Kind, Sequence[Key]], list[Row]]:
    """Return where the stored graph is not what the records derive: rows to put, keys to drop, by kind.

    The last are (sequence, ordinal, shown) of evidence that is about another statement than was stored.
    """
    graph = GroupGraph.build(records_of(store, group))
    entities = (rows.entity_row(note.shown()) for note in graph.entities.values())
    recorded = {**graph.entities, **graph.shows}
    shown = ((one, i) for one in recorded for i in sorted(graph.shows_as(one)))
    facts = map(rows.fact_row, graph.facts_of(graph.statements))
    puts: dict[Kind, Sequence[Row]] = {}
    drops: dict[Kind, Sequence[Key]] = {}
    for kind, derived in zip(_DERIVED, (entities, shown, facts), strict=True):
        puts[kind], drops[kind] = _differing(store, group, kind, derived)
    places = graph.places()
    told = ((row[:2], row[_SHOWN]) for row in store.rows(kinds.ALL["evidence"], group))
    return puts, drops, [(*at, places.get(at)) for at, stored in told if stored != places.get(at)]


def _differing(
    store: Store, group: str, kind: Kind, derived: Iterable[Row]
) -> tuple[Sequence[Row], Sequence[Key]]:
    """Return the rows to put, and the keys to drop."""
    held = {kind.key_of(row): tuple(row) for row in store.rows(kinds.ALL[kind.name], group)}
    now = {kind.key_of(row): tuple(row) for row in derived}
    put = [row for key, row in sorted(now.items()) if held.get(key) != row]
    return put, sorted(held.keys() - now.keys())


def _change(store: Store, group: str, **what: Any) -> RowChanges | None:  # noqa: ANN401
    """Return a change tied to any entry of the log, which is there already; None where the log is empty."""
    episodes = ((row[0], kinds.EPISODES, row[5]) for row in store.rows(kinds.EPISODE_HEADS, group))
    operations = ((row[0], kinds.OPERATIONS, row[3]) for row in store.rows(kinds.ALL["operations"], group))
    for sequence, ledger, state in chain(episodes, operations):
        filled = {name: value for name, value in what.items() if value is not None}
        for name in ("drops", "puts"):
            filled[name] = {kind: found for kind, found in filled.get(name, {}).items() if found}
        return RowChanges(group=group, sequence=sequence, ledger=ledger, states=frozenset({state}), **filled)
    return None
