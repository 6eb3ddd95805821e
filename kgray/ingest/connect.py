"""Facts to statements: the same statement, a new variant of it, or a new one (R18)."""

from __future__ import annotations

from dataclasses import dataclass, field

from kgray.derivation.statements import Statement, StatementKey, fold_key, marks_of
from kgray.ingest.relate import Related
from kgray.ingest.resolve import Resolved
from kgray.ingest.values import Case
from kgray.ports import Question
from kgray.records import Evidence, ExtractedFact, Place, Value, statement_id


@dataclass(slots=True)
class Connected:
    """The evidence of an episode, and the statements that it makes or speaks of."""

    evidence: list[Evidence] = field(default_factory=list)
    made: dict[str, Statement] = field(default_factory=dict)  # new statements, by id
    touched: dict[str, None] = field(default_factory=dict)  # all that evidence speaks of, in order
    births: dict[str, Place] = field(default_factory=dict)


def connect(case: Case, resolved: Resolved, related: Related) -> Connected:
    """Find or make the statement of each fact; one whose question is open counts as new for now."""
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
            # A part that a split made has an id that no row recorded yet: this evidence records it.
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
    """Return the statements that say this, by birth: stored under any name that folds here, and new ones."""
    graph = case.state.graph
    keys = _stored_keys(case, key, related)
    found = [graph.statements[s] for k in keys for s in graph.buckets.get(k) or ()]
    found += [s for s in connected.made.values() if s.key == key]
    return sorted(found, key=lambda s: (s.born, s.id))


def _stored_keys(case: Case, key: StatementKey, related: Related) -> list[StatementKey]:
    """Return the keys under which stored statements that now say `key` stand."""
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
    """Return the statement that the fact speaks of, None for a new one."""
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
        return known[0]  # an end or a denial is told in words of its own
    index = _variant(case, fact, known)
    return None if index is None else known[index]


def _ended(case: Case, fact: ExtractedFact, place: Place, known: list[Statement]) -> Statement:
    """Return which of several variants an end or a denial speaks of.

    The one whose marks it bears ("left the part-time job"); else the model says; where it says none of
    them, the one that was last said to hold: "I left Acme" ends what was so until then.
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
    """Whether the triple came with words of its own; kgray's default sentence tells nothing more."""
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
