"""Filters, applied to what a view shows; each reads in batches."""

from __future__ import annotations

from collections.abc import Sequence

from kgray.graph import Entity, Fact
from kgray.ledger import sequences_of
from kgray.ports import GraphView, Store
from kgray.records import Episode
from kgray.search.plan import Filters, Range
from kgray.search.walk import ends
from kgray.times import Instant


def keep_facts(store: Store, view: GraphView, facts: Sequence[Fact], filters: Filters) -> list[Fact]:
    """Return the facts that pass, in their order."""
    kept = [fact for fact in facts if _passes(fact, filters)]
    if filters.labels and kept:
        entities = view.entities(list(dict.fromkeys(end for fact in kept for end in ends(fact))))
        labelled = {entity.id for entity in keep_entities(entities, filters)}
        kept = [fact for fact in kept if labelled.intersection(ends(fact))]
    if filters.sources and kept:
        ids = sorted({episode for fact in kept for episode in fact.episodes})
        episodes = view.episodes(sequences_of(store, view.group, ids=ids))
        sourced = {episode.id for episode in episodes if episode.source in filters.sources}
        kept = [fact for fact in kept if sourced.intersection(fact.episodes)]
    return kept


def keep_entities(entities: Sequence[Entity], filters: Filters) -> list[Entity]:
    """Return the entities that pass, in their order."""
    if not filters.labels:
        return list(entities)
    return [entity for entity in entities if not set(filters.labels).isdisjoint(entity.labels)]


def keep_episodes(episodes: Sequence[Episode], filters: Filters, said_by: Instant | None) -> list[Episode]:
    """Return the episodes that pass, in their order; said_by None = whenever they were said."""
    return [
        episode
        for episode in episodes
        if (not filters.sources or episode.source in filters.sources)
        and (said_by is None or episode.reference_time <= said_by)
    ]


def _passes(fact: Fact, filters: Filters) -> bool:
    return (
        (not filters.relations or fact.relation in filters.relations)
        and _within(fact.valid_at, filters.valid_at)
        and _within(fact.invalid_at, filters.invalid_at)
        and _within(fact.created_at, filters.created_at)
    )


def _within(instant: Instant | None, span: Range | None) -> bool:
    if span is None:
        return True
    start, end = span
    return instant is not None and (start is None or start <= instant) and (end is None or instant < end)
