"""Decide how an episode changes the graph, or which questions must be answered first.

`declare` records the ontology's declarations of the relation names that the episode is the first to use
(R17), `resolve.py` resolves the mentions, `connect.py` finds or makes the statement of each fact, and
`compare.py` finds the statements that a model must compare with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kgray.domain.ontology import Ontology, RelationType
from kgray.domain.records import Aspect, Declaration
from kgray.graph.change import EpisodeChange
from kgray.graph.names import FOLDS, UNKNOWN, Relations
from kgray.ingest.connect import connect
from kgray.ingest.extract import shape, told_names
from kgray.ingest.resolve import resolve_entities
from kgray.ingest.state import LATER, Answers, Case, Decision, KnownState, Questions, ReadEpisode, Rules

# The values of aspects that are not declared; "listed" and these need no record.
_DEFAULTS = {"listed": "no", "symmetric": "no", "text": ""}
_Place = tuple[str, Aspect, str]  # name, aspect, other name or ""


@dataclass(frozen=True, slots=True)
class Declared:
    """The group's relations with the declarations that this episode records, and those declarations."""

    relations: Relations
    declarations: tuple[Declaration, ...] = ()


def declare(case: Case) -> Declared:
    """Declare the names of the episode's facts, and at a run's first commit every change of the ontology."""
    relations, ontology = case.state.graph.relations, case.rules.ontology
    used = dict.fromkeys(fact.relation for fact in case.extraction.facts)
    fresh = [name for name in used if ontology.get(name) is not None and not relations.is_listed(name)]
    if not fresh and case.state.ontology_settled:
        return Declared(relations)
    declarations = tuple(
        Declaration(
            sequence=case.episode.sequence,
            ordinal=ordinal,
            name=name,
            aspect=aspect,
            value=value,
            other=partner,
        )
        for ordinal, ((name, aspect, partner), value) in enumerate(
            _missing(fresh, case.state, ontology).items()
        )
    )
    if not declarations:
        return Declared(relations)
    relations = relations.copy()
    for declaration in declarations:
        relations.declare(
            declaration, LATER
        )  # the commit gives the record time, which is later than all others
    return Declared(relations, declarations)


def _missing(fresh: list[str], state: KnownState, ontology: Ontology) -> dict[_Place, str]:
    """Return the declarations of fresh names that are not in force yet.

    At a run's first commit also those of all other names, where the ontology was changed.
    """
    relations = state.graph.relations
    declared: dict[_Place, str] = {}
    waiting = fresh[::-1]
    if not state.ontology_settled:
        declared.update(_withdrawn(relations, ontology))
        waiting += reversed(relations.names())
    kinds: dict[str, RelationType] = {}  # the names, and those whose declarations bear on them
    while waiting:
        kind = ontology.get(waiting.pop())
        if kind is not None and kind.name not in kinds:
            kinds[kind.name] = kind
            waiting += [main for main in (kind.same_as, kind.inverse_of) if main]
            waiting += [mate.name for mate in _bounds(kind, ontology)]
    for kind in kinds.values():
        declared[kind.name, "listed", ""] = "yes"
        if kind.cardinality is not None and not _bounds(kind, ontology):
            declared[kind.name, "cardinality", ""] = kind.cardinality
        declared[kind.name, "symmetric", ""] = "yes" if kind.symmetric else "no"
        declared[kind.name, "text", ""] = kind.text
        for name, partner, value in _pairs(kind.name, ontology):
            declared[name, "pair", partner] = value

    return {place: value for place, value in declared.items() if not _is_in_force(relations, place, value)}


def _is_in_force(relations: Relations, place: _Place, value: str) -> bool:
    name, aspect, partner = place
    if aspect != "pair":
        current = relations.aspect(name, aspect)
        return value == (_DEFAULTS.get(aspect, "") if current is None else current.value)
    current = relations.pair(name, partner)
    if current is None or current.value != value:
        return current is None and value == "none"
    return value not in FOLDS or current.name == name


def _withdrawn(relations: Relations, ontology: Ontology) -> Iterator[tuple[_Place, str]]:
    """Yield the declarations that take back those in force that the ontology does not make any more."""
    for declaration in relations.in_force():
        kind = ontology.get(declaration.name)
        place: _Place = (declaration.name, declaration.aspect, declaration.other)
        if declaration.aspect == "cardinality" and (kind is None or kind.cardinality is None):
            yield place, UNKNOWN
        elif declaration.aspect in _DEFAULTS and kind is None:
            yield place, _DEFAULTS[declaration.aspect]
        elif declaration.aspect == "pair":
            pairs = {frozenset(names) for *names, _ in _pairs(declaration.name, ontology)}
            if frozenset((declaration.name, declaration.other)) not in pairs:
                yield place, "none"


