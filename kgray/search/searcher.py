"""A search: candidates by every method, ranks fused, hits built. No model is asked; the query is embedded.

Everything is deterministic: equal scores are always ordered the same way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import numpy as np

from kgray.derivation.stored import StoredView
from kgray.graph import Entity, Fact, FactSpan, Hit
from kgray.kinds import STATEMENT_VECTORS_OF
from kgray.ports import Embedder, GraphView, Matrix, SearchScope, Store, Vector, at_one_moment
from kgray.rows import as_vector
from kgray.search.candidates import (
    SCOPES,
    FoundRow,
    Method,
    Query,
    SearchRun,
    centre_of,
    from_centre,
    gather,
    reached,
    seeds_of,
    steps,
)
from kgray.times import Instant, now, to_datetime

ViewAt = Callable[[], GraphView]
Found = dict[SearchScope, dict[Method, list[FoundRow]]]
_SEED_DEPTH = 12  # ranks of each method among which the seeds of graph steps are chosen


async def search(store: Store, embedder: Embedder, query: Query, *, view: ViewAt | None = None) -> list[Hit]:
    """Return what answers the query best, as one list (`one_list` says how scopes mix).

    view    reads, within the snapshot of the search, what the graph knew at query.known_at;
            None = what it knows now

    Facts are those that hold at `as_of`. Entities and episodes have no span: all that the view shows are
    searched (R5). Each scope is ranked on its own: BM25 and cosine over what the view shows, then graph steps
    from the centre, the seeds and the entities of the best hits. Ranks are counted after filters.
    All reads see one snapshot. An unknown group reads as empty.

    Raises NotFound for a centre or a seed that the group does not have, ValueError for a `known_at`
    without a view or a view of another group.
    """
    if query.known_at is not None and view is None:
        raise ValueError("known_at needs a view of the graph as known then")
    ways = query.ways
    # A lone surrogate (a byte that was no UTF-8 on the command line) is no text to any store.
    text = query.text.encode("utf-8", "replace").decode()
    vector: Vector | None = None
    if "cosine" in ways.methods or ways.reranker == "mmr":
        vector = (await embedder.embed([text]))[0]
    moment = None if query.any_time else query.as_of if query.as_of is not None else now()

    def read() -> list[Hit]:
        shown = StoredView(store, query.group) if view is None else view()
        if shown.group != query.group:
            raise ValueError(f"the view shows group {shown.group}, the query asks {query.group}")
        run = SearchRun(store=store, view=shown, query=query, text=text, moment=moment, vector=vector)
        return _answer(run)

    if view is None:
        with store.reading():
            return read()
    return at_one_moment(store, read)  # a view may scan the group, which a server may have to repeat


def _answer(run: SearchRun) -> list[Hit]:
    found = _candidates(run)
    rows = {
        scope: {row.id: row for ranked in by_method.values() for row in ranked}
        for scope, by_method in found.items()
    }
    fused = {scope: rrf(_ids(by_method)) for scope, by_method in found.items()}
    ordered = rerank(run, fused, rows)
    return _hits(run.view, one_list(ordered, run.query.limit), rows)


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
    methods: list[Method] = [way for way in ("bm25", "cosine") if way in run.query.ways.methods]
    found: Found = {scope: {} for scope in scopes}
    short: list[tuple[SearchScope, Method]] = []
    for scope in scopes:
        for method in methods:
            gathered = gather(run, scope, method, -(-limit // len(scopes)))
            found[scope][method] = gathered.rows
            if gathered.more and len(gathered.rows) < limit:
                short.append((scope, method))
    if short and sum(len(_best(ranked, None)) for ranked in found.values()) < limit:
        for scope, method in short:
            found[scope][method] = gather(run, scope, method, limit).rows
    return found


def _best(ranked: dict[Method, list[FoundRow]], depth: int | None = _SEED_DEPTH) -> list[FoundRow]:
    """Return the rows by fused rank, of the first `depth` of each method."""
    head = {method: found[:depth] for method, found in ranked.items()}
    rows = {row.id: row for found in head.values() for row in found}
    return [rows[item.id] for item in rrf(_ids(head))]


def _ids(ranked: dict[Method, list[FoundRow]]) -> dict[str, list[str]]:
    return {method: [row.id for row in found] for method, found in ranked.items()}


def _hits(
    view: GraphView,
    chosen: Sequence[tuple[SearchScope, Scored]],
    rows: Mapping[SearchScope, Mapping[str, FoundRow]],
) -> list[Hit]:
    """Return the chosen rows as hits, in order; two reads, however many."""
    picked = [(rows[scope][item.id], item) for scope, item in chosen]
    spans, _ = spans_of(view, [row for row, _ in picked if isinstance(row, Fact)])
    return [_hit(row, item, view.group, spans) for row, item in picked]


def _hit(row: FoundRow, item: Scored, group: str, spans: Mapping[str, FactSpan]) -> Hit:
    """Return a row as a hit. spans: fact id -> the fact as callers get it."""
    hit = partial(Hit, id=row.id, score=item.score, group=group, methods=item.methods)
    if isinstance(row, Fact):
        return hit(scope="fact", text=row.text, fact=spans[row.id])
    if isinstance(row, Entity):
        return hit(scope="entity", text=row.name, entity=row)
    return hit(
        scope="episode",
        text=row.text,
        client_id=row.client_id,
        reference_time=to_datetime(row.reference_time),
        speaker=row.speaker,
        told_in=row.source,
        sequence=row.sequence,
    )


def spans_of(view: GraphView, facts: Sequence[Fact]) -> tuple[dict[str, FactSpan], Mapping[str, str | None]]:
    """Return fact id -> the fact as callers get it; and episode id -> client's id of all that they name."""
    if not facts:
        return {}, {}
    ends = list(dict.fromkeys(end for fact in facts for end in fact.ends))
    names = {entity.id: entity.name for entity in view.entities(ends)}
    told = {episode for fact in facts for episode in fact.episodes}
    told |= {fact.ended_by[0] for fact in facts if fact.ended_by is not None}
    clients = view.supporters(sorted(told))
    return {fact.id: _span(fact, names, clients) for fact in facts}, clients


