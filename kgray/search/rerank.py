"""Rerankers that read the graph: what the fused order of one scope becomes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from kgray.graph import Entity, Fact
from kgray.kinds import STATEMENT_VECTORS_OF
from kgray.ports import Matrix, SearchScope
from kgray.rows import as_vector
from kgray.search.candidates import FoundRow, SearchRun
from kgray.search.neighbours import centre_of, from_centre
from kgray.search.rank import Scored, mmr, rescored
from kgray.search.walk import ends

_POOL = 3  # times the limit: what a reranker looks at
_FACTS_AN_ENTITY = 32
_BAG_CHARACTERS = 2000
_WORDS = re.compile(r"[^\W\u3000-\u9fff\uac00-\ud7ff]+|\w")  # CJK characters one by one


def rerank(
    run: SearchRun,
    fused: Mapping[SearchScope, list[Scored]],
    rows: Mapping[SearchScope, Mapping[str, FoundRow]],
) -> dict[SearchScope, list[Scored]]:
    """Order each scope by the query's reranker; what it cannot tell apart keeps its fused order.

    rrf                 the fused score
    mmr                 near the query, unlike what stands above: facts by their vectors, the others
                        (whose vectors no read gives by id) by the words they share
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
    """Return a vector a fact; None where one has none (a split may have made its statement)."""
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
            for end in ends(fact):
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
