"""Facts to statements (R18), and which statements can hold at the same time (R17).

`connect` finds the statement of each fact, a new variant of it, or makes a new one. `compare_statements`
then rules on a slot's cardinality and gives verdicts on pairs of statements, by asking.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kgray.derivation.statements import Statement, StatementKey, fold_key, marks_of
from kgray.ingest.case import Answers, Case, KnownState
from kgray.ingest.relate import Related, rule
from kgray.ingest.resolve import Resolved
from kgray.ports import Question, Vector
from kgray.records import Evidence, ExtractedFact, Place, Ruling, Value, Verdict, statement_id
from kgray.timeline import Claim


@dataclass(slots=True)
class Connected:
    """The evidence of an episode, and the statements that it makes or is about."""

    evidence: list[Evidence] = field(default_factory=list)
    made: dict[str, Statement] = field(default_factory=dict)  # new statements, by id
    touched: dict[str, None] = field(default_factory=dict)  # every statement with evidence, in order
    births: dict[str, Place] = field(default_factory=dict)


def connect(case: Case, resolved: Resolved, related: Related) -> Connected:
    """Find or make the statement of each fact; while its question is open, a fact makes a new one."""
    connected = Connected()
    stored = case.state.graph.births
    groups = _fact_groups(case.extraction.facts)
    for ordinal, fact in enumerate(case.extraction.facts):
        subject = resolved.shown[fact.source]
        target: str | Value = resolved.shown[fact.target] if fact.target is not None else _value(fact)
        key, _ = fold_key(
            related.relations,
            lambda id_: resolved.births[id_] if id_ in resolved.births else stored[id_],
            fact.relation,
            subject,
            target,
        )
        place = (case.sequence, ordinal)
        statement = None if key is None else _same(case, fact, place, key, related, connected)
        if statement is not None:
            evidence = _evidence(place, fact, groups[ordinal], statement.id, statement.variant)
            # After a split a part may have an id that is not recorded yet: this evidence records it (R16).
            connected.births.setdefault(statement.id, statement.born)
        else:
            made = statement_id(case.episode.group, place)
            connected.births[made] = place
            variant = 0 if key is None else _next_variant(case, key, related, connected)
            evidence = _evidence(place, fact, groups[ordinal], made, variant)
            if key is not None:
                statement = connected.made[made] = _made(made, place, key, evidence)
        if statement is not None:
            connected.touched[statement.id] = None
        connected.evidence.append(evidence)
    return connected


def _variants(case: Case, key: StatementKey, related: Related, connected: Connected) -> list[Statement]:
    """Return the statements with this key, by birth: stored ones, under any folded name, and new ones."""
    graph = case.state.graph
    keys = _stored_keys(case, key, related)
    found = [graph.statements[s] for k in keys for s in graph.buckets.get(k) or ()]
    found += [s for s in connected.made.values() if s.key == key]
    return sorted(found, key=lambda s: (s.born, s.id))


def _stored_keys(case: Case, key: StatementKey, related: Related) -> list[StatementKey]:
    """Return the stored keys that fold to `key` under this episode's rulings."""
    graph = case.state.graph
    if related.relations is graph.relations:
        return [key]
    subject, relation, target = key
    keys: dict[StatementKey, None] = {key: None}
    for name in graph.by_relation:
        folded = related.relations.folded(name)
        if folded.name == relation and name != relation:
            if folded.flipped and isinstance(target, str):
                keys[target, name, subject] = None
            else:
                keys[subject, name, target] = None
    return list(keys)


def _same(
    case: Case, fact: ExtractedFact, place: Place, key: StatementKey, related: Related, connected: Connected
) -> Statement | None:
    """Return the statement that the fact is about; None = a new one."""
    known = _variants(case, key, related, connected)
    if not known:
        return None
    if len(known) > 1 and fact.kind != "holds":
        return _ended(case, fact, place, known)
    if case.episode.kind == "triples" and not _is_worded(case, fact):
        return known[0]
    meant = marks_of(fact)
    for statement in known:
        if statement.marks == meant:
            return statement
    if fact.kind != "holds":
        return known[0]  # the wording of an end or a denial differs from that of the statement
    index = _variant(case, fact, known)
    return None if index is None else known[index]


def _ended(case: Case, fact: ExtractedFact, place: Place, known: list[Statement]) -> Statement:
    """Return which of several variants an end or a denial is about.

    The one with the same marks ("left the part-time job"), else the one that the model names, else the one
    last said to hold: "I left Acme" ends what held until then.
    """
    numbers, _, qualifiers = marks_of(fact)
    if numbers or qualifiers:
        for statement in known:
            if (statement.marks[0], statement.marks[2]) == (numbers, qualifiers):
                return statement
    if case.episode.kind != "triples" or _is_worded(case, fact):
        index = _variant(case, fact, known)
        if index is not None:
            return known[index]
    own = (case.episode.reference_time, *place)

    def last_said(statement: Statement) -> tuple[int, int, int]:
        if not statement.claims:  # made by this very episode
            return (case.episode.reference_time, *statement.born)
        held = [c.said for c in statement.claims if c.kind == "holds" and c.said < own]
        return max(held, default=(-(1 << 62), *statement.born))

    return max(known, key=last_said)


