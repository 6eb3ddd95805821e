"""Facts to statements (R18), and which statements can hold at the same time (R17).

`connect` finds the statement of each fact, a new variant of it, or makes a new one. `compare_statements`
then rules on a slot's cardinality and gives verdicts on pairs of statements, by asking.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kgray.derivation.statements import (
    NAMELESS,
    Statement,
    StatementKey,
    fold_key,
    marks_of,
    names_variant,
    says_same,
)
from kgray.ingest.relate import Related, rule
from kgray.ingest.resolve import Resolved
from kgray.ingest.state import Case
from kgray.ports import Question
from kgray.records import Evidence, ExtractedFact, Place, Value, Verdict, statement_id

# What evidence says as the fact does.
_SAID = "kind relation text value valid_from valid_to from_precision to_precision inferred".split()


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

    def make(self, statement: Statement) -> None:
        """Add a new statement."""
        self.made[statement.id] = statement
        subject, relation, target = statement.key
        for by in (statement.key, ("s", subject, relation), ("o", target, relation), (subject, target)):
            self.found_by.setdefault(by, []).append(statement)


def connect(case: Case, resolved: Resolved, related: Related) -> Connected:
    """Find or make the statement of each fact; while its question is open, a fact makes a new one."""
    connected = Connected()
    stored = case.state.graph.entities
    groups = _fact_groups(case.extraction.facts)
    for ordinal, fact in enumerate(case.extraction.facts):
        subject = resolved.shown[fact.source]
        target = fact.value if fact.target is None else resolved.shown[fact.target]
        key, _ = fold_key(
            related.relations,
            lambda id_: (resolved.made.get(id_) or stored[id_]).born,
            fact.relation,
            subject,
            target,
        )
        place = (case.sequence, ordinal)
        statement = None if key is None else _same(case, fact, place, key, related, connected)
        if statement is not None:
            evidence = _evidence(case, fact, place, groups[ordinal], statement.id, statement.variant)
            # After a split a part may have an id that is not recorded yet: this evidence records it (R16).
            connected.births.setdefault(statement.id, statement.born)
        else:
            made = statement_id(case.episode.group, place)
            connected.births[made] = place
            known = [] if key is None else _variants(case, key, related, connected)
            variant = max((one.variant for one in known), default=-1) + 1
            evidence = _evidence(case, fact, place, groups[ordinal], made, variant)
            if key is not None:
                statement = _made(made, place, key, evidence)
                connected.make(statement)
        if statement is not None:
            connected.touched[statement.id] = None
        connected.evidence.append(evidence)
    return connected


def _variants(case: Case, key: StatementKey, related: Related, connected: Connected) -> list[Statement]:
    """Return the statements with this key, by birth: stored ones, under any folded name, and new ones."""
    graph = case.state.graph
    keys = _stored_keys(case, key, related)
    found = [graph.statements[s] for k in keys for s in graph.buckets.get(k) or ()]
    found += connected.found_by.get(key, ())
    return sorted(found, key=lambda s: (s.born, s.id))


def _stored_keys(case: Case, key: StatementKey, related: Related) -> list[StatementKey]:
    """Return the stored keys that fold to `key` under this episode's rulings."""
    subject, relation, target = key
    keys: dict[StatementKey, None] = {key: None}
    for name, flipped in _folded_names(case, relation, related):
        if flipped and isinstance(target, str):
            keys[target, name, subject] = None
        else:
            keys[subject, name, target] = None
    return list(keys)


def _folded_names(case: Case, relation: str, related: Related) -> list[tuple[str, bool]]:
    """Return (stored name, whether its ends are swapped) of each that a ruling of this episode folds."""
    graph = case.state.graph
    if related.relations is graph.relations:
        return []
    folded = ((name, related.relations.folded(name)) for name in graph.by_relation if name != relation)
    return [(name, shown.flipped) for name, shown in folded if shown.name == relation]


def _same(
    case: Case, fact: ExtractedFact, place: Place, key: StatementKey, related: Related, connected: Connected
) -> Statement | None:
    """Return the statement that the fact is about; None = a new one."""
    known = _variants(case, key, related, connected)
    if fact.kind == "happened":
        return next((statement for statement in known if says_same(statement.first, fact)), None)
    if fact.kind != "holds" and known and not names_variant(marks_of(fact), _ends(case, fact)):
        return min(known, key=lambda statement: statement.standing)  # it speaks of all (R6)
    if fact.kind != "denied":
        known = [statement for statement in known if not statement.is_event]
    if not known:
        return None
    if fact.kind != "holds":
        return _ended(case, fact, place, known)
    # The default sentence of a triple adds nothing to it.
    if case.episode.kind == "triples" and not (fact.text and '"text":' in case.episode.text):
        return _unworded(case, fact, place, known)
    meant = marks_of(fact)
    for statement in known:
        if statement.marks == meant:
            return statement
    # An end that named no variant is none that this could be said of again.
    known = [statement for statement in known if statement.standing[0] != NAMELESS]
    index = _variant(case, fact, known) if known else None
    return None if index is None else known[index]


