"""The only module of the bench that reads the engine's results: the ledger, the dump's hash, the graph."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kgray.domain.graph import Fact
from kgray.graph.stored import View, records_of
from kgray.memory import AsyncMemory
from kgray.ports import Store
from kgray.schema.kinds import EXTRACTIONS
from kgray.schema.rows import extraction
from kgray.storage.ledger import dumped_episodes

STATES = ("accepted", "extracted", "committed", "failed")


async def digest(memory: AsyncMemory) -> str:
    """Return one hash over the dumps of all groups."""
    total = hashlib.sha256()
    for group in memory.store.heads():
        total.update(f"{group} {await memory.dump_hash(group=group)}\n".encode())
    return total.hexdigest()


def ledger(store: Store) -> dict[str, int]:
    """Return the number of episodes of all groups by state. Raises Unavailable."""
    counts = list(store.counts().values())
    return {state: sum(getattr(count, state) for count in counts) for state in STATES}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """The model calls for all episodes of a store."""

    calls: int
    prompt_tokens: int
    completion_tokens: int


def model_use(store: Store) -> ModelUse:
    """Return the sums over all groups."""
    counts = list(store.counts().values())
    return ModelUse(
        calls=sum(count.calls for count in counts),
        prompt_tokens=sum(count.prompt_tokens for count in counts),
        completion_tokens=sum(count.completion_tokens for count in counts),
    )


def extraction_tokens(store: Store) -> Iterator[int]:
    """Yield the completion tokens of each episode's extraction."""
    for group in store.heads():
        for row in store.rows(EXTRACTIONS.all, group):
            yield extraction(row).completion_tokens


def sequences(store: Store, group: str) -> list[int]:
    """Return the sequence numbers of a group's episodes, in the store's order."""
    return [episode.sequence for episode in dumped_episodes(store, group)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGraph:
    """A group's graph as a reader sees it.

    facts     every span
    mentions  (client id of the episode, surface, entity as it is shown)
    names     by entity, its surfaces
    """

    facts: Sequence[Fact]
    mentions: Sequence[tuple[str, str, str]] = ()
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)


def graph_of(store: Store, group: str, *, known_after: int | None = None) -> ShownGraph:
    """Return a group's graph, as known after this number of episodes; None = after all."""
    records = records_of(store, group)
    if known_after is not None:
        records = records_of(store, group, records.heads[known_after - 1].recorded_at)
    view = View(records, lambda _: [])
    clients = {episode.sequence: episode.client_id or "" for episode in dumped_episodes(store, group)}
    fold = view.graph.fold
    return ShownGraph(
        facts=list(view.all_facts()),
        mentions=[
            (clients[m.sequence], m.surface, fold.shown(m.entity, m.surface, m.sequence)[0])
            for m in records.mentions
        ],
        names={name: list(entity.surfaces) for name, entity in view.graph.entities.items()},
    )
