"""One list of hits over all scopes, and what belongs to the hits.

For the hits it reads the participants of hyper-edges, the last message of each fact, and which messages have
only facts that have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kgray.domain.graph import EpisodeRef, Fact, FactSpan, SourceMessage
from kgray.domain.records import Episode
from kgray.domain.times import Instant, now, to_datetime
from kgray.ports import GraphView, SearchScope
from kgray.search.query import FoundRow
from kgray.search.ranking import Candidate, SearchRun
from kgray.search.recipes import SCOPES

Chosen = tuple[SearchScope, Candidate]
Sentences = dict[tuple[str, str], set[str]]  # (relation, text) of facts -> their episodes
_SUPPORTERS = 4  # episodes of a fact that are searched for its hyper-edge


@dataclass(frozen=True, slots=True)
class Around:
    """The facts and messages around hits.

    participants: fact id -> names in its hyper-edge; messages: fact id -> its last message
    outdated: ids of episodes whose facts have all ended
    """

    participants: Mapping[str, tuple[str, ...]]
    messages: Mapping[str, SourceMessage]
    outdated: frozenset[str]

    @classmethod
    def read(cls, run: SearchRun, rows: Sequence[FoundRow]) -> Around:
        """Read the evidence of all hits together."""
        facts = [row for row in rows if isinstance(row, Fact)]
        episodes = [row for row in rows if isinstance(row, Episode)]
        supporters = run.evidence.supporters([fact.statement for fact in facts], _SUPPORTERS)
        sequences = dict.fromkeys(
            s for group in (*supporters.values(), [e.sequence for e in episodes]) for s in group
        )
        places = run.evidence.at(sequences)
        by_sequence: dict[int, dict[str, Fact]] = {}
        for (sequence, _), facts_there in zip(places, run.view.facts_of_evidence(places, None), strict=True):
            by_sequence.setdefault(sequence, {}).update((fact.id, fact) for fact in facts_there)
        at = run.moment if run.moment is not None else now()
        groups: dict[str, list[str]] = {}
        for fact in facts:
            neighbours = (by_sequence.get(sequence, {}).values() for sequence in supporters[fact.statement])
            siblings = [
                f
                for facts_there in neighbours
                for f in facts_there
                if (f.relation, f.text) == (fact.relation, fact.text)
            ]
            ends = list(dict.fromkeys(end for f in (fact, *siblings) for end in f.ends))
            if len(ends) > 2 and len({f.statement for f in siblings}) > 1:
                groups[fact.id] = ends
        named = run.view.entities(list(dict.fromkeys(end for ends in groups.values() for end in ends)))
        names = {entity.id: entity.name for entity in named}
        participants = {
            id_: tuple(names[end] for end in ends if end in names) for id_, ends in groups.items()
        }
        ended = (e.id for e in episodes if _has_ended(by_sequence.get(e.sequence, {}).values(), at))
        last = {fact.id: supporters[fact.statement][-1] for fact in facts if supporters[fact.statement]}
        sources = {row.sequence: row for row in run.view.episodes(list(dict.fromkeys(last.values())))}
        messages = {id_: _source(sources[sequence]) for id_, sequence in last.items() if sequence in sources}
        return cls(participants, messages, frozenset(ended))


def _source(episode: Episode) -> SourceMessage:
    names = ("id", "client_id", "speaker", "text")
    fields: dict[str, Any] = {name: getattr(episode, name) for name in names}
    return SourceMessage(**fields, reference_time=to_datetime(episode.reference_time))


def _has_ended(facts: Collection[Fact], at: Instant) -> bool:
    """Return whether there is a fact, and all facts have ended."""
    return bool(facts) and all(fact.invalid_at is not None and fact.invalid_at <= at for fact in facts)


def repeats(sentences: Sentences, fact: Fact | FactSpan, episodes: Collection[str]) -> bool:
    """Return whether an earlier fact has the sentence and an episode in common; remember both."""
    earlier_episodes = sentences.setdefault((fact.relation, fact.text), set())
    is_repeated = not earlier_episodes.isdisjoint(episodes)
    earlier_episodes.update(episodes)
    return is_repeated


def spans_of(
    view: GraphView, facts: Sequence[Fact], inferred: Mapping[str, Sequence[str]] | None = None
) -> tuple[dict[str, FactSpan], Mapping[str, str | None]]:
    """Return fact id -> its public form, and episode id -> client's id for all episodes in them.

    inferred    fact id -> `FactSpan.inferred`; None = not looked up
    """
    if not facts:
        return {}, {}
    ends = list(dict.fromkeys(end for fact in facts for end in fact.ends))
    names = {entity.id: entity.name for entity in view.entities(ends)}
    supporters = {episode for fact in facts for episode in fact.episodes}
    supporters |= {fact.ended_by[0] for fact in facts if fact.ended_by is not None}
    clients = view.supporters(sorted(supporters))
    instants = {at for f in facts for at in (f.valid_at, f.invalid_at, f.created_at, f.expired_at)}
    # Many facts share their moments.
    moments: dict[int | None, datetime] = {at: to_datetime(at) for at in instants if at is not None}
    spans = {
        fact.id: FactSpan(
            id=fact.id,
            statement=fact.statement,
            text=fact.text,
            subject_id=fact.source,
            subject=names.get(fact.source),
            relation=fact.relation,
            object_id=fact.target,
            object=names.get(fact.target or "") if fact.value is None else fact.value.shown(),
            valid_at=moments.get(fact.valid_at),
            invalid_at=moments.get(fact.invalid_at),
            event=fact.event,
            created_at=moments[fact.created_at],
            expired_at=moments.get(fact.expired_at),
            episodes=tuple(EpisodeRef(id_, clients.get(id_)) for id_ in fact.episodes),
            ended_by=fact.ended_by,
            inferred=None if inferred is None else tuple(inferred.get(fact.id, ())),
        )
        for fact in facts
    }
    return spans, clients


def one_list(
    by_scope: Mapping[SearchScope, Sequence[Candidate]],
    limit: int,
    places: Mapping[SearchScope, int],
    *,
    once: bool,
    facts_first: bool = False,
) -> tuple[list[Chosen], list[Chosen]]:
    """Return the `limit` best rows of all scopes (ties: fact, entity, episode), and the repeated rows.

    once: a fact is repeated if its messages are all hits, and a message if it supports a fact that is a hit.
    Two facts of one message are two statements, so both stay.
    facts_first: a fact replaces the hits that support it, at their better place. It is for a question about
    one moment, because a message has no span.
    """
    rows = [
        (-candidate.score, SCOPES.index(scope), place, scope, candidate)
        for scope, candidates in by_scope.items()
        for place, candidate in enumerate(candidates)
    ]
    chosen: list[Chosen] = []
    repeated: list[Chosen] = []
    free = {scope: places.get(scope, limit) for scope in by_scope}
    shown_episodes: set[str] = set()  # episodes that are hits
    supporting: set[str] = set()  # these, and the supporters of facts that are hits
    sentences: Sentences = {}
    for _, _, _, scope, candidate in sorted(rows, key=lambda row: row[:3]):
        if len(chosen) >= limit:
            break
        row = candidate.row
        if once and isinstance(row, Fact) and repeats(sentences, row, row.episodes):
            repeated.append((scope, candidate))
            continue
        sources: set[str] = set()
        if once and isinstance(row, Fact | Episode):
            sources = {row.id} if isinstance(row, Episode) else set(row.episodes)
        if facts_first and scope == "fact" and free[scope] and sources & shown_episodes:
            _replace_by_fact(candidate, sources, chosen, repeated)
            free[scope] -= 1
            free["episode"] += len(sources & shown_episodes)
            supporting |= sources
            shown_episodes -= sources
        elif sources and sources <= (supporting if scope == "episode" else shown_episodes):
            repeated.append((scope, candidate))
        elif free[scope]:
            free[scope] -= 1
            supporting |= sources
            shown_episodes |= sources if scope == "episode" else set()
            chosen.append((scope, candidate))
    return chosen, repeated


def _replace_by_fact(fact: Candidate, sources: set[str], chosen: list[Chosen], spare: list[Chosen]) -> None:
    """Replace the messages that support a fact by the fact, at the place and with the score of the first."""
    messages = [row for row in chosen if row[0] == "episode" and row[1].row.id in sources]
    first = chosen.index(messages[0])
    chosen[first] = "fact", replace(fact, score=messages[0][1].score)
    chosen[:] = [row for row in chosen if row not in messages]
    spare += messages
