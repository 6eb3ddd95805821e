"""Fusion by rank, and the rerankers of Zep (arXiv 2501.13956, section 3).

mmr                 near the query and unlike the hits above: facts and communities by their vectors, entities
                    and episodes by the words they share
episode_mentions    facts: how many episodes support it; entities and communities: how many support the newest
                    facts of the entity or the members, of any time (32 an entity on average); episodes: of
                    the facts that they support, n / (n + 1)
node_distance       1 / (1 + steps from the centre), 0 beyond 3 steps, of the nearest entity: a fact's ends, a
                    community's members, the ends of the facts that an episode supports
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kgray.domain.graph import Community, Entity, Fact
from kgray.domain.records import Episode
from kgray.ports import Matrix, Vector
from kgray.schema.rows import as_vector
from kgray.search.loading import read_text_vectors
from kgray.search.query import FoundRow
from kgray.search.ranking import Candidate, SearchRun
from kgray.search.steps import RECORDS, distances

# Cormack, Clarke and Buettcher (SIGIR 2009) found 60 near the best on every collection they tried.
RRF_K = 60


def fused_by_rank(by_signal: Mapping[str, Sequence[Candidate]]) -> list[Candidate]:
    """Fuse ranked candidates of several signals: score = sum over signals of 1 / (RRF_K + rank).

    Returns best first, ties by id. The sum is correctly rounded, so the order of the signals does not matter.
    """
    rows: dict[str, FoundRow] = {}
    parts: dict[str, list[float]] = {}
    signals: dict[str, dict[str, float]] = {}
    for signal, candidates in by_signal.items():
        for rank, candidate in enumerate(candidates, 1):
            rows[candidate.row.id] = candidate.row
            parts.setdefault(candidate.row.id, []).append(1 / (RRF_K + rank))
            signals.setdefault(candidate.row.id, {})[signal] = candidate.signals.get(signal, candidate.score)
    fused = [Candidate(row=rows[id_], score=math.fsum(p), signals=signals[id_]) for id_, p in parts.items()]
    return sorted(fused, key=lambda candidate: (-candidate.score, candidate.row.id))


def mmr(query: Vector, items: Matrix, *, keep: int, relevance: float = 0.5) -> list[tuple[int, float]]:
    """Pick items that are near the query and unlike the items picked before (maximal marginal relevance).

    query (d,) and items (n, d) have unit length; returns (index, its marginal relevance), best first, ties in
    the order of `items`, min(keep, n) of them; the values never rise. A negative cosine counts as 0, because
    an opposite is no novelty. relevance: the lambda of the source, 1.0 by nearness alone, 0.0 by difference.
    Cost: O(keep * n * d). Source: Carbonell and Goldstein, SIGIR 1998.
    """
    near = np.maximum(items @ query, 0.0) if len(items) else np.zeros(0, dtype=np.float32)
    like = np.zeros(len(items), dtype=np.float32)
    is_open = np.ones(len(items), dtype=bool)
    picked: list[tuple[int, float]] = []
    for _ in range(min(keep, len(items))):
        values = np.where(is_open, relevance * near - (1 - relevance) * like, -np.inf)
        best = int(values.argmax())
        picked.append((best, float(values[best])))
        is_open[best] = False
        like = np.maximum(like, items @ items[best])
    return picked


_FACTS_AN_ENTITY = 32
_BAG_CHARACTERS = 2000
_WORDS = re.compile(r"[^\W\u3000-\u9fff\uac00-\ud7ff]+|\w")  # CJK characters one by one


def reranked(run: SearchRun, vector: Vector | None, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Order the candidates of one scope by the recipe's reranker; equal scores keep their order."""
    rows = [candidate.row for candidate in candidates]
    if run.recipe.reranker == "mmr":
        facts = [row.statement for row in rows if isinstance(row, Fact)]
        statements = list(dict.fromkeys(facts))
        stored = read_text_vectors(run.store, run.query.group)(run.statements.places_of(statements))
        vector_of = {statement: as_vector(vector) for statement, vector in stored}
        summaries = [row.vector for row in rows if isinstance(row, Community) and row.vector]
        if vector is not None and len(facts) == len(rows) > 0 and len(vector_of) == len(statements):
            vectors = np.stack([vector_of[statement] for statement in facts])
        elif vector is not None and len(summaries) == len(rows) > 0:
            vectors = np.stack([as_vector(summary) for summary in summaries])
        else:  # a statement that a split made has no vector
            names = (" ".join((r.name, *r.aliases)) if isinstance(r, Entity) else r.text for r in rows)
            bags = _bags([run.question.text, *names])
            vector, vectors = bags[0], bags[1:]
        picked = mmr(vector, vectors, keep=run.query.limit, relevance=run.recipe.mmr_lambda)
        return [replace(candidates[i], score=score) for i, score in picked]
    if run.recipe.reranker == "episode_mentions":
        scores = _mentions(run, rows)
    else:
        steps = distances(run)
        ends = _ends_of(run, rows)
        near = {id_: [steps[end] for end in entities if end in steps] for id_, entities in ends.items()}
        scores = {id_: 1 / (1 + min(places)) for id_, places in near.items() if places}
    changed = [replace(candidate, score=scores.get(candidate.row.id, 0.0)) for candidate in candidates]
    return sorted(changed, key=lambda candidate: -candidate.score)


