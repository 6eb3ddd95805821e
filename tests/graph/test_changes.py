"""The changes since a commit, at a cost that depends on the changes alone, on both stores."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from kgray.domain.records import Operation
from kgray.errors import InputError
from kgray.memory.reads import GroupReads
from kgray.memory.results import Changes
from kgray.schema import kinds, reads
from tests.graph.by_hand import append, ask, changes, declined, draft, failed, head, remove, tell
from tests.graph.stores import EMBEDDED


def since_then(store, group, start, limit):
    return asyncio.run(GroupReads(store).changes(group=group, since=start, limit=limit))


@pytest.fixture
def read(store, monkeypatch):
    """Count the rows that are consumed from each read."""
    result: Counter[str] = Counter()
    rows = store.rows

    def counted(read, *extra):
        for row in rows(read, *extra):
            result[read.name] += 1
            yield row

    monkeypatch.setattr(store, "rows", counted)
    return result


@pytest.mark.seldom_on_neo4j
def test_only_changed_rows_are_read(store, group, read):
    with store.writing():
        for n in range(20):
            tell(store, f"N{n}", "one", group=group)
        start = head(store, group).last_recorded
        for n in range(3):
            tell(store, f"M{n}", "one", group=group)
    read.clear()
    result = since_then(store, group, start, 200)
    assert [item.entries[0].sequence for item in result.commits] == [21, 22, 23]
    assert [item.opened for item in result.commits] == [("F21",), ("F22",), ("F23",)]
    assert (result.last, result.more) == (head(store, group).last_recorded, False)
    assert sum(read.values()) == 6, read

    read.clear()
    first = since_then(store, group, 0, 5)
    assert ([item.entries[0].sequence for item in first.commits], first.more) == ([1, 2], True)
    assert sum(read.values()) < 10, "what is behind the page is not read"


@EMBEDDED
def test_changes_of_a_group_are_paged_in_record_order(store, group, other_group):
    """Failures, refused corrections, removals and facts that expire too; a commit is never cut in two."""
    with store.writing():
        tell(store, "Al", "one", group=group)
        tell(store, "Al", "one", group=other_group)
        (second,) = append(store, draft("second", group=group))
        store.apply([failed(second, head(store, group).last_recorded + 10, group=group)])
        tell(store, "Bo", "two", group=group)
        answer = ask(store, Operation(group=group, kind="merge", entities=("E1", "E3")))
        store.apply([declined(answer, head(store, group).last_recorded + 10, "no", group=group)])
        at = head(store, group).last_recorded + 10
        (fifth,) = append(store, draft("fifth", group=group))
        (old,) = store.rows(reads.FACTS_OF, group, ["F1"])
        store.apply([changes(fifth, at, {kinds.FACTS: [old._replace(expired_at=at)]}, group=group)])
        remove(store, [second], group=group, episodes=("second",))
    commits = []
    start, pages = 0, 0
    while True:
        page = since_then(store, group, start, 2)
        commits += page.commits
        start, pages = page.last, pages + 1
        if not page.more:
            break
    entries = [(item.type, item.state) for commit in commits for item in commit.entries]
    assert pages > 2
    assert [item.commit for item in commits] == sorted({item.commit for item in commits})
    assert entries == [("episode", "committed")] * 2 + [("merge", "refused"), ("remove", "done")]
    assert [commit.opened for commit in commits if commit.opened] == [("F1",), ("F3",)]
    assert [(commit.commit, commit.ended) for commit in commits if commit.ended] == [(at, ("F1",))]
    assert since_then(store, group, start, 200) == Changes(commits=(), last=start, more=False)
    with pytest.raises(InputError):
        since_then(store, group, 0, 0)
