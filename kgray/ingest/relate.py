"""Rule on the relation names of an episode's facts: cardinality, and ties between two names (R17)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from kgray.derivation.names import UNKNOWN, Relations
from kgray.ingest.resolve import Resolved
from kgray.ingest.state import LATER, Case, KnownState
from kgray.ontology import Ontology, RelationType
from kgray.ports import Question
from kgray.records import ExtractedFact, Ruling, Value

# Words of a relation name that do not make two names alike: WORKS_AT and LIVES_AT share only AT.
_FUNCTION_WORDS = frozenset(
    """A AN THE AT IN ON TO OF FOR BY WITH FROM AS IS ARE WAS WERE BE BEEN HAS HAVE HAD DOES DO DID NOT
    AND OR""".split()
)
_ENDING = re.compile(r"(?<=...)(?:ING|ED|ES|S)\Z")
_UNSAID = {"symmetric": "no", "text": ""}  # what holds of a name without a ruling
Aspect = Literal["cardinality", "symmetric", "pair", "text"]
_Place = tuple[str, Aspect, str]  # name, aspect, other name or ""


@dataclass(slots=True)
class Related:
    """The relations with this episode's rulings applied, and those rulings."""

    case: Case
    relations: Relations
    rulings: list[Ruling] = field(default_factory=list)
    undecided: set[str] = field(default_factory=set)  # names whose tie to another name is asked about

    def rule(
        self, name: str, aspect: Aspect, value: str, other: str = "", *, judge: str = "", reason: str = ""
    ) -> None:
        """Add a ruling of this episode; judge: "" = the one that was asked."""
        if self.relations is self.case.state.graph.relations:
            self.relations = self.relations.copy()
        ruling = Ruling(
            sequence=self.case.episode.sequence,
            ordinal=len(self.rulings),
            name=name,
            aspect=aspect,
            value=value,
            judge=judge or self.case.rules.judge,
            other=other,
            reason=reason,
        )
        self.rulings.append(ruling)
        self.relations.rule(ruling, LATER)  # its record time is given at the commit, later than all before


def relate(case: Case, resolved: Resolved) -> Related:
    """Rule on the relation names of the episode's facts; asks about pairs that are open."""
    extraction, state, ontology = case.extraction, case.state, case.rules.ontology
    known = state.graph.relations
    fresh = [n for n in dict.fromkeys(f.relation for f in extraction.facts) if not known.in_use(n)]
    related = Related(case, known)
    declared = _declared(fresh, state, ontology)
    if fresh or declared:
        related.relations = known.copy()
        for ordinal, fact in enumerate(extraction.facts):
            related.relations.use(fact.relation, (case.episode.sequence, ordinal))
    for (name, aspect, other), value in declared.items():
        related.rule(name, aspect, value, other, judge="ontology")
    for (newer, older), fact in _pairs_to_rule(case, resolved, fresh, related).items():
        both_declared = ontology.get(newer) is not None and ontology.get(older) is not None
        # Of two declared names the ontology says everything; where it says nothing, they are independent.
        if both_declared or related.relations.pair_ruling(newer, older) is not None:
            continue
        stored = state.graph.by_relation.get(known.folded(older).name) or ()
        example = [state.graph.statements[id_].wording for id_ in stored[:1]]
        example = example or [f.text for f in extraction.facts if f.relation == older][:1]
        cards = (fact.text, *example)
        answer = case.answer(Question(kind="relation", item=newer, candidates=(older,), cards=cards))
        if answer is None:
            related.undecided.update((newer, older))
        else:
            told = (value for value in ("same_as", "inverse_of", "excludes") if answer.get(value))
            ruled, reason = next(told, "independent"), str(answer.get("reason", ""))
            related.rule(newer, "pair", ruled, older, reason=reason)
    return related


