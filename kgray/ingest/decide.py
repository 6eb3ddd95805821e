"""What an episode changes in the graph, or what must be asked first: the paper's steps in order."""

from __future__ import annotations

from dataclasses import dataclass

from kgray.ingest.compare import compare_statements
from kgray.ingest.connect import Connected, connect
from kgray.ingest.relate import relate
from kgray.ingest.resolve import Resolved, resolve_entities
from kgray.ingest.shape import shape
from kgray.ingest.state import GroupState
from kgray.ingest.values import Answers, Change, Questions, Read
from kgray.ontology import Ontology
from kgray.ports import NamedVector
from kgray.records import Extraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What deciding goes by, besides state and answers: fixed for a run."""

    ontology: Ontology
    judge: str  # identity of the judge, recorded with what it rules
    judging: str = "relation"  # or "statement": every compared pair is asked


def decide(read: Read, state: GroupState, answers: Answers, rules: Rules) -> Change | Questions:
    """Return what `read` changes, or what must be known first. Pure; never waits.

    The plain loop calls this on the true state, in order, until nothing is open; a runner may call it
    ahead of time to learn the questions (design, section 5). What is open is returned a stage at a
    time, because the later questions depend on the earlier answers; each stage is one request (R21).
    """
    asked = Questions()
    extraction = shape(read.extraction, read.episode, rules.ontology)
    asked.texts = _unembedded(read, extraction, state, answers)
    if asked:
        return asked
    resolved = resolve_entities(read, extraction.entities, state, answers, asked)
    if asked:
        return asked
    shaped = Read(episode=read.episode, extraction=extraction)
    related = relate(shaped, extraction, resolved, state, rules.ontology, rules.judge, answers, asked)
    connected = connect(shaped, extraction, resolved, related, state, answers, asked)
    verdicts = compare_statements(
        shaped, connected, related, state, rules.judging, rules.judge, answers, asked
    )
    vectors = _vectors(shaped, resolved, connected, state, answers, asked)
    if asked:
        return asked
    return Change(
        episode=read.episode,
        entity_births=tuple(sorted(resolved.births.items())),
        statement_births=tuple(sorted(connected.births.items())),
        mentions=tuple(resolved.mentions),
        evidence=tuple(connected.evidence),
        rulings=tuple(related.rulings),
        verdicts=tuple(verdicts),
        vectors=vectors,
    )


def _unembedded(read: Read, extraction: Extraction, state: GroupState, answers: Answers) -> list[str]:
    """Return the texts whose vectors deciding or searching will need: new names, wordings, the episode."""
    wanted = [read.episode.text, *(f.text for f in extraction.facts)]
    for entity in extraction.entities:
        bearers = state.names.bearers(entity.name)
        notes = (state.graph.entities.get(b) for b in bearers)
        if not any(note is not None and entity.name in note.surfaces for note in notes):
            wanted.append(entity.name)
    return [text for text in dict.fromkeys(wanted) if text not in answers.vectors]


def _vectors(
    read: Read,
    resolved: Resolved,
    connected: Connected,
    state: GroupState,
    answers: Answers,
    asked: Questions,
) -> tuple[NamedVector, ...]:
    """Return the vectors to store: of the episode, of new surfaces, of new statements' first wordings."""
    found: list[NamedVector] = []

    def keep(kind: str, owner: str, text: str, shown: str) -> None:
        vector = answers.vectors.get(text)
        if vector is None:
            asked.texts.append(text)
        else:
            found.append(NamedVector(kind=kind, owner=owner, text=shown, vector=vector))  # type: ignore[arg-type]

    keep("episode", str(read.episode.sequence), read.episode.text, "")
    for mention, entity in zip(resolved.mentions, resolved.shown, strict=True):
        stored = state.graph.entities.get(entity)
        if stored is None or mention.surface not in stored.surfaces:
            keep("name", mention.entity, mention.surface, mention.surface)
    for statement in connected.made.values():
        keep("statement", statement.id, statement.wording, statement.wording)
    asked.texts = list(dict.fromkeys(asked.texts))
    return tuple(found)
