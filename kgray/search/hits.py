"""Rows to hits: names, supporters and ranks beside what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kgray.graph import Entity, Fact, Hit
from kgray.ports import GraphView, SearchScope
from kgray.records import Episode
from kgray.search.candidates import FoundRow
from kgray.search.rank import Scored
from kgray.search.walk import ends


def fact_hit(
    fact: Fact, item: Scored, *, group: str, names: Mapping[str, str], clients: Mapping[str, str | None]
) -> Hit:
    """Return a fact as a hit.

    names       entity id -> the name shown, for both ends
    clients     episode id -> the client's id, for the supporters
    """
    target = names.get(fact.target) if fact.target is not None else None
    return Hit(
        scope="fact",
        id=fact.id,
        text=fact.text,
        score=item.score,
        group=group,
        methods=item.methods,
        fact=fact,
        source=names.get(fact.source),
        target=fact.value.shown() if fact.value is not None else target,
        episodes=tuple((episode, clients.get(episode)) for episode in fact.episodes),
    )


def to_hits(
    view: GraphView,
    chosen: Sequence[tuple[SearchScope, Scored]],
    rows: Mapping[SearchScope, Mapping[str, FoundRow]],
) -> list[Hit]:
    """Return the chosen rows as hits, in order; two reads, however many."""
    picked = [(rows[scope][item.id], item) for scope, item in chosen]
    facts = [row for row, _ in picked if isinstance(row, Fact)]
    entities = (
        view.entities(list(dict.fromkeys(end for fact in facts for end in ends(fact)))) if facts else []
    )
    names = {entity.id: entity.name for entity in entities}
    supporters = sorted({episode for fact in facts for episode in fact.episodes})
    clients = view.supporters(supporters) if supporters else {}
    hits = []
    for row, item in picked:
        if isinstance(row, Fact):
            hits.append(fact_hit(row, item, group=view.group, names=names, clients=clients))
        elif isinstance(row, Entity):
            hits.append(_entity_hit(row, item, view.group))
        else:
            hits.append(_episode_hit(row, item, view.group))
    return hits


def _entity_hit(entity: Entity, item: Scored, group: str) -> Hit:
    return Hit(
        scope="entity",
        id=entity.id,
        text=entity.name,
        score=item.score,
        group=group,
        methods=item.methods,
        entity=entity,
    )


def _episode_hit(episode: Episode, item: Scored, group: str) -> Hit:
    return Hit(
        scope="episode",
        id=episode.id,
        text=episode.text,
        score=item.score,
        group=group,
        methods=item.methods,
        client_id=episode.client_id,
        reference_time=episode.reference_time,
        speaker=episode.speaker,
    )
