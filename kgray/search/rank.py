"""Orderings that need no model: RRF, MMR, the list of several scopes. Pure; ties fall the same way always."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kgray.ports import Matrix, SearchScope, Vector

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
