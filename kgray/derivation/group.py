"""The whole graph of one group: built from its records, or kept current commit by commit.

Both ways give the same graph (a property test compares them): `absorb` updates it in a fraction of a
millisecond, `build` derives it from the records alone. Merges, splits, removals and rulings that fold stored
names may change anything, and are rare: they use `build`.

The graph is the timeline's `Rivals`: a sweep calls it back (`slot_keys`, `pairs`) when a statement's first
claim arrives. This is the only call from timeline into this package.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from kgray.derivation.entities import EntityNote, Fold
from kgray.derivation.relations import Relations
from kgray.derivation.statements import Statement, StatementKey, fold_key, name_statements, spoken
from kgray.graph import Fact
from kgray.records import Evidence, GroupRecords, Mention, Place, Value, fact_id
from kgray.timeline import Claim, Span, Sweep
from kgray.times import Instant

SlotKey = tuple[str, str, str]  # ("s" | "o", entity, relation): a slot by subject or by object (R17)

# A component with fewer claims than this is swept again at each commit (about 20 us a claim). A larger one
# keeps its sweep, so that a commit to a slot of 10,000 values costs no more than to one of 10.
KEEP_SWEEP_FROM = 16


class GroupGraph:
    """Entities, statements and rivalry of one group, in memory. Has one owner; not thread-safe."""

    def __init__(self, group: str, fold: Fold, births: dict[str, Place]) -> None:
        """Start empty; `absorb` keeps `births` current."""
        self.group = group
        self.fold = fold
        self.births = births
        self.relations = Relations()
        self.entities: dict[str, EntityNote] = {}
        self.statements: dict[str, Statement] = {}
        self.buckets: dict[StatementKey, list[str]] = {}  # key -> statements with it (variants), by birth
        self.slots: dict[SlotKey, list[str]] = {}
        self.by_relation: dict[str, list[str]] = {}
        self.by_ends: dict[tuple[str, str | Value], list[str]] = {}
        self.texts: dict[Place, tuple[str, str]] = {}  # evidence -> (wording, episode id)
        self.shows: dict[str, set[str]] = {}  # recorded entity -> shown ones, unless it is just itself
        self.verdicts: dict[str, dict[str, tuple[bool, Instant]]] = {}  # (exclusive, record time)
        self.moved: dict[Place, Instant] = {}  # evidence -> when an operation or ruling last moved it
        self._linked: set[SlotKey] = set()  # slots with a member that also has rivals outside the slot
        self._sweeps: dict[Hashable, Sweep] = {}

    # ------------------------------------------------------------------ from records

    @classmethod
    def build(cls, records: GroupRecords) -> GroupGraph:
        """Derive everything from the records of a group, in O(n log n)."""
        graph = cls(
            records.group, Fold(records.operations, records.births, records.recorded), dict(records.births)
        )
        for mention in records.mentions:
            graph.take_mention(mention)
        for evidence in records.evidence:
            graph.relations.use(evidence.relation, (evidence.sequence, evidence.ordinal))
        for ruling in records.rulings:
            graph.relations.rule(ruling, records.recorded[ruling.sequence])
        shows = graph._take_said(records)
        graph._take_verdicts(records, shows)
        for statement_id in graph.statements:
            graph.link(statement_id)
        return graph

    def _take_said(self, records: GroupRecords) -> dict[str, list[str]]:
        """Add the statements and their claims; return recorded statement -> the statements it shows as."""
        heads = {head.sequence: head for head in records.heads}
        mentions = {(m.sequence, m.ordinal): m for m in records.mentions}
        said = spoken(records.evidence, mentions, self.fold, self.relations, self.births)
        named = name_statements(records.group, said, mentions, self.births)
        shows: dict[str, list[str]] = {}
        for item in said:
            place = (item.evidence.sequence, item.evidence.ordinal)
            if place not in named or item.key is None:
                continue
            head = heads[item.evidence.sequence]
            statement, variant = named[place]
            shows.setdefault(item.evidence.statement, []).append(statement)
            if statement not in self.statements:
                self.add_statement(item.evidence, item.key, statement, variant)
            claim = claim_of(item.evidence, statement, head.reference_time, head.recorded_at)
            self.statements[statement].claims.append(claim)
            self.texts[place] = (item.evidence.text, head.id)
            if item.moved_at > head.recorded_at:  # only what was recorded later has moved it
                self.moved[place] = item.moved_at
        return shows

    def _take_verdicts(self, records: GroupRecords, shows: Mapping[str, Sequence[str]]) -> None:
        """Take each verdict for all statements that the two judged ones show as."""
        for verdict in records.verdicts:
            for a in dict.fromkeys((*shows.get(verdict.a, ()), verdict.a)):
                for b in dict.fromkeys((*shows.get(verdict.b, ()), verdict.b)):
                    if a in self.statements and b in self.statements:
                        self.take_verdict(a, b, verdict.exclusive, records.recorded[verdict.sequence])

    # ------------------------------------------------------------------ one record at a time

    def take_mention(self, mention: Mention) -> tuple[EntityNote, bool]:
        """Take a mention; return the entity it shows as, and whether that entity changed."""
        shown, _ = self.fold.shown(mention.entity, mention.surface, mention.sequence)
        if shown != mention.entity or mention.entity in self.shows:
            known = self.shows.setdefault(mention.entity, set())
            if not known and mention.entity in self.entities:
                known.add(mention.entity)
            known.add(shown)
        note = self.entities.get(shown)
        if note is None:
            note = self.entities[shown] = EntityNote(shown, self.births[shown])
        return note, note.take(mention)

    def add_statement(
        self, evidence: Evidence, key: StatementKey, statement_id: str, variant: int
    ) -> Statement:
        """Add a statement with its first evidence, without a claim yet; return it."""
        subject, relation, target = key
        entity, value = (None, target) if isinstance(target, Value) else (target, None)
        born = self.births.setdefault(statement_id, (evidence.sequence, evidence.ordinal))
        statement = Statement(statement_id, born, subject, relation, entity, value, variant, evidence)
        self.statements[statement_id] = statement
        self.buckets.setdefault(key, []).append(statement_id)
        self.by_relation.setdefault(relation, []).append(statement_id)
        self.by_ends.setdefault((subject, target), []).append(statement_id)
        self.slots.setdefault(("s", subject, relation), []).append(statement_id)
        further = {key for key in self.slot_keys(statement_id) if key[:2] != ("s", subject)}
        if entity is not None and self.relations.traits(relation).symmetric:
            further.add(("s", entity, relation))
        for slot in sorted(further):
            self.slots.setdefault(slot, []).append(statement_id)
        return statement

    def take_verdict(self, a: str, b: str, exclusive: bool, recorded: Instant) -> None:
        """Take a verdict on two shown statements; it replaces an older one."""
        if a != b:
            self.verdicts.setdefault(a, {})[b] = (exclusive, recorded)
            self.verdicts.setdefault(b, {})[a] = (exclusive, recorded)

    # ------------------------------------------------------------------ rivalry, as `timeline.Rivals`

    def slot_keys(self, statement: str) -> tuple[SlotKey, ...]:
        """Return the statement's slots; all statements of one slot are mutual rivals (R17)."""
        it = self.statements[statement]
        traits = self.relations.traits(it.relation)
        if traits.cardinality not in {"single", "single_object"}:
            return ()
        if it.object is None:
            return (("s", it.subject, it.relation),) if traits.cardinality == "single" else ()
        if traits.symmetric:
            return ("s", it.subject, it.relation), ("s", it.object, it.relation)
        if traits.cardinality == "single":
            return (("s", it.subject, it.relation),)
        return (("o", it.object, it.relation),)

    def pairs(self, statement: str) -> tuple[str, ...]:
        """Return rivals outside its slots: by exclusive verdict, or excluding relation on the same ends."""
        it = self.statements[statement]
        found = [s for s, (exclusive, _) in self.verdicts.get(statement, {}).items() if exclusive]
        excludes = self.relations.traits(it.relation).excludes
        if excludes:
            target: str | Value = it.key[2]
            for other in self.by_ends.get((it.subject, target), ()):
                if self.statements[other].relation in excludes:
                    found.append(other)
            if it.object is not None:
                for other in self.by_ends.get((it.object, it.subject), ()):
                    if self.statements[other].relation in excludes and self._either_symmetric(
                        it.relation, other
                    ):
                        found.append(other)
        return tuple(found)

    def verdict(self, a: str, b: str) -> bool | None:
        """Return whether two statements were found exclusive; None = never judged."""
        held = self.verdicts.get(a, {}).get(b)
        return held[0] if held else None

    def _either_symmetric(self, relation: str, other: str) -> bool:
        return (
            self.relations.traits(relation).symmetric
            or self.relations.traits(self.statements[other].relation).symmetric
        )

    def link(self, statement: str) -> None:
        """Mark the slots of a statement with rivals outside its one slot, and the slots of those rivals."""
        slot_keys = self.slot_keys(statement)
        partners = self.pairs(statement)
        if partners or len(slot_keys) > 1:
            self._linked.update(slot_keys)
            for partner in partners:
                self._linked.update(self.slot_keys(partner))

    def needed(self, opened: Claim, ended: Claim) -> Instant:
        """Return the record time of the last ruling, verdict or merge that lets a claim end another (R17)."""
        moved, moved_too = self.moved.get(opened.said[1:], 0), self.moved.get(ended.said[1:], 0)
        since = max(moved, moved_too) if moved != moved_too else 0
        if opened.statement == ended.statement:
            return since
        a, b = self.statements[opened.statement], self.statements[ended.statement]
        reasons = []
        if set(self.slot_keys(a.id)) & set(self.slot_keys(b.id)):
            reasons.append(self.relations.traits(a.relation).cardinality_since)
        excluded = self.relations.traits(a.relation).excludes_since.get(b.relation)
        if excluded is not None and a.key[::2] in {b.key[::2], b.key[::-2]}:
            reasons.append(excluded)
        if held := self.verdicts.get(a.id, {}).get(b.id):
            exclusive, recorded = held
            if exclusive:
                reasons.append(recorded)
        # Of several reasons to be rivals, the first recorded was enough.
        return max(since, min(reasons, default=0))

    # ------------------------------------------------------------------ components and their spans

    def component(self, statement: str) -> tuple[Hashable | None, list[str]]:
        """Return the key under which a component's sweep is kept (None = it is not), and its statements."""
        slot_keys = self.slot_keys(statement)
        if not slot_keys and not self.pairs(statement):
            return ("one", statement), [statement]
        if len(slot_keys) == 1 and slot_keys[0] not in self._linked:
            return slot_keys[0], self.slots[slot_keys[0]]
        seen = {statement}
        waiting = [statement]
        while waiting:
            current = waiting.pop()
            near = [s for key in self.slot_keys(current) for s in self.slots[key]]
            for other in (*near, *self.pairs(current)):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return None, sorted(seen, key=lambda s: (self.statements[s].born, s))

    def spans_of(self, statements: Iterable[str]) -> dict[str, tuple[Span, ...]]:
        """Return the spans of these statements and of all others in their components."""
        found: dict[str, tuple[Span, ...]] = {}
        for statement in statements:
            if statement not in found:
                _, members = self.component(statement)
                sweep = self._swept(members)
                found.update((member, sweep.spans(member)) for member in members)
        return found

    def facts_of(self, statements: Iterable[str]) -> list[Fact]:
        """Return all facts of these statements, in the order given, then by start."""
        asked = list(dict.fromkeys(statements))
        spans = self.spans_of(asked)
        return [self.fact(span) for statement in asked for span in spans[statement]]

    def fact(self, span: Span) -> Fact:
        """Return the fact of a span, with both clocks (R2, R12)."""
        statement = self.statements[span.statement]
        wording, _ = self.texts[span.opened.said[1:]]
        created = span.opened.recorded
        expired: Instant | None = None
        ended_by = None
        if span.ended is not None:
            expired = max(created, span.ended.recorded, self.needed(span.opened, span.ended))
            place = span.ended.said[1:]
            ended_by = (self.texts[place][1], place[1])
        return Fact(
            id=fact_id(statement.id, span.opened.said[1:], span.point),
            statement=statement.id,
            source=statement.subject,
            relation=statement.relation,
            target=statement.object,
            value=statement.value,
            text=wording,
            valid_at=span.start,
            invalid_at=span.end,
            created_at=created,
            expired_at=expired,
            episodes=tuple(sorted({self.texts[claim.said[1:]][1] for claim in span.support})),
            ended_by=ended_by,
        )

    def _swept(self, members: Sequence[str]) -> Sweep:
        sweep = Sweep(self)
        sweep.add([claim for member in members for claim in self.statements[member].claims])
        return sweep

    def kept_sweep(self, key: Hashable | None, members: Sequence[str]) -> Sweep:
        """Return the sweep over a component's claims so far; a long one that has a key is kept."""
        sweep = self._sweeps.get(key) if key is not None else None
        if sweep is None:
            sweep = self._swept(members)
            if key is not None and len(sweep) >= KEEP_SWEEP_FROM:
                self._sweeps[key] = sweep
        return sweep

    def forget_sweeps(self) -> None:
        """Drop the kept sweeps; each is made again when needed."""
        self._sweeps.clear()

    def reindex(self, relation: str) -> None:
        """Add a relation's statements to the slots that its current rulings give them."""
        present: dict[SlotKey, set[str]] = {}
        for statement in self.by_relation.get(relation, ()):
            for key in self.slot_keys(statement):
                members = self.slots.setdefault(key, [])
                known = present[key] if key in present else present.setdefault(key, set(members))
                if statement not in known:
                    known.add(statement)
                    members.append(statement)
            self.link(statement)

    def places(self) -> dict[Place, str]:
        """Return evidence place -> the statement it shows as."""
        return {c.said[1:]: s.id for s in self.statements.values() for c in s.claims}

    def statement_at(self, place: Place) -> str | None:
        """Return the statement that one piece of evidence shows as. Walks over all evidence: for rare use."""
        return self.places().get(place)

    def shown_by_recorded(self) -> dict[str, frozenset[str]]:
        """Return recorded entity -> the entities that its mentions show as."""
        found = {entity: frozenset((entity,)) for entity in self.entities}
        found.update((recorded, frozenset(shown)) for recorded, shown in self.shows.items())
        return found

    def target_of(self, evidence: Evidence, mentions: Mapping[int, Mention]) -> StatementKey | None:
        """Return the key that a commit's evidence folds to, None for a loop; mentions: by ordinal."""
        shown = self.fold.shown
        subject = mentions[evidence.subject]
        target: str | Value
        if evidence.object is not None:
            other = mentions[evidence.object]
            target = shown(other.entity, other.surface, evidence.sequence)[0]
        elif evidence.value is not None:
            target = evidence.value
        else:  # deciding never makes such evidence
            raise ValueError(f"evidence {evidence.sequence}.{evidence.ordinal} has neither object nor value")
        entity = shown(subject.entity, subject.surface, evidence.sequence)[0]
        return fold_key(self.relations, self.births.__getitem__, evidence.relation, entity, target)[0]


def claim_of(evidence: Evidence, statement: str, reference_time: Instant, recorded: Instant) -> Claim:
    """Return a piece of evidence as the timeline's claim."""
    said = (reference_time, evidence.sequence, evidence.ordinal)
    return Claim(
        statement, said, evidence.kind, evidence.valid_from, evidence.valid_to, evidence.inferred, recorded
    )
