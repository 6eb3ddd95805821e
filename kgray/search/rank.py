"""How found rows are ordered: RRF over the methods, the rerankers, and one list of several scopes.

Everything is deterministic: equal scores are always ordered the same way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kgray.graph import Entity, Fact
from kgray.kinds import STATEMENT_VECTORS_OF
from kgray.ports import Matrix, SearchScope, Vector
from kgray.rows import as_vector
from kgray.search.candidates import FoundRow, SearchRun, centre_of, from_centre

# Cormack, Clarke and Buettcher (SIGIR 2009) found 60 near the best on every collection they tried.
RRF_K = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One thing with its score and the rank (from 1) that each method gave it."""

    id: str
    score: float
    methods: dict[str, int]


def rrf(rankings: Mapping[str, Sequence[str]], *, k: int = RRF_K) -> list[Scored]:
    """Fuse rankings by reciprocal rank: score = sum over methods of 1 / (k + rank), ranks from 1.

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
        Scored(id=found, score=math.fsum(1 / (k + rank) for rank in by_method.values()), methods=by_method)
        for found, by_method in ranks.items()
    ]
    return sorted(fused, key=lambda item: (-item.score, item.id))


def rescored(items: Sequence[Scored], scores: Mapping[str, float]) -> list[Scored]:
    """Order by new scores (0 where none is given), highest first; equal ones keep their order."""
    changed = [Scored(id=item.id, score=scores.get(item.id, 0.0), methods=item.methods) for item in items]
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
    if name == "episode_mentions":
        scores = _mentions(run, [rows[scope][item.id] for scope, items in pools.items() for item in items])
    else:
        scores = _nearness(run, [rows[scope][item.id] for scope, items in pools.items() for item in items])
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
    return [Scored(id=items[i].id, score=score, methods=items[i].methods) for i, score in picked]


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
