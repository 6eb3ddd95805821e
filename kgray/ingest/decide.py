"""What an episode changes in the graph, or what must be asked first: resolve, relate, connect, compare.

`resolve.py` has the first step, `relate.py` the second. `connect` finds the statement of each fact, a new
variant of it, or makes a new statement (R18). `compare_statements` rules on a slot's cardinality and gives
verdicts on pairs of statements, by asking (R17).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from kgray.derivation.change import EpisodeChange
from kgray.derivation.statements import (
    NAMELESS,
    Statement,
    StatementKey,
    fold_key,
    marks_of,
    names_variant,
    says_same,
)
from kgray.ingest.candidates import quantised
from kgray.ingest.extract import shape, told_names
from kgray.ingest.relate import Related, relate
from kgray.ingest.resolve import Resolved, resolve_entities
from kgray.ingest.state import Answers, Case, Decision, KnownState, Questions, ReadEpisode, Rules
from kgray.ports import Question
from kgray.records import Evidence, ExtractedFact, Place, Value, Verdict, statement_id

# What evidence says as the fact does.
_SAID = "kind relation text value valid_from valid_to from_precision to_precision inferred".split()
MAX_COMPARED = 15
RECORD = "record"  # the judge of what a record says by its form


def decide(read: ReadEpisode, state: KnownState, answers: Answers, rules: Rules) -> Decision:
    """Return what `read` changes and what must be asked first. Pure: it waits for nothing.

    Only the first stage with open questions asks, because later questions depend on its answers; each stage
    is one request (R21). The change is final once nothing is asked. It is called on the true state, in order
    (`calls.settle`), and ahead of time on a view of uncommitted episodes.
    """
    told = read.told or told_names(shape(read.extraction, read.episode, rules.ontology), read.episode)
    read.told = told  # an episode is tried several times
    case = Case(read.episode, told.extraction, told.others, state, answers, rules, Questions())
    if texts := _unembedded(case):
        return Decision(asked=Questions(texts=texts))
    asked, resolved = case.asked, resolve_entities(case)
    if asked:
        # The later stages still run, for the probable change; their questions are dropped.
        case = replace(case, asked=Questions())
    related = relate(case, resolved)
    connected = connect(case, resolved, related)
    verdicts = compare_statements(case, connected, related)
    known, vectors = state.graph.entities, answers.vectors
    # The mentions whose surface the stored entity that they show as does not bear; with its id.
    shown = zip(resolved.mentions, resolved.entity_ids, strict=True)
    fresh = [(m, one) for m, one in shown if one not in known or m.surface not in known[one].surfaces]
    made = [(statement.id, statement.wording) for statement in connected.made.values()]
    said = (read.episode.text, *(m.surface for m, _ in fresh), *(wording for _, wording in made))
    case.asked.texts = list(dict.fromkeys(one for one in said if one not in vectors))
    change = EpisodeChange(
        episode=read.episode,
        entity_births=tuple(sorted((note.id, note.born) for note in resolved.new_entities.values())),
        statement_births=tuple(sorted(connected.births.items())),
        mentions=tuple(resolved.mentions),
        evidence=tuple(connected.evidence),
        rulings=tuple(related.rulings),
        verdicts=tuple(verdicts),
        name_vectors=tuple((m, vectors[m.surface].vector) for m, _ in fresh if m.surface in vectors),
        statement_vectors=tuple((id_, vectors[wording]) for id_, wording in made if wording in vectors),
        episode_vector=vectors.get(read.episode.text),
    )
    return Decision(
        asked=asked,
        change=change,
        entities=tuple(resolved.new_entities.values()),
        guessed=frozenset(resolved.guesses),
        statements=tuple(connected.made.values()),
        aliases=tuple((entity, m.surface) for m, entity in fresh if entity in known),
    )


def _unembedded(case: Case) -> list[str]:
    """Return the texts whose vectors deciding or searching will need: new names, wordings, the episode."""
    wanted = [case.episode.text, *(f.text for f in case.extraction.facts)]
    for entity in case.extraction.entities:
        notes = map(case.state.graph.entities.get, case.state.names.bearers(entity.name))
        if not any(note is not None and entity.name in note.surfaces for note in notes):
            wanted.append(entity.name)
    return [text for text in dict.fromkeys(wanted) if text not in case.answers.vectors]


@dataclass(slots=True)
class Connected:
    """The evidence of an episode, and the statements that it makes or is about."""

    evidence: list[Evidence] = field(default_factory=list)
    made: dict[str, Statement] = field(default_factory=dict)  # new statements, by id
    touched: dict[str, None] = field(default_factory=dict)  # every statement with evidence, in order
    births: dict[str, Place] = field(default_factory=dict)
    # New statements by key, by ("s", subject, relation), by ("o", object, relation) and by both ends, oldest
    # first: an episode may make 10,000.
    found_by: dict[tuple[object, ...], list[Statement]] = field(default_factory=dict)

    def make(self, place: Place, key: StatementKey, evidence: Evidence) -> None:
        """Add the new statement that this evidence is about."""
        subject, relation, target = key
        entity, value = (None, target) if isinstance(target, Value) else (target, None)
        id_, variant = evidence.statement, evidence.variant
        statement = Statement(id_, place, subject, relation, entity, value, variant, evidence)
        self.made[id_] = statement
        for by in (key, ("s", subject, relation), ("o", target, relation), (subject, target)):
            self.found_by.setdefault(by, []).append(statement)


def connect(case: Case, resolved: Resolved, related: Related) -> Connected:
    """Find or make the statement of each fact; while its question is open, a fact makes a new one."""
    connected, facts = Connected(), case.extraction.facts
    stored = case.state.graph.entities

    def born_of(entity: str) -> Place:
        return (resolved.new_entities.get(entity) or stored[entity]).born

    sharing: dict[str, list[int]] = {}  # the ordinals of the facts by their text (R18)
    for ordinal, fact in enumerate(facts):
        sharing.setdefault(fact.text, []).append(ordinal)
    for ordinal, fact in enumerate(facts):
        subject = resolved.entity_ids[fact.source]
        target = fact.value if fact.target is None else resolved.entity_ids[fact.target]
        key, _ = fold_key(related.relations, born_of, fact.relation, subject, target)
        place = (case.episode.sequence, ordinal)
        names = [case.extraction.entities[i].name for i in (fact.source, fact.target) if i is not None]
        known = [] if key is None else _variants(case, key, related, connected)
        statement = _same(case, fact, place, known, names)
        if statement is not None:
            made, born, variant = statement.id, statement.born, statement.variant
        else:
            made, born = statement_id(case.episode.group, place), place
            variant = max((s.variant for s in known), default=-1) + 1
        # After a split a part may have an id that is not recorded yet: this evidence records it (R16).
        connected.births.setdefault(made, born)
        same, closes = sharing[fact.text], fact.kind in {"ended", "denied"}
        evidence = Evidence(
            sequence=place[0],
            ordinal=ordinal,
            statement=made,
            variant=variant,
            subject=fact.source,
            object=fact.target,
            **{name: getattr(fact, name) for name in _SAID},
            fact_group=same[0] if len(same) > 1 else None,
            every_variant=closes and not names_variant(marks_of(fact), names),
        )
        connected.evidence.append(evidence)
        if key is not None:
            connected.touched[made] = None
            if statement is None:
                connected.make(place, key, evidence)
    return connected


def _variants(case: Case, key: StatementKey, related: Related, connected: Connected) -> list[Statement]:
    """Return the statements with this key, by birth: stored ones, under any folded name, and new ones."""
    graph = case.state.graph
    subject, relation, target = key
    keys: dict[StatementKey, None] = {key: None}
    for name, flipped in _folded_names(case, relation, related):
        folded = (target, name, subject) if flipped and isinstance(target, str) else (subject, name, target)
        keys[folded] = None
    found = [graph.statements[s] for k in keys for s in graph.buckets.get(k) or ()]
    found += connected.found_by.get(key, ())
    return sorted(found, key=lambda s: (s.born, s.id))


def _folded_names(case: Case, relation: str, related: Related) -> list[tuple[str, bool]]:
    """Return (stored name, whether its ends are swapped) of each that a ruling of this episode folds."""
    graph = case.state.graph
    if related.relations is graph.relations:
        return []
    folded = ((name, related.relations.folded(name)) for name in graph.by_relation if name != relation)
    return [(name, shown.flipped) for name, shown in folded if shown.name == relation]


def _same(
    case: Case, fact: ExtractedFact, place: Place, known: list[Statement], names: list[str]
) -> Statement | None:
    """Return which of the statements with its key a fact is about; None = a new one.

    names: of what the fact connects, as the episode has them
    """
    if not known:
        return None
    if fact.kind == "happened":
        return next((statement for statement in known if says_same(statement.first, fact)), None)
    if fact.kind != "holds" and not names_variant(marks_of(fact), names):
        return min(known, key=lambda statement: statement.standing)  # it speaks of all (R6)
    if fact.kind != "denied":
        known = [statement for statement in known if not statement.is_event]
    own = (case.episode.reference_time, *place)
    if fact.kind != "holds":
        return _ended(case, fact, own, known) if known else None
    # The default sentence of a triple adds nothing to it. It says again the variant that names none, else the
    # first that was told of before it: that one may hold still.
    if case.episode.kind == "triples" and not (fact.text and '"text":' in case.episode.text):
        plain = (statement for statement in known if not names_variant(statement.marks, names))
        before = (s for s in known if not s.claims or min(claim.said for claim in s.claims) < own)
        return next(plain, None) or next(before, None)
    meant = marks_of(fact)
    for statement in known:
        if statement.marks == meant:
            return statement
    # An end that named no variant is none that this could be said of again.
    known = [statement for statement in known if statement.standing[0] != NAMELESS]
    return _asked(case, fact, known) if known else None


def _ended(
    case: Case, fact: ExtractedFact, own: tuple[int, int, int], known: list[Statement]
) -> Statement | None:
    """Return which variant an end or a denial is recorded with that names one; None = one that is new.

    By its marks ("no longer part-time"), else the one that the model names, else the one last said to hold.
    """
    numbers, _, qualifiers = marks_of(fact)
    for statement in known:
        if (statement.marks[0], statement.marks[2]) == (numbers, qualifiers):
            return statement
    if (named := _asked(case, fact, known)) is not None or qualifiers:
        return named

    def last_said(statement: Statement) -> tuple[int, int, int]:
        if not statement.claims:  # made by this very episode
            return (own[0], *statement.born)
        held = [c.said for c in statement.claims if c.kind == "holds" and c.said < own]
        return max(held, default=(-(1 << 62), *statement.born))

    return max(known, key=last_said)


def _asked(case: Case, fact: ExtractedFact, known: list[Statement]) -> Statement | None:
    question = Question(kind="variant", item=fact.text, candidates=tuple(s.wording for s in known))
    answer = case.answer(question)
    index = None if answer is None else answer["duplicate_of"]
    return None if index is None else known[index]


def compare_statements(case: Case, connected: Connected, related: Related) -> list[Verdict]:
    """Return the verdicts on the statements that this episode is about; may add rulings to `related`."""
    slots, graph = _Slots(case, connected, related), case.state.graph
    # The facts that let a statement hold alone in its slot.
    only = {e.statement: f for e, f in zip(connected.evidence, case.extraction.facts, strict=True) if f.only}
    for touched in connected.touched:
        statement = connected.made.get(touched) or graph.statements[touched]
        if statement.is_event or statement.relation in related.undecided:
            continue
        subject, name, target = statement.key
        cardinality = related.relations.traits(name).cardinality
        if touched in only:
            slots.exclude_mates(statement, only[touched])
        elif cardinality is None and touched in connected.made:
            # Asked once, when two objects first meet in a slot.
            others = [mate for mate in slots.mates(statement) if mate.key != statement.key]
            cards = (others[0].wording, statement.wording) if others else ()
            answer = case.answer(Question(kind="cardinality", item=name, cards=cards)) if cards else None
            if answer is not None:
                cardinality = answer["cardinality"]
                related.rule(name, "cardinality", cardinality, reason=str(answer.get("reason", "")))
        if case.rules.judging == "statement":  # other relations between the same ends count, too
            pairs = [graph.statements[s] for s in graph.by_ends.get((subject, target)) or ()]
            pairs += connected.found_by.get((subject, target), ())
            more = [mate for mate in pairs if mate.relation != name and not mate.is_event]
            slots.judge(statement, [*slots.mates(statement), *more])
        elif cardinality == "depends":
            slots.judge(statement, slots.mates(statement))
    return list(slots.verdicts.values())


@dataclass(slots=True)
class _Slots:
    """What shares a slot with the statements that an episode is about, and the verdicts on that."""

    case: Case
    connected: Connected
    related: Related
    verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    # A mate may stand twice among those that are compared: its verdict is made twice, under two numbers.
    _ordinals: Iterator[int] = field(default_factory=count)

    def exclude_mates(self, statement: Statement, fact: ExtractedFact) -> None:
        """Let a statement hold alone in its slot, as a field of a record does; nobody is asked.

        A relation without a cardinality becomes single-valued; where it may have many values, such as OWNS,
        the statement excludes those that the slot has.
        """
        relations = self.related.relations
        flipped = relations.folded(fact.relation).flipped
        if flipped:  # "is owned by" is OWNS, the other way round: one subject for the object
            stored = self.case.state.graph.slots.get(("o", str(statement.object), statement.relation)) or ()
            mates = [self.case.state.graph.statements[s] for s in stored]
            mates += self.connected.found_by.get(("o", statement.object, statement.relation), ())
        else:
            mates = self.mates(statement)
        mates = [mate for mate in mates if mate.key != statement.key]
        cardinality = relations.traits(statement.relation).cardinality
        if not mates or cardinality == ("single_object" if flipped else "single"):
            return
        if cardinality is None:
            self.related.rule(fact.relation, "cardinality", "single", judge=RECORD)
            return
        for mate in mates:
            if not self._is_judged(statement, mate):
                self._add(statement, mate, exclusive=True, judge=RECORD)

    def mates(self, statement: Statement) -> list[Statement]:
        """Return the other statements of the slot, by birth: those stored, and those of this episode."""
        graph, name = self.case.state.graph, statement.relation
        ends = [statement.subject]
        if statement.object is not None and self.related.relations.traits(name).symmetric:
            ends.append(statement.object)  # a slot of a symmetric relation counts both ends (R17)
        keys = [("s", end, name) for end in ends]
        if name not in graph.by_relation:  # a ruling of this episode may fold stored names to it
            folded = _folded_names(self.case, name, self.related)
            keys = [("s", statement.subject, stored) for stored, flipped in folded if not flipped]
        found = [graph.statements[s] for key in keys for s in graph.slots.get(key) or ()]
        sides = "so" if len(ends) > 1 else "s"
        places = [(side, end, name) for end in ends for side in sides]
        made = [s for place in places for s in self.connected.found_by.get(place, ())]
        found += sorted(made, key=lambda s: (s.born, s.id))
        return [s for s in {s.id: s for s in found}.values() if s.id != statement.id and not s.is_event]

    def judge(self, statement: Statement, mates: list[Statement]) -> None:
        """Ask whether a statement and each mate it was never compared with can hold at the same time."""
        open_mates = [mate for mate in mates if not self._is_judged(statement, mate)]
        # Two whose spans are all stated, and never meet, need no verdict (R17).
        if open_mates and (spans := _stated(statement, self.connected)) is not None:
            others = [(mate, _stated(mate, self.connected)) for mate in open_mates]
            open_mates = [mate for mate, its in others if its is None or _meet(spans, its)]
        if len(open_mates) > MAX_COMPARED:  # the most similar, then the oldest
            own = self._quantised(statement)
            if own is not None:
                vectors = [(mate, self._quantised(mate)) for mate in open_mates]
                likeness = {mate.id: 0 if vector is None else int(own @ vector) for mate, vector in vectors}
                open_mates.sort(key=lambda m: (-likeness[m.id], m.born, m.id))
            del open_mates[MAX_COMPARED:]
        if not open_mates:
            return
        chosen = sorted(open_mates, key=lambda m: (m.born, m.id))
        candidates = tuple(mate.wording for mate in chosen)
        answer = self.case.answer(Question(kind="verdict", item=statement.wording, candidates=candidates))
        if answer is None:
            return
        reason = str(answer.get("reason", ""))
        for index, mate in enumerate(chosen):
            self._add(statement, mate, index in answer["contradicts"], self.case.rules.judge, reason)

    def _is_judged(self, one: Statement, other: Statement) -> bool:
        pair = (min(one.id, other.id), max(one.id, other.id))
        return pair in self.verdicts or self.case.state.graph.verdict(*pair) is not None

    def _add(self, one: Statement, other: Statement, exclusive: bool, judge: str, reason: str = "") -> None:
        a, b = min(one.id, other.id), max(one.id, other.id)
        self.verdicts[a, b] = Verdict(
            sequence=self.case.episode.sequence,
            ordinal=next(self._ordinals),
            a=a,
            b=b,
            exclusive=exclusive,
            judge=judge,
            reason=reason,
        )

    def _quantised(self, statement: Statement) -> NDArray[np.int64] | None:
        """Return the vector of a statement's first wording in integers: sums are exact; None: unknown."""
        state = self.case.state
        vector = state.statement_vectors.get(statement.id)
        if vector is None and (said := self.case.answers.vectors.get(statement.wording)) is not None:
            vector = said.vector
        return None if vector is None else quantised(vector).astype(np.int64)


def _meet(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> bool:
    return any(end > start and until > since for start, until in one for since, end in other)


def _stated(statement: Statement, connected: Connected) -> list[tuple[int, int]] | None:
    """Return the stated spans of a statement's evidence; None where any is not stated whole."""
    pieces = [(c.kind, c.inferred, c.start, c.end) for c in statement.claims]
    fresh = (e for e in connected.evidence if e.statement == statement.id)
    pieces += [(e.kind, e.inferred, e.valid_from, e.valid_to) for e in fresh]
    spans = []
    for kind, inferred, start, end in pieces:
        if kind != "holds" or inferred or start is None or end is None:
            return None
        spans.append((start, end))
    return spans
