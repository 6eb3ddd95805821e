"""What can hold beside what: a slot's cardinality, and verdicts on pairs of statements (R17)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kgray.derivation.statements import Statement
from kgray.ingest.connect import Connected
from kgray.ingest.relate import Related, rule_cardinality
from kgray.ingest.state import GroupState
from kgray.ingest.values import Answers, Questions, Read
from kgray.ports import Question, Vector
from kgray.records import Evidence, Ruling, Verdict
from kgray.timeline import Claim

MAX_COMPARED = 15


def compare_statements(
    read: Read,
    connected: Connected,
    related: Related,
    state: GroupState,
    judging: str,
    judge: str,
    answers: Answers,
    asked: Questions,
) -> list[Verdict]:
    """Ask what must be asked of the statements this episode speaks of; return the verdicts given."""
    verdicts: list[Verdict] = []
    judged: set[tuple[str, str]] = set()
    for statement_id in connected.touched:
        statement = connected.made.get(statement_id) or state.graph.statements[statement_id]
        if statement.relation in related.undecided:
            continue
        mates: list[Statement] | None = None
        cardinality = related.relations.traits(statement.relation).cardinality
        if cardinality is None and statement_id in connected.made:
            mates = _slot_mates(statement, related, state, connected)
            cardinality = _ask_cardinality(read, statement, mates, related, state, judge, answers, asked)
        if judging != "statement" and cardinality != "depends":
            continue
        if mates is None:
            mates = _slot_mates(statement, related, state, connected)
        if judging == "statement":
            mates = [*mates, *_pair_mates(statement, state, connected)]
        verdicts += _judge_mates(
            read, statement, mates, connected, state, judge, answers, asked, judged, len(verdicts)
        )
    return verdicts


def _ask_cardinality(
    read: Read,
    statement: Statement,
    mates: list[Statement],
    related: Related,
    state: GroupState,
    judge: str,
    answers: Answers,
    asked: Questions,
) -> str | None:
    """Rule on a relation once, when two objects first meet in a slot; None while it is open or not needed."""
    others = [m for m in mates if m.key != statement.key]
    if not others:
        return None
    question = Question(
        kind="cardinality", item=statement.relation, cards=(others[0].wording, statement.wording)
    )
    answer = answers.said.get(question)
    if answer is None:
        asked.ask(question)
        return None
    ruling = Ruling(
        sequence=read.episode.sequence,
        ordinal=0,
        name=statement.relation,
        aspect="cardinality",
        value=answer["cardinality"],
        judge=judge,
        reason=str(answer.get("reason", "")),
    )
    rule_cardinality(related, state, ruling)
    return ruling.value


def _slot_mates(
    statement: Statement, related: Related, state: GroupState, connected: Connected
) -> list[Statement]:
    """Return the other statements of the slot, by birth: those stored, and those of this episode."""
    graph = state.graph
    ends = [statement.subject]
    if statement.object is not None and related.relations.traits(statement.relation).symmetric:
        ends.append(statement.object)  # a slot of a symmetric relation counts both ends (R17)
    found = [graph.statements[s] for e in ends for s in graph.slots.get(("s", e, statement.relation), ())]
    if related.relations is not graph.relations and statement.relation not in graph.by_relation:
        found = _folded_slot(statement, related, state)
    found += [
        s
        for s in connected.made.values()
        if s.relation == statement.relation and (s.subject in ends or (len(ends) > 1 and s.object in ends))
    ]
    return [s for s in {s.id: s for s in found}.values() if s.id != statement.id]


def _folded_slot(statement: Statement, related: Related, state: GroupState) -> list[Statement]:
    """Return the stored statements that a ruling of this very episode brings into the slot."""
    found: list[Statement] = []
    for name in state.graph.by_relation:
        folded = related.relations.folded(name)
        if folded.name == statement.relation and not folded.flipped:
            slot = state.graph.slots.get(("s", statement.subject, name), ())
            found += [state.graph.statements[s] for s in slot]
    return found


def _pair_mates(statement: Statement, state: GroupState, connected: Connected) -> list[Statement]:
    """Return the statements of other relations on the same pair of things."""
    subject, relation, target = statement.key
    graph = state.graph
    found = [graph.statements[s] for s in graph.by_ends.get((subject, target), ())]
    found += [s for s in connected.made.values() if (s.subject, s.key[2]) == (subject, target)]
    return [s for s in found if s.relation != relation]


def _judge_mates(
    read: Read,
    statement: Statement,
    mates: list[Statement],
    connected: Connected,
    state: GroupState,
    judge: str,
    answers: Answers,
    asked: Questions,
    judged: set[tuple[str, str]],
    ordinal: int,
) -> list[Verdict]:
    """Ask "can both hold at one moment?" of a statement and those it was never compared with."""
    open_mates = []
    for mate in mates:
        pair = (min(statement.id, mate.id), max(statement.id, mate.id))
        if pair in judged or state.graph.verdict(statement.id, mate.id) is not None:
            continue
        if not _never_meet(statement, mate, connected):
            open_mates.append(mate)
    chosen = _most_alike(statement, open_mates, state, answers)
    if not chosen:
        return []
    question = Question(kind="verdict", item=statement.wording, candidates=tuple(m.wording for m in chosen))
    answer = answers.said.get(question)
    if answer is None:
        asked.ask(question)
        return []
    found = []
    for index, mate in enumerate(chosen):
        a, b = min(statement.id, mate.id), max(statement.id, mate.id)
        judged.add((a, b))
        found.append(
            Verdict(
                sequence=read.episode.sequence,
                ordinal=ordinal + index,
                a=a,
                b=b,
                exclusive=index in answer["contradicts"],
                judge=judge,
                reason=str(answer.get("reason", "")),
            )
        )
    return found


def _most_alike(
    statement: Statement, mates: list[Statement], state: GroupState, answers: Answers
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


def _vector(statement: Statement, state: GroupState, answers: Answers) -> Vector | None:
    held = state.statement_vectors.get(statement.id)
    return held if held is not None else answers.vectors.get(statement.wording)


def _product(
    query: np.ndarray[tuple[int], np.dtype[np.int64]], vector: Vector | None, state: GroupState
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
