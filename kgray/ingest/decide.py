"""Decide how an episode changes the graph, or which questions must be answered first.

`declare.py` records the ontology's declarations, `resolve.py` resolves the mentions, `connect.py` finds or
makes the statement of each fact, and `compare.py` finds the statements that a model must compare with it.
"""

from __future__ import annotations

from kgray.graph.change import EpisodeChange
from kgray.ingest.connect import connect
from kgray.ingest.declare import declare
from kgray.ingest.extract import shape, told_names
from kgray.ingest.resolve import resolve_entities
from kgray.ingest.state import Answers, Case, Decision, KnownState, Questions, ReadEpisode, Rules


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
