"""What is left of a group's corrections, rulings and verdicts when episodes are withdrawn (R16, R25, R26).

A retraction looks at what live episodes hold, and retires what goes. A removal looks at all that is stored,
retracted episodes included, because a read with an earlier `known_at` still sees those. It also states anew
what names something that is stored no longer: nothing that only removed text held may stay readable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kgray.derivation import names
from kgray.derivation.names import Fold, connected
from kgray.derivation.relations import FOLDS, Relations, as_flipped
from kgray.records import GroupRecords, Operation, Place, Ruling, Verdict

_NEVER: Place = (1 << 62, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What the episodes that are left hold.

    episodes    sequences of those that are committed
    relations   relation name -> place of its first use
    statements  recorded statement -> the last sequence with evidence about it
    mentions    (recorded entity, surface, sequence), in order of place
    erased_from the first sequence that is removed; erased: recorded entities that removed mentions name
    """

    episodes: set[int] = field(default_factory=set)
    relations: dict[str, Place] = field(default_factory=dict)
    statements: dict[str, int] = field(default_factory=dict)
    mentions: list[tuple[str, str, int]] = field(default_factory=list)
    erased_from: int = 0
    erased: set[str] = field(default_factory=set)

    def use(self, place: Place, statement: str, relation: str) -> None:
        """Take a piece of evidence that is left; they come in order of place."""
        self.relations.setdefault(relation, place)
        self.statements[statement] = place[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """What changes or goes with withdrawn episodes (None = goes), and the live records that are left."""

    records: GroupRecords
    rulings: Mapping[Place, Ruling | None]
    verdicts: Mapping[Place, Verdict | None]
    operations: Mapping[int, Operation | None]


def retracted(records: GroupRecords, gone: Collection[int]) -> Withdrawn:
    """Return what retracting episodes changes; gone: their sequences."""
    left = Left(episodes={head.sequence for head in records.heads} - set(gone))
    for said in records.evidence:
        if said.sequence in left.episodes:
            left.use((said.sequence, said.ordinal), said.statement, said.relation)
    rulings: dict[Place, Ruling | None] = dict.fromkeys(_rulings_that_go(records.rulings, left))
    verdicts: dict[Place, Verdict | None] = dict.fromkeys(_verdicts_that_go(records.verdicts, left))
    return _withdrawn(records, left, rulings, verdicts, {})


def removed(
    records: GroupRecords, left: Left, *, rulings: Sequence[Ruling], verdicts: Sequence[Verdict]
) -> Withdrawn:
    """Return what removing episodes changes.

    left                what all stored episodes hold without them
    rulings, verdicts   all stored ones in order of place, retired ones too
    """
    ruled: dict[Place, Ruling | None] = dict.fromkeys(_rulings_that_go(rulings, left))
    staying = [r for r in rulings if (r.sequence, r.ordinal) not in ruled]
    # A reason may quote whatever was there when it was given.
    ruled |= {
        (r.sequence, r.ordinal): replace(r, reason="") for r in staying if r.sequence >= left.erased_from
    }
    ruled |= _restated_rulings(staying, left)
    judged: dict[Place, Verdict | None] = {
        (v.sequence, v.ordinal): replace(v, reason="") for v in verdicts if v.sequence >= left.erased_from
    }
    judged |= dict.fromkeys(_verdicts_that_go(verdicts, left))
    judged |= {(v.sequence, v.ordinal): None for v in verdicts if not left.statements.keys() >= {v.a, v.b}}
    return _withdrawn(records, left, ruled, judged, _restated_operations(records, left))


def _withdrawn(
    records: GroupRecords,
    left: Left,
    rulings: Mapping[Place, Ruling | None],
    verdicts: Mapping[Place, Verdict | None],
    operations: Mapping[int, Operation | None],
) -> Withdrawn:
    ruled = (rulings.get((r.sequence, r.ordinal), r) for r in records.rulings)
    judged = (verdicts.get((v.sequence, v.ordinal), v) for v in records.verdicts)
    corrected = (operations.get(o.sequence, o) for o in records.operations)
    live = replace(
        records,
        heads=[h for h in records.heads if h.sequence in left.episodes],
        mentions=[m for m in records.mentions if m.sequence in left.episodes],
        evidence=[e for e in records.evidence if e.sequence in left.episodes],
        rulings=[r for r in ruled if r is not None],
        verdicts=[v for v in judged if v is not None],
        operations=[o for o in corrected if o is not None],
    )
    return Withdrawn(records=live, rulings=rulings, verdicts=verdicts, operations=operations)


def _verdicts_that_go(verdicts: Iterable[Verdict], left: Left) -> set[Place]:
    """Return the places of the verdicts that go with the episodes that raised them (R25).

    One stays while a later sequence has evidence for one of its statements.
    """
    return {
        (v.sequence, v.ordinal)
        for v in verdicts
        if v.sequence not in left.episodes
        and max(left.statements.get(v.a, 0), left.statements.get(v.b, 0)) <= v.sequence
    }


def _rulings_that_go(rulings: Sequence[Ruling], left: Left) -> set[Place]:
    """Return the places of the rulings that go with the episodes that raised them (R25).

    One stays while each of its names, or one folded with it, is in use; unless no later episode is left: then
    the graph is to be the one without the episode (R26).
    """
    folds = _folds(rulings, left)
    used = {folds.folded(name).name for name in left.relations}
    last = max(left.episodes, default=0)
    return {
        (r.sequence, r.ordinal)
        for r in rulings
        if r.sequence not in left.episodes
        and (last < r.sequence or not {folds.folded(n).name for n in (r.name, r.other) if n} <= used)
    }


def _restated_rulings(rulings: Sequence[Ruling], left: Left) -> dict[Place, Ruling | None]:
    """Return the rulings that name what is left no longer, by place: stated of what is left, None = goes.

    rulings: those that stay, in order of place. A name is left that evidence uses, or that the ontology
    declares. What holds of a name that is gone holds of the names that it was folded with: names that folded
    through it stay folded, one by another, and the rest is said of the one that was used first.
    """
    declared = {name for r in rulings if r.judge == "ontology" for name in (r.name, r.other)}
    lasting = declared | left.relations.keys()
    found: dict[Place, Ruling | None] = {}
    sofar, at_last = (_folds(those, left, lasting) for those in ((), rulings))
    for number, ruling in enumerate(rulings):
        names_it = [name for name in (ruling.name, ruling.other) if name]
        is_fold = ruling.value in FOLDS
        if not lasting.issuperset(names_it):
            restated = (
                _restated_fold(ruling, sofar, lasting) if is_fold else _restated_of(ruling, at_last, lasting)
            )
            found[ruling.sequence, ruling.ordinal] = restated
        if is_fold:
            sofar.rule(ruling, number)
    folded = {frozenset((r.name, r.other)) for r in found.values() if r and r.value in FOLDS}
    # What was ruled on two names directly must not hide that they are folded.
    for ruling in rulings:
        if ruling.value not in FOLDS and frozenset((ruling.name, ruling.other)) in folded:
            found[ruling.sequence, ruling.ordinal] = None
    return found


def _restated_fold(ruling: Ruling, sofar: Relations, lasting: Collection[str]) -> Ruling | None:
    one, two = (_first(sofar, name, lasting) for name in (ruling.name, ruling.other))
    if one is None or two is None or one[0] == two[0]:
        return None
    (name, turned), (other, turned_too) = one, two
    inverse = (ruling.value == "inverse_of") ^ turned ^ turned_too
    return replace(ruling, name=name, other=other, value="inverse_of" if inverse else "same_as", reason="")


def _restated_of(ruling: Ruling, folds: Relations, lasting: Collection[str]) -> Ruling | None:
    first = _first(folds, ruling.name, lasting)
    if first is None:
        return None
    name, turned = first
    if ruling.aspect != "pair":
        value = as_flipped(ruling.value) if turned else ruling.value
        return replace(ruling, name=name, value=value, reason="")
    second = _first(folds, ruling.other, lasting)
    if second is None or second[0] == name or ruling.value == "independent":
        return None
    return replace(ruling, name=name, other=second[0], reason="")


def _folds(rulings: Iterable[Ruling], left: Left, lasting: Iterable[str] = ()) -> Relations:
    """Return the names that rulings fold into one: those used show first, then others that last."""
    folds = Relations()
    for name in {*left.relations, *lasting}:
        folds.use(name, left.relations.get(name, _NEVER))
    for number, ruling in enumerate(rulings):
        if ruling.aspect == "pair":
            folds.rule(ruling, number)
    return folds


def _first(folds: Relations, name: str, lasting: Collection[str]) -> tuple[str, bool] | None:
    """Return the lasting name of a class that was used first, and whether it is turned against `name`."""
    shown, turned, _ = folds.folded(name)
    return (shown, turned) if shown in lasting else None


def _restated_operations(records: GroupRecords, left: Left) -> dict[int, Operation | None]:
    """Return the operations that change with what is removed, by sequence; None = it goes (R16, R25).

    One stays while a mention that is left shows otherwise because of it, or bears the id that it made, a
    distinction while both its entities have mentions; an undo goes with what it undid. Only operations are
    looked at that the entities of removed mentions lead to.
    """
    involved = connected(records.operations, left.erased)
    concerned = [o for o in records.operations if not involved.isdisjoint((*o.entities, o.made))]
    mentions = [m for m in left.mentions if m[0] in involved]
    found: dict[int, Operation | None] = {}
    for index, operation in enumerate(concerned):
        if operation.kind == "undo":
            if found.get(operation.target or 0, operation) is None:
                found[operation.sequence] = None
            continue
        was, now = (Fold(concerned[:end], records.births, records.recorded) for end in (index, index + 1))
        if operation.kind == "distinct":
            if not {*operation.entities} <= {now.shown(*m)[0] for m in mentions}:
                found[operation.sequence] = None
            continue
        if not any(m[0] == operation.made or was.shown(*m)[0] != now.shown(*m)[0] for m in mentions):
            found[operation.sequence] = None
    return _with_surfaces_left(records.operations, left, found)


def _with_surfaces_left(
    operations: Iterable[Operation], left: Left, found: dict[int, Operation | None]
) -> dict[int, Operation | None]:
    """Add the splits, undone ones too, without the names that no mention bears that is left.

    The graph stays the same: a dropped name moves no mention that is left.
    """
    splits = [o for o in operations if (o.surfaces or o.moved) and o.sequence not in found]
    if not splits:
        return found
    stored = list(dict.fromkeys(surface for _, surface, _ in left.mentions))
    keys = {names.key(s) for s in stored}
    for split in splits:
        surfaces = tuple(dict.fromkeys(s for name in split.surfaces if (s := borne(name, stored))))
        kept = replace(split, surfaces=surfaces, moved=tuple(k for k in split.moved if k in keys))
        if kept != split:
            found[split.sequence] = kept
    return found


def borne(surface: str, stored: Sequence[str]) -> str | None:
    """Return the surface if it is stored, else the first stored one with the same name key, else None."""
    if surface in stored:
        return surface
    return next((s for s in stored if names.key(s) == names.key(surface)), None)
