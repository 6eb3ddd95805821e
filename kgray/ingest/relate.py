"""Relation names: what the ontology declares of them, and what is asked about pairs of them, once (R17)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from kgray.derivation.names import UNKNOWN, Relations
from kgray.ingest.resolve import Resolved
from kgray.ingest.state import Case, KnownState
from kgray.ontology import Ontology, RelationType
from kgray.ports import Answer, Question
from kgray.records import ExtractedFact, Extraction, Ruling, Value

# Words of a relation name that do not make two names alike: WORKS_AT and LIVES_AT share only AT.
_FUNCTION_WORDS = frozenset(
    """A AN THE AT IN ON TO OF FOR BY WITH FROM AS IS ARE WAS WERE BE BEEN HAS HAVE HAD DOES DO DID NOT
    AND OR""".split()
)
_LATER = 1 << 62
_UNSAID = {"symmetric": "no", "text": ""}  # what holds of a name without a ruling
Aspect = Literal["cardinality", "symmetric", "pair", "text"]
_Place = tuple[str, Aspect, str]  # name, aspect, other name or ""


@dataclass(slots=True)
class Related:
    """The relations with this episode's rulings applied, and those rulings."""

    relations: Relations
    rulings: list[Ruling] = field(default_factory=list)
    # Names with an open question about how they relate to another name.
    undecided: set[str] = field(default_factory=set)


def relate(case: Case, resolved: Resolved) -> Related:
    """Rule on the relation names of the episode's facts; asks about pairs that are open."""
    extraction, state, ontology = case.extraction, case.state, case.rules.ontology
    known = state.graph.relations
    fresh = [n for n in dict.fromkeys(f.relation for f in extraction.facts) if not known.in_use(n)]
    related = Related(known)
    declared = _declared(fresh, state, ontology)
    if fresh or declared:
        related.relations = known.copy()
        for ordinal, fact in enumerate(extraction.facts):
            related.relations.use(fact.relation, (case.sequence, ordinal))
    for (name, aspect, other), value in declared.items():
        rule(related, case, name, aspect, value, other=other, judge="ontology")
    for newer, older, fact in _pairs_to_rule(case, resolved, fresh, related):
        both_declared = ontology.get(newer) is not None and ontology.get(older) is not None
        # Of two declared names the ontology says everything; where it says nothing, they are independent.
        if both_declared or related.relations.pair_ruling(newer, older) is not None:
            continue
        cards = (fact.text, *_example(older, extraction, state))
        answer = case.answer(Question(kind="relation", item=newer, candidates=(older,), cards=cards))
        if answer is None:
            related.undecided.update((newer, older))
        else:
            told = (value for value in ("same_as", "inverse_of", "excludes") if answer.get(value))
            rule(related, case, newer, "pair", next(told, "independent"), other=older, answer=answer)
    return related


def rule(
    related: Related,
    case: Case,
    name: str,
    aspect: Aspect,
    value: str,
    *,
    other: str = "",
    judge: str = "",
    answer: Answer | None = None,
) -> None:
    """Add a ruling of this episode; judge: "" = the one that was asked, who may have given a reason."""
    if related.relations is case.state.graph.relations:
        related.relations = case.state.graph.relations.copy()
    ruling = Ruling(
        sequence=case.sequence,
        ordinal=len(related.rulings),
        name=name,
        aspect=aspect,
        value=value,
        judge=judge or case.rules.judge,
        other=other,
        reason=str((answer or {}).get("reason", "")),
    )
    related.rulings.append(ruling)
    # Its record time is given at the commit, later than all before.
    related.relations.rule(ruling, _LATER)


def _pairs_to_rule(
    case: Case, resolved: Resolved, fresh: list[str], related: Related
) -> list[tuple[str, str, ExtractedFact]]:
    """Return (newer name, older name, a fact with the newer) once for each pair that may need a ruling."""
    graph, facts = case.state.graph, case.extraction.facts
    found: dict[tuple[str, str], ExtractedFact] = {}
    order = {name: place for place, name in enumerate(related.relations.names())}
    firsts = {fact.relation: fact for fact in reversed(facts)}
    for name in fresh:
        words = _telling(name)
        for older in related.relations.names()[: order[name]]:
            if words & _telling(older):
                found.setdefault((name, older), firsts[name])
    met: dict[tuple[str, str | Value], dict[str, None]] = {}
    for fact in facts:
        subject = resolved.shown[fact.source]
        target = fact.value if fact.target is None else resolved.shown[fact.target]
        if target is None:
            continue
        ends = [(subject, target)] + ([(target, subject)] if isinstance(target, str) else [])
        here = {graph.statements[s].relation for e in ends for s in graph.by_ends.get(e) or ()}
        for end in ends:
            here.update(met.get(end, ()))
        for other in sorted(here, key=lambda n: order.get(n, -1)):
            if other != fact.relation and other in order:
                newer, older = sorted((fact.relation, other), key=order.__getitem__, reverse=True)
                found.setdefault((newer, older), firsts.get(newer, fact))
        met.setdefault((subject, target), {})[fact.relation] = None
    return [(newer, older, fact) for (newer, older), fact in found.items()]