def _bounds(kind: RelationType, ontology: Ontology) -> list[RelationType]:
    """Return the synonyms and inverses of a relation with many objects that limit its other end.

    "many" leaves the other end open: OWNS has many objects, and OWNED_BY may say that a thing has one owner.
    """
    if kind.cardinality != "many":
        return []
    tied = {n for *names, value in _pairs(kind.name, ontology) if value in FOLDS for n in names} - {kind.name}
    mates = (ontology.get(name) for name in sorted(tied))
    return [mate for mate in mates if mate is not None and mate.cardinality not in (None, "many")]


def _pairs(name: str, ontology: Ontology) -> Iterator[tuple[str, str, str]]:
    """Yield (name, other, value) of each pair with this name that the ontology declares.

    People declare a pair on either of its two names; the first use of either must record it.
    """
    for kind in ontology:
        if kind.same_as and name in (kind.name, kind.same_as):
            yield kind.name, kind.same_as, "same_as"
        if kind.inverse_of and name in (kind.name, kind.inverse_of):
            yield kind.name, kind.inverse_of, "inverse_of"
        for excluded in kind.excludes:
            if name in (kind.name, excluded):
                yield kind.name, excluded, "excludes"


def decide(read: ReadEpisode, state: KnownState, answers: Answers, rules: Rules) -> Decision:
    """Return the change that an episode makes, and the open questions. Pure: it waits for nothing.

    One pass collects all open questions. While a question about an entity is open, the questions about its
    facts assume the most probable entity; after another answer they are asked again. So most episodes need
    one request (R21). The change is final once nothing is open. It is called on the true state, in order
    (`calls.settle`), and ahead of time on a view of uncommitted episodes.
    """
    named = read.text_names or told_names(shape(read.extraction, read.episode, rules.ontology), read.episode)
    read.text_names = named  # an episode is tried several times
    case = Case(read.episode, named.extraction, named.same_entities, state, answers, rules, Questions())
    if missing := _unembedded(case):
        return Decision(questions=Questions(texts=missing))
    declared = declare(case)
    resolved = resolve_entities(case)
    connected = connect(case, resolved, declared.relations)
    stored, vectors = state.graph.entities, answers.vectors
    # The mentions with a surface that is new to the recorded entity, with the id of the shown one. After a
    # split, a known surface may be recorded with another entity than before.
    mentioned = zip(resolved.mentions, resolved.entity_ids, strict=True)
    fresh = [
        (m, id_)
        for m, id_ in mentioned
        if id_ not in stored or stored[id_].surfaces.get(m.surface) != m.entity
    ]
    wordings = [(statement.id, statement.wording) for statement in connected.new_statements.values()]
    texts = (read.episode.text, *(m.surface for m, _ in fresh), *(wording for _, wording in wordings))
    case.questions.texts = [text for text in dict.fromkeys(texts) if text not in vectors]
    change = EpisodeChange(
        episode=read.episode,
        entity_births=tuple(sorted((note.id, note.born) for note in resolved.new_entities.values())),
        statement_births=tuple(sorted(connected.births.items())),
        mentions=tuple(resolved.mentions),
        evidence=tuple(connected.evidence),
        declarations=declared.declarations,
        verdicts=tuple(connected.verdicts.values()),
        name_vectors=tuple((m, vectors[m.surface].vector) for m, _ in fresh if m.surface in vectors),
        statement_vectors=tuple((id_, vectors[wording]) for id_, wording in wordings if wording in vectors),
        episode_vector=vectors.get(read.episode.text),
    )
    return Decision(
        questions=case.questions,
        change=change,
        entities=tuple(resolved.new_entities.values()),
        guessed=frozenset(resolved.guesses),
        statements=tuple(connected.new_statements.values()),
        aliases=tuple((entity, m.surface) for m, entity in fresh if entity in stored),
    )


def _unembedded(case: Case) -> list[str]:
    """Return the texts whose vectors deciding or searching will need: new names, wordings, the episode."""
    texts = [case.episode.text, *(f.text for f in case.extraction.facts)]
    for entity in case.extraction.entities:
        notes = map(case.state.graph.entities.get, case.state.names.bearers(entity.name))
        if not any(note is not None and entity.name in note.surfaces for note in notes):
            texts.append(entity.name)
    return [text for text in dict.fromkeys(texts) if text not in case.answers.vectors]