def _variant(case: Case, fact: ExtractedFact, known: list[Statement]) -> int | None:
    question = Question(kind="variant", item=fact.text, candidates=tuple(s.wording for s in known))
    answer = case.answer(question)
    index: int | None = None if answer is None else answer["duplicate_of"]
    return index


def _is_worded(case: Case, fact: ExtractedFact) -> bool:
    """Whether a triple came with its own text; the default sentence adds nothing to the triple."""
    return bool(fact.text) and '"text":' in case.episode.text


def _next_variant(case: Case, key: StatementKey, related: Related, connected: Connected) -> int:
    return max((s.variant for s in _variants(case, key, related, connected)), default=-1) + 1


def _made(made: str, place: Place, key: StatementKey, evidence: Evidence) -> Statement:
    subject, relation, target = key
    entity, value = (None, target) if isinstance(target, Value) else (target, None)
    return Statement(made, place, subject, relation, entity, value, evidence.variant, evidence)


def _value(fact: ExtractedFact) -> Value:
    if fact.value is None:
        raise ValueError(f"a fact without target or value: {fact.text!r}")
    return fact.value


def _evidence(place: Place, fact: ExtractedFact, group: int | None, statement: str, variant: int) -> Evidence:
    return Evidence(
        sequence=place[0],
        ordinal=place[1],
        statement=statement,
        variant=variant,
        kind=fact.kind,
        relation=fact.relation,
        text=fact.text,
        subject=fact.source,
        object=fact.target,
        value=fact.value,
        valid_from=fact.valid_from,
        valid_to=fact.valid_to,
        from_precision=fact.from_precision,
        to_precision=fact.to_precision,
        inferred=fact.inferred,
        fact_group=group,
    )


def _fact_groups(facts: tuple[ExtractedFact, ...]) -> list[int | None]:
    """Return for each fact the ordinal of the first with the same text, where several share it (R18)."""
    places: dict[str, list[int]] = {}
    for ordinal, fact in enumerate(facts):
        places.setdefault(fact.text, []).append(ordinal)
    return [places[f.text][0] if len(places[f.text]) > 1 else None for f in facts]


MAX_COMPARED = 15


def compare_statements(case: Case, connected: Connected, related: Related) -> list[Verdict]:
    """Return the verdicts on the statements that this episode is about; may add rulings to `related`."""
    verdicts: dict[tuple[str, str], Verdict] = {}
    every_pair = case.rules.judging == "statement"
    for touched in connected.touched:
        statement = connected.made.get(touched) or case.state.graph.statements[touched]
        if statement.relation in related.undecided:
            continue
        mates: list[Statement] | None = None
        cardinality = related.relations.traits(statement.relation).cardinality
        if cardinality is None and touched in connected.made:
            mates = _slot_mates(case, statement, related, connected)
            cardinality = _ask_cardinality(case, statement, mates, related)
        if not every_pair and cardinality != "depends":
            continue
        if mates is None:
            mates = _slot_mates(case, statement, related, connected)
        if every_pair:
            mates = [*mates, *_pair_mates(case, statement, connected)]
        _judge_mates(case, statement, mates, connected, verdicts)
    return list(verdicts.values())


def _ask_cardinality(
    case: Case, statement: Statement, mates: list[Statement], related: Related
) -> str | None:
    """Rule on a cardinality once, when two objects first meet in a slot; None = open, or not needed yet."""
    others = [m for m in mates if m.key != statement.key]
    if not others:
        return None
    cards = (others[0].wording, statement.wording)
    answer = case.answer(Question(kind="cardinality", item=statement.relation, cards=cards))
    if answer is None:
        return None
    ruling = Ruling(
        sequence=case.sequence,
        ordinal=0,
        name=statement.relation,
        aspect="cardinality",
        value=answer["cardinality"],
        judge=case.rules.judge,
        reason=str(answer.get("reason", "")),
    )
    rule(related, case.state, ruling)
    return ruling.value


