"""What can hold beside what: a slot's cardinality, and verdicts on pairs of statements (R17)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kgray.derivation.statements import Statement
from kgray.ingest.connect import Connected
from kgray.ingest.known import KnownState
from kgray.ingest.relate import Related, rule
from kgray.ingest.values import Answers, Case
from kgray.ports import Question, Vector
from kgray.records import Evidence, Ruling, Verdict
from kgray.timeline import Claim

MAX_COMPARED = 15


def compare_statements(case: Case, connected: Connected, related: Related) -> list[Verdict]:
    """Ask what must be asked of the statements this episode speaks of; return the verdicts given."""
    verdicts: dict[tuple[str, str], Verdict] = {}
    every_pair = case.rules.judging == "statement"
    for statement_id in connected.touched:
        statement = connected.made.get(statement_id) or case.state.graph.statements[statement_id]
        if statement.relation in related.undecided:
            continue
        mates: list[Statement] | None = None
        cardinality = related.relations.traits(statement.relation).cardinality
        if cardinality is None and statement_id in connected.made:
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
    """Rule on a relation once, when two objects first meet in a slot; None while it is open or not needed."""
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
    """Return the stored statements that a ruling of this very episode brings into the slot."""
    graph = case.state.graph
    found: list[Statement] = []
    for name in graph.by_relation:
        folded = related.relations.folded(name)
        if folded.name == statement.relation and not folded.flipped:
            slot = graph.slots.get(("s", statement.subject, name)) or ()
            found += [graph.statements[s] for s in slot]
    return found


def _pair_mates(case: Case, statement: Statement, connected: Connected) -> list[Statement]:
    """Return the statements of other relations on the same pair of things."""
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
    """Ask "can both hold at one moment?" of a statement and those it was never compared with."""
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
    """Return at most 15 mates, the most alike by exact similarity, then by birth; listed by birth."""
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
