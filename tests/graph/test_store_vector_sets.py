"""What the embedded store keeps of vectors in memory: exact on small sets, near it on large ones, bounded."""

from __future__ import annotations

import numpy as np
import pytest

from kgray.stores.sqlite import open_sqlite
from kgray.stores.sqlite import vectors as sets
from tests.graph.by_hand import WIDTH, fill, pointing, small, unit


@pytest.fixture
def store(tmp_path):
    opened = small(tmp_path)
    yield opened
    opened.close()


def brute(matrix, query, limit):
    """Return the best owners by exact cosine, ties by insertion."""
    return [str(n) for n in np.lexsort((np.arange(len(matrix)), -(matrix @ query)))[:limit]]


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
        fill(store, matrix[sets.EXACT_ROWS - 10 :], first=sets.EXACT_ROWS - 10)
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
    store._vectors._budget = 800_000
    with store.writing():
        for group in ("g", "h", "i"):
            fill(store, unit(np.random.default_rng(1).standard_normal((1_000, WIDTH))), group=group)
    for group in ("g", "h", "i", "g"):
        assert len(store.nearest(group, "fact", pointing(1), 3)) == 3
        assert sum(held.nbytes() for held in store._vectors._sets.values()) <= 800_000
