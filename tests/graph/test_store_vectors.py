"""Cosine search on every store: exact scores, best first, current after every change, of one group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kgray.kinds import MENTIONS, NAME_VECTORS
from tests.graph.by_hand import (
    WIDTH,
    all_of,
    append,
    changes,
    draft,
    fill,
    pointing,
    remove,
    stored,
    tell,
    told,
    unit,
)


def test_small_sets_are_exact_with_ties_by_insertion(store, group):
    with store.writing():
        fill(store, np.array([pointing(1), pointing(2), pointing(1), pointing(1, 2)]), group=group)
    found = store.nearest(group, "fact", pointing(1), 9)
    assert [owner for owner, _ in found] == ["0", "2", "3", "1"]
    assert [round(score, 6) for _, score in found] == [1.0, 1.0, 0.707107, 0.0]
    assert [owner for owner, _ in store.nearest(group, "fact", pointing(1), 1)] == ["0"]
    assert store.nearest(group, "entity", pointing(1), 9) == []
    assert store.nearest(group, "episode", pointing(1), 9) == []
    assert store.nearest(group, "fact", -pointing(1), 4)[-1][1] == pytest.approx(-1.0, abs=1e-6)
    assert store.nearest(group, "fact", pointing(1), 0) == []
    assert store.nearest("none", "fact", pointing(1), 9) == []


def test_an_entity_is_found_once_by_its_best_surface(store, group):
    append(store, draft("a", group=group))
    named = [("E1", str(n), 1, n, stored(1, 2, n + 2)) for n in range(5)]
    named.append(("E2", "x", 1, 5, stored(3)))
    with store.writing():
        store.apply([changes(1, 1, {NAME_VECTORS: named}, group=group)])
    found = store.nearest(group, "entity", pointing(1), 2)
    assert [owner for owner, _ in found] == ["E1", "E2"]
    assert all_of(store, NAME_VECTORS, group) == named


def test_what_another_process_commits_and_removes_is_seen_at_once(store, stores, group):
    reader = stores.open()
    assert reader.nearest(group, "fact", pointing(1), 9) == []
    with store.writing():
        tell(store, "Al", "one", group=group)
        assert [owner for owner, _ in reader.nearest(group, "fact", pointing(1), 9)] == ["S1"]
        tell(store, "Bo", "two", group=group)
        assert [owner for owner, _ in reader.nearest(group, "fact", pointing(1), 9)] == ["S1", "S2"]
        remove(store, [2], group=group)
        # The key of the removed row may be used again: the count of removals tells that it is another.
        append(store, draft("c", group=group))
        commit = told(4, "Cy", "three", 10**6, group=group)
        puts = {kind: found for kind, found in commit.puts.items() if kind is not MENTIONS}
        store.apply([replace(commit, puts=puts)])
        assert [owner for owner, _ in reader.nearest(group, "fact", pointing(4), 9)] == ["S4", "S1"]


def test_a_group_among_many_gets_its_own_best(store, group, other):
    """However few of all vectors are the group's, and however near the others' are."""
    dice = np.random.default_rng(3)
    crowd, few = unit(dice.standard_normal((1_000, WIDTH))), unit(dice.standard_normal((30, WIDTH)))
    with store.writing():
        fill(store, crowd, group=other)
        fill(store, few, group=group)
    for query in crowd[::400]:
        scores = few @ query
        expected = np.argsort(-scores)[:20]
        found = store.nearest(group, "fact", query, 20)
        assert [owner for owner, _ in found] == [str(n) for n in expected]
        assert [score for _, score in found] == pytest.approx(scores[expected].tolist(), abs=1e-5)
        assert store.nearest(other, "fact", query, 1)[0][1] == pytest.approx(1.0, abs=1e-5)