def _example(name: str, extraction: Extraction, state: KnownState) -> tuple[str, ...]:
    """Return the first wording of a relation name, stored or of this episode, as 0 or 1 items."""
    stored = state.graph.by_relation.get(state.graph.relations.folded(name).name)
    if stored:
        return (state.graph.statements[stored[0]].wording,)
    return tuple(f.text for f in extraction.facts if f.relation == name)[:1]


def _telling(name: str) -> frozenset[str]:
    """Return the stems of a relation name's telling words: WORKS_AT, WORKED_FOR and WORK_WITH share WORK."""
    return frozenset(_stem(word) for word in name.split("_") if word and word not in _FUNCTION_WORDS)


def _stem(word: str) -> str:
    for ending in ("ING", "ED", "ES", "S"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)].rstrip("E")
    return word.rstrip("E")


def _declared(fresh: list[str], state: KnownState, ontology: Ontology) -> dict[_Place, str]:
    """Return what the ontology says of new names and no ruling in force says already.

    At a run's first commit also of all other names, where the ontology was changed.
    """
    relations = state.graph.relations
    names = list(fresh)
    said: dict[_Place, str] = {}
    if not state.ontology_settled:
        names = [*relations.names(), *fresh]
        said.update(_withdrawn(relations, ontology))
    for kind in _with_targets(names, ontology):
        said.update(_said_of(kind, ontology))
    return {place: value for place, value in said.items() if value != _in_force(relations, *place)}


def _in_force(relations: Relations, name: str, aspect: str, other: str) -> str:
    held = relations.pair_ruling(name, other) if aspect == "pair" else relations.aspect(name, aspect)
    return _UNSAID.get(aspect, "") if held is None else held.value


def _withdrawn(relations: Relations, ontology: Ontology) -> Iterator[tuple[_Place, str]]:
    """Yield what withdraws the rulings that the ontology declared once and no longer does."""
    for held in relations.declared():
        kind = ontology.get(held.name)
        place = (held.name, held.aspect, held.other)
        if held.aspect == "cardinality" and (kind is None or kind.cardinality is None):
            yield place, UNKNOWN
        elif held.aspect in _UNSAID and kind is None:
            yield place, _UNSAID[held.aspect]
        elif held.aspect == "pair" and held.other not in dict(_ties(held.name, ontology)):
            yield place, "independent"


def _said_of(kind: RelationType, ontology: Ontology) -> Iterator[tuple[_Place, str]]:
    """Yield all that the ontology declares of a relation."""
    # "many" leaves the other end open: OWNS has many objects, and a thing may have one owner at a time.
    bounds = {mate.cardinality for mate in _mates(kind, ontology)} - {None, "many"}
    if kind.cardinality is not None and not (kind.cardinality == "many" and bounds):
        yield (kind.name, "cardinality", ""), kind.cardinality
    yield (kind.name, "symmetric", ""), "yes" if kind.symmetric else "no"
    yield (kind.name, "text", ""), kind.text
    for other, value in _ties(kind.name, ontology):
        yield (kind.name, "pair", other), value


def _with_targets(names: list[str], ontology: Ontology) -> list[RelationType]:
    """Return the declared relations among the names, and those they are the same as or inverse of."""
    found: dict[str, RelationType] = {}
    waiting = list(reversed(names))
    while waiting:
        kind = ontology.get(waiting.pop())
        if kind is not None and kind.name not in found:
            found[kind.name] = kind
            waiting += [mate.name for mate in _mates(kind, ontology)]
    return list(found.values())


def _mates(kind: RelationType, ontology: Ontology) -> list[RelationType]:
    """Return the declared relations that a relation is the same as or the inverse of, whichever says it."""
    tied = [other for other, value in _ties(kind.name, ontology) if value != "excludes"]
    return [mate for other in tied if (mate := ontology.get(other)) is not None]


def _ties(name: str, ontology: Ontology) -> Iterator[tuple[str, str]]:
    """Yield (other relation, ruling value) for each pair with this name that the ontology declares.

    The settings declare a pair on one of its two names; the first use of either must bring it.
    """
    own = ontology.get(name)
    yield from () if own is None else _declared_pairs(own)
    for partner in ontology:
        yield from ((partner.name, value) for other, value in _declared_pairs(partner) if other == name)


def _declared_pairs(kind: RelationType) -> Iterator[tuple[str, str]]:
    yield from ((other, "excludes") for other in kind.excludes)
    if kind.same_as:
        yield kind.same_as, "same_as"
    if kind.inverse_of:
        yield kind.inverse_of, "inverse_of"
