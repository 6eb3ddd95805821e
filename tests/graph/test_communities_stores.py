"""On each store: a run is published atomically, its predecessor is kept, and a removal deletes the texts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from kgray.communities.reading import list_of, one_of
from kgray.communities.refresh import Refresh, Refreshed
from kgray.ports import at_one_moment
from kgray.schema import kinds, reads
from kgray.search.loading import run_at
from kgray.search.summaries import Summaries
from tests.graph.engine import SMALL, Engine, engine_on, triples
from tests.graph.stores import EMBEDDED, SELDOM_ON_NEO4J, Stores

KNOWS = (("Ann", "Bob"), ("Bob", "Cara"), ("Ann", "Cara"), ("Zed", "Yola"), ("Yola", "Xen"), ("Zed", "Xen"))


def knows(source: str, target: str) -> dict[str, Any]:
    return {"source": source, "relation": "KNOWS", "target": target}


def refreshed(engine: Engine) -> Refreshed:
    return asyncio.run(Refresh(store=engine.store, embedder=SMALL).group(engine.named()))


def stored_rows(engine: Engine, kind: kinds.Kind[Any]) -> list[Any]:
    return list(engine.store.rows(kind.all, engine.named()))


@SELDOM_ON_NEO4J
def test_runs_are_published_replaced_and_read_by_time(stores: Stores) -> None:
    engine = engine_on(stores)
    engine.add(*(triples(n, knows(*pair), client_id=f"k{n}") for n, pair in enumerate(KNOWS)))
    dump_before = engine.dump()
    first = refreshed(engine)
    assert (first.run, first.communities, refreshed(engine).news) == (1, 2, False)
    communities = list_of(engine.store, engine.named(), None, None)
    assert [sorted(item.name.split(", ")) for item in communities if "Ann" in item.name] == [
        ["Ann", "Bob", "Cara"]
    ]

    for number in range(2):
        engine.add(triples(20 + number, knows("Ann", f"Newcomer {number}"), client_id=f"n{number}"))
        (home,) = [item for item in list_of(engine.store, engine.named(), 0, None) if "Ann" in item.name]
        assert home.stale
        members = {name for _, name in one_of(engine.store, engine.named(), home.id, None).members}
        assert members >= {"Ann", f"Newcomer {number}"}
        assert refreshed(engine).kept == 1
    runs = [row[0] for row in stored_rows(engine, kinds.COMMUNITY_RUNS)]
    assert (runs, {row[0] for row in stored_rows(engine, kinds.COMMUNITIES)}) == ([2, 3], {2, 3})
    assert len({row[1] for row in stored_rows(engine, kinds.COMMUNITIES)}) == 2, "ids are carried over"

    engine.ask("remove", episodes=("n0", "n1"))
    assert "Newcomer" not in repr(stored_rows(engine, kinds.COMMUNITIES))
    assert len(stored_rows(engine, kinds.COMMUNITIES)) == 2, "those of the other community, in both runs"
    assert engine.dump() == dump_before
    refreshed(engine)
    assert len([row for row in stored_rows(engine, kinds.COMMUNITIES) if row[0] == 4]) == 2
    engine.ask("remove", everything=True)
    assert stored_rows(engine, kinds.COMMUNITIES) == stored_rows(engine, kinds.COMMUNITY_RUNS) == []


@EMBEDDED
@pytest.mark.parametrize("operation", ["remove", "retract"])
def test_cached_summaries_are_valid_until_an_operation_may_delete_texts(
    stores: Stores, operation: str
) -> None:
    engine = engine_on(stores)
    engine.add(*(triples(n, knows(*pair), client_id=f"k{n}") for n, pair in enumerate(KNOWS)))
    refreshed(engine)
    run = run_at(engine.store, engine.named(), None)
    assert run is not None

    def read() -> Summaries:
        load = partial(Summaries, engine.store, engine.named(), None, SMALL.dimensions)
        return at_one_moment(engine.store, load)

    content = read()
    engine.add(triples(9, knows("Ann", "Newcomer"), client_id="n"))
    assert content.are_current(engine.store, engine.named(), run)
    engine.ask(operation, episodes=("k0",))
    assert not content.are_current(engine.store, engine.named(), run)
    second_content = read()
    assert second_content.are_current(engine.store, engine.named(), run)
    assert (len(content.communities.ids), len(second_content.communities.ids)) == (2, 1)


@SELDOM_ON_NEO4J
@pytest.mark.parametrize("event", ["published", "removed"])
def test_a_read_is_consistent_while_a_run_is_published_or_loses_texts(stores: Stores, event: str) -> None:
    """Publishing is no commit: it has no record time. A removal deletes texts, but no run (R25)."""
    engine, times = engine_on(stores), 0
    refresh = Refresh(store=stores.open(), embedder=SMALL, cold=True)
    engine.add(*(triples(n, knows(*pair), client_id=f"k{n}") for n, pair in enumerate(KNOWS)))
    refreshed(engine)
    events: dict[str, Callable[[], object]] = {
        "published": lambda: asyncio.run(refresh.group(engine.named())),
        "removed": lambda: engine.ask("remove", episodes=("k0",)),
    }

    def read() -> tuple[set[int], list[Any], list[Any]]:
        nonlocal times
        times += 1
        runs = {row[0] for row in stored_rows(engine, kinds.COMMUNITY_RUNS)}
        texts_before = texts(engine, runs)
        if times == 1:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(events[event]).result()
        return runs, texts_before, texts(engine, {1, 2})

    runs, texts_before, texts_after = at_one_moment(engine.store, read)
    assert runs == {row[0] for row in texts_after}
    assert texts_before == texts_after


def texts(engine: Engine, runs: set[int]) -> list[Any]:
    """Return the communities of these runs, looked up as readers do."""
    return list(engine.store.rows(reads.COMMUNITIES_OF_RUN, engine.named(), sorted(runs)))
