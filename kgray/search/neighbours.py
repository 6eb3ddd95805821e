"""Where graph steps start, and what they reach as candidates of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest

from kgray.errors import NotFound
from kgray.graph import Entity, Fact
from kgray.ledger import find, sequences_of
from kgray.ports import SearchScope
from kgray.records import Place, entity_id
from kgray.search.candidates import OVER_FETCH, FoundRow, SearchRun
from kgray.search.walk import HOPS, Walk, ends, walk

_FROM_HITS = 6  # entities of the best hits from which steps start
_RECORDS = 64  # mentions and pieces of evidence of a seed episode that are looked at
_FRONT = 8  # entities a later hop starts from; a tenth of the limit where that is more
_FILTERED = 8  # filters drop what was reached, so steps take that many times as much
_CENTRE_HOPS = 3


def steps(run: SearchRun, given: Sequence[str], best: Mapping[SearchScope, Sequence[FoundRow]]) -> Walk:
    """Walk from the given entities, then from those of the best hits of the other methods."""
    ranked = zip_longest(best.get("fact", ()), best.get("entity", ()))
    hits = [_entities_of(row) for row in chain.from_iterable(ranked) if row is not None]
    from_hits = list(dict.fromkeys(chain.from_iterable(hits[:_FROM_HITS])))[:_FROM_HITS]
    limit = run.query.limit * (_FILTERED if run.query.filters.narrows else 1)
    return _walk(run, list(dict.fromkeys([*given, *from_hits])), HOPS, OVER_FETCH * limit)


def from_centre(run: SearchRun, centre: Sequence[str]) -> Walk:
    """Walk from the centre alone, to measure distances: up to 3 hops."""
    return _walk(run, centre, _CENTRE_HOPS, None)


def reached(run: SearchRun, walked: Walk, scope: SearchScope) -> list[FoundRow]:
    """Return the rows of one scope that the walk met, nearest first; episodes lie on no path."""
    if scope == "fact":
        return run.keep(scope, walked.facts)
    if scope == "entity":
        return run.keep(scope, run.view.entities(walked.nearest_entities()))
    return []


def centre_of(run: SearchRun) -> list[str]:
    """Return the shown entity of the query's centre: one or, where this view does not show it, none.

    Raises NotFound where the group has no such entity.
    """
    centre = run.query.centre
    return [] if centre is None else _known(run, [centre])


def seeds_of(run: SearchRun) -> list[str]:
    """Return the shown entities of the query's seeds, in their order; raises NotFound as `centre_of`."""
    return _known(run, run.query.seeds)


def _known(run: SearchRun, ids: Sequence[str]) -> list[str]:
    """Resolve ids of entities and episodes to shown entities."""
    group, view = run.query.group, run.view
    found: list[str] = []
    for identifier in ids:
        entities = view.entities([identifier])
        if entities:  # several where a split divided it: the part that kept the id is meant
            shown = [entity.id for entity in entities]
            found += [identifier] if identifier in shown else shown
            continue
        # Retracted rows count: a view as of an earlier moment may show them.
        sequences = sequences_of(run.store, group, ids=(identifier,))
        if not sequences and not find(run.store, group, identifier):
            raise NotFound(f"group {group} has no entity or episode {identifier!r}")
        for episode in view.episodes(sequences):
            found += _spoken_of(run, episode.sequence)
    return list(dict.fromkeys(found))


def _spoken_of(run: SearchRun, sequence: int) -> list[str]:
    """Return the entities an episode made or has evidence about, whenever that held.

    Ordinals count from 0 and ids of entities follow from places, so both are read in one go each.
    """
    places: list[Place] = [(sequence, ordinal) for ordinal in range(_RECORDS)]
    facts = run.view.facts_of_evidence(places, None)
    made = run.view.entities([entity_id(run.query.group, place) for place in places])
    return [*chain.from_iterable(ends(fact) for fact in facts), *(entity.id for entity in made)]


def _entities_of(row: FoundRow) -> tuple[str, ...]:
    if isinstance(row, Fact):
        return ends(row)
    return (row.id,) if isinstance(row, Entity) else ()


def _walk(run: SearchRun, seeds: Sequence[str], hops: int, enough: int | None) -> Walk:
    limit = run.query.limit
    room = limit * (_FILTERED if run.query.filters.narrows else 1)
    front = max(_FRONT, limit // 10)
    return walk(run.view, seeds, run.moment, hops=hops, room=room, front=front, enough=enough)
