"""A group as one moment shows it: what a run of its communities is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kgray import kinds, rows
from kgray.derivation.stored import garbage_not_collected, in_pieces
from kgray.errors import Unavailable
from kgray.graph import Community, Entity, Fact
from kgray.kinds import Row
from kgray.ports import Appending, Store, at_one_moment
from kgray.search.summaries import texts_of
from kgray.times import Instant

HOLDS, ENDED = 2, 1  # what a fact counts between its ends
# Of a pair, by what its facts count: that two are connected says more than how often (docs/communities.md).
WEIGHTS = (0, 3, 6, 7, 8, 9, 10)


@dataclass(frozen=True, slots=True)
class Run:
    """A published run, by the columns of `kinds.COMMUNITY_RUNS`."""

    run: int
    watermark: int
    recorded_at: Instant
    made_at: Instant
    cold: bool
    entities: int
    cold_entities: int
    writer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A group up to its watermark.

    entities    by id, in the order of their ids
    places      episode id -> sequence
    mentioned   entity -> the sequences that mention it; named: the first of them that has its name
    withdrawn   the retractions and removals that have been carried out: a run made from other ones is void
    parent      the current run; listed: its communities; profiles: the entities that a model wrote of in it
    corrected   something was merged, split, undone, retracted or removed since
    """

    group: str
    watermark: int
    recorded_at: Instant
    entities: Mapping[str, Entity]
    facts: Sequence[Fact]
    places: Mapping[str, int] = field(default_factory=dict)
    mentioned: Mapping[str, set[int]] = field(default_factory=dict)
    named: Mapping[str, int] = field(default_factory=dict)
    withdrawn: tuple[int, ...] = ()
    parent: Run | None = None
    listed: Sequence[Community] = ()
    profiles: Mapping[str, Community] = field(default_factory=dict)
    corrected: bool = False

    def pairs(self) -> list[tuple[str, str, int]]:
        """Return (entity, entity, weight) for each pair that facts connect."""
        counts: dict[tuple[str, str], int] = {}
        for fact in self.facts:
            if fact.target is not None and fact.target != fact.source:
                pair = (min(fact.ends), max(fact.ends))
                counts[pair] = counts.get(pair, 0) + (HOLDS if fact.holds_at(self.recorded_at) else ENDED)
        return [(a, b, WEIGHTS[min(count, 6)]) for (a, b), count in counts.items()]

    def news(self) -> float:
        """Return the share of its entities that are new since the current run, or have new facts."""
        if self.parent is None or not self.entities:
            return float(self.parent is None)
        new = {id_ for id_, entity in self.entities.items() if entity.born[0] > self.parent.watermark}
        known = self.entities.keys() & self.touched(self.parent.recorded_at)
        return len(new | known) / len(self.entities)

    def touched(self, since: Instant) -> set[str]:
        """Return the entities whose facts were learned, or learned to have ended, after a record time."""
        return {
            end
            for fact in self.facts
            if fact.created_at > since or (fact.expired_at or 0) > since
            for end in fact.ends
        }


def snapshot(store: Store, group: str, *, texts: bool = True) -> Snapshot:
    """Read a group at one moment. texts: with what only writing needs.

    Raises Unavailable while a large removal is being carried out.
    """
    return at_one_moment(store, lambda: _read(store, group, texts=texts))


@garbage_not_collected()
def _read(store: Store, group: str, *, texts: bool) -> Snapshot:
    if in_pieces(store, group):
        raise Unavailable(f"a removal of group {group} is being carried out: run it again")
    head = store.heads([group])[group]
    first = store.pending_sequences(group, 0, 1)
    entities = {one.id: one for one in map(rows.entity, store.rows(kinds.ALL["entities"], group))}
    parent = current(store, group)
    listed, profiles = texts_of(store, group, parent.run) if parent else ([], {})
    heads = store.rows(kinds.EPISODE_HEADS, group) if texts else ()
    operations = list(store.rows(kinds.ALL["operations"], group))
    return Snapshot(
        group=group,
        watermark=first[0][0] - 1 if first else head.last,
        recorded_at=head.last_recorded,
        entities=dict(sorted(entities.items())),
        facts=[rows.fact(row) for row in store.rows(kinds.ALL["facts"], group)],
        places={row[1]: row[0] for row in heads if row[5] == kinds.COMMITTED and row[7] is None},
        **(_mentioned(store, group, entities) if texts else {}),
        withdrawn=withdrawn(operations),
        corrected=parent is not None and any(row[0] > parent.watermark for row in operations),
        parent=parent,
        listed=listed,
        profiles=profiles,
    )


def _mentioned(store: Store, group: str, entities: Mapping[str, Entity]) -> dict[str, dict[str, Any]]:
    shown: dict[str, list[str]] = {}
    for recorded, id_ in store.rows(kinds.ALL["shown_entities"], group):
        shown.setdefault(recorded, []).append(id_)
    found, named = dict[str, set[int]](), dict[str, int]()
    for sequence, recorded, surface in store.rows(kinds.MENTIONED, group):
        for id_ in shown.get(recorded, (recorded,)):
            found.setdefault(id_, set()).add(sequence)
            if id_ in entities and surface == entities[id_].name:
                named[id_] = min(sequence, named.get(id_, sequence))
    return {"mentioned": found, "named": named}


def withdrawn(operations: Sequence[Row]) -> tuple[int, ...]:
    """Return the sequences of the retractions and removals that have been carried out, or begun."""
    return tuple(row[0] for row in operations if row[1] in {"retract", "remove"} and row[4] is not None)


def runs(store: Store | Appending, group: str) -> list[Run]:
    """Return the runs that are kept, the current one last."""
    return [Run(*row) for row in store.rows(kinds.ALL["community_runs"], group)]


def current(store: Store | Appending, group: str) -> Run | None:
    """Return the current run; None before the first."""
    return found[-1] if (found := runs(store, group)) else None