def _unworded(case: Case, fact: ExtractedFact, place: Place, known: list[Statement]) -> Statement | None:
    """Return which variant a fact without a sentence of its own says again; None = one that is new.

    The one that names no variant, else the first that was told of before it: it may say that one holds still.
    """
    own = (case.episode.reference_time, *place)
    names = _ends(case, fact)
    plain = [statement for statement in known if not names_variant(statement.marks, names)]
    before = (s for s in known if not s.claims or min(claim.said for claim in s.claims) < own)
    return next(iter(plain), None) or next(before, None)


def _ended(case: Case, fact: ExtractedFact, place: Place, known: list[Statement]) -> Statement | None:
    """Return which variant an end or a denial is recorded with that names one; None = one that is new.

    By its marks ("no longer part-time"), else the one that the model names, else the one last said to hold.
    """
    numbers, _, qualifiers = marks_of(fact)
    for statement in known:
        if (statement.marks[0], statement.marks[2]) == (numbers, qualifiers):
            return statement
    index = _variant(case, fact, known)
    if index is not None:
        return known[index]
    if qualifiers:
        return None
    own = (case.episode.reference_time, *place)

    def last_said(statement: Statement) -> tuple[int, int, int]:
        if not statement.claims:  # made by this very episode
            return (case.episode.reference_time, *statement.born)
        held = [c.said for c in statement.claims if c.kind == "holds" and c.said < own]
        return max(held, default=(-(1 << 62), *statement.born))

    return max(known, key=last_said)


def _ends(case: Case, fact: ExtractedFact) -> list[str]:
    """Return the names of what a fact connects, as the episode has them."""
    places = [fact.source] if fact.target is None else [fact.source, fact.target]
    return [case.extraction.entities[place].name for place in places]


def _variant(case: Case, fact: ExtractedFact, known: list[Statement]) -> int | None:
    question = Question(kind="variant", item=fact.text, candidates=tuple(s.wording for s in known))
    answer = case.answer(question)
    index: int | None = None if answer is None else answer["duplicate_of"]
    return index


def _made(made: str, place: Place, key: StatementKey, evidence: Evidence) -> Statement:
    subject, relation, target = key
    entity, value = (None, target) if isinstance(target, Value) else (target, None)
    return Statement(made, place, subject, relation, entity, value, evidence.variant, evidence)


def _evidence(
    case: Case, fact: ExtractedFact, place: Place, group: int | None, statement: str, variant: int
) -> Evidence:
    closes = fact.kind in {"ended", "denied"}
    return Evidence(
        sequence=place[0],
        ordinal=place[1],
        statement=statement,
        variant=variant,
        subject=fact.source,
        object=fact.target,
        **{name: getattr(fact, name) for name in _SAID},
        fact_group=group,
        every_variant=closes and not names_variant(marks_of(fact), _ends(case, fact)),
    )


def _fact_groups(facts: tuple[ExtractedFact, ...]) -> list[int | None]:
    """Return for each fact the ordinal of the first with the same text, where several share it (R18)."""
    places: dict[str, list[int]] = {}
    for ordinal, fact in enumerate(facts):
        places.setdefault(fact.text, []).append(ordinal)
    return [places[f.text][0] if len(places[f.text]) > 1 else None for f in facts]


MAX_COMPARED = 15
RECORD = "record"  # the judge of what a record says by its form


def compare_statements(case: Case, connected: Connected, related: Related) -> list[Verdict]:
    """Return the verdicts on the statements that this episode is about; may add rulings to `related`."""
    comparison = _Comparison(case, connected, related)
    only = {e.statement: f for e, f in zip(connected.evidence, case.extraction.facts, strict=True) if f.only}
    for touched in connected.touched:
        statement = connected.made.get(touched) or case.state.graph.statements[touched]
        if not (statement.is_event or statement.relation in related.undecided):
            comparison.compare(statement, only.get(touched))
    return list(comparison.verdicts.values())


