"""Cosine search: exact on small sets, against brute force on large ones, current after every change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kgray.ports import Commit, NamedVector
from kgray.stores import vectors as sets
from kgray.stores.sqlite import open_sqlite
from tests.graph.by_hand import draft, pointing, remove, small, tell, told


@pytest.fixture
def store(tmp_path):
    opened = small(tmp_path)
    yield opened
    opened.close()


def unit(matrix):
    """Return the rows at length one, float32."""
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def fill(store, matrix, *, group="g", kind="statement", a_commit=5_000):
    """Commit these vectors, owners S0, S1, ... or E0, E1, ..."""
    for start in range(0, len(matrix), a_commit):
        (accepted,) = store.accept([draft(f"rows {start} {len(matrix)}", group=group)], now=1)
        named = tuple(
            NamedVector(kind=kind, owner=f"{n}", text=f"{n}", vector=matrix[n])
            for n in range(start, min(start + a_commit, len(matrix)))
        )
        at = store.last_recorded(group) + 1
        store.apply(Commit(group=group, sequence=accepted.sequence, recorded_at=at, vectors=named))


def brute(matrix, query, limit):
    """Return the best owners by exact cosine, ties by insertion."""
    return [str(n) for n in np.lexsort((np.arange(len(matrix)), -(matrix @ query)))[:limit]]


def test_small_sets_are_exact_with_ties_by_insertion(store):
    with store.writing():
        fill(store, np.array([pointing(1), pointing(2), pointing(1), pointing(1, 2)]))
    found = store.nearest("g", "fact", pointing(1), 9)
    assert [owner for owner, _ in found] == ["0", "2", "3", "1"]
    assert [round(score, 6) for _, score in found] == [1.0, 1.0, 0.707107, 0.0]
    assert [owner for owner, _ in store.nearest("g", "fact", pointing(1), 1)] == ["0"]
    assert store.nearest("g", "entity", pointing(1), 9) == []
    assert store.nearest("g", "episode", pointing(1), 9) == []
    assert store.nearest("g", "fact", -pointing(1), 4)[-1][1] == -1.0


def test_an_entity_is_found_once_by_its_best_surface(store):
    store.accept([draft("a")], now=1)
    named = [
        NamedVector(kind="name", owner="E1", text=str(n), vector=pointing(1, 2, n + 2)) for n in range(5)
    ]
    named.append(NamedVector(kind="name", owner="E2", text="x", vector=pointing(3)))
    with store.writing():
        store.apply(Commit(group="g", sequence=1, recorded_at=1, vectors=tuple(named)))
    found = store.nearest("g", "entity", pointing(1), 2)
    assert [owner for owner, _ in found] == ["E1", "E2"]
    assert len(list(store.name_vectors("g"))) == 6


def test_what_another_process_commits_and_removes_is_seen_at_once(store, tmp_path):
    reader = small(tmp_path)
    assert reader.nearest("g", "fact", pointing(1), 9) == []
    with store.writing():
        tell(store, "Al", "one")
        assert [owner for owner, _ in reader.nearest("g", "fact", pointing(1), 9)] == ["S1"]
        tell(store, "Bo", "two")
        assert [owner for owner, _ in reader.nearest("g", "fact", pointing(1), 9)] == ["S1", "S2"]
        remove(store, [2])
        # The key of the removed row may be used again: the count of removals tells that it is another.
        store.accept([draft("c")], now=1)
        store.apply(replace(told(4, "Cy", "three", 10**6), mentions=()))
        assert [owner for owner, _ in reader.nearest("g", "fact", pointing(4), 9)] == ["S4", "S1"]
    reader.close()


@pytest.mark.parametrize("width", [16, 100, 1024])
def test_a_large_set_agrees_with_brute_force_on_clustered_texts(tmp_path, width):
    """Past EXACT_ROWS sign bits choose the candidates; every score returned is exact."""
    dice = np.random.default_rng(5)
    centres = dice.standard_normal((60, width))
    count = 3 * sets.EXACT_ROWS
    matrix = unit(centres[dice.integers(60, size=count)] + 0.8 * dice.standard_normal((count, width)))
    store = open_sqlite(tmp_path, embedder="e", dimensions=width)
    with store.writing():
        fill(store, matrix[: sets.EXACT_ROWS - 10])
        store.nearest("g", "fact", matrix[0], 1)  # the set is in memory, and grows over the bound
        # The rest under the owners that come next.
        (accepted,) = store.accept([draft("rest")], now=1)
        rest = tuple(
            NamedVector(kind="statement", owner=f"{n}", text="", vector=matrix[n])
            for n in range(sets.EXACT_ROWS - 10, count)
        )
        store.apply(Commit(group="g", sequence=accepted.sequence, recorded_at=99, vectors=rest))
    recalls = []
    for query in unit(
        matrix[::400] + 0.3 * dice.standard_normal((len(matrix[::400]), width)) / np.sqrt(width)
    ):
        found = store.nearest("g", "fact", query, 20)
        scores = matrix @ query
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        for owner, score in found:
            assert score == pytest.approx(scores[int(owner)], abs=1e-5)
        recalls.append(len({owner for owner, _ in found} & set(brute(matrix, query, 20))) / 20)
    # 16 signs say little; the hashing embedder's 1024 are what is promised.
    assert np.mean(recalls) >= {16: 0.6, 100: 0.85, 1024: 0.99}[width]
    store.close()


def test_equal_vectors_past_the_bound_come_in_order_of_insertion(store):
    with store.writing():
        fill(store, np.tile(pointing(1, 2), (sets.EXACT_ROWS + 500, 1)))
    assert [owner for owner, _ in store.nearest("g", "fact", pointing(1), 5)] == ["0", "1", "2", "3", "4"]


def test_memory_keeps_to_its_budget(store):
    store._vectors._budget = 200_000
    with store.writing():
        for group in ("g", "h", "i"):
            fill(store, unit(np.random.default_rng(1).standard_normal((1_000, 16))), group=group)
    for group in ("g", "h", "i", "g"):
        assert len(store.nearest(group, "fact", pointing(1), 3)) == 3
        assert sum(held.nbytes() for held in store._vectors._sets.values()) <= 200_000