def _bags(texts: Sequence[str]) -> Matrix:
    """Return one unit row a text, over the words of all texts; a text without words is all zeros."""
    words = [sorted(set(_WORDS.findall(text[:_BAG_CHARACTERS].casefold()))) for text in texts]
    columns = {word: column for column, word in enumerate(sorted(set().union(*words)))}
    bags: Matrix = np.zeros((len(texts), max(1, len(columns))), dtype=np.float32)
    for row, present in enumerate(words):
        bags[row, [columns[word] for word in present]] = 1 / max(1, len(present)) ** 0.5
    return bags


def _mentions(run: SearchRun, rows: Sequence[FoundRow]) -> dict[str, float]:
    scores = {row.id: float(len(row.episodes)) for row in rows if isinstance(row, Fact)}
    of_episodes = _facts_of_episodes(run, rows).items()
    scores |= {id_: len(facts) / (1 + len(facts)) for id_, facts in of_episodes}  # below 1: after all facts
    members = {row.id: row.members for row in rows if isinstance(row, Community)}
    members |= {row.id: (row.id,) for row in rows if isinstance(row, Entity)}
    entities = list(dict.fromkeys(entity for ids in members.values() for entity in ids))
    if entities:
        episodes: dict[str, set[str]] = {entity: set() for entity in entities}
        for fact in run.view.facts_at(entities, None, _FACTS_AN_ENTITY * len(entities)):
            for end in fact.ends:
                if end in episodes:
                    episodes[end].update(fact.episodes)
        for id_, ids in members.items():
            scores[id_] = float(len(set().union(*(episodes[entity] for entity in ids))))
    return scores


def _ends_of(run: SearchRun, rows: Sequence[FoundRow]) -> dict[str, Sequence[str]]:
    """Return row id -> the entities from which its distance is measured."""
    ends: dict[str, Sequence[str]] = {}
    for row in rows:
        if isinstance(row, Fact):
            ends[row.id] = row.ends
        elif isinstance(row, Entity | Community):
            ends[row.id] = row.members if isinstance(row, Community) else (row.id,)
    for id_, facts in _facts_of_episodes(run, rows).items():
        ends[id_] = [end for fact in facts for end in fact.ends]
    return ends


def _facts_of_episodes(run: SearchRun, rows: Sequence[FoundRow]) -> dict[str, list[Fact]]:
    """Return episode id -> the facts, of any time, that it supports."""
    episodes = [row for row in rows if isinstance(row, Episode)]
    places = [(row.sequence, ordinal) for row in episodes for ordinal in range(RECORDS)]
    of_place = dict(zip(places, run.view.facts_of_evidence(places, None), strict=True)) if places else {}
    by_episode: dict[str, list[Fact]] = {}
    for row in episodes:
        evidence = (of_place[row.sequence, ordinal] for ordinal in range(RECORDS))
        by_episode[row.id] = [*{fact.id: fact for facts in evidence for fact in facts}.values()]
    return by_episode
