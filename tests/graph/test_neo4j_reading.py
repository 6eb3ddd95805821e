"""How the Neo4j store reads: indexes that know no groups, hubs, ties, and texts that look like queries."""

from __future__ import annotations

import numpy as np
import pytest

from kgray.graph import Derived, Entity, Fact
from kgray.ports import Commit
from kgray.records import Value
from tests.graph.by_hand import WIDTH, draft, fill, pointing, tell, told, unit
from tests.graph.stores import Neo4jStores

pytestmark = pytest.mark.neo4j


@pytest.fixture
def stores(neo4j_server, neo4j_driver):
    made = Neo4jStores(neo4j_server, neo4j_driver)
    yield made
    made.close()


@pytest.mark.parametrize("inside", [True, False])
def test_an_index_of_all_groups_gives_a_sliver_its_own_best(stores, inside, group, other):
    """As if ten were too many to compare: 40 vectors among 3,000 that are nearer to what is asked."""
    from kgray.stores.neo4j.nearest import NearestVectors

    store = stores.open()
    if inside and not store.server.filters:
        pytest.skip("needs a server that filters inside its vector indexes: NEO4J_VERSION=2026.09.0")
    dice = np.random.default_rng(7)
    crowd, few = unit(dice.standard_normal((3_000, WIDTH)) + 2), unit(dice.standard_normal((40, WIDTH)))
    with store.writing():
        fill(store, crowd, group=other)
        fill(store, few, group=group)
    nearest = NearestVectors(store._db, filters=inside, exact_rows=10)

    for query in crowd[::1000]:
        scores = few @ query
        for limit in (5, 40, 60):
            expected = np.argsort(-scores)[:limit]
            found = nearest.find(group, "fact", query, limit)
            assert [owner for owner, _ in found] == [str(n) for n in expected]
            assert [score for _, score in found] == pytest.approx(scores[expected].tolist(), abs=1e-5)
        assert nearest.find(other, "fact", query, 1)[0][1] == pytest.approx(1.0, abs=1e-5)


def test_a_hub_costs_what_is_taken_of_it(stores, neo4j_driver, group):
    """The server stops at the limit: 5 of 400 facts are not found by reading 400."""
    from kgray.stores.neo4j import queries

    store = stores.open()
    facts = tuple(
        Fact(
            id=f"F{n:03}", statement=f"S{n}", source="hub", relation="SAYS", text="says", created_at=n,
            value=Value("text", "x"),
        )
        for n in range(400)
    )  # fmt: skip
    hub = Entity(id="hub", name="Hub", born=(1, 0))
    with store.writing():
        store.accept([draft("hub", group=group)], now=1)
        commit = Commit(group=group, sequence=1, recorded_at=1, derived=Derived(entities=(hub,), facts=facts))
        store.write([commit])

    assert [fact.id for fact in store.view(group).facts_at(["hub"], None, 3)] == ["F399", "F398", "F397"]
    assert len(store.view(group).facts_at(["hub"], None, None)) == 400

    values = {"group": group, "asked": ["hub"], "as_of": None, "limit": 5}
    assert 0 < touched(neo4j_driver, queries.FACTS_AT, values) < 150


def test_what_was_said_before_costs_what_is_taken_of_it(stores, neo4j_driver, group):
    """R22: asked once an episode; all of the group read each time would make a backfill quadratic."""
    from kgray.stores.neo4j import statements

    store = stores.open()
    store.accept([draft(f"said {n}", reference_time=n, group=group) for n in range(400)], now=1)
    last = store.pending(group, 1, after=399)[0]

    assert [row.text for row in store.previous(last, 3)] == ["said 396", "said 397", "said 398"]
    values = {"group": group, "source": last.source, "said": last.reference_time, "before": 400, "limit": 5}
    assert 0 < touched(neo4j_driver, statements.EPISODES_BEFORE, values) < 150


def touched(driver, statement, values):
    """Return how many records and index entries the server looks at."""

    def hits(plan):
        return plan.get("dbHits", 0) + sum(hits(child) for child in plan.get("children", ()))

    return hits(driver.execute_query(f"PROFILE {statement}", values).summary.profile)


def test_of_many_equals_the_oldest_are_found(stores, group, other):
    """Lucene orders equals as its segments happen to lie; we by age, wherever the limit cuts."""
    store = stores.open()
    with store.writing():
        fill(store, np.array([pointing(1)] * 70), group=group)
        store.accept([draft("Al says the same", group=other, client_id=str(n)) for n in range(70)], now=1)
        store.write([told(n, "Al", "the same", n, group=other) for n in range(1, 71)])

    for limit in (1, 7, 64):
        assert store.lexical(other, "fact", "same", limit) == [(n, 0) for n in range(1, limit + 1)]
        assert store.lexical(other, "episode", "same", limit) == [(n, 0) for n in range(1, limit + 1)]
        assert [owner for owner, _ in store.nearest(group, "fact", pointing(1), limit)] == [
            str(n) for n in range(limit)
        ]


TEXTS = [
    "') DETACH DELETE n //",
    "`}) MATCH (n) DETACH DELETE n",
    '" OR words:* OR "',
    "*:*",
    "$group",
    "{group: 'other'}",
    "\\",
    "a\x00b",
    "\ud800",
    "",
    "x" * 1_000_000,
]


def test_a_text_that_looks_like_a_query_finds_nothing_and_does_nothing(stores, neo4j_driver, group, other):
    store = stores.open()
    with store.writing():
        tell(store, "Al", "one", group=group)
        tell(store, "Bo", "two", group=other)

    def held():
        counted = "MATCH (n) WHERE n.group_id IN $groups RETURN count(n)"
        return neo4j_driver.execute_query(counted, groups=[group, other]).records[0].value()

    before = held()
    for text in TEXTS:
        view = store.view(group)

        assert store.find(group, text) == []
        assert store.entities_named(group, text) == []
        assert store.sequences(group, ids=[text], source=text) == []
        assert store.lexical(group, "fact", f"{text} two", 9) == []
        assert (view.facts([text]), view.facts_of([text], None), view.entities([text])) == ([], [], [])
        assert (view.facts_at([text], None, 9), view.supporters([text])) == ([], {})
        assert held() == before
