"""Changes of a group's records by an episode or a withdrawal, and differences between derived graphs.

A retraction depends on the live records alone, and retires records (R25). A removal depends on all stored
records, because a read with an earlier `known_at` still sees retracted ones (R26). It also rewrites records
that name deleted data: nothing that only removed text contained may stay readable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import (
    Declaration,
    Episode,
    Evidence,
    GroupRecords,
    Mention,
    Operation,
    Place,
    Verdict,
)
from kgray.domain.times import Instant
from kgray.graph import names
from kgray.graph.names import Fold, connected
from kgray.graph.statements import moved_evidence
from kgray.ports import Embedding, Vector
from kgray.schema.kinds import ShownEvidenceRow
from kgray.timeline import SpanChange

if TYPE_CHECKING:
    from kgray.graph.group import GroupGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeChange:
    """The records that an episode adds, in order of their ordinals; the commit gives them their record time.

    *_births            (recorded id, place) of new entities or statements, and of parts of a split that this
                        episode records first
    name_vectors        (mention, vector) for each surface that is new to its entity
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
    """The difference between two derived graphs of a group: whole rows, sorted by id.

    mentioned, unmentioned  added and removed pairs (entity as it shows, sequence of a live episode)
    shown, unshown          added and removed pairs of `shown_entities`
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

    def without_evidence(self, sequences: Collection[int]) -> Difference:
        """Return the difference without evidence of these episodes: their rows are deleted with it."""
        return replace(
            self,
            moved=tuple(row for row in self.moved if row.sequence not in sequences),
            unmoved=tuple(
                (sequence, ordinal) for sequence, ordinal in self.unmoved if sequence not in sequences
            ),
        )


def mentioned_entities(fold: Fold, mentions: Iterable[Mention]) -> set[tuple[str, int]]:
    """Return the pairs (entity as it shows, sequence) of mentions."""
    return {(fold.shown(m.entity, m.surface, m.sequence)[0], m.sequence) for m in mentions}


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


def compare(
    old: GroupGraph, new: GroupGraph, old_records: GroupRecords, new_records: GroupRecords
) -> Difference:
    """Return the difference between two graphs of one group, each derived from the records with its name.

    Only statements that changed are swept.
    """
    old_places, new_places = old.places(), new.places()
    moves = {p for p in old.moved.keys() | new.moved.keys() if old.moved.get(p) != new.moved.get(p)}
    moved = {s for p in moves for s in (old_places.get(p), new_places.get(p)) if s}
    changed: dict[str, SpanChange] = {}  # by statement: all touched ones, and their components in both graphs
    compared: set[str] = set()
    reached = moved | _touched(old, new)
    while reached:
        compared |= reached
        old_spans, new_spans = (
            graph.spans_of(sorted(compared & graph.statements.keys())) for graph in (old, new)
        )
        changed = {s: (old_spans.get(s, ()), new_spans.get(s, ())) for s in sorted(compared)}
        reached = (old_spans.keys() | new_spans.keys()) - compared
    facts, gone_facts = new.changed_facts(changed, old)
    entity_ids = {id_ for id_, note in new.entities.items() if old.entities.get(id_) != note}
    stated = [graph.statements[s] for graph in (old, new) for s in changed if s in graph.statements]
    entity_ids |= {
        end for statement in stated for end in (statement.subject, statement.object) if end in new.entities
    }
    entities = [(new.entity(e), old.entity(e) if e in old.entities else None) for e in sorted(entity_ids)]
    recorded = {*old.shows, *new.shows}
    old_shown, new_shown = (graph.shown_entities(recorded) for graph in (old, new))
    old_mentioned = mentioned_entities(old.fold, old_records.mentions)
    new_mentioned = mentioned_entities(new.fold, new_records.mentions)
    live = {head.sequence for head in new_records.heads}
    retired = (e for e in old_records.evidence if e.sequence not in live)
    old_moved = moved_evidence(old_places, old_records.evidence)
    new_moved = moved_evidence(new_places, new_records.evidence, retired)
    return Difference(
        entities=tuple(entity for entity, former in entities if entity != former),
        gone_entities=tuple(sorted(old.entities.keys() - new.entities.keys())),
        facts=facts,
        gone_facts=gone_facts,
        mentioned=tuple(sorted(new_mentioned - old_mentioned)),
        unmentioned=tuple(sorted(old_mentioned - new_mentioned)),
        shown=tuple(sorted(new_shown - old_shown)),
        unshown=tuple(sorted(old_shown - new_shown)),
        moved=tuple(row for place, row in sorted(new_moved.items()) if old_moved.get(place) != row),
        unmoved=tuple(sorted(old_moved.keys() - new_moved.keys())),
    )


def _touched(old: GroupGraph, new: GroupGraph) -> set[str]:
    """Return the statements that differ in content, in their rivals, or in the words of their facts."""
    touched = old.statements.keys() - new.statements.keys()
    old_content, new_content = (
        {i: (s.key, s.variant, s.first, s.claims) for i, s in graph.statements.items()}
        for graph in (old, new)
    )
    touched.update(id_ for id_, content in new_content.items() if old_content.get(id_) != content)
    for name in old.by_relation.keys() | new.by_relation.keys():
        old_words, new_words = (graph.relations.aspect(name, "text") for graph in (old, new))
        if old.relations.traits(name) != new.relations.traits(name) or old_words != new_words:
            touched.update(old.by_relation.get(name, ()), new.by_relation.get(name, ()))
    for entity in old.entities.keys() & new.entities.keys():
        if old.entities[entity].name != new.entities[entity].name:
            touched.update(old.about.get(entity, ()), new.about.get(entity, ()))
    judged = old.verdicts.keys() | new.verdicts.keys()
    return touched | {s for s in judged if old.verdicts.get(s) != new.verdicts.get(s)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingRecords:
    """The contents of the episodes that remain after a withdrawal.

    episodes     sequences of the committed episodes
    statements   recorded statement -> the last sequence with evidence about it
    mentions     (recorded entity, surface, sequence), in order of place
    erased_from  the first removed sequence
    erased       recorded entities that removed mentions name
    """

    episodes: set[int] = field(default_factory=set)
    statements: dict[str, int] = field(default_factory=dict)
    mentions: list[tuple[str, str, int]] = field(default_factory=list)
    erased_from: int = 0
    erased: set[str] = field(default_factory=set)

    def use(self, sequence: int, statement: str) -> None:
        """Note that a remaining episode has evidence about a statement."""
        self.statements[statement] = max(sequence, self.statements.get(statement, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """The effect of withdrawing episodes on the other records.

    records       the live records that remain
    declarations  places of withdrawn declarations
    verdicts      place -> the changed verdict; None: it is withdrawn
    operations    sequence -> the changed operation; None: it is withdrawn
    """

    records: GroupRecords
    declarations: Collection[Place]
    verdicts: Mapping[Place, Verdict | None]
    operations: Mapping[int, Operation | None]

    @property
    def retired(self) -> tuple[tuple[str, int, int], ...]:
        """The withdrawn declarations and verdicts, in the form of `Operation.retired`."""
        return (
            *(("declaration", *place) for place in sorted(self.declarations)),
            *(("verdict", *place) for place in sorted(self.verdicts)),
        )


def retracted(records: GroupRecords, sequences: Collection[int]) -> Withdrawn:
    """Return the effect of retracting the episodes with these sequences."""
    remaining = RemainingRecords(episodes={head.sequence for head in records.heads} - set(sequences))
    for evidence in records.evidence:
        if evidence.sequence in remaining.episodes:
            remaining.use(evidence.sequence, evidence.statement)
    verdicts: dict[Place, Verdict | None] = dict.fromkeys(_verdicts_that_go(records.verdicts, remaining))
    return _withdrawn(
        records, remaining, _declarations_that_go(records.declarations, remaining), verdicts, {}
    )


def removed(
    records: GroupRecords,
    remaining: RemainingRecords,
    *,
    declarations: Sequence[Declaration],
    verdicts: Sequence[Verdict],
) -> Withdrawn:
    """Return the effect of removing episodes.

    remaining                the contents of all other stored episodes
    declarations, verdicts   all stored ones, retired ones too, in order of place
    """
    # The reason of a verdict may quote any text that was stored when the model gave it.
    judged: dict[Place, Verdict | None] = {
        (v.sequence, v.ordinal): replace(v, reason="")
        for v in verdicts
        if v.sequence >= remaining.erased_from
    }
    judged |= dict.fromkeys(_verdicts_that_go(verdicts, remaining))
    judged |= {
        (v.sequence, v.ordinal): None for v in verdicts if not remaining.statements.keys() >= {v.a, v.b}
    }
    declaration_places = _declarations_that_go(declarations, remaining)
    return _withdrawn(
        records, remaining, declaration_places, judged, _restated_operations(records, remaining)
    )


def _withdrawn(
    records: GroupRecords,
    remaining: RemainingRecords,
    declarations: Collection[Place],
    verdicts: Mapping[Place, Verdict | None],
    operations: Mapping[int, Operation | None],
) -> Withdrawn:
    judged = (verdicts.get((v.sequence, v.ordinal), v) for v in records.verdicts)
    corrected = (operations.get(o.sequence, o) for o in records.operations)
    live = replace(
        records,
        heads=[h for h in records.heads if h.sequence in remaining.episodes],
        mentions=[m for m in records.mentions if m.sequence in remaining.episodes],
        evidence=[e for e in records.evidence if e.sequence in remaining.episodes],
        declarations=[d for d in records.declarations if (d.sequence, d.ordinal) not in declarations],
        verdicts=[v for v in judged if v is not None],
        operations=[o for o in corrected if o is not None],
    )
    return Withdrawn(records=live, declarations=declarations, verdicts=verdicts, operations=operations)


def _verdicts_that_go(verdicts: Iterable[Verdict], remaining: RemainingRecords) -> set[Place]:
    """Return the places of verdicts that are withdrawn: no later evidence supports their statements (R25)."""
    return {
        (v.sequence, v.ordinal)
        for v in verdicts
        if v.sequence not in remaining.episodes
        and max(remaining.statements.get(v.a, 0), remaining.statements.get(v.b, 0)) <= v.sequence
    }


def _declarations_that_go(declarations: Iterable[Declaration], remaining: RemainingRecords) -> set[Place]:
    """Return the places of declarations that are withdrawn, because no later episode remains (R26).

    The others stay: they contain text of the ontology, and none of the withdrawn episodes.
    """
    last = max(remaining.episodes, default=0)
    return {(d.sequence, d.ordinal) for d in declarations if d.sequence > last}


def _restated_operations(records: GroupRecords, remaining: RemainingRecords) -> dict[int, Operation | None]:
    """Return the operations that a removal changes, by sequence; None: it is withdrawn (R16, R25).

    Only operations that are connected with the entities of removed mentions are examined:

        merge, split  stays while a remaining mention has the id that it made, or shows as another entity
                      because of it
        distinction   stays while both its entities have mentions
        undo          stays while the undone operation stays

    Splits, undone ones too, lose the names that no remaining mention has. This does not change the graph, as
    such a name moves no remaining mention.
    """
    involved = connected(records.operations, remaining.erased)
    concerned = [o for o in records.operations if not involved.isdisjoint((*o.entities, o.made))]
    mentions = [m for m in remaining.mentions if m[0] in involved]
    restated: dict[int, Operation | None] = {}
    for index, operation in enumerate(concerned):
        fold_before, fold_after = (
            Fold(concerned[:end], records.births, records.recorded) for end in (index, index + 1)
        )
        if operation.kind == "undo":
            stays = restated.get(operation.target or 0, operation) is not None
        elif operation.kind == "distinct":
            stays = {*operation.entities} <= {fold_after.shown(*m)[0] for m in mentions}
        else:
            stays = any(
                m[0] == operation.made or fold_before.shown(*m)[0] != fold_after.shown(*m)[0]
                for m in mentions
            )
        if not stays:
            restated[operation.sequence] = None
    splits = [o for o in records.operations if (o.surfaces or o.moved) and o.sequence not in restated]
    stored = list(dict.fromkeys(surface for _, surface, _ in remaining.mentions)) if splits else []
    keys = {names.key(s) for s in stored}
    for split in splits:
        surfaces = tuple(dict.fromkeys(s for name in split.surfaces if (s := borne(name, stored))))
        restated_split = replace(split, surfaces=surfaces, moved=tuple(k for k in split.moved if k in keys))
        if restated_split != split:
            restated[split.sequence] = restated_split
    return restated


def borne(surface: str, stored: Sequence[str]) -> str | None:
    """Return the surface if it is stored, else the first stored one with the same name key, else None."""
    if surface in stored:
        return surface
    return next((s for s in stored if names.key(s) == names.key(surface)), None)
