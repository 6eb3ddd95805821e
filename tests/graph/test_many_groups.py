"""Ten thousand groups: a poll costs in proportion to changes; counts and failures are one query each."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from kgray.ports import Patch
from kgray.schema import kinds, reads, rows
from kgray.storage.ledger import failures, pending_groups
from tests.graph.by_hand import append, draft, failed, statement_commit
from tests.graph.stores import Stores

pytestmark = pytest.mark.seldom_on_neo4j


def test_newly_pending_lists_groups_with_rows_appended_since_the_mark(store, mine, group, other_group):
    result, mark = store.newly_pending(0)
    assert mine(result) == {}
    append(store, draft("Al says one", group=group))
    result, mark = store.newly_pending(mark)
    assert mine(result) == {group: True}
    append(store, draft("Bo says two", group=other_group), draft("Cy says three", group=group))
    assert mine(store.newly_pending(mark)[0]) == {group: True, other_group: True}
    with store.writing():
        store.apply(
            [
                statement_commit(1, "Al", "one", 10, group=group),
                statement_commit(1, "Bo", "two", 10, group=other_group),
            ]
        )
        assert mine(store.newly_pending(0)[0]) == mine(pending_groups(store)) == {group: True}
        store.apply([statement_commit(2, "Cy", "three", 20, group=group)])
        assert mine(pending_groups(store)) == {}
    assert store.pending_count(group) == 0
    append(store, draft("Al says four", group=group))  # it waits again
    assert mine(store.newly_pending(mark)[0]) == mine(pending_groups(store)) == {group: True}


def test_pending_groups_include_corrections_and_retries(store, mine, group):
    append(store, draft("a", group=group), draft("b", group=group))
    with store.writing():
        store.apply([failed(1, 10, group=group), statement_commit(2, "Bo", "two", 20, group=group)])
        assert mine(pending_groups(store)) == {}
    (row,) = store.rows(reads.EPISODES_IN_STATE, group, [kinds.FAILED])

    def accept_again(log):
        log.patch(group, Patch(kind=kinds.EPISODES, columns=("retired_at",), rows=((row.sequence, 30),)))
        log.put(kinds.EPISODES, group, rows.accepted_again(row, log.take_sequence(group)))

    store.append([group], accept_again)
    assert mine(pending_groups(store)) == {group: True}
    assert [failure.episode.group for failure in failures(store) if failure.episode.group == group] == []


@pytest.mark.slow
def test_reads_of_ten_thousand_groups_are_fast(stores: Stores, store):
    """A poll with one change takes <= 20 ms, the counts of all groups <= 1 s."""
    names = [f"{stores.prefix}g{n:05}" for n in range(10_000)]
    for start in range(0, len(names), 500):
        append(store, *(draft(f"{name} says it", group=name) for name in names[start : start + 500]))
    with store.writing():
        for start in range(0, len(names), 50):
            store.apply([failed(1, 10, group=name) for name in names[start : start + 50]])
    _, mark = store.newly_pending(0)
    append(store, draft("one more", group=names[77]))
    took = {
        "look": median(lambda: store.newly_pending(mark)),
        "all": median(lambda: pending_groups(store)),
        "withdrawing": median(store.withdrawing),
        "pending": median(lambda: store.pending_count(most=200)),
        "counts": median(store.counts, 3),
    }
    assert list(store.newly_pending(mark)[0]) == [names[77]]
    assert max(took["look"], took["all"], took["withdrawing"], took["pending"]) <= 0.02
    assert took["counts"] <= 1.0
    assert len(stores.mine({row.episode.group: row for row in failures(store)})) == 10_000


def median(call: Callable[[], object], times: int = 9) -> float:
    """Return the median seconds of a call."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return sorted(took)[times // 2]
