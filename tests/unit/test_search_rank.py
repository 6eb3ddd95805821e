"""Fusing and ordering: pure, exact, and the same on every run."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.search.searcher import Scored, mmr, one_list, rescored, rrf

IDS = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


def scored(*pairs):
    return [Scored(id=found, score=score, methods={"bm25": 1}) for found, score in pairs]


def test_rrf_adds_one_over_sixty_plus_rank():
    """Cormack et al. 2009: b is second twice, a first once, c third once."""
    assert rrf({"bm25": ["a", "b"], "cosine": ["d", "b", "c"]}) == [
        Scored(id="b", score=1 / 62 + 1 / 62, methods={"bm25": 2, "cosine": 2}),
        Scored(id="a", score=1 / 61, methods={"bm25": 1}),
        Scored(id="d", score=1 / 61, methods={"cosine": 1}),
        Scored(id="c", score=1 / 63, methods={"cosine": 3}),
    ]


@given(st.tuples(IDS, IDS, IDS))
def test_rrf_does_not_depend_on_the_order_of_methods(rankings):
    """Not even in the last bit, which would break a tie by accident."""
    answers = [
        [(item.id, item.score) for item in rrf(dict(zip("xyz", order, strict=True)))]
        for order in itertools.permutations(rankings)
    ]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0] == sorted(answers[0], key=lambda pair: (-pair[1], pair[0]))


def test_new_scores_reorder_and_equal_ones_keep_the_fused_order():
    """An id without a score counts as 0."""
    items = scored(("a", 0.3), ("b", 0.2), ("c", 0.1))
    assert [(item.id, item.score) for item in rescored(items, {"c": 2.0})] == [
        ("c", 2.0),
        ("a", 0.0),
        ("b", 0.0),
    ]


def test_mmr_prefers_the_unlike_over_the_near_twin():
    """Carbonell and Goldstein 1998 at one half: a twin of the first pick is worth nothing."""
    query = np.array([1, 0, 0], dtype=np.float32)
    items = np.array([[0.8, 0.6, 0], [0.8, 0.6, 0], [0.6, 0, 0.8]], dtype=np.float32)
    picked = mmr(query, items, keep=3)
    assert [index for index, _ in picked] == [0, 2, 1]
    assert [value for _, value in picked] == pytest.approx([0.4, 0.06, -0.1])


def test_mmr_at_full_relevance_ranks_by_nearness_and_keeps_ties_in_order():
    query = np.array([1, 0], dtype=np.float32)
    items = np.array([[0, 1], [1, 0], [1, 0]], dtype=np.float32)
    assert [index for index, _ in mmr(query, items, keep=9, relevance=1.0)] == [1, 2, 0]


def test_mmr_of_nothing_is_nothing():
    assert mmr(np.ones(2, dtype=np.float32), np.zeros((0, 2), dtype=np.float32), keep=3) == []


@pytest.mark.parametrize(("width", "relevance"), [(3, 0.5), (2, 1.5)])
def test_mmr_refuses_what_it_cannot_compare(width, relevance):
    with pytest.raises(ValueError, match=r"relevance|wide"):
        mmr(np.ones(2, dtype=np.float32), np.ones((1, width), dtype=np.float32), keep=1, relevance=relevance)


def test_one_list_goes_by_score_and_ties_fall_fact_entity_episode():
    scoped = {
        "episode": scored(("p", 0.02)),
        "entity": scored(("e", 0.02)),
        "fact": scored(("f", 0.02), ("g", 0.03)),
    }
    assert [(scope, item.id) for scope, item in one_list(scoped, 10)] == [
        ("fact", "g"),
        ("fact", "f"),
        ("entity", "e"),
        ("episode", "p"),
    ]


def test_every_scope_keeps_its_best_places_in_one_list():
    """Ten facts outscore all: of 10 places the two best episodes and entities still get two each."""
    scoped = {
        "fact": scored(*((f"f{n}", 0.04 - n / 1000) for n in range(10))),
        "entity": scored(("e0", 0.02), ("e1", 0.019), ("e2", 0.018)),
        "episode": scored(("p0", 0.017), ("p1", 0.016), ("p2", 0.015)),
    }
    found = [item.id for _, item in one_list(scoped, 10)]
    assert found == ["f0", "f1", "f2", "f3", "f4", "f5", "e0", "e1", "p0", "p1"]


def test_a_limit_below_the_number_of_scopes_is_filled_by_score_alone():
    scoped = {
        "fact": scored(("f", 0.04), ("g", 0.03)),
        "entity": scored(("e", 0.02)),
        "episode": scored(("p", 0.01)),
    }
    assert [item.id for _, item in one_list(scoped, 2)] == ["f", "g"]
