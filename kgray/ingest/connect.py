"""Facts to statements: the same statement, a new variant of it, or a new one (R18)."""

from __future__ import annotations

from dataclasses import dataclass, field

from kgray.derivation.statements import Key, Statement, fold_key, marks_of
from kgray.ingest.relate import Related
from kgray.ingest.resolve import Resolved
from kgray.ingest.state import GroupState
from kgray.ingest.values import Answers, Questions, Read
from kgray.ports import Question
from kgray.records import Evidence, ExtractedFact, Extraction, Place, Value, statement_id


@dataclass(slots=True)
class Connected:
    """The evidence of an episode, and the statements that it makes or speaks of."""

    evidence: list[Evidence] = field(default_factory=list)
    made: dict[str, Statement] = field(default_factory=dict)  # new statements, by id
    touched: dict[str, None] = field(default_factory=dict)  # all that evidence speaks of, in order
    births: dict[str, Place] = field(default_factory=dict)


def connect(
    read: Read,
    extraction: Extraction,
    resolved: Resolved,
    related: Related,
    state: GroupState,
    answers: Answers,
    asked: Questions,
) -> Connected:
    """Find or make the statement of each fact; what is open is added to `asked`, and taken as new for now."""
    connected = Connected()
    births = {**resolved.births}
    groups = _fact_groups(extraction.facts)
    for ordinal, fact in enumerate(extraction.facts):
        subject = resolved.shown[fact.source]
        target: str | Value = resolved.shown[fact.target] if fact.target is not None else _value(fact)
        known = _Births(births, state.graph.births)
        key, _ = fold_key(related.relations, known, fact.relation, subject, target)
        evidence = _evidence(read.episode.sequence, ordinal, fact, groups[ordinal])
        statement = (
            None if key is None else _same(read, evidence, key, related, state, connected, answers, asked)
        )
        place = (evidence.sequence, ordinal)
        if statement is None:
            made = statement_id(read.episode.group, place)
            connected.births[made] = place
            variant = 0 if key is None else _next_variant(key, related, state, connected)
            evidence = _placed(evidence, made, variant)
            if key is not None:
                statement = _made(made, place, key, evidence)
                connected.made[made] = statement
        else:
            evidence = _placed(evidence, statement.id, statement.variant)
            # A part that a split made has an id that no row recorded yet: this evidence records it.
            connected.births.setdefault(statement.id, statement.born)
        if statement is not None:
            connected.touched[statement.id] = None
        connected.evidence.append(evidence)
    return connected


def variants(key: Key, related: Related, state: GroupState, connected: Connected) -> list[Statement]:
    """Return the statements that say this, by birth: stored under any name that folds here, and new ones."""
    graph = state.graph
    found = [graph.statements[s] for k in _stored_keys(key, related, state) for s in graph.buckets.get(k, ())]
    found += [s for s in connected.made.values() if s.key == key]
    return sorted(found, key=lambda s: (s.born, s.id))


def _stored_keys(key: Key, related: Related, state: GroupState) -> list[Key]:
    """Return the keys under which stored statements that now say `key` stand."""
    if related.relations is state.graph.relations:
        return [key]
    subject, relation, target = key
    keys: dict[Key, None] = {key: None}
    for name in state.graph.by_relation:
        folded = related.relations.folded(name)
        if folded.name == relation and name != relation:
            turned = folded.flipped and isinstance(target, str)
            keys[
                (target, name, subject) if turned and isinstance(target, str) else (subject, name, target)
            ] = None
    return list(keys)


def _same(
    read: Read,
    evidence: Evidence,
    key: Key,
    related: Related,
    state: GroupState,
    connected: Connected,
    answers: Answers,
    asked: Questions,
) -> Statement | None:
    """Return the statement that the evidence speaks of, None for a new one."""
    known = variants(key, related, state, connected)
    if not known:
        return None
    if len(known) > 1 and evidence.kind != "holds":
        return _ended(read, evidence, known, answers, asked)
    if read.episode.kind == "triples" and not _worded(read, evidence):
        return known[0]
    meant = marks_of(evidence)
    for statement in known:
        if statement.marks == meant:
            return statement
    if evidence.kind != "holds":
        return known[0]  # an end or a denial is told in words of its own
    index = _variant(evidence, known, answers, asked)
    return None if index is None else known[index]


