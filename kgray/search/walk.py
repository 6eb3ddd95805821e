"""Graph steps: from entities over the facts that hold to the entities at their other ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from kgray.errors import NotFound
from kgray.graph import Fact
from kgray.ledger import find, sequences_of
from kgray.ports import GraphView, Store
from kgray.records import Place, entity_id
from kgray.times import Instant

HOPS = 2
_ROUNDS = 3  # reads a hop takes at most, see _around
_SHARE = 10  # facts each entity gives where a hop starts from many
_RECORDS = 64  # mentions and pieces of evidence of a seed episode that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What was reached.

    facts       by (distance, rank of the seed, id); a fact at a seed has distance 1
    facts_at    fact id -> (distance, rank of the seed)
    entities    id -> (distance, rank of the seed); seeds have distance 0
    """

    facts: tuple[Fact, ...]
    facts_at: dict[str, tuple[int, int]]
    entities: dict[str, tuple[int, int]]

    def distance(self, ends: Sequence[str]) -> int | None:
        """Return the distance of the nearest of these entities; None where none was reached."""
        return min((self.entities[end][0] for end in ends if end in self.entities), default=None)


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

    room    facts a hop takes: an equal share for each entity it starts from, at least 10, newest
            first, so that a hub costs no more than any other
    front   entities that a hop after the first starts from, by (rank of the seed, id)
    enough  facts after which no further hop is made, as its facts would rank below them; None = no bound

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
                for end in fact.ends:
                    if end not in places:
                        reached.setdefault(end, (hop, seed))
        places |= reached
        edge = sorted(reached, key=lambda entity: (reached[entity][1], entity))[:front]
    ordered = sorted(found.values(), key=lambda row: (row[0], row[1], row[2].id))
    at = {fact.id: (hop, seed) for hop, seed, fact in ordered}
    return Walk(facts=tuple(fact for _, _, fact in ordered), facts_at=at, entities=places)


def _around(
    view: GraphView, entities: Sequence[str], as_of: Instant | None, width: int
) -> dict[str, dict[str, Fact]]:
    """Return entity -> its newest facts, at most `width`, in few reads.

    One read serves all entities. If its answer is full, hubs may have crowded out the others: entities that
    have their share are left out and the others are read again. A full answer holds `width` facts an
    entity, so at least one has its share and every round makes progress.
    """
    found: dict[str, dict[str, Fact]] = {entity: {} for entity in entities}
    waiting = list(entities)
    for _ in range(_ROUNDS):
        limit = width * len(waiting)
        facts = view.facts_at(waiting, as_of, limit)
        for fact in facts:
            for end in fact.ends:
                if end in found and len(found[end]) < width:
                    found[end][fact.id] = fact
        waiting = [entity for entity in waiting if len(found[entity]) < width]
        if len(facts) < limit or not waiting:
            break
    return found


def known(store: Store, view: GraphView, ids: Sequence[str]) -> list[str]:
    """Return the shown entities that ids of entities, or of episodes by what they are about, stand for.

    Raises NotFound for an id that the group has not; none for one that this view does not show.
    """
    found: list[str] = []
    for identifier in ids:
        entities = view.entities([identifier])
        if entities:  # a split entity resolves to several: the part that kept the id is meant
            shown = [entity.id for entity in entities]
            found += [identifier] if identifier in shown else shown
            continue
        # Retracted rows count: a view as of an earlier moment may show them.
        sequences = sequences_of(store, view.group, ids=(identifier,))
        if not sequences and not find(store, view.group, identifier):
            raise NotFound(f"group {view.group} has no entity or episode {identifier!r}")
        for episode in view.episodes(sequences):
            found += _spoken_of(view, episode.sequence)
    return list(dict.fromkeys(found))


def _spoken_of(view: GraphView, sequence: int) -> list[str]:
    """Return the entities that an episode made or has evidence about, whenever that held.

    Ordinals count from 0 and entities' ids are computed from places, so each of both takes one read.
    """
    places: list[Place] = [(sequence, ordinal) for ordinal in range(_RECORDS)]
    facts = chain.from_iterable(view.facts_of_evidence(places, None))
    made = view.entities([entity_id(view.group, place) for place in places])
    return [*chain.from_iterable(fact.ends for fact in facts), *(entity.id for entity in made)]
