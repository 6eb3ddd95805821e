"""What an episode changes in the graph, or what must be asked first: the paper's steps in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kgray.derivation.change import Change
from kgray.derivation.entities import EntityNote
from kgray.derivation.statements import Statement
from kgray.ingest.compare import compare_statements
from kgray.ingest.connect import Connected, connect
from kgray.ingest.known import KnownState
from kgray.ingest.relate import relate
from kgray.ingest.resolve import Resolved, resolve_entities
from kgray.ingest.shape import shape
from kgray.ingest.values import Answers, Case, Questions, ReadEpisode, Rules
from kgray.records import Extraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One pass over an episode: what is open, and what it would change if every open answer were "new".

    change is None only while texts are missing, without which nothing can be tried.
    """

    asked: Questions
    change: Change | None = None
    entities: tuple[EntityNote, ...] = ()  # made by this episode
    guessed: frozenset[str] = frozenset()  # those of them that stand for an open question
    statements: tuple[Statement, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()  # (shown entity, surface) that a stored entity did not bear


def decide(read: ReadEpisode, state: KnownState, answers: Answers, rules: Rules) -> Change | Questions:
    """Return what `read` changes, or what must be known first. Pure; never waits.

    The plain loop calls this on the true state, in order, until nothing is open. What is open is
    returned a stage at a time, because the later questions depend on the earlier answers; each stage
    is one request (R21).
    """
    attempt = attempt_to_decide(read, state, answers, rules)
    if attempt.asked or attempt.change is None:
        return attempt.asked
    return attempt.change


def attempt_to_decide(read: ReadEpisode, state: KnownState, answers: Answers, rules: Rules) -> Attempt:
    """Return the open questions of the first stage that has any, and the change as it looks now.

    The parallel runner calls this ahead of time, on a view of what is not committed yet, to learn the
    questions and to let later episodes see what this one will probably change (design, section 5).
    """
    extraction = shape(read.extraction, read.episode, rules.ontology)
    texts = _unembedded(read, extraction, state, answers)
    if texts:
        return Attempt(asked=Questions(texts=texts))
    asked = Questions()
    case = Case(
        episode=read.episode, extraction=extraction, state=state, answers=answers, rules=rules, asked=asked
    )
    resolved = resolve_entities(case)
    if asked:
        # Past a stage with open questions the next ones are worked through, but not asked about.
        case = replace(case, asked=Questions())
    related = relate(case, resolved)
    connected = connect(case, resolved, related)
    verdicts = compare_statements(case, connected, related)
    change = Change(
        episode=read.episode,
        entity_births=tuple(sorted(resolved.births.items())),
        statement_births=tuple(sorted(connected.births.items())),
        mentions=tuple(resolved.mentions),
        evidence=tuple(connected.evidence),
        rulings=tuple(related.rulings),
        verdicts=tuple(verdicts),
    )
    change = _with_vectors(change, case, resolved, connected)
    return Attempt(
        asked=asked,
        change=change,
        entities=tuple(resolved.made.values()),
        guessed=frozenset(resolved.guessed),
        statements=tuple(connected.made.values()),
        aliases=_aliases(resolved, state),
    )


def _aliases(resolved: Resolved, state: KnownState) -> tuple[tuple[str, str], ...]:
    found = []
    for mention, entity in zip(resolved.mentions, resolved.shown, strict=True):
        note = state.graph.entities.get(entity)
        if note is not None and mention.surface not in note.surfaces:
            found.append((entity, mention.surface))
    return tuple(found)


def _unembedded(read: ReadEpisode, extraction: Extraction, state: KnownState, answers: Answers) -> list[str]:
    """Return the texts whose vectors deciding or searching will need: new names, wordings, the episode."""
    wanted = [read.episode.text, *(f.text for f in extraction.facts)]
    for entity in extraction.entities:
        bearers = state.names.bearers(entity.name)
        notes = (state.graph.entities.get(b) for b in bearers)
        if not any(note is not None and entity.name in note.surfaces for note in notes):
            wanted.append(entity.name)
    return [text for text in dict.fromkeys(wanted) if text not in answers.vectors]


def _with_vectors(change: Change, case: Case, resolved: Resolved, connected: Connected) -> Change:
    """Return the change with the vectors to store: of the episode, new surfaces, new statements' wordings."""
    known, asked = case.answers.vectors, case.asked
    names = []
    for mention, entity in zip(resolved.mentions, resolved.shown, strict=True):
        stored = case.state.graph.entities.get(entity)
        if stored is None or mention.surface not in stored.surfaces:
            names.append(mention)
    made = [(statement.id, statement.wording) for statement in connected.made.values()]
    texts = (change.episode.text, *(mention.surface for mention in names), *(wording for _, wording in made))
    asked.texts = list(dict.fromkeys((*asked.texts, *(text for text in texts if text not in known))))
    return replace(
        change,
        name_vectors=tuple(
            (mention, known[mention.surface]) for mention in names if mention.surface in known
        ),
        statement_vectors=tuple((id_, known[wording]) for id_, wording in made if wording in known),
        episode_vector=known.get(change.episode.text),
    )