def _ended(
    read: Read, evidence: Evidence, known: list[Statement], answers: Answers, asked: Questions
) -> Statement:
    """Return which of several variants an end or a denial speaks of.

    The one whose marks it bears ("left the part-time job"); else the model says; where it says none of
    them, the one that was last said to hold: "I left Acme" ends what was so until then.
    """
    numbers, _, qualifiers = marks_of(evidence)
    if numbers or qualifiers:
        for statement in known:
            if (statement.marks[0], statement.marks[2]) == (numbers, qualifiers):
                return statement
    if read.episode.kind != "triples" or _worded(read, evidence):
        index = _variant(evidence, known, answers, asked)
        if index is not None:
            return known[index]
    own = (read.episode.reference_time, evidence.sequence, evidence.ordinal)

    def last_said(statement: Statement) -> tuple[int, int, int]:
        if not statement.claims:  # made by this very episode
            return (read.episode.reference_time, *statement.born)
        held = [c.said for c in statement.claims if c.kind == "holds" and c.said < own]
        return max(held, default=(-(1 << 62), *statement.born))

    return max(known, key=last_said)


def _variant(evidence: Evidence, known: list[Statement], answers: Answers, asked: Questions) -> int | None:
    question = Question(kind="variant", item=evidence.text, candidates=tuple(s.wording for s in known))
    answer = answers.said.get(question)
    if answer is None:
        asked.ask(question)
        return None
    index: int | None = answer["duplicate_of"]
    return index


def _worded(read: Read, evidence: Evidence) -> bool:
    """Whether the triple came with words of its own; kgray's default sentence tells nothing more."""
    return bool(read.extraction.facts[evidence.ordinal].text) and '"text":' in read.episode.text


def _next_variant(key: Key, related: Related, state: GroupState, connected: Connected) -> int:
    return max((s.variant for s in variants(key, related, state, connected)), default=-1) + 1


def _made(made: str, place: Place, key: Key, evidence: Evidence) -> Statement:
    subject, relation, target = key
    entity, value = (None, target) if isinstance(target, Value) else (target, None)
    return Statement(made, place, subject, relation, entity, value, evidence.variant, evidence)


def _value(fact: ExtractedFact) -> Value:
    if fact.value is None:
        raise ValueError(f"a fact without target or value: {fact.text!r}")
    return fact.value


def _evidence(sequence: int, ordinal: int, fact: ExtractedFact, group: int | None) -> Evidence:
    return Evidence(
        sequence=sequence,
        ordinal=ordinal,
        statement="",
        variant=0,
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


def _placed(evidence: Evidence, statement: str, variant: int) -> Evidence:
    # dataclasses.replace costs 5 us a call on a slotted class of 16 fields; this is the hot path.
    object.__setattr__(evidence, "statement", statement)
    object.__setattr__(evidence, "variant", variant)
    return evidence


def _fact_groups(facts: tuple[ExtractedFact, ...]) -> list[int | None]:
    """Return for each fact the ordinal of the first with the same text, where several share it (R18)."""
    places: dict[str, list[int]] = {}
    for ordinal, fact in enumerate(facts):
        places.setdefault(fact.text, []).append(ordinal)
    return [places[f.text][0] if len(places[f.text]) > 1 else None for f in facts]


class _Births(dict[str, Place]):
    """Births of this episode over those of the group, without copying the group's."""

    def __init__(self, own: dict[str, Place], stored: dict[str, Place]) -> None:
        super().__init__(own)
        self._stored = stored

    def __missing__(self, key: str) -> Place:
        return self._stored[key]


__all__ = ["Connected", "connect", "variants"]
