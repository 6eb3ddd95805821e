"""Random histories: after every step the graph follows from the records, and nothing removed is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.graph.engine import Engine
from tests.graph.histories import history, played
from tests.graph.stores import SqliteStores, Stores

SEED_COUNTS = {"sqlite": 1000, "neo4j": 20}
# Histories where a sentence ends or repeats a statement under a name listed in its own episode.
CONFLICT_SEEDS = [130, 163, 242, 285]
SPLIT_SEED = 55  # a split whose parts are born in another order than that of their ids


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Engine]]:
    """Yield a function that makes an engine with a group of its own, all in one store."""
    stores = SqliteStores(tmp_path_factory.mktemp("histories"))
    store = stores.open()
    yield lambda **options: Engine(store=store, prefix=stores.fresh(), **options)
    stores.close()


@pytest.mark.parametrize("seed", [*range(2), *CONFLICT_SEEDS[:2], SPLIT_SEED])
def test_the_graph_equals_its_derivation_after_every_step(fresh: Callable[..., Engine], seed: int) -> None:
    """R4, R16, R20, R25, R26: after any addition, merge, split, undo, replacement, retraction or removal."""
    play(fresh, seed)


def test_one_history_on_each_store(stores: Stores) -> None:
    """The same on every store; one history, since the result is computed above the stores."""
    store = stores.open()
    play(lambda **options: Engine(store=store, prefix=stores.fresh(), **options), seed=0)


@pytest.mark.slow
def test_many_histories_on_each_store(stores: Stores) -> None:
    """1,000 on the embedded store, 50 on a server: 10 to 20 minutes."""
    store = stores.open()
    seed_count = SEED_COUNTS["sqlite" if isinstance(stores, SqliteStores) else "neo4j"]
    failed = {}
    for seed in range(seed_count):
        try:
            play(lambda **options: Engine(store=store, prefix=stores.fresh(), **options), seed)
        except Exception as error:  # noqa: BLE001 - every error is a finding, and all are reported
            failed[seed] = repr(error)[:200]

    assert failed == {}


def play(make: Callable[..., Engine], seed: int) -> None:
    """Play the history of a seed: of 8 to 19 steps."""
    played(make, history(seed, steps=8 + seed % 12))
