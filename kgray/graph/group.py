"""The whole graph of one group: built from its records, or kept current commit by commit.

Both ways give the same graph. The cost of `absorb` depends on the change, not on the size of the group.
Merges, splits, removals and declarations that fold stored names may change any part: they use `build`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter, itemgetter
from sys import intern

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import EpisodeHead, Evidence, GroupRecords, Mention, Place, fact_id
from kgray.domain.times import Instant
from kgray.errors import damaged
from kgray.graph.change import Difference, EpisodeChange
from kgray.graph.names import EntityNote, Fold, Relations, as_flipped
from kgray.graph.rivals import SlotKey, StatementRivals
from kgray.graph.statements import (
    CLOSING,
    KeyedEvidence,
    Statement,
    StatementIdentity,
    StatementKey,
    by_episode,
    evidenced_statements,
    identify_statements,
    moved_evidence,
    with_keys,
)
from kgray.graph.texts import NewestFacts, Sentence, fact_text, summary_in, update_summaries
from kgray.timeline import Claim, Said, Span, SpanChange, Sweep

SpanChanges = dict[str, SpanChange]  # by statement

# A component with fewer claims than this is swept again at each commit (about 20 us a claim). A larger one
# keeps its sweep, so that a commit to a slot of 10,000 values costs no more than to one of 10.
KEEP_SWEEP_FROM = 16

# The fields of a mention that its entity depends on: a second mention with equal fields only adds to a count.
_ENTITY_FIELDS = itemgetter(
    *(Mention._fields.index(name) for name in ("entity", "surface", "type", "key", "resolved_by"))
)


class GroupGraph(StatementRivals):
    """Entities, statements and rivalry of one group, in memory. Has one owner; not thread-safe."""

    def __init__(self, group: str, fold: Fold, births: dict[str, Place]) -> None:
        """Start empty; `absorb` keeps `births` current."""
        super().__init__()
        self.group = group
        self.fold = fold
        self.births = births
        self.entities: dict[str, EntityNote] = {}
        # Own key of a piece of evidence -> {statement with another key that an answer attached it to (R17c):
        # True if any such piece is neither an end nor a denial (R17b)}.
        self.attached: dict[StatementKey, dict[str, bool]] = {}
        # An end without a variant is an end or a denial that names none: it is about every variant (R6).
        self.ends_without_variant: dict[StatementKey, list[Claim]] = {}  # by key
        self.by_relation: dict[str, list[str]] = {}
        self.about: dict[str, list[str]] = {}  # entity -> statements with it as subject or object
        self.texts: dict[Said, Sentence] = {}  # of the evidence, by `Claim.said`
        self.shows: dict[str, set[str]] = {}  # recorded entity -> shown ones, unless it is just itself
        self.newest: dict[str, NewestFacts] = {}  # by entity, of the entities whose summary was needed
        self._sweeps: dict[Hashable, Sweep] = {}
        self._current_spans: dict[str, tuple[Span, ...]] = {}  # of statements without a kept sweep

    @classmethod
    def build(cls, records: GroupRecords) -> GroupGraph:
        """Derive everything from the records of a group, in O(n log n). Raises Damaged."""
        fold = Fold(records.operations, records.births, records.recorded)
        graph = cls(records.group, fold, dict(records.births))
        try:
            graph._take(records)
        except (LookupError, ValueError, TypeError, AttributeError) as fault:
            raise damaged(records.group, fault) from fault
        return graph

    def _take(self, records: GroupRecords) -> None:
        self._take_mentions(records.mentions)
        for entity in self.entities.keys() & records.names.keys():
            self.entities[entity].name = records.names[entity]
        for name in set(map(attrgetter("relation"), records.evidence)):
            self.relations.use(name)
        for declaration in records.declarations:
            self.relations.declare(declaration, records.recorded[declaration.sequence])
        self._read_evidence(records)
        for verdict in records.verdicts:
            self.take_verdict(verdict.a, verdict.b, verdict.exclusive, records.recorded[verdict.sequence])
        traits = self.relations.traits
        tied = [r for r in self.by_relation if traits(r).symmetric or traits(r).excludes]
        linked = (s for relation in tied for s in self.by_relation[relation])
        for statement_id in dict.fromkeys((*linked, *self.verdicts)):  # no other has a rival outside its slot
            self.link(statement_id)

    def _take_mentions(self, mentions: Sequence[Mention]) -> None:
        repeatable: set[tuple[object, ...]] = set()  # of entities that no correction names
        for mention, content in zip(mentions, map(_ENTITY_FIELDS, mentions), strict=True):
            if content in repeatable:
                self.entities[mention.entity].count += 1  # all that a repetition changes
                continue
            self.take_mention(mention)
            # Answers are not skipped: answers in two episodes confirm an alias (R14a).
            if mention.resolved_by != "model" and not self.fold.involves(mention.entity):
                repeatable.add(content)

    def _read_evidence(self, records: GroupRecords) -> None:
        heads = {head.sequence: head for head in records.heads}
        mentions = by_episode(records.mentions)
        pieces = with_keys(records.evidence, mentions, self.fold, self.relations, self.births, heads)
        identities = identify_statements(records.group, pieces, mentions, self.births)
        with_wording = evidenced_statements(pieces, identities)
        # An end without a variant can precede all evidence of the variant that it applies to. It is read
        # after that evidence; otherwise its sentence would be the statement's first wording.
        late: list[tuple[KeyedEvidence, StatementIdentity]] = []
        for item, identity in chain(zip(pieces, identities, strict=True), late):
            if identity is None:
                continue
            evidence, statement = item.evidence, identity[1]
            sequence, recorded = evidence.sequence, evidence.statement
            if statement != recorded or recorded in self.parts:
                moved = evidence.every_variant and statement != recorded
                if moved and statement in with_wording and statement not in self.statements:
                    late.append((item, identity))
                    continue
                shown_ids = self.parts.setdefault(recorded, [recorded] if recorded in self.statements else [])
                if statement not in shown_ids:
                    shown_ids.append(statement)
            head = heads[sequence]
            for claim in self._take_piece(item, identity, head, mentions[sequence]):
                self.statements[claim.statement].claims.append(claim)
            if item.moved_at > head.recorded_at:  # only a later record has moved it
                self.moved[sequence, evidence.ordinal] = item.moved_at
        for key in {key for _, (key, _, _) in late}:
            for claims in (
                self.ends_without_variant[key],
                *(self.statements[s].claims for s in self.with_key(key)),
            ):
                claims.sort(key=lambda claim: claim.said[1:])

    def take_mention(self, mention: Mention) -> tuple[EntityNote, bool, str]:
        """Take a mention; return its entity, whether the entity changed, and its former name."""
        shown_id, _ = self.fold.shown(mention.entity, mention.surface, mention.sequence)
        if shown_id != mention.entity or mention.entity in self.shows:
            shown_ids = self.shows.setdefault(mention.entity, set())
            if not shown_ids and mention.entity in self.entities:
                shown_ids.add(mention.entity)
            shown_ids.add(shown_id)
        note = self.entities.get(shown_id)
        if note is None:
            note = self.entities[shown_id] = EntityNote(shown_id, self.births[shown_id])
        name = note.name
        return note, note.take(mention), name

    def _take_piece(
        self,
        item: KeyedEvidence,
        identity: StatementIdentity,
        head: EpisodeHead,
        mentions: Mapping[int, Mention],
    ) -> list[Claim]:
        """Enter a piece of evidence into the indexes; return its claims. Make its statement if it is new.

        An end without a variant makes a claim about each variant of its key, also about later ones (R6).

        mentions  of the episode, by ordinal
        """
        claims: list[Claim] = []
        evidence, (key, id_, _) = item.evidence, identity
        kind, target = evidence.kind, evidence.object
        statement = self.statements.get(id_)
        if statement is None:
            statement = self._add_statement(item, identity)
            if self.ends_without_variant:
                claims += self._claims_elsewhere(self.ends_without_variant.get(key, ()), [id_])
        if evidence.is_field:
            statement.in_field = True
        if item.own_key is not None and item.own_key != key:
            attached = self.attached.setdefault(item.own_key, {})
            attached[id_] = attached.get(id_, False) or kind not in CLOSING
        at = (head.reference_time, evidence.sequence, evidence.ordinal)
        surface = None if target is None else mentions[target].surface
        self.texts[at] = (evidence.text, head.id, mentions[evidence.subject].surface, surface)
        dates = (evidence.valid_from, evidence.valid_to)
        claim = Claim(id_, at, kind, *dates, evidence.inferred, head.recorded_at, evidence.every_variant)
        if kind != "ended" or self._acts_on(claim, id_):
            claims.append(claim)
        if evidence.every_variant:
            self.ends_without_variant.setdefault(key, []).append(claim)
            claims += self._claims_elsewhere([claim], [s for s in self.with_key(key) if s != id_])
        return claims

    def _claims_elsewhere(self, ends: Iterable[Claim], statements: Sequence[str]) -> list[Claim]:
        """Return the claims of ends without a variant about other variants than the recorded one (R6)."""
        return [
            claim._replace(statement=statement, other_variant=True)
            for claim in ends
            for statement in statements
            if self._acts_on(claim, statement)
        ]

    def _acts_on(self, end: Claim, statement: str) -> bool:
        """Return whether an end or a denial acts on a statement. An event can only be denied (R18)."""
        return end.kind == "denied" or not self.statements[statement].is_event

    def _add_statement(self, item: KeyedEvidence, identity: StatementIdentity) -> Statement:
        first, ((subject, relation, target), id_, variant) = item.evidence, identity
        entity, value = (target, None) if isinstance(target, str) else (None, target)
        born = self.births.get(id_)
        if born is None:
            born = self.births[id_] = (first.sequence, first.ordinal)
        statement = Statement(
            id_, born, subject, relation, entity, value, variant, first, item.key_is_reversed
        )
        self.statements[id_] = statement
        self.by_relation.setdefault(relation, []).append(id_)
        self.by_ends.setdefault((subject, target), []).append(id_)
        self.about.setdefault(subject, []).append(id_)
        if entity is not None:
            self.about.setdefault(entity, []).append(id_)
        if statement.is_event:  # it competes with nothing (R18)
            return statement
        self.slots.setdefault(("s", subject, relation), []).append(id_)
        traits = self.relations.traits(relation)
        if entity is not None and (traits.symmetric or traits.cardinality == "single_object"):
            self.slots.setdefault(("s" if traits.symmetric else "o", entity, relation), []).append(id_)
        return statement

    def sentence(self, statement: Statement) -> str:
        """Return the sentence of a statement's earliest evidence that it held or happened (R17a).

        It is fixed until that evidence is removed; without such evidence it is the first sentence of all.
        """
        for claim in statement.claims:
            if claim.kind in ("holds", "happened") and not claim.other_variant:
                return self.texts[claim.said][0]
        return statement.wording

    def spans_of(self, statements: Iterable[str]) -> dict[str, tuple[Span, ...]]:
        """Return the spans of these statements and of all others in their components."""
        spans_by_statement: dict[str, tuple[Span, ...]] = {}
        for statement in statements:
            if statement not in spans_by_statement:
                _, members = self.component(statement)
                sweep = self._new_sweep(members)
                spans_by_statement.update((member, sweep.spans(member)) for member in members)
        return spans_by_statement

    def spans_now(self, statement: str) -> tuple[Span, ...]:
        """Return the spans of one statement; they stay in memory until the next commit.

        An episode that is decided asks for the spans of many statements, some of them in one component.
        """
        if statement in self._current_spans:
            return self._current_spans[statement]
        key, members = self.component(statement)
        sweep = self._kept_sweep(key, members)
        if key not in self._sweeps:
            self._current_spans.update((member, sweep.spans(member)) for member in members)
        return sweep.spans(statement)

    def facts_of(self, statements: Iterable[str]) -> list[Fact]:
        """Return all facts of these statements, in the order given, then by start."""
        unique = list(dict.fromkeys(statements))
        spans = self.spans_of(unique)
        return [self.fact(span) for statement in unique for span in spans[statement]]

    def fact(self, span: Span) -> Fact:
        """Return the fact of a span, with both clocks (R2, R12)."""
        statement = self.statements[span.statement]
        created = span.opened.recorded
        expired = ended_by = None
        if span.ended is not None:
            expired = max(created, span.ended.recorded, self.needed(span.opened, span.ended))
            ended_by = (self.texts[span.ended.said][1], span.ended.said[2])
        return Fact(
            id=fact_id(statement.id, span.opened.said[1:], span.point),
            statement=statement.id,
            source=statement.subject,
            relation=statement.relation,
            target=statement.object,
            value=statement.value,
            text=fact_text(statement, span, self.texts, self.entities, self.relations),
            valid_at=span.start,
            invalid_at=span.end,
            created_at=created,
            expired_at=expired,
            episodes=tuple(sorted({self.texts[claim.said][1] for claim in span.support})),
            event=statement.is_event,
            ended_by=ended_by,
        )

    def changed_facts(
        self, changes: SpanChanges, old_graph: GroupGraph | None = None
    ) -> tuple[tuple[Fact, ...], tuple[str, ...]]:
        """Return the facts that differ, and the deleted ids; old_graph: the graph of the earlier spans."""
        rows: list[Fact] = []
        old_ids: set[str] = set()
        new_ids: set[str] = set()
        for earlier, later in changes.values():
            old = {fact.id: fact for fact in map((old_graph or self).fact, earlier)}
            new = {fact.id: fact for fact in map(self.fact, later)}
            rows += [fact for i, fact in new.items() if old.get(i) != fact]
            new_ids.update(new)
            old_ids.update(old)
        return tuple(sorted(rows, key=attrgetter("id"))), tuple(sorted(old_ids - new_ids))

    def entity(self, id_: str) -> Entity:
        """Return an entity as it shows, with its summary."""
        return replace(self.entities[id_].shown(), summary=summary_in(self, id_))

    def _new_sweep(self, members: Sequence[str]) -> Sweep:
        sweep = Sweep(self)
        sweep.add([claim for member in members for claim in self.statements[member].claims])
        return sweep

    def _kept_sweep(self, key: Hashable | None, members: Sequence[str]) -> Sweep:
        """Return the kept sweep of a component, or else a new one, which is kept if it is large."""
        sweep = None if key is None else self._sweeps.get(key)
        if sweep is None:
            sweep = self._new_sweep(members)
            if key is not None and len(sweep) >= KEEP_SWEEP_FROM:
                self._sweeps[key] = sweep
        return sweep

    def places(self) -> dict[Place, str]:
        """Return the shown statement of each piece of evidence, by its place."""
        own_claims = (c for s in self.statements.values() for c in s.claims if not c.other_variant)
        return {claim.said[1:]: claim.statement for claim in own_claims}

    def shows_as(self, recorded: str) -> frozenset[str]:
        """Return the shown entities of the mentions that were recorded with an entity."""
        return frozenset(self.shows.get(recorded) or {recorded} & self.entities.keys())

    def shown_entities(self, recorded: Iterable[str]) -> set[tuple[str, str]]:
        """Return the pairs (recorded id, shown id) of entities that show as another id, or as several."""
        shows = {entity: self.shows_as(entity) for entity in recorded}
        return {(entity, shown_id) for entity, ids in shows.items() if ids != {entity} for shown_id in ids}

    def absorb(self, change: EpisodeChange, recorded_at: Instant) -> Difference:
        """Take an episode's records into the graph and return the difference."""
        self._current_spans.clear()
        former_spans = self.spans_of(self._rivalry_changes(change))  # read before any index changes
        self.births.update((*change.entity_births, *change.statement_births))
        for evidence in change.evidence:
            self.relations.use(evidence.relation)
        for declaration in change.declarations:
            self.relations.declare(declaration, recorded_at)
        for name in dict.fromkeys(self.relations.folded(d.name).name for d in change.declarations):
            self._reindex(name)
        changed_notes: dict[str, EntityNote] = {}
        names: dict[str, str] = {}
        recorded = {mention.entity for mention in change.mentions}
        shows_before = self.shown_entities(recorded)
        mentioned: dict[tuple[str, int], None] = {}
        for mention in change.mentions:
            note, changed, name = self.take_mention(mention)
            mentioned[note.id, mention.sequence] = None
            if changed:
                names.setdefault(note.id, name)
                changed_notes[note.id] = note
        # Stored statements whose words this episode changes (R18): their whole components are derived again.
        renamed = (i for i, name in names.items() if name and name != changed_notes[i].name)
        reworded = [statement for entity in renamed for statement in self.about.get(entity, ())]
        wordings = (d.name for d in change.declarations if d.aspect == "text")
        reworded += [statement for name in wordings for statement in self.by_relation.get(name, ())]
        claims = self._take_evidence(change, recorded_at)
        for verdict in change.verdicts:
            self.take_verdict(verdict.a, verdict.b, verdict.exclusive, recorded_at)
        judged = (s for v in change.verdicts for pair in self.judged(v.a, v.b) for s in pair)
        for statement in dict.fromkeys((*claims, *judged)):
            self.link(statement)
        changes = self._sweep_again(former_spans, claims) if former_spans else self._extend_sweeps(claims)
        facts, gone_facts = self.changed_facts(changes)
        if reworded:
            by_id = {fact.id: fact for fact in (*facts, *self.facts_of(reworded))}
            facts = tuple(by_id[id_] for id_ in sorted(by_id))
        summarised = update_summaries(self, changes, facts, gone_facts, reworded)
        statement_at = {
            c.said[1:]: s for s, new_claims in claims.items() for c in new_claims if not c.other_variant
        }
        return Difference(
            entities=tuple(map(self.entity, sorted({*changed_notes, *summarised}))),
            facts=facts,
            gone_facts=gone_facts,
            mentioned=tuple(sorted(mentioned)),
            shown=tuple(sorted(self.shown_entities(recorded) - shows_before)),
            moved=tuple(moved_evidence(statement_at, change.evidence).values()),
        )

    def _reindex(self, relation: str) -> None:
        """Add a relation's statements to the slots that its current declarations give them."""
        added: dict[SlotKey, dict[str, None]] = {}
        for statement in self.by_relation.get(relation, ()):
            for key in self.slot_keys(statement):
                added.setdefault(key, dict.fromkeys(self.slots.get(key, ())))[statement] = None
        self.slots |= {key: list(members) for key, members in added.items()}
        for statement in self.by_relation.get(relation, ()):
            self.link(statement)

    def _rivalry_changes(self, change: EpisodeChange) -> list[str]:
        """Return the stored statements whose rivals this episode's declarations or verdicts may change."""
        touched: list[str] = []
        for declaration in change.declarations:
            main_name, flipped, _ = self.relations.folded(declaration.name)
            if declaration.aspect == "cardinality":
                value = as_flipped(declaration.value) if flipped else declaration.value
                if self.relations.traits(main_name).cardinality != value:
                    touched += self.by_relation.get(main_name, ())
            elif declaration.aspect == "pair":
                for name in (main_name, self.relations.folded(declaration.other).name):
                    touched += self.by_relation.get(name, ())
        for verdict in change.verdicts:
            parts = (p for s in (verdict.a, verdict.b) for p in self.parts.get(s, (s,)))
            touched += [part for part in parts if part in self.statements]
        return touched

    def _take_evidence(self, change: EpisodeChange, recorded_at: Instant) -> dict[str, list[Claim]]:
        """Add the new statements; return the new claims by statement, not yet added to them."""
        mentions = by_episode(m._replace(surface=intern(m.surface)) for m in change.mentions)
        claims: dict[str, list[Claim]] = {}
        head = change.episode.head(recorded_at)
        stored = {e.statement for e in change.evidence if e.statement in self.statements}
        pieces = with_keys(change.evidence, mentions, self.fold, self.relations, self.births, {})
        for item in pieces:
            evidence = item.evidence
            if item.key is not None:
                key = self.statements[evidence.statement].key if evidence.statement in stored else item.key
                identity = (key, evidence.statement, evidence.variant)
                for claim in self._take_piece(item, identity, head, mentions[evidence.sequence]):
                    claims.setdefault(claim.statement, []).append(claim)
        return claims

    def renames(self, change: EpisodeChange, relations: Relations) -> bool:
        """Return whether evidence of this episode gives a statement another relation name (R17c).

        If such a statement is new in this episode, its variant number comes from the other name.

        relations  with the episode's declarations
        """
        new_statements: dict[str, Evidence] = {}  # statement of this episode -> its first evidence
        for evidence in change.evidence:
            statement = self.statements.get(evidence.statement)
            if statement is None:
                first = new_statements.setdefault(evidence.statement, evidence)
                name, is_named_by_end = relations.folded(first.relation).name, first.kind in CLOSING
            else:
                name = statement.relation
                # Any end counts: it may be the only name of a recorded statement that shows as this
                # statement.
                is_named_by_end = any(c.kind in CLOSING for c in statement.claims if not c.other_variant)
            current = is_named_by_end, not relations.is_listed(name)  # the least gives the name
            candidate = evidence.kind in CLOSING, not relations.is_listed(evidence.relation)
            if relations.folded(evidence.relation).name != name and candidate < current:
                return True
        return False

    def _extend_sweeps(self, claims: dict[str, list[Claim]]) -> SpanChanges:
        """Add the claims, where the rivalry between stored statements is unchanged."""
        parts: dict[Hashable, tuple[Hashable | None, list[str], list[Claim]]] = {}
        for statement, added in claims.items():
            key, members = self.component(statement)
            part = parts.setdefault(key if key is not None else tuple(members), (key, members, []))
            part[2].extend(added)
        changes: SpanChanges = {}
        for key, members, added in parts.values():
            changes.update(self._kept_sweep(key, members).add(added))
        for statement, added in claims.items():
            self.statements[statement].claims.extend(added)
        return changes

    def _sweep_again(
        self, former_spans: dict[str, tuple[Span, ...]], claims: dict[str, list[Claim]]
    ) -> SpanChanges:
        """Add the claims, and sweep again where rivalry changed.

        former_spans: the earlier spans of the statements whose rivals may change, and of their components
        """
        self._sweeps.clear()
        for statement in claims:
            _, members = self.component(statement)
            former_spans = self.spans_of([m for m in members if m not in former_spans]) | former_spans
        for statement, added in claims.items():
            self.statements[statement].claims.extend(added)
        new_spans = self.spans_of(dict.fromkeys((*former_spans, *claims)))
        return {
            s: (former_spans.get(s, ()), spans)
            for s, spans in new_spans.items()
            if former_spans.get(s, ()) != spans
        }