def _slot_mates(case: Case, statement: Statement, related: Related, connected: Connected) -> list[Statement]:
    """Return the other statements of the slot, by birth: those stored, and those of this episode."""
    graph = case.state.graph
    ends = [statement.subject]
    if statement.object is not None and related.relations.traits(statement.relation).symmetric:
        ends.append(statement.object)  # a slot of a symmetric relation counts both ends (R17)
    slots = [graph.slots.get(("s", end, statement.relation)) or () for end in ends]
    found = [graph.statements[s] for slot in slots for s in slot]
    if related.relations is not graph.relations and statement.relation not in graph.by_relation:
        found = _folded_slot(case, statement, related)
    found += [
        s
        for s in connected.made.values()
        if s.relation == statement.relation and (s.subject in ends or (len(ends) > 1 and s.object in ends))
    ]
    return [s for s in {s.id: s for s in found}.values() if s.id != statement.id]


def _folded_slot(case: Case, statement: Statement, related: Related) -> list[Statement]:
    """Return the stored statements that a ruling of this episode brings into the slot."""
    graph = case.state.graph
    found: list[Statement] = []
    for name in graph.by_relation:
        folded = related.relations.folded(name)
        if folded.name == statement.relation and not folded.flipped:
            slot = graph.slots.get(("s", statement.subject, name)) or ()
            found += [graph.statements[s] for s in slot]
    return found


def _pair_mates(case: Case, statement: Statement, connected: Connected) -> list[Statement]:
    """Return the statements of other relations with the same subject and object."""
    subject, relation, target = statement.key
    graph = case.state.graph
    found = [graph.statements[s] for s in graph.by_ends.get((subject, target)) or ()]
    found += [s for s in connected.made.values() if (s.subject, s.key[2]) == (subject, target)]
    return [s for s in found if s.relation != relation]


def _judge_mates(
    case: Case,
    statement: Statement,
    mates: list[Statement],
    connected: Connected,
    verdicts: dict[tuple[str, str], Verdict],
) -> None:
    """Ask whether a statement and each mate it was never compared with can hold at the same time."""
    open_mates = []
    for mate in mates:
        if _pair(statement, mate) in verdicts or case.state.graph.verdict(statement.id, mate.id) is not None:
            continue
        if not _never_meet(statement, mate, connected):
            open_mates.append(mate)
    chosen = _most_alike(statement, open_mates, case.state, case.answers)
    if not chosen:
        return
    candidates = tuple(mate.wording for mate in chosen)
    answer = case.answer(Question(kind="verdict", item=statement.wording, candidates=candidates))
    if answer is None:
        return
    first = len(verdicts)
    for index, mate in enumerate(chosen):
        a, b = _pair(statement, mate)
        verdicts[a, b] = Verdict(
            sequence=case.sequence,
            ordinal=first + index,
            a=a,
            b=b,
            exclusive=index in answer["contradicts"],
            judge=case.rules.judge,
            reason=str(answer.get("reason", "")),
        )


def _pair(one: Statement, other: Statement) -> tuple[str, str]:
    return min(one.id, other.id), max(one.id, other.id)


def _most_alike(
    statement: Statement, mates: list[Statement], state: KnownState, answers: Answers
) -> list[Statement]:
    """Return the MAX_COMPARED most similar mates (then the oldest), ordered by birth."""
    if len(mates) > MAX_COMPARED:
        own = _vector(statement, state, answers)
        if own is not None:
            query = state.nearest.quantised(own).astype(np.int64)
            likeness = {m.id: _product(query, _vector(m, state, answers), state) for m in mates}
            mates = sorted(mates, key=lambda m: (-likeness[m.id], m.born, m.id))
        mates = mates[:MAX_COMPARED]
    return sorted(mates, key=lambda m: (m.born, m.id))


def _vector(statement: Statement, state: KnownState, answers: Answers) -> Vector | None:
    held = state.statement_vectors.get(statement.id)
    return held if held is not None else answers.vectors.get(statement.wording)


def _product(
    query: np.ndarray[tuple[int], np.dtype[np.int64]], vector: Vector | None, state: KnownState
) -> int:
    return 0 if vector is None else int(query @ state.nearest.quantised(vector).astype(np.int64))


def _never_meet(a: Statement, b: Statement, connected: Connected) -> bool:
    """Whether all evidence of both has stated starts and ends, and no two of their spans meet (R17)."""
    spans_a, spans_b = _stated(a, connected), _stated(b, connected)
    if spans_a is None or spans_b is None:
        return False
    return all(end <= start or until <= since for start, until in spans_a for since, end in spans_b)


def _stated(statement: Statement, connected: Connected) -> list[tuple[int, int]] | None:
    """Return the stated spans of a statement's evidence; None where any is not stated whole."""
    pieces: Iterable[Claim | Evidence] = (
        *statement.claims,
        *(e for e in connected.evidence if e.statement == statement.id),
    )
    spans = []
    for piece in pieces:
        start, end = (
            (piece.start, piece.end) if isinstance(piece, Claim) else (piece.valid_from, piece.valid_to)
        )
        if piece.kind != "holds" or piece.inferred or start is None or end is None:
            return None
        spans.append((start, end))
    return spans