@dataclass(slots=True)
class _Comparison:
    """The statements that an episode is about, held against those that may exclude them."""

    case: Case
    connected: Connected
    related: Related
    verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)

    def compare(self, statement: Statement, only: ExtractedFact | None) -> None:
        """Give verdicts on a statement and its mates; only: the fact that lets it hold alone in its slot."""
        cardinality = self.related.relations.traits(statement.relation).cardinality
        if only is not None:
            self._exclude_mates(statement, only)
        elif cardinality is None and statement.id in self.connected.made:
            cardinality = self._ask_cardinality(statement)
        if self.case.rules.judging == "statement":
            self._judge_mates(statement, [*self._slot_mates(statement), *self._pair_mates(statement)])
        elif cardinality == "depends":
            self._judge_mates(statement, self._slot_mates(statement))

    def _exclude_mates(self, statement: Statement, fact: ExtractedFact) -> None:
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
            mates = self._slot_mates(statement)
        mates = [mate for mate in mates if mate.key != statement.key]
        cardinality = relations.traits(statement.relation).cardinality
        if not mates or cardinality == ("single_object" if flipped else "single"):
            return
        if cardinality is None:
            rule(self.related, self.case, fact.relation, "cardinality", "single", judge=RECORD)
            return
        for mate in mates:
            if not self._is_judged(statement, mate):
                self._judge(statement, mate, len(self.verdicts), exclusive=True, judge=RECORD)

    def _ask_cardinality(self, statement: Statement) -> str | None:
        """Rule on a cardinality once, when two objects first meet in a slot; None = open, or no need yet."""
        others = [m for m in self._slot_mates(statement) if m.key != statement.key]
        if not others:
            return None
        name, cards = statement.relation, (others[0].wording, statement.wording)
        answer = self.case.answer(Question(kind="cardinality", item=name, cards=cards))
        if answer is None:
            return None
        ruled: str = answer["cardinality"]
        rule(self.related, self.case, name, "cardinality", ruled, answer=answer)
        return ruled

    def _slot_mates(self, statement: Statement) -> list[Statement]:
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

    def _pair_mates(self, statement: Statement) -> list[Statement]:
        """Return the statements of other relations with the same subject and object."""
        subject, relation, target = statement.key
        graph = self.case.state.graph
        found = [graph.statements[s] for s in graph.by_ends.get((subject, target)) or ()]
        found += self.connected.found_by.get((subject, target), ())
        return [s for s in found if s.relation != relation and not s.is_event]

    def _judge_mates(self, statement: Statement, mates: list[Statement]) -> None:
        """Ask whether a statement and each mate it was never compared with can hold at the same time."""
        open_mates = [mate for mate in mates if not self._is_judged(statement, mate)]
        open_mates = [mate for mate in open_mates if not _never_meet(statement, mate, self.connected)]
        chosen = self._most_alike(statement, open_mates)
        if not chosen:
            return
        candidates = tuple(mate.wording for mate in chosen)
        answer = self.case.answer(Question(kind="verdict", item=statement.wording, candidates=candidates))
        if answer is None:
            return
        first, reason = len(self.verdicts), str(answer.get("reason", ""))
        for index, mate in enumerate(chosen):
            exclusive = index in answer["contradicts"]
            self._judge(statement, mate, first + index, exclusive, self.case.rules.judge, reason)

    def _is_judged(self, one: Statement, other: Statement) -> bool:
        return (
            _pair(one, other) in self.verdicts or self.case.state.graph.verdict(one.id, other.id) is not None
        )

    def _judge(
        self, one: Statement, other: Statement, ordinal: int, exclusive: bool, judge: str, reason: str = ""
    ) -> None:
        a, b = _pair(one, other)
        self.verdicts[a, b] = Verdict(
            sequence=self.case.sequence,
            ordinal=ordinal,
            a=a,
            b=b,
            exclusive=exclusive,
            judge=judge,
            reason=reason,
        )

    def _most_alike(self, statement: Statement, mates: list[Statement]) -> list[Statement]:
        """Return the MAX_COMPARED most similar mates (then the oldest), ordered by birth."""
        if len(mates) > MAX_COMPARED:
            own = self._quantised(statement)
            if own is not None:
                vectors = [(mate, self._quantised(mate)) for mate in mates]
                likeness = {mate.id: 0 if vector is None else int(own @ vector) for mate, vector in vectors}
                mates = sorted(mates, key=lambda m: (-likeness[m.id], m.born, m.id))
            mates = mates[:MAX_COMPARED]
        return sorted(mates, key=lambda m: (m.born, m.id))

    def _quantised(self, statement: Statement) -> NDArray[np.int64] | None:
        """Return the vector of a statement's first wording in integers: sums are exact; None: unknown."""
        state = self.case.state
        vector = state.statement_vectors.get(statement.id)
        if vector is None and (said := self.case.answers.vectors.get(statement.wording)) is not None:
            vector = said.vector
        return None if vector is None else state.nearest.quantised(vector).astype(np.int64)


def _pair(one: Statement, other: Statement) -> tuple[str, str]:
    return min(one.id, other.id), max(one.id, other.id)


def _never_meet(a: Statement, b: Statement, connected: Connected) -> bool:
    """Whether all evidence of both has stated starts and ends, and no two of their spans meet (R17)."""
    spans_a, spans_b = _stated(a, connected), _stated(b, connected)
    if spans_a is None or spans_b is None:
        return False
    return all(end <= start or until <= since for start, until in spans_a for since, end in spans_b)


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
