"""What may answer a query: BM25 and cosine, each an ordered list of rows that the view shows.

A store ranks records; the view says which of them show, and as what. Splits, merges, retractions,
`as_of` and filters drop candidates, so each method asks for more than is wanted, and for more still
while too few remain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kgray.graph import Entity, Fact
from kgray.ports import GraphView, SearchScope, Store, Vector
from kgray.records import Episode, Place
from kgray.search.filters import keep_entities, keep_episodes, keep_facts
from kgray.search.plan import Query
from kgray.times import Instant

FoundRow = Fact | Entity | Episode

OVER_FETCH = 3
MIN_DEPTH = 30  # under RRF ranks past 30 order what stands far below a limit of 10
MAX_DEPTH = 10_000
_DEEPER = 8  # each further try goes this much deeper: 30, 240, 1920, 10000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """All that one search reads with.

    text    the query as well-formed Unicode
    moment  when facts must hold; None = any time
    vector  of the text; None where no method needs one
    """

    store: Store
    view: GraphView
    query: Query
    text: str
    moment: Instant | None
    vector: Vector | None

    def keep(self, scope: SearchScope, rows: Sequence[FoundRow]) -> list[FoundRow]:
        """Return the rows that pass the query's filters, in their order."""
        filters = self.query.filters
        if scope == "fact":
            facts = [row for row in rows if isinstance(row, Fact)]
            return [*keep_facts(self.store, self.view, facts, filters)] if filters.narrows else [*facts]
        if scope == "entity":
            return [*keep_entities([row for row in rows if isinstance(row, Entity)], filters)]
        episodes = [row for row in rows if isinstance(row, Episode)]
        return [*keep_episodes(episodes, filters, self.query.as_of)]


@dataclass(frozen=True, slots=True)
class Gathered:
    """Rows of one scope, best first; more: the store has further candidates."""

    rows: list[FoundRow]
    more: bool = False


def by_words(run: SearchRun, scope: SearchScope, wanted: int) -> Gathered:
    """Return rows of one scope by BM25, at least `wanted` where there are so many."""
    group = run.query.group

    def fetch(depth: int) -> tuple[int, list[FoundRow]]:
        found = run.store.lexical(group, scope, run.text, depth)
        places = [item for item in found if not isinstance(item, str)]
        return len(found), _shown(run, scope, places, [item for item in found if isinstance(item, str)])

    return _enough(run, scope, wanted, fetch)


def by_meaning(run: SearchRun, scope: SearchScope, wanted: int) -> Gathered:
    """Return rows of one scope by cosine, at least `wanted` where there are so many."""
    group, vector = run.query.group, run.vector
    if vector is None:
        raise ValueError("cosine needs the query's vector")

    def fetch(depth: int) -> tuple[int, list[FoundRow]]:
        found = [owner for owner, _ in run.store.nearest(group, scope, vector, depth)]
        places = [(owner, 0) for owner in found if isinstance(owner, int)]
        return len(found), _shown(run, scope, places, [id_ for id_ in found if isinstance(id_, str)])

    return _enough(run, scope, wanted, fetch)


def _shown(run: SearchRun, scope: SearchScope, places: list[Place], ids: list[str]) -> list[FoundRow]:
    """Return what these records show as, in their order, each once, in one read."""
    view, moment = run.view, run.moment
    if scope == "episode":
        return [*view.episodes([sequence for sequence, _ in places])]
    if scope == "entity":
        return [*view.entities(ids)]
    return [*(view.facts_of_evidence(places, moment) if places else view.facts_of(ids, moment))]


def _enough(
    run: SearchRun, scope: SearchScope, wanted: int, fetch: Callable[[int], tuple[int, list[FoundRow]]]
) -> Gathered:
    """Fetch deeper until enough is left, the store has no more, or MAX_DEPTH is reached."""
    depth = max(MIN_DEPTH, OVER_FETCH * wanted)
    while True:
        count, rows = fetch(depth)
        kept = run.keep(scope, rows)
        more = count >= depth and depth < MAX_DEPTH
        if len(kept) >= wanted or not more:
            return Gathered(kept, more)
        depth = min(depth * _DEEPER, MAX_DEPTH)
