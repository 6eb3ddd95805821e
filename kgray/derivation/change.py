"""What an episode adds to a group's records, what withdrawals take, and what differs in the derived graph.

A retraction looks at what live episodes hold, and retires what goes (R25). A removal looks at all that is
stored, because a read with an earlier `known_at` still sees what was retracted (R26), and states anew what
names something that is stored no longer: nothing that only removed text held may stay readable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kgray.derivation import names
from kgray.derivation.names import FOLDS, Fold, Relations, as_flipped, connected
from kgray.graph import Entity, Fact
from kgray.ports import Embedding, Vector
from kgray.records import Episode, Evidence, GroupRecords, Mention, Operation, Place, Ruling, Verdict
from kgray.timeline import SpanChange
from kgray.times import Instant

if TYPE_CHECKING:
    from kgray.derivation.group import GroupGraph

_NEVER: Place = (1 << 62, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeChange:
    """The records that one episode adds, in order of their ordinals; the record time is given at the commit.

    *_births            (recorded id, place) of what it makes, and of parts of a split that it records first
    name_vectors        of surfaces that are new to their entity, with the mention of each
    statement_vectors   (recorded statement id, vector of its first wording)
    """

    episode: Episode
    entity_births: tuple[tuple[str, Place], ...] = ()
    statement_births: tuple[tuple[str, Place], ...] = ()
    mentions: tuple[Mention, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    rulings: tuple[Ruling, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    name_vectors: tuple[tuple[Mention, Vector], ...] = ()
    statement_vectors: tuple[tuple[str, Embedding], ...] = ()
    episode_vector: Embedding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between a group's derived graph before and after: whole rows, sorted by id.

    shown, unshown      added and removed pairs (recorded entity, entity it shows as)
    spoken              (place of evidence, the statement it is about now or None) where that changed
    """

    entities: tuple[Entity, ...] = ()
    gone_entities: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    gone_facts: tuple[str, ...] = ()
    shown: tuple[tuple[str, str], ...] = ()
    unshown: tuple[tuple[str, str], ...] = ()
    spoken: tuple[tuple[Place, str | None], ...] = ()


def with_change(records: GroupRecords, change: EpisodeChange, recorded_at: Instant) -> GroupRecords:
    """Return the records with the change added."""
    return replace(
        records,
        heads=[*records.heads, change.episode.head(recorded_at)],
        mentions=[*records.mentions, *change.mentions],
        evidence=[*records.evidence, *change.evidence],
        rulings=[*records.rulings, *change.rulings],
        verdicts=[*records.verdicts, *change.verdicts],
        recorded={**records.recorded, change.episode.sequence: recorded_at},
        births={**dict((*change.entity_births, *change.statement_births)), **records.births},
        last_recorded=recorded_at,
    )


def compare(old: GroupGraph, new: GroupGraph) -> Difference:
    """Return the difference between two graphs of one group; sweeps only the statements that changed."""
    was, now = old.places(), new.places()
    places = [place for place, shown in now.items() if was.get(place) != shown]
    places += [place for place in was if place not in now]
    moves = {p for p in old.moved.keys() | new.moved.keys() if old.moved.get(p) != new.moved.get(p)}
    moved = {s for p in moves for s in (was.get(p), now.get(p)) if s}
    changed: dict[str, SpanChange] = {}  # of the statements touched, and of their components in either graph
    asked: set[str] = set()
    reached = moved | _touched(old, new)
    while reached:
        asked |= reached
        spans, spans_now = (graph.spans_of(sorted(asked & graph.statements.keys())) for graph in (old, new))
        changed = {s: (spans.get(s, ()), spans_now.get(s, ())) for s in sorted(asked)}
        reached = (spans.keys() | spans_now.keys()) - asked
    facts, gone = new.changed_facts(changed, old)
    others = {e for e, note in new.entities.items() if old.entities.get(e) != note}
    stated = [graph.statements[s] for graph in (old, new) for s in changed if s in graph.statements]
    others |= {end for one in stated for end in (one.subject, one.object) if end in new.entities}
    entities = [(new.entity(e), old.entity(e) if e in old.entities else None) for e in sorted(others)]
    recorded = {*(old.entities.keys() ^ new.entities.keys()), *old.shows, *new.shows}
    before, after = ({(r, i) for r in recorded for i in graph.shows_as(r)} for graph in (old, new))
    return Difference(
        entities=tuple(now for now, then in entities if now != then),
        gone_entities=tuple(sorted(old.entities.keys() - new.entities.keys())),
        facts=facts,
        gone_facts=gone,
        shown=tuple(sorted(after - before)),
        unshown=tuple(sorted(before - after)),
        spoken=tuple((place, now.get(place)) for place in sorted(places)),
    )


