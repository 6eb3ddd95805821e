"""The whole graph of one group: built from its records, or kept current commit by commit.

Both ways give the same graph: `absorb` costs what the change touches, whatever the size of the group. Merges,
splits, removals and declarations that fold stored names may change anything: they use `build`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter, itemgetter
from sys import intern

from kgray.derivation.change import Difference, EpisodeChange, moved_evidence, shown_entities
from kgray.derivation.names import EntityNote, Fold, Relations, as_flipped
from kgray.derivation.rivals import SlotKey, StatementRivals
from kgray.derivation.statements import (
    CLOSING,
    Spoken,
    Statement,
    StatementKey,
    StatementName,
    by_episode,
    name_statements,
    spoken,
)
from kgray.derivation.summaries import NewestFacts, summary_in, update_summaries
from kgray.derivation.texts import Sentence, fact_text
from kgray.errors import damaged
from kgray.graph import Entity, Fact
from kgray.records import EpisodeHead, Evidence, GroupRecords, Mention, Place, fact_id
from kgray.timeline import Claim, Said, Span, SpanChange, Sweep
from kgray.times import Instant

SpanChanges = dict[str, SpanChange]  # by statement

# A component with fewer claims than this is swept again at each commit (about 20 us a claim). A larger one
# keeps its sweep, so that a commit to a slot of 10,000 values costs no more than to one of 10.
KEEP_SWEEP_FROM = 16

# The fields of a mention that tell something of its entity, once they told it first.
_TOLD = itemgetter(
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
        # Key of an attached piece of evidence -> the statements with another name that have it (R17c), and
        # whether one says more than that they are over (R17b).
        self.attached: dict[StatementKey, dict[str, bool]] = {}
        self.general: dict[StatementKey, list[Claim]] = {}  # key -> ends and denials of every variant (R6)
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
        self._take_said(records)
        for verdict in records.verdicts:
            self.take_verdict(verdict.a, verdict.b, verdict.exclusive, records.recorded[verdict.sequence])
        traits = self.relations.traits
        tied = [r for r in self.by_relation if traits(r).symmetric or traits(r).excludes]
        linked = (s for relation in tied for s in self.by_relation[relation])
        for statement_id in dict.fromkeys((*linked, *self.verdicts)):  # no other has a rival outside its slot
            self.link(statement_id)

    def _take_mentions(self, mentions: Sequence[Mention]) -> None:
        known: set[tuple[object, ...]] = set()  # of entities that no correction names
        for mention, told in zip(mentions, map(_TOLD, mentions), strict=True):
            if told in known:
                self.entities[mention.entity].count += 1  # all that a repetition changes
                continue
            self.take_mention(mention)
            # An answer of a model counts again in another episode.
            if mention.resolved_by != "model" and not self.fold.involves(mention.entity):
                known.add(told)

    def _take_said(self, records: GroupRecords) -> None:
        heads = {head.sequence: head for head in records.heads}
        mentions = by_episode(records.mentions)
        said = spoken(records.evidence, mentions, self.fold, self.relations, self.births, heads)
        named = name_statements(records.group, said, mentions, self.births)
        worded = _worded(said, named)
        # Ends that came before what they bear on: that has its own first wording.
        late: list[tuple[Spoken, StatementName]] = []
        for item, name in chain(zip(said, named, strict=True), late):
            if name is None:
                continue
            evidence, statement = item.evidence, name[1]
            sequence, recorded = evidence.sequence, evidence.statement
            if statement != recorded or recorded in self.parts:
                moved = evidence.every_variant and statement != recorded
                if moved and statement in worded and statement not in self.statements:
                    late.append((item, name))
                    continue
                known = self.parts.setdefault(recorded, [recorded] if recorded in self.statements else [])
                if statement not in known:
                    known.append(statement)
            head = heads[sequence]
            for claim in self._claims(item, name, head, mentions[sequence]):
                self.statements[claim.statement].claims.append(claim)
            if item.moved_at > head.recorded_at:  # only what was recorded later has moved it
                self.moved[sequence, evidence.ordinal] = item.moved_at
        for key in {key for _, (key, _, _) in late}:
            for claims in (self.general[key], *(self.statements[s].claims for s in self.with_key(key))):
                claims.sort(key=lambda claim: claim.said[1:])

    def take_mention(self, mention: Mention) -> tuple[EntityNote, bool, str]:
        """Take a mention; return its entity, whether that shows differently now, and its name before."""
        shown, _ = self.fold.shown(mention.entity, mention.surface, mention.sequence)
        if shown != mention.entity or mention.entity in self.shows:
            known = self.shows.setdefault(mention.entity, set())
            if not known and mention.entity in self.entities:
                known.add(mention.entity)
            known.add(shown)
        note = self.entities.get(shown)
        if note is None:
            note = self.entities[shown] = EntityNote(shown, self.births[shown])
        name = note.name
        return note, note.take(mention), name

    def _claims(
        self, item: Spoken, name: StatementName, head: EpisodeHead, mentions: Mapping[int, Mention]
    ) -> list[Claim]:
        """Return the claims that evidence adds; a general end is one about each variant, also later (R6).

        mentions: of the episode, by ordinal
        """
        claims: list[Claim] = []
        said, (key, id_, _) = item.evidence, name
        kind, nameless, target = said.kind, said.every_variant, said.object
        statement = self.statements.get(id_)
        if statement is None:
            statement = self._add_statement(item, name)
            if self.general:
                claims += self._elsewhere(self.general.get(key, ()), [id_])
        if said.is_field:
            statement.in_field = True
        if item.own_key is not None and item.own_key != key:
            known = self.attached.setdefault(item.own_key, {})
            known[id_] = known.get(id_, False) or kind not in CLOSING
        at = (head.reference_time, said.sequence, said.ordinal)
        surface = None if target is None else mentions[target].surface
        self.texts[at] = (said.text, head.id, mentions[said.subject].surface, surface)
        dates = (said.valid_from, said.valid_to)
        claim = Claim(id_, at, kind, *dates, said.inferred, head.recorded_at, nameless)
        if kind != "ended" or self._bears_on(claim, id_):
            claims.append(claim)
        if nameless:
            self.general.setdefault(key, []).append(claim)
            claims += self._elsewhere([claim], [s for s in self.with_key(key) if s != id_])
        return claims

    def _elsewhere(self, general: Iterable[Claim], others: Sequence[str]) -> list[Claim]:
        """Return what ends and denials of every variant are as claims about other variants (R6)."""
        bearing = ((claim, other) for claim in general for other in others if self._bears_on(claim, other))
        return [claim._replace(statement=other, other_variant=True) for claim, other in bearing]

    def _bears_on(self, general: Claim, statement: str) -> bool:
        """Whether an end or a denial of every variant speaks of this one: an event has no end (R18)."""
        return general.kind == "denied" or not self.statements[statement].is_event

    def _add_statement(self, item: Spoken, name: StatementName) -> Statement:
        first, ((subject, relation, target), id_, variant) = item.evidence, name
        entity, value = (target, None) if isinstance(target, str) else (None, target)
        born = self.births.get(id_)
        if born is None:
            born = self.births[id_] = (first.sequence, first.ordinal)
        statement = Statement(id_, born, subject, relation, entity, value, variant, first, item.turned)
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
        found: dict[str, tuple[Span, ...]] = {}
        for statement in statements:
            if statement not in found:
                _, members = self.component(statement)
                sweep = self._swept(members)
                found.update((member, sweep.spans(member)) for member in members)
        return found

    def spans_now(self, statement: str) -> tuple[Span, ...]:
        """Return the spans of one statement; they stay in memory until the next commit.

        An episode that is decided asks for the spans of many statements, some of them in one component.
        """
        if statement in self._current_spans:
            return self._current_spans[statement]
        key, members = self.component(statement)
        sweep = None if key is None else self._sweeps.get(key)
        if sweep is None:
            sweep = self._swept(members)
            if key is not None and len(sweep) >= KEEP_SWEEP_FROM:
                self._sweeps[key] = sweep
            else:
                self._current_spans.update((member, sweep.spans(member)) for member in members)
        return sweep.spans(statement)

    def facts_of(self, statements: Iterable[str]) -> list[Fact]:
        """Return all facts of these statements, in the order given, then by start."""
        asked = list(dict.fromkeys(statements))
        spans = self.spans_of(asked)
        return [self.fact(span) for statement in asked for span in spans[statement]]

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
        self, changes: SpanChanges, before: GroupGraph | None = None
    ) -> tuple[tuple[Fact, ...], tuple[str, ...]]:
        """Return the facts that differ and the ids that are gone; before: the graph of the earlier spans."""
        rows: list[Fact] = []
        gone: set[str] = set()
        kept: set[str] = set()
        for earlier, later in changes.values():
            was = {fact.id: fact for fact in map((before or self).fact, earlier)}
            now = {fact.id: fact for fact in map(self.fact, later)}
            rows += [fact for i, fact in now.items() if was.get(i) != fact]
            kept.update(now)
            gone.update(was)
        return tuple(sorted(rows, key=attrgetter("id"))), tuple(sorted(gone - kept))

    def entity(self, id_: str) -> Entity:
        """Return an entity as it shows, with its summary."""
        return replace(self.entities[id_].shown(), summary=summary_in(self, id_))

    def _swept(self, members: Sequence[str]) -> Sweep:
        sweep = Sweep(self)
        sweep.add([claim for member in members for claim in self.statements[member].claims])
        return sweep

    def places(self) -> dict[Place, str]:
        """Return evidence place -> the statement it shows as."""
        own = (c for s in self.statements.values() for c in s.claims if not c.other_variant)
        return {claim.said[1:]: claim.statement for claim in own}

    def shows_as(self, recorded: str) -> frozenset[str]:
        """Return the entities that a recorded one's mentions show as."""
        return frozenset(self.shows.get(recorded) or {recorded} & self.entities.keys())

    def absorb(self, change: EpisodeChange, recorded_at: Instant) -> Difference:
        """Take an episode's records into the graph and return the difference."""
        self._current_spans.clear()
        before = self.spans_of(self._rivalry_changes(change))
        self.births.update((*change.entity_births, *change.statement_births))
        for evidence in change.evidence:
            self.relations.use(evidence.relation)
        for declaration in change.declarations:
            self.relations.declare(declaration, recorded_at)
        for name in dict.fromkeys(self.relations.folded(d.name).name for d in change.declarations):
            self._reindex(name)
        shown: dict[str, EntityNote] = {}
        names: dict[str, str] = {}
        recorded = {mention.entity for mention in change.mentions}
        shows_before = shown_entities(self, recorded)
        mentioned: dict[tuple[str, int], None] = {}
        for mention in change.mentions:
            note, changed, name = self.take_mention(mention)
            mentioned[note.id, mention.sequence] = None
            if changed:
                names.setdefault(note.id, name)
                shown[note.id] = note
        # Stored statements whose words this episode changes (R18): they cost their components.
        renamed = (i for i, name in names.items() if name and name != shown[i].name)
        retold = [statement for entity in renamed for statement in self.about.get(entity, ())]
        retold += [
            s for d in change.declarations if d.aspect == "text" for s in self.by_relation.get(d.name, ())
        ]
        claims = self._take_evidence(change, recorded_at)
        for verdict in change.verdicts:
            self.take_verdict(verdict.a, verdict.b, verdict.exclusive, recorded_at)
        judged = (s for v in change.verdicts for pair in self.judged(v.a, v.b) for s in pair)
        for statement in dict.fromkeys((*claims, *judged)):
            self.link(statement)
        changes = self._sweep_again(before, claims) if before else self._sweep_on(claims)
        facts, gone = self.changed_facts(changes)
        if retold:
            told = {fact.id: fact for fact in (*facts, *self.facts_of(retold))}
            facts = tuple(told[id_] for id_ in sorted(told))
        summarised = update_summaries(self, changes, facts, gone, retold)
        spoken = {c.said[1:]: s for s, taken in claims.items() for c in taken if not c.other_variant}
        return Difference(
            entities=tuple(map(self.entity, sorted({*shown, *summarised}))),
            facts=facts,
            gone_facts=gone,
            mentioned=tuple(sorted(mentioned)),
            shown=tuple(sorted(shown_entities(self, recorded) - shows_before)),
            moved=tuple(moved_evidence(spoken, change.evidence).values()),
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
            shown, flipped, _ = self.relations.folded(declaration.name)
            if declaration.aspect == "cardinality":
                value = as_flipped(declaration.value) if flipped else declaration.value
                if self.relations.traits(shown).cardinality != value:
                    touched += self.by_relation.get(shown, ())
            elif declaration.aspect == "pair":
                for name in (shown, self.relations.folded(declaration.other).name):
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
        pieces = spoken(change.evidence, mentions, self.fold, self.relations, self.births, {})
        for item in pieces:
            said = item.evidence
            if item.key is not None:
                key = self.statements[said.statement].key if said.statement in stored else item.key
                name = (key, said.statement, said.variant)
                for claim in self._claims(item, name, head, mentions[said.sequence]):
                    claims.setdefault(claim.statement, []).append(claim)
        return claims

    def renames(self, change: EpisodeChange, relations: Relations) -> bool:
        """Whether evidence of this episode gives a statement another relation name (R17c).

        The statement may be one that the episode makes: then its variant is counted under the other name.
        relations: with the episode's declarations
        """
        made: dict[str, Evidence] = {}  # statement of this episode -> its first evidence
        for evidence in change.evidence:
            statement = self.statements.get(evidence.statement)
            if statement is None:
                first = made.setdefault(evidence.statement, evidence)
                name, is_named_by_end = relations.folded(first.relation).name, first.kind in CLOSING
            else:
                name = statement.relation
                # Any end: it may be all that names one of several recorded statements that show as one.
                is_named_by_end = any(c.kind in CLOSING for c in statement.claims if not c.other_variant)
            now = is_named_by_end, not relations.is_listed(name)  # the least gives the name
            then = evidence.kind in CLOSING, not relations.is_listed(evidence.relation)
            if relations.folded(evidence.relation).name != name and then < now:
                return True
        return False

    def _sweep_on(self, claims: dict[str, list[Claim]]) -> SpanChanges:
        """Add the claims, where the rivalry between stored statements is unchanged."""
        parts: dict[Hashable, tuple[Hashable | None, list[str], list[Claim]]] = {}
        for statement, added in claims.items():
            key, members = self.component(statement)
            part = parts.setdefault(key if key is not None else tuple(members), (key, members, []))
            part[2].extend(added)
        changes: SpanChanges = {}
        for key, members, added in parts.values():
            sweep = self._sweeps.get(key) if key is not None else None
            if sweep is None:
                sweep = self._swept(members)
                if key is not None and len(sweep) >= KEEP_SWEEP_FROM:
                    self._sweeps[key] = sweep
            changes.update(sweep.add(added))
        for statement, added in claims.items():
            self.statements[statement].claims.extend(added)
        return changes

    def _sweep_again(
        self, before: dict[str, tuple[Span, ...]], claims: dict[str, list[Claim]]
    ) -> SpanChanges:
        """Add the claims and sweep anew, where rivalry changed; before: spans of the statements concerned."""
        self._sweeps.clear()  # each is made again when needed
        for statement in claims:
            _, members = self.component(statement)
            before = self.spans_of([m for m in members if m not in before]) | before
        for statement, added in claims.items():
            self.statements[statement].claims.extend(added)
        after = self.spans_of(dict.fromkeys((*before, *claims)))
        return {s: (before.get(s, ()), spans) for s, spans in after.items() if before.get(s, ()) != spans}


def _worded(said: Sequence[Spoken], named: Sequence[StatementName | None]) -> set[str]:
    """Return the statements of which more is said than that every variant of them ended or was not so.

    They are needed only where evidence says such an end.
    """
    if not any(item.evidence.every_variant for item in said):
        return set()
    own = ((item, name) for item, name in zip(said, named, strict=True) if name is not None)
    return {statement for item, (_, statement, _) in own if not item.evidence.every_variant}
