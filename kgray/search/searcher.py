"""A search: candidates by every method, ranks fused, hits built. No model is asked; the query is embedded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kgray.derivation.stored import StoredView
from kgray.graph import Entity, Fact, Hit
from kgray.ports import Embedder, GraphView, SearchScope, Store, Vector
from kgray.records import Episode
from kgray.search.candidates import (
    FoundRow,
    Gathered,
    SearchRun,
    by_meaning,
    by_words,
    centre_of,
    reached,
    seeds_of,
    steps,
)
from kgray.search.plan import SCOPES, Method, Query
from kgray.search.rank import Scored, one_list, rerank, rrf
from kgray.times import now

Found = dict[SearchScope, dict[Method, list[FoundRow]]]
Gather = Callable[[SearchRun, SearchScope, int], Gathered]
_SEED_DEPTH = 12  # ranks of each method among which the seeds of graph steps are chosen


async def search(
    store: Store, embedder: Embedder, query: Query, *, view: GraphView | None = None
) -> list[Hit]:
    """Return what answers the query best, as one list (rank.one_list says how scopes mix).

    view    what the graph knew at query.known_at; None = what it knows now

    Facts are those that hold at `as_of`. Entities have no span: all that the view shows are searched.
    With `as_of` given, episodes said after it are left out; with the default (now) none is.
    Each scope is ranked on its own: BM25 and cosine over what the view shows, then graph steps from
    the centre, the seeds and the entities of the best hits. Ranks are counted after filters.
    All reads see one snapshot. An unknown group reads as empty.

    Raises NotFound for a centre or a seed that the group does not have, ValueError for a `known_at`
    without a view or a view of another group.
    """
    if query.known_at is not None and view is None:
        raise ValueError("known_at needs a view of the graph as known then")
    if view is not None and view.group != query.group:
        raise ValueError(f"the view shows group {view.group}, the query asks {query.group}")
    ways = query.ways
    # A lone surrogate (a byte that was no UTF-8 on the command line) is no text to any store.
    text = query.text.encode("utf-8", "replace").decode()
    vector: Vector | None = None
    if "cosine" in ways.methods or ways.reranker == "mmr":
        vector = (await embedder.embed([text]))[0]
    moment = None if query.any_time else query.as_of if query.as_of is not None else now()
    with store.reading():
        shown = view if view is not None else StoredView(store, query.group)
        run = SearchRun(store=store, view=shown, query=query, text=text, moment=moment, vector=vector)
        return _answer(run)


def _answer(run: SearchRun) -> list[Hit]:
    found = _candidates(run)
    rows = {
        scope: {row.id: row for ranked in by_method.values() for row in ranked}
        for scope, by_method in found.items()
    }
    fused = {scope: rrf(_ids(by_method)) for scope, by_method in found.items()}
    ordered = rerank(run, fused, rows)
    return to_hits(run.view, one_list(ordered, run.query.limit), rows)


def _candidates(run: SearchRun) -> Found:
    """Return rows by scope and method, methods in their fixed order."""
    found = _by_text(run)
    if "bfs" in run.query.ways.methods:
        given = list(dict.fromkeys([*centre_of(run), *seeds_of(run)]))
        walked = steps(run, given, {scope: _best(ranked) for scope, ranked in found.items()})
        for scope, ranked in found.items():
            ranked["bfs"] = reached(run, walked, scope)
    return found


def _by_text(run: SearchRun) -> Found:
    """Gather by BM25 and cosine: a share of the limit for each scope, more where others fall short."""
    limit, scopes = run.query.limit, [scope for scope in SCOPES if scope in run.query.scopes]
    ways: list[tuple[Method, Gather]] = [("bm25", by_words), ("cosine", by_meaning)]
    found: Found = {scope: {} for scope in scopes}
    short: list[tuple[SearchScope, Method, Gather]] = []
    for scope in scopes:
        for method, gather in ways:
            if method in run.query.ways.methods:
                gathered = gather(run, scope, -(-limit // len(scopes)))
                found[scope][method] = gathered.rows
                if gathered.more and len(gathered.rows) < limit:
                    short.append((scope, method, gather))
    if short and sum(len(_best(ranked, None)) for ranked in found.values()) < limit:
        for scope, method, gather in short:
            found[scope][method] = gather(run, scope, limit).rows
    return found


def _best(ranked: dict[Method, list[FoundRow]], depth: int | None = _SEED_DEPTH) -> list[FoundRow]:
    """Return the rows by fused rank, of the first `depth` of each method."""
    head = {method: found[:depth] for method, found in ranked.items()}
    rows = {row.id: row for found in head.values() for row in found}
    return [rows[item.id] for item in rrf(_ids(head))]


def _ids(ranked: dict[Method, list[FoundRow]]) -> dict[str, list[str]]:
    return {method: [row.id for row in found] for method, found in ranked.items()}


# ------------------------------------------------------------------------------------------ rows to hits


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
    entities = view.entities(list(dict.fromkeys(end for fact in facts for end in fact.ends))) if facts else []
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