def _touched(old: GroupGraph, new: GroupGraph) -> set[str]:
    """Return the statements that differ themselves, in what rivals them, or in the words of their facts."""
    touched = old.statements.keys() - new.statements.keys()
    told = [{i: (s.key, s.variant, s.first, s.claims) for i, s in g.statements.items()} for g in (old, new)]
    touched.update(statement for statement, now in told[1].items() if told[0].get(statement) != now)
    for name in old.by_relation.keys() | new.by_relation.keys():
        words, words_now = (graph.relations.aspect(name, "text") for graph in (old, new))
        if old.relations.traits(name) != new.relations.traits(name) or words != words_now:
            touched.update(old.by_relation.get(name, ()), new.by_relation.get(name, ()))
    for entity in old.entities.keys() & new.entities.keys():
        if old.entities[entity].name != new.entities[entity].name:
            touched.update(old.about.get(entity, ()), new.about.get(entity, ()))
    judged = old.verdicts.keys() | new.verdicts.keys()
    return touched | {s for s in judged if old.verdicts.get(s) != new.verdicts.get(s)}


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
    """Return what removing episodes changes; left: what all stored ones hold without them.

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
    """Return the verdicts that go (R25): not those with later evidence for one of their statements."""
    return {
        (v.sequence, v.ordinal)
        for v in verdicts
        if v.sequence not in left.episodes
        and max(left.statements.get(v.a, 0), left.statements.get(v.b, 0)) <= v.sequence
    }


def _rulings_that_go(rulings: Sequence[Ruling], left: Left) -> set[Place]:
    """Return the places of the rulings that go with the episodes that raised them (R25).

    One stays while each of its names, or one folded with it, is in use, and a later episode is left (R26).
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
        is_fold = ruling.value in FOLDS
        if not lasting.issuperset(filter(None, (ruling.name, ruling.other))):
            restated = _restated(ruling, sofar if is_fold else at_last, lasting)
            found[ruling.sequence, ruling.ordinal] = restated
        if is_fold:
            sofar.rule(ruling, number)
    folded = {frozenset((r.name, r.other)) for r in found.values() if r and r.value in FOLDS}
    # What was ruled on two names directly must not hide that they are folded.
    for ruling in rulings:
        if ruling.value not in FOLDS and frozenset((ruling.name, ruling.other)) in folded:
            found[ruling.sequence, ruling.ordinal] = None
    return found


def _restated(ruling: Ruling, folds: Relations, lasting: Collection[str]) -> Ruling | None:
    """Return a ruling as one on lasting names, those its names show as; None: it says nothing of them."""
    shown = [folds.folded(name) for name in (ruling.name, ruling.other) if name]
    if any(one.name not in lasting for one in shown):
        return None
    (name, turned, _), value = shown[0], ruling.value
    if ruling.aspect != "pair":
        return replace(ruling, name=name, value=as_flipped(value) if turned else value, reason="")
    other, turned_too, _ = shown[1]
    if name == other or value == "independent":
        return None
    if value in FOLDS:
        value = "inverse_of" if (value == "inverse_of") ^ turned ^ turned_too else "same_as"
    return replace(ruling, name=name, other=other, value=value, reason="")


def _folds(rulings: Iterable[Ruling], left: Left, lasting: Iterable[str] = ()) -> Relations:
    """Return the names that rulings fold into one: those used show first, then others that last."""
    folds = Relations()
    for name in {*left.relations, *lasting}:
        folds.use(name, left.relations.get(name, _NEVER))
    for number, ruling in enumerate(rulings):
        if ruling.aspect == "pair":
            folds.rule(ruling, number)
    return folds


def _restated_operations(records: GroupRecords, left: Left) -> dict[int, Operation | None]:
    """Return the operations that change with what is removed, by sequence; None = it goes (R16, R25).

    One stays while a mention that is left shows otherwise because of it, or bears the id that it made, a
    distinction while both its entities have mentions; an undo goes with what it undid. Only operations are
    looked at that the entities of removed mentions lead to. Splits, undone ones too, lose the names that no
    mention bears that is left: the graph stays the same, because a dropped name moves no such mention.
    """
    involved = connected(records.operations, left.erased)
    concerned = [o for o in records.operations if not involved.isdisjoint((*o.entities, o.made))]
    mentions = [m for m in left.mentions if m[0] in involved]
    found: dict[int, Operation | None] = {}
    for index, operation in enumerate(concerned):
        was, now = (Fold(concerned[:end], records.births, records.recorded) for end in (index, index + 1))
        if operation.kind == "undo":
            stays = found.get(operation.target or 0, operation) is not None
        elif operation.kind == "distinct":
            stays = {*operation.entities} <= {now.shown(*m)[0] for m in mentions}
        else:
            stays = any(m[0] == operation.made or was.shown(*m)[0] != now.shown(*m)[0] for m in mentions)
        if not stays:
            found[operation.sequence] = None
    splits = [o for o in records.operations if (o.surfaces or o.moved) and o.sequence not in found]
    stored = list(dict.fromkeys(surface for _, surface, _ in left.mentions)) if splits else []
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
