"""What the embedded store's statements cost: look-ups by index, and frequent words left out."""

from __future__ import annotations

import pytest

from kgray.ports import Commit
from kgray.records import Evidence
from kgray.stores.sqlite import statements as sql
from tests.graph.by_hand import draft, small


@pytest.fixture
def store(tmp_path):
    opened = small(tmp_path)
    yield opened
    opened.close()


def filled(store, group, count, text):
    """Commit one episode with `count` pieces of evidence of the same text."""
    (accepted,) = store.accept([draft("x", group=group)], now=1)
    evidence = tuple(
        Evidence(
            sequence=accepted.sequence, ordinal=n, statement=f"S{n}", variant=0, kind="holds", relation="R",
            text=f"{text} {n}", subject=0,
        )
        for n in range(count)
    )  # fmt: skip
    at = store.last_recorded(group) + 1
    store.write([Commit(group=group, sequence=accepted.sequence, recorded_at=at, evidence=evidence)])


def test_words_are_frequent_by_their_own_group(store):
    """Frequencies are the group's own: a word that every other tenant uses is rare here."""
    with store.writing():
        filled(store, "large", 20_000, "printer ghost image")
        filled(store, "small", 2, "printer")
    assert store.lexical("small", "fact", "printer ghost image", 9) == [(1, 0), (1, 1)]
    # In the large group every word is frequent but the number: the others are left out.
    assert store.lexical("large", "fact", "printer ghost 77", 9) == [(1, 77)]
    assert len(store.lexical("large", "fact", "printer ghost", 9)) == 9


@pytest.mark.parametrize(
    "name",
    [
        "FACTS_OF", "FACTS_OF_EVIDENCE", "FACTS_FROM", "FACTS_TO", "FACTS", "SHOWN", "SHOWN_IDS",
        "ENTITIES_CALLED", "SUPPORTERS", "EPISODES_SHOWN", "LIVE_EPISODES", "IS_ENTITY", "IS_STATEMENT",
        "EPISODES_PENDING",
        "OPERATIONS_PENDING", "REMOVALS_PENDING", "EPISODES_BEFORE", "SEQUENCES_OF_ID", "HEADS", "MENTIONS",
        "EVIDENCE", "STATEMENT_VECTORS", "VECTORS_AT", "BITS", "NAME_VECTORS", "EPISODE_BY_ID",
        "PENDING_COUNT",
        "HAS_EVIDENCE", "IS_HELD", "PENDING_GROUPS", "LAST_VECTOR", "EPISODES_ENDED", "EPISODES_FAILED",
        "COUNT_STATES",
    ],
)  # fmt: skip
def test_every_read_is_an_index_look_up(store, name):
    """No statement that a reader or a commit runs may walk a table of all groups."""
    statement = getattr(sql, name)
    count = max((n for n in range(1, 8) if f"?{n}" in statement), default=statement.count("?"))
    plan = [row[3] for row in store._db._reader.execute("EXPLAIN QUERY PLAN " + statement, (None,) * count)]
    scans = [
        step for step in plan if step.startswith("SCAN") and "asked" not in step and "(subquery" not in step
    ]
    assert [step for step in scans if not step.endswith(("SCAN s", "CONSTANT ROW"))] == [], plan