def _span(fact: Fact, names: Mapping[str, str], clients: Mapping[str, str | None]) -> FactSpan:
    """Return a fact as callers get it. names: entity id -> name; clients: episode id -> the client's id."""

    def moment(instant: Instant | None) -> datetime | None:
        return None if instant is None else to_datetime(instant)

    target = names.get(fact.target) if fact.target is not None else None
    return FactSpan(
        id=fact.id,
        statement=fact.statement,
        text=fact.text,
        source_id=fact.source,
        source=names.get(fact.source),
        relation=fact.relation,
        target_id=fact.target,
        target=target if fact.value is None else fact.value.shown(),
        valid_at=moment(fact.valid_at),
        invalid_at=moment(fact.invalid_at),
        created_at=to_datetime(fact.created_at),
        expired_at=moment(fact.expired_at),
        episodes=tuple((episode, clients.get(episode)) for episode in fact.episodes),
        ended_by=fact.ended_by,
        event=fact.event,
    )


# ------------------------------------------------------------------------------------- fusion of the methods


# Cormack, Clarke and Buettcher (SIGIR 2009) found 60 near the best on every collection they tried.
RRF_K = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One thing with its score and the rank (from 1) that each method gave it."""

    id: str
    score: float
    methods: dict[str, int]


def rrf(rankings: Mapping[str, Sequence[str]]) -> list[Scored]:
    """Fuse rankings by reciprocal rank: score = sum over methods of 1 / (RRF_K + rank), ranks from 1.

    rankings    method -> distinct ids, best first
    returns     every id once, best first; equal scores by id

    The sum is correctly rounded (fsum), so that it does not depend on the order of the methods.
    Source: Cormack, Clarke and Buettcher, SIGIR 2009.
    """
    ranks: dict[str, dict[str, int]] = {}
    for method, ids in rankings.items():
        for rank, found in enumerate(ids, 1):
            ranks.setdefault(found, {})[method] = rank
    fused = [
        Scored(
            id=found, score=math.fsum(1 / (RRF_K + rank) for rank in by_method.values()), methods=by_method
        )
        for found, by_method in ranks.items()
    ]
    return sorted(fused, key=lambda item: (-item.score, item.id))


def rescored(items: Sequence[Scored], scores: Mapping[str, float]) -> list[Scored]:
    """Order by new scores (0 where none is given), highest first; equal ones keep their order."""
    changed = [replace(item, score=scores.get(item.id, 0.0)) for item in items]
    return sorted(changed, key=lambda item: -item.score)


def mmr(query: Vector, items: Matrix, *, keep: int, relevance: float = 0.5) -> list[tuple[int, float]]:
    """Pick items that are near the query and unlike what was picked before (maximal marginal relevance).

    query       (d,)    unit length
    items       (n, d)  unit length, n >= 0
    relevance   1.0 ranks by nearness alone, 0.0 by difference alone
    returns     (index into items, its marginal relevance), best first, min(keep, n) of them; the
                values never rise. Negative cosines count as 0: the opposite of a hit is no novelty.

    Cost: O(keep * n * d). Ties keep the order of `items`, so the result is deterministic.
    Raises ValueError if relevance is outside [0, 1] or the widths differ.
    Source: Carbonell and Goldstein, SIGIR 1998, with cosine for both similarities.
    """
    if not 0 <= relevance <= 1:
        raise ValueError(f"relevance is {relevance}: use 0 to 1")
    if len(items) and items.shape[1] != query.shape[0]:
        raise ValueError(f"items are {items.shape[1]} wide, the query is {query.shape[0]}")
    near = np.maximum(items @ query, 0.0) if len(items) else np.zeros(0, dtype=np.float32)
    like = np.zeros(len(items), dtype=np.float32)
    left = np.ones(len(items), dtype=bool)
    picked: list[tuple[int, float]] = []
    for _ in range(min(keep, len(items))):
        values = np.where(left, relevance * near - (1 - relevance) * like, -np.inf)
        best = int(values.argmax())
        picked.append((best, float(values[best])))
        left[best] = False
        like = np.maximum(like, items @ items[best])
    return picked


def one_list(scoped: Mapping[SearchScope, Sequence[Scored]], limit: int) -> list[tuple[SearchScope, Scored]]:
    """Return the best `limit` of all scopes as one list, by score; ties fact, entity, episode.

    Scores of one reranker are comparable across scopes, but a raw episode has no graph steps to gain
    from and would rarely outscore a fact. So, where the limit allows one each, every scope keeps
    the places of its best max(1, limit // (scopes + 1)) hits, and score fills the others.
    """
    order: tuple[SearchScope, ...] = ("fact", "entity", "episode")
    asked = [scope for scope in order if scope in scoped]
    sure = max(1, limit // (len(asked) + 1)) if limit >= len(asked) else 0
    rows = [
        (place >= sure, -item.score, order.index(scope), place, scope, item)
        for scope in asked
        for place, item in enumerate(scoped[scope])
    ]
    chosen = sorted(rows, key=lambda row: row[:4])[:limit]
    return [(row[4], row[5]) for row in sorted(chosen, key=lambda row: row[1:4])]


# ----------------------------------------------------------------------------------------- the rerankers


_POOL = 3  # times the limit: what a reranker looks at
_FACTS_AN_ENTITY = 32
_BAG_CHARACTERS = 2000
_WORDS = re.compile(r"[^\W\u3000-\u9fff\uac00-\ud7ff]+|\w")  # CJK characters one by one


def rerank(
    run: SearchRun,
    fused: Mapping[SearchScope, list[Scored]],
    rows: Mapping[SearchScope, Mapping[str, FoundRow]],
) -> dict[SearchScope, list[Scored]]:
    """Order each scope by the query's reranker; equal scores keep their fused order.

    rrf                 the fused score
    mmr                 near the query and unlike the hits above: facts by their vectors, entities and
                        episodes by the words they share, because no read returns their vectors by id
    episode_mentions    facts: how many episodes support it; entities: how many support its newest
                        facts, of any time (32 an entity on average); episodes: none
    node_distance       1 / (1 + steps from the centre), 0 beyond 3 steps; episodes: 0
    """
    name = run.query.ways.reranker
    if name == "rrf":
        return dict(fused)
    pools = {scope: items[: _POOL * run.query.limit] for scope, items in fused.items()}
    if name == "mmr":
        return {scope: _diverse(run, scope, items, rows[scope]) for scope, items in pools.items()}
    score = _mentions if name == "episode_mentions" else _nearness
    scores = score(run, [rows[scope][item.id] for scope, items in pools.items() for item in items])
    return {scope: rescored(items, scores) for scope, items in pools.items()}


def _diverse(
    run: SearchRun, scope: SearchScope, items: Sequence[Scored], rows: Mapping[str, FoundRow]
) -> list[Scored]:
    vectors = _vectors(run, [rows[item.id] for item in items]) if scope == "fact" else None
    if vectors is None or run.vector is None:
        texts = [_text(rows[item.id]) for item in items]
        bags = _bags([run.text, *texts])
        query, vectors = bags[0], bags[1:]
    else:
        query = run.vector
    picked = mmr(query, vectors, keep=run.query.limit)
    return [replace(items[i], score=score) for i, score in picked]


def _vectors(run: SearchRun, rows: Sequence[FoundRow]) -> Matrix | None:
    """Return a vector a fact; None where a fact has none (a split may have made its statement)."""
    statements = [row.statement for row in rows if isinstance(row, Fact)]
    if not statements:
        return None
    found = run.store.rows(STATEMENT_VECTORS_OF, run.query.group, list(dict.fromkeys(statements)))
    known = {id_: as_vector(kept) for id_, kept in found}
    if not all(statement in known for statement in statements):
        return None
    return np.stack([known[statement] for statement in statements])


def _bags(texts: Sequence[str]) -> Matrix:
    """Return one unit row a text, over the words of all; a text of no words is all zeros."""
    words = [sorted(set(_WORDS.findall(text[:_BAG_CHARACTERS].casefold()))) for text in texts]
    columns = {word: column for column, word in enumerate(sorted(set().union(*words)))}
    bags: Matrix = np.zeros((len(texts), max(1, len(columns))), dtype=np.float32)
    for row, found in enumerate(words):
        bags[row, [columns[word] for word in found]] = 1 / max(1, len(found)) ** 0.5
    return bags


def _text(row: FoundRow) -> str:
    return " ".join((row.name, *row.aliases)) if isinstance(row, Entity) else row.text


def _mentions(run: SearchRun, rows: Sequence[FoundRow]) -> dict[str, float]:
    scores = {row.id: float(len(row.episodes)) for row in rows if isinstance(row, Fact)}
    entities = [row.id for row in rows if isinstance(row, Entity)]
    if entities:
        episodes: dict[str, set[str]] = {entity: set() for entity in entities}
        for fact in run.view.facts_at(entities, None, _FACTS_AN_ENTITY * len(entities)):
            for end in fact.ends:
                if end in episodes:
                    episodes[end].update(fact.episodes)
        scores |= {entity: float(len(found)) for entity, found in episodes.items()}
    return scores


def _nearness(run: SearchRun, rows: Sequence[FoundRow]) -> dict[str, float]:
    walked = from_centre(run, centre_of(run))
    scores: dict[str, float] = {}
    for row in rows:
        if isinstance(row, Fact):
            distance = walked.distance(row)
        else:
            distance = walked.entities[row.id][0] if row.id in walked.entities else None
        if distance is not None:
            scores[row.id] = 1 / (1 + distance)
    return scores
