"""Fusion by rank, and the rerankers of Zep (arXiv 2501.13956, section 3): right by definition.

mmr                 near the query and unlike the hits above: facts by their vectors, entities and episodes by
                    the words they share
episode_mentions    facts: how many episodes support it; entities: how many support its newest facts, of any
                    time (32 an entity on average); episodes: none
node_distance       1 / (1 + steps from the centre), 0 beyond 3 steps; episodes: 0
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kgray.graph import Entity, Fact
from kgray.kinds import STATEMENT_VECTORS_OF
from kgray.ports import Matrix, Vector
from kgray.rows import as_vector
from kgray.search.candidates import Candidate, FoundRow, SearchRun, distances, entities_of

# Cormack, Clarke and Buettcher (SIGIR 2009) found 60 near the best on every collection they tried.
RRF_K = 60


def rrf(rankings: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Fuse rankings by reciprocal rank: score = sum over methods of 1 / (RRF_K + rank), ranks from 1.

    rankings    method -> distinct ids, best first
    returns     id -> score, best first; equal scores by id

    The sum is correctly rounded (fsum): the order of the methods does not matter. Source: see RRF_K.
    """
    parts: dict[str, list[float]] = {}
    for ids in rankings.values():
        for rank, found in enumerate(ids, 1):
            parts.setdefault(found, []).append(1 / (RRF_K + rank))
    scores = {found: math.fsum(of_methods) for found, of_methods in parts.items()}
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))


def fused_by_rank(found: Mapping[str, Sequence[Candidate]]) -> list[Candidate]:
    """Fuse what the methods found, by signal, with `rrf`."""
    rows = {c.row.id: c.row for candidates in found.values() for c in candidates}
    signals: dict[str, dict[str, float]] = {}
    for signal, candidates in found.items():
        for candidate in candidates:
            signals.setdefault(candidate.row.id, {})[signal] = candidate.signals.get(signal, candidate.score)
    scores = rrf({signal: [c.row.id for c in candidates] for signal, candidates in found.items()})
    return [Candidate(row=rows[id_], score=score, signals=signals[id_]) for id_, score in scores.items()]


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


_FACTS_AN_ENTITY = 32
_BAG_CHARACTERS = 2000
_WORDS = re.compile(r"[^\W\u3000-\u9fff\uac00-\ud7ff]+|\w")  # CJK characters one by one


def reranked(run: SearchRun, vector: Vector | None, found: Sequence[Candidate]) -> list[Candidate]:
    """Order the candidates of one scope by the recipe's reranker; equal scores keep their order."""
    if run.ways.reranker == "mmr":
        return _diverse(run, vector, found)
    score = _mentions if run.ways.reranker == "episode_mentions" else _nearness
    scores = score(run, [candidate.row for candidate in found])
    changed = [replace(candidate, score=scores.get(candidate.row.id, 0.0)) for candidate in found]
    return sorted(changed, key=lambda candidate: -candidate.score)


def _diverse(run: SearchRun, query: Vector | None, found: Sequence[Candidate]) -> list[Candidate]:
    vectors = _vectors(run, [candidate.row for candidate in found])
    if vectors is None or query is None:
        bags = _bags([run.question.text, *(_text(candidate.row) for candidate in found)])
        query, vectors = bags[0], bags[1:]
    picked = mmr(query, vectors, keep=run.query.limit)
    return [replace(found[i], score=score) for i, score in picked]


def _vectors(run: SearchRun, rows: Sequence[FoundRow]) -> Matrix | None:
    """Return a vector a fact; None where a fact has none (a split may have made its statement)."""
    statements = [row.statement for row in rows if isinstance(row, Fact)]
    asked = list(dict.fromkeys(statements))
    found = run.store.rows(STATEMENT_VECTORS_OF, run.query.group, asked) if asked else ()
    known = {row[0]: as_vector(row[-1]) for row in found}
    whole = len(statements) == len(rows) > 0 and len(known) == len(asked)
    return np.stack([known[statement] for statement in statements]) if whole else None


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
    steps = distances(run)
    near = {row.id: [steps[end] for end in entities_of(row) if end in steps] for row in rows}
    return {id_: 1 / (1 + min(found)) for id_, found in near.items() if found}
