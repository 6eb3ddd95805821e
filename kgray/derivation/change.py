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
from kgray.derivation.names import Fold, connected
from kgray.graph import Entity, Fact
from kgray.kinds import ShownEvidenceRow
from kgray.ports import Embedding, Vector
from kgray.records import Declaration, Episode, Evidence, GroupRecords, Mention, Operation, Place, Verdict
from kgray.timeline import SpanChange
from kgray.times import Instant

if TYPE_CHECKING:
    from kgray.derivation.group import GroupGraph


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
    declarations: tuple[Declaration, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    name_vectors: tuple[tuple[Mention, Vector], ...] = ()
    statement_vectors: tuple[tuple[str, Embedding], ...] = ()
    episode_vector: Embedding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between a group's derived graph before and after: whole rows, sorted by id.

    mentioned, unmentioned  added and removed pairs (entity as it shows, sequence of a live episode)
    shown, unshown          the same of `shown_entities`
    moved, unmoved          rows of `shown_evidence`; places of evidence that is about its recorded statement
                            again
    """

    entities: tuple[Entity, ...] = ()
    gone_entities: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    gone_facts: tuple[str, ...] = ()
    mentioned: tuple[tuple[str, int], ...] = ()
    unmentioned: tuple[tuple[str, int], ...] = ()
    shown: tuple[tuple[str, str], ...] = ()
    unshown: tuple[tuple[str, str], ...] = ()
    moved: tuple[ShownEvidenceRow, ...] = ()
    unmoved: tuple[Place, ...] = ()

    def without_evidence(self, gone: Collection[int]) -> Difference:
        """Return the difference without the evidence of episodes whose rows go: it shows as nothing."""
        return replace(
            self,
            moved=tuple(row for row in self.moved if row.sequence not in gone),
            unmoved=tuple((sequence, ordinal) for sequence, ordinal in self.unmoved if sequence not in gone),
        )


def shown_entities(graph: GroupGraph, recorded: Iterable[str]) -> set[tuple[str, str]]:
    """Return the pairs (recorded, shown) of entities that show as others, or as several."""
    shows = {entity: graph.shows_as(entity) for entity in recorded}
    return {(entity, shown) for entity, ids in shows.items() if ids != {entity} for shown in ids}


def mentioned_entities(fold: Fold, mentions: Iterable[Mention]) -> set[tuple[str, int]]:
    """Return the pairs (entity as it shows, sequence) of mentions."""
    return {(fold.shown(m.entity, m.surface, m.sequence)[0], m.sequence) for m in mentions}


def moved_evidence(
    places: Mapping[Place, str], evidence: Iterable[Evidence], retired: Iterable[Evidence] = ()
) -> dict[Place, ShownEvidenceRow]:
    """Return the evidence that is about another statement than the recorded one, by place.

    places: of live evidence -> the statement that it shows as; retired evidence is about none
    """
    shown = ((e, places.get((e.sequence, e.ordinal))) for e in evidence)
    both = (*((e, id_) for e, id_ in shown if id_ != e.statement), *((e, None) for e in retired))
    moved = (ShownEvidenceRow(e.sequence, e.ordinal, e.statement, id_) for e, id_ in both)
    return {(row.sequence, row.ordinal): row for row in moved}


def with_change(records: GroupRecords, change: EpisodeChange, recorded_at: Instant) -> GroupRecords:
    """Return the records with the change added."""
    return replace(
        records,
        heads=[*records.heads, change.episode.head(recorded_at)],
        mentions=[*records.mentions, *change.mentions],
        evidence=[*records.evidence, *change.evidence],
        declarations=[*records.declarations, *change.declarations],
        verdicts=[*records.verdicts, *change.verdicts],
        recorded={**records.recorded, change.episode.sequence: recorded_at},
        births={**dict((*change.entity_births, *change.statement_births)), **records.births},
        last_recorded=recorded_at,
    )


def compare(old: GroupGraph, new: GroupGraph, before: GroupRecords, after: GroupRecords) -> Difference:
    """Return the difference between two graphs of one group; sweeps only the statements that changed.

    before, after: the records of the two graphs
    """
    was, now = old.places(), new.places()
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
    recorded = {*old.shows, *new.shows}
    shown, shown_now = (shown_entities(graph, recorded) for graph in (old, new))
    mentioned = mentioned_entities(old.fold, before.mentions)
    mentioned_now = mentioned_entities(new.fold, after.mentions)
    left = {head.sequence for head in after.heads}
    retired = (e for e in before.evidence if e.sequence not in left)
    moved_before = moved_evidence(was, before.evidence)
    moved_now = moved_evidence(now, after.evidence, retired)
    return Difference(
        entities=tuple(now for now, then in entities if now != then),
        gone_entities=tuple(sorted(old.entities.keys() - new.entities.keys())),
        facts=facts,
        gone_facts=gone,
        mentioned=tuple(sorted(mentioned_now - mentioned)),
        unmentioned=tuple(sorted(mentioned - mentioned_now)),
        shown=tuple(sorted(shown_now - shown)),
        unshown=tuple(sorted(shown - shown_now)),
        moved=tuple(row for place, row in sorted(moved_now.items()) if moved_before.get(place) != row),
        unmoved=tuple(sorted(moved_before.keys() - moved_now.keys())),
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
    statements  recorded statement -> the last sequence with evidence about it
    mentions    (recorded entity, surface, sequence), in order of place
    erased_from the first sequence that is removed; erased: recorded entities that removed mentions name
    """

    episodes: set[int] = field(default_factory=set)
    statements: dict[str, int] = field(default_factory=dict)
    mentions: list[tuple[str, str, int]] = field(default_factory=list)
    erased_from: int = 0
    erased: set[str] = field(default_factory=set)

    def use(self, sequence: int, statement: str) -> None:
        """Take a piece of evidence that is left."""
        self.statements[statement] = max(sequence, self.statements.get(statement, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """The changes of records with withdrawn episodes (None = goes), and the live records that are left.

    declarations: the places of those that go
    """

    records: GroupRecords
    declarations: Collection[Place]
    verdicts: Mapping[Place, Verdict | None]
    operations: Mapping[int, Operation | None]

    @property
    def retired(self) -> tuple[tuple[str, int, int], ...]:
        """The declarations and verdicts that go, as `Operation.retired` has them."""
        return (
            *(("declaration", *place) for place in sorted(self.declarations)),
            *(("verdict", *place) for place in sorted(self.verdicts)),
        )


def retracted(records: GroupRecords, gone: Collection[int]) -> Withdrawn:
    """Return what retracting episodes changes; gone: their sequences."""
    left = Left(episodes={head.sequence for head in records.heads} - set(gone))
    for said in records.evidence:
        if said.sequence in left.episodes:
            left.use(said.sequence, said.statement)
    verdicts: dict[Place, Verdict | None] = dict.fromkeys(_verdicts_that_go(records.verdicts, left))
    return _withdrawn(records, left, _declarations_that_go(records.declarations, left), verdicts, {})


def removed(
    records: GroupRecords, left: Left, *, declarations: Sequence[Declaration], verdicts: Sequence[Verdict]
) -> Withdrawn:
    """Return what removing episodes changes; left: what all stored ones hold without them.

    declarations, verdicts   all stored ones in order of place, retired ones too
    """
    # A reason may quote whatever was there when it was given.
    judged: dict[Place, Verdict | None] = {
        (v.sequence, v.ordinal): replace(v, reason="") for v in verdicts if v.sequence >= left.erased_from
    }
    judged |= dict.fromkeys(_verdicts_that_go(verdicts, left))
    judged |= {(v.sequence, v.ordinal): None for v in verdicts if not left.statements.keys() >= {v.a, v.b}}
    gone = _declarations_that_go(declarations, left)
    return _withdrawn(records, left, gone, judged, _restated_operations(records, left))


def _withdrawn(
    records: GroupRecords,
    left: Left,
    declarations: Collection[Place],
    verdicts: Mapping[Place, Verdict | None],
    operations: Mapping[int, Operation | None],
) -> Withdrawn:
    judged = (verdicts.get((v.sequence, v.ordinal), v) for v in records.verdicts)
    corrected = (operations.get(o.sequence, o) for o in records.operations)
    live = replace(
        records,
        heads=[h for h in records.heads if h.sequence in left.episodes],
        mentions=[m for m in records.mentions if m.sequence in left.episodes],
        evidence=[e for e in records.evidence if e.sequence in left.episodes],
        declarations=[d for d in records.declarations if (d.sequence, d.ordinal) not in declarations],
        verdicts=[v for v in judged if v is not None],
        operations=[o for o in corrected if o is not None],
    )
    return Withdrawn(records=live, declarations=declarations, verdicts=verdicts, operations=operations)


def _verdicts_that_go(verdicts: Iterable[Verdict], left: Left) -> set[Place]:
    """Return the verdicts that go (R25): not those with later evidence for one of their statements."""
    return {
        (v.sequence, v.ordinal)
        for v in verdicts
        if v.sequence not in left.episodes
        and max(left.statements.get(v.a, 0), left.statements.get(v.b, 0)) <= v.sequence
    }


def _declarations_that_go(declarations: Iterable[Declaration], left: Left) -> set[Place]:
    """Return the places of the declarations that go with their episodes: no later episode is left (R26).

    The others stay: they hold what people wrote in the ontology, nothing of the text that is withdrawn.
    """
    last = max(left.episodes, default=0)
    return {(d.sequence, d.ordinal) for d in declarations if d.sequence > last}


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
