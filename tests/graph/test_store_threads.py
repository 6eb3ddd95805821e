"""One store, and one Memory, used by several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import kgray
from kgray.schema.reads import SEARCHED
from kgray.storage.ledger import pending
from tests.graph.by_hand import append, draft, everything, small, tell, worded

THREADS = 4
PLACES, KINDS = ("North", "South", "East", "West"), ("gate Labs", "field Labs", "ford Labs", "wick Labs")


def together(work: Callable[[int], object]) -> list[object]:
    """Run `work` in several threads that start at one moment; return their results."""
    start = threading.Barrier(THREADS)

    def run(number: int) -> object:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


def test_a_memory_adds_and_searches_in_several_threads(tmp_path):
    """Each thread finds its own additions, and no message is lost."""
    with kgray.open(tmp_path, create=True) as memory:

        def work(number: int) -> list[str]:
            results = []
            for n in range(4):
                text = f"I work at {PLACES[number]}{KINDS[n]}."
                memory.add(text, group=f"g{number}", speaker="Alice Nguyen", at=f"2026-03-0{1 + n}")
                hits = memory.search("Where does Alice work?", group=f"g{number}", scopes=["fact"], limit=1)
                results.append(hits[0].text)
            return results

        assert together(work) == [
            [f"Alice Nguyen works at {place}{kind}" for kind in KINDS] for place in PLACES
        ]
        assert {group: counts.committed for group, counts in memory.status().groups.items()} == {
            f"g{number}": 4 for number in range(THREADS)
        }


def test_threads_read_concurrently(tmp_path):
    """Reads long enough to meet: the driver refuses a connection that is busy in another thread."""
    store = small(tmp_path)
    append(store, *(draft(f"printer {n} " * 50, client_id=str(n)) for n in range(1500)))

    assert together(lambda _: [len(pending(store, "g", 5000)) for _ in range(10)]) == [[1500] * 10] * THREADS
    store.close()


@pytest.mark.seldom_on_neo4j
def test_threads_share_a_store(store, group, other_group):
    """Reads in one thread, snapshots in another, appends in the third: each answer is whole."""
    times = 15 if store.remote else 60
    with store.writing():
        for n in range(20):
            tell(store, f"Al{n}", "one", group=group)
    contents = everything(store, group)

    def work(number: int) -> object:
        for n in range(times):
            if number == 0:
                append(store, draft("more", group=other_group, client_id=str(n)))
            elif number == 1:
                with store.reading():
                    assert everything(store, group) == contents
            elif number == 2:
                assert len(worded(store, "fact", "says one", group)) == 20
            else:
                assert len(list(store.rows(SEARCHED, group))) == 20
        return store.pending_count(other_group)

    assert together(work)[0] == times
