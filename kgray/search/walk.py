"""Graph steps: breadth first from entities to the facts and entities around them, with bounded width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgray.graph import Fact
from kgray.ports import GraphView
from kgray.times import Instant

HOPS = 2
_ROUNDS = 3  # reads a hop takes at most, see _around
_SHARE = 10  # facts each entity gives where a hop starts from many


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What was reached.

    facts       by (distance, rank of the seed, id); a fact at a seed has distance 1
    entities    id -> (distance, rank of the seed); seeds have distance 0
    """

    facts: tuple[Fact, ...]
    entities: dict[str, tuple[int, int]]

    def nearest_entities(self) -> list[str]:
        """Return the entities by (distance, rank of the seed, id)."""
        return sorted(self.entities, key=lambda found: (*self.entities[found], found))

    def distance(self, fact: Fact) -> int | None:
        """Return the distance of the fact's nearer end; None where neither was reached."""
        reached = [self.entities[end][0] for end in ends(fact) if end in self.entities]
        return min(reached, default=None)


def ends(fact: Fact) -> tuple[str, ...]:
    """Return the entities a fact connects; one beside a value."""
    return (fact.source,) if fact.target is None else (fact.source, fact.target)


def walk(
    view: GraphView,
    seeds: Sequence[str],
    as_of: Instant | None,
    *,
    hops: int = HOPS,
    room: int,
    front: int,
    enough: int | None = None,
) -> Walk:
    """Step from `seeds` (shown entity ids, best first, distinct) over the facts that hold at `as_of`.

    room    facts a hop takes: an equal share of each entity it starts from, 10 at least, newest
            first, so that a hub costs no more than any other
    front   entities that a hop after the first starts from, by (rank of the seed, id)
    enough  facts after which no further hop is made: what it finds would stand behind them; None = none

    Reads hops x 3 times at most, whatever the number of entities.
    """
    places = {seed: (0, rank) for rank, seed in enumerate(seeds)}
    found: dict[str, tuple[int, int, Fact]] = {}
    edge = list(places)
    for hop in range(1, hops + 1):
        if not edge or (enough is not None and len(found) >= enough):
            break
        around = _around(view, edge, as_of, max(_SHARE, room // len(edge)))
        reached: dict[str, tuple[int, int]] = {}
        for entity in edge:
            seed = places[entity][1]
            for fact in around[entity].values():
                found.setdefault(fact.id, (hop, seed, fact))
                for end in ends(fact):
                    if end not in places:
                        reached.setdefault(end, (hop, seed))
        places |= reached
        edge = sorted(reached, key=lambda entity: (reached[entity][1], entity))[:front]
    ordered = sorted(found.values(), key=lambda row: (row[0], row[1], row[2].id))
    return Walk(facts=tuple(fact for _, _, fact in ordered), entities=places)


def _around(
    view: GraphView, entities: Sequence[str], as_of: Instant | None, width: int
) -> dict[str, dict[str, Fact]]:
    """Return entity -> its newest facts, at most `width`, in few reads.

    One read serves all. Where it came back full, hubs may have crowded out the others: those that
    have their share step aside and the rest are read again. A full answer holds `width` facts an
    entity, so at least one has its share and every round makes progress.
    """
    found: dict[str, dict[str, Fact]] = {entity: {} for entity in entities}
    waiting = list(entities)
    for _ in range(_ROUNDS):
        limit = width * len(waiting)
        facts = view.facts_at(waiting, as_of, limit)
        for fact in facts:
            for end in ends(fact):
                if end in found and len(found[end]) < width:
                    found[end][fact.id] = fact
        waiting = [entity for entity in waiting if len(found[entity]) < width]
        if len(facts) < limit or not waiting:
            break
    return found