def _pairs_to_rule(
    case: Case, resolved: Resolved, fresh: list[str], related: Related
) -> dict[tuple[str, str], ExtractedFact]:
    """Return the pairs of a newer and an older name that may need a ruling; of each a fact with the newer."""
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
        subject = resolved.entity_ids[fact.source]
        target = fact.value if fact.target is None else resolved.entity_ids[fact.target]
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
    return found


def _telling(name: str) -> frozenset[str]:
    """Return the stems of a relation name's telling words: WORKS_AT, WORKED_FOR and WORK_WITH share WORK."""
    words = (word for word in name.split("_") if word and word not in _FUNCTION_WORDS)
    return frozenset(_ENDING.sub("", word).rstrip("E") for word in words)


def _declared(fresh: list[str], state: KnownState, ontology: Ontology) -> dict[_Place, str]:
    """Return what the ontology says of new names and no ruling in force says already.

    At a run's first commit also of all other names, where the ontology was changed.
    """
    relations = state.graph.relations
    said: dict[_Place, str] = {}
    waiting = fresh[::-1]
    if not state.ontology_settled:
        said.update(_undeclared(relations, ontology))
        waiting += reversed(relations.names())
    kinds: dict[str, RelationType] = {}  # of the names, and of those that they are the same as or inverse of
    while waiting:
        kind = ontology.get(waiting.pop())
        if kind is not None and kind.name not in kinds:
            kinds[kind.name] = kind
            waiting += [mate.name for mate in _mates(kind, ontology)]
    for kind in kinds.values():
        # "many" leaves the other end open: OWNS has many objects, and a thing may have one owner at a time.
        bounds = {mate.cardinality for mate in _mates(kind, ontology)} - {None, "many"}
        if kind.cardinality is not None and not (kind.cardinality == "many" and bounds):
            said[kind.name, "cardinality", ""] = kind.cardinality
        said[kind.name, "symmetric", ""] = "yes" if kind.symmetric else "no"
        said[kind.name, "text", ""] = kind.text
        said |= {(kind.name, "pair", other): value for other, value in _ties(kind.name, ontology)}

    def in_force(name: str, aspect: Aspect, other: str) -> str:
        held = relations.pair_ruling(name, other) if aspect == "pair" else relations.aspect(name, aspect)
        return _UNSAID.get(aspect, "") if held is None else held.value

    return {place: value for place, value in said.items() if value != in_force(*place)}


def _undeclared(relations: Relations, ontology: Ontology) -> Iterator[tuple[_Place, str]]:
    """Yield what takes back the rulings that the ontology declared once and no longer does."""
    for held in relations.declared():
        kind = ontology.get(held.name)
        place = (held.name, held.aspect, held.other)
        if held.aspect == "cardinality" and (kind is None or kind.cardinality is None):
            yield place, UNKNOWN
        elif held.aspect in _UNSAID and kind is None:
            yield place, _UNSAID[held.aspect]
        elif held.aspect == "pair" and held.other not in dict(_ties(held.name, ontology)):
            yield place, "independent"


def _mates(kind: RelationType, ontology: Ontology) -> list[RelationType]:
    """Return the declared relations that a relation is the same as or the inverse of, whichever says it."""
    tied = [other for other, value in _ties(kind.name, ontology) if value != "excludes"]
    return [mate for other in tied if (mate := ontology.get(other)) is not None]


def _ties(name: str, ontology: Ontology) -> Iterator[tuple[str, str]]:
    """Yield (other relation, ruling value) for each pair with this name that the ontology declares.

    The settings declare a pair on one of its two names; the first use of either must bring it.
    """
    if (own := ontology.get(name)) is not None:
        yield from ((other, "excludes") for other in own.excludes)
        yield from ((own.same_as, "same_as"),) if own.same_as else ()
        yield from ((own.inverse_of, "inverse_of"),) if own.inverse_of else ()
    for partner in ontology:
        if name in partner.excludes:
            yield partner.name, "excludes"
        if partner.same_as == name:
            yield partner.name, "same_as"
        if partner.inverse_of == name:
            yield partner.name, "inverse_of"
