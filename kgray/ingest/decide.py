"""What an episode changes in the graph, or what must be asked first: resolve, relate, connect, compare."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kgray.derivation.change import EpisodeChange
from kgray.derivation.names import EntityNote
from kgray.derivation.statements import Statement
from kgray.ingest.extract import shape, told_names
from kgray.ingest.relate import relate
from kgray.ingest.resolve import Resolved, resolve_entities
from kgray.ingest.state import Answers, Case, KnownState, Questions, ReadEpisode, Rules
from kgray.ingest.statements import Connected, compare_statements, connect
from kgray.records import Extraction, Mention


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one pass over an episode found: what is open, and the change if every open answer were "new".

    change     None only while texts have no vector yet: without them nothing can be tried
    entities   those that this episode makes; guessed: ids of those that only stand for an open question
    aliases    (shown entity, surface) of each surface that a stored entity did not bear
    """

    asked: Questions
    change: EpisodeChange | None = None
    entities: tuple[EntityNote, ...] = ()
    guessed: frozenset[str] = frozenset()
    statements: tuple[Statement, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()


def decide(read: ReadEpisode, state: KnownState, answers: Answers, rules: Rules) -> Decision:
    """Return what `read` changes and what must be asked first. Pure: it waits for nothing.

    Only the first stage with open questions asks, because later questions depend on its answers; each stage
    is one request (R21). The change is final once nothing is asked. It is called on the true state, in order
    (`calls.settle`), and ahead of time on a view of uncommitted episodes.
    """
    told = read.told or told_names(shape(read.extraction, read.episode, rules.ontology), read.episode)
    read.told, extraction = told, told.extraction  # an episode is tried several times
    if texts := _unembedded(read, extraction, state, answers):
        return Decision(asked=Questions(texts=texts))
    asked = Questions()
    case = Case(
        episode=read.episode,
        extraction=extraction,
        others=told.others,
        state=state,
        answers=answers,
        rules=rules,
        asked=asked,
    )
    resolved = resolve_entities(case)
    if asked:
        # The later stages still run, for the probable change; their questions are dropped.
        case = replace(case, asked=Questions())
    related = relate(case, resolved)
    connected = connect(case, resolved, related)
    verdicts = compare_statements(case, connected, related)
    change = EpisodeChange(
        episode=read.episode,
        entity_births=tuple(sorted((note.id, note.born) for note in resolved.made.values())),
        statement_births=tuple(sorted(connected.births.items())),
        mentions=tuple(resolved.mentions),
        evidence=tuple(connected.evidence),
        rulings=tuple(related.rulings),
        verdicts=tuple(verdicts),
    )
    fresh = _fresh(resolved, state)
    change = _with_vectors(change, case, fresh, connected)
    return Decision(
        asked=asked,
        change=change,
        entities=tuple(resolved.made.values()),
        guessed=frozenset(resolved.guessed),
        statements=tuple(connected.made.values()),
        aliases=tuple((entity, m.surface) for m, entity in fresh if entity in state.graph.entities),
    )


def _fresh(resolved: Resolved, state: KnownState) -> list[tuple[Mention, str]]:
    """Return the mentions whose surface the stored entity that they show as does not bear; with its id."""
    found = []
    for mention, entity in zip(resolved.mentions, resolved.shown, strict=True):
        note = state.graph.entities.get(entity)
        if note is None or mention.surface not in note.surfaces:
            found.append((mention, entity))
    return found


def _unembedded(read: ReadEpisode, extraction: Extraction, state: KnownState, answers: Answers) -> list[str]:
    """Return the texts whose vectors deciding or searching will need: new names, wordings, the episode."""
    wanted = [read.episode.text, *(f.text for f in extraction.facts)]
    for entity in extraction.entities:
        notes = map(state.graph.entities.get, state.names.bearers(entity.name))
        if not any(note is not None and entity.name in note.surfaces for note in notes):
            wanted.append(entity.name)
    return [text for text in dict.fromkeys(wanted) if text not in answers.vectors]


def _with_vectors(
    change: EpisodeChange, case: Case, fresh: list[tuple[Mention, str]], connected: Connected
) -> EpisodeChange:
    """Return the change with the vectors to store: of the episode, new surfaces, new statements' wordings."""
    known, asked, text = case.answers.vectors, case.asked, change.episode.text
    named = [(mention, mention.surface) for mention, _ in fresh]
    made = [(statement.id, statement.wording) for statement in connected.made.values()]
    wanted = (text, *(surface for _, surface in named), *(wording for _, wording in made))
    asked.texts = list(dict.fromkeys((*asked.texts, *(one for one in wanted if one not in known))))
    return replace(
        change,
        name_vectors=tuple((mention, known[said].vector) for mention, said in named if said in known),
        statement_vectors=tuple((id_, known[wording]) for id_, wording in made if wording in known),
        episode_vector=known.get(text),
    )
