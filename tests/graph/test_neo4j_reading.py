"""How the Neo4j store reads: hubs, page by page, and texts that look like queries."""

from __future__ import annotations

import pytest

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import Operation, Value
from kgray.graph.stored import StoredView
from kgray.ports import Patch
from kgray.schema import kinds, rows
from kgray.schema.reads import READS
from kgray.storage.ledger import find, named_episodes, pending, pending_groups, previous
from kgray.storage.neo4j import statements, statements_by_hand
from kgray.storage.neo4j.mapping import group_key, named_group
from tests.graph.by_hand import append, changes, draft, tell
from tests.graph.stores import Neo4jStores

pytestmark = pytest.mark.neo4j


@pytest.fixture
def stores(neo4j_server, neo4j_driver):
    maker = Neo4jStores(neo4j_server, neo4j_driver)
    yield maker
    maker.close()


def test_reading_a_hub_costs_only_the_rows_read(stores, neo4j_driver, group):
    """The server stops at the limit: 5 of 400 facts are not found by reading 400."""
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
        append(store, draft("hub", group=group))
        puts = {kinds.ENTITIES: [rows.entity_row(hub)], kinds.FACTS: [rows.fact_row(fact) for fact in facts]}
        store.apply([changes(1, 1, puts, group=group)])

    assert [fact.id for fact in store.facts_at(group, ["hub"], None, 3)] == ["F399", "F398", "F397"]
    assert len(store.facts_at(group, ["hub"], None, None)) == 400

    values = {"asked": ["hub"], "as_of": None, "limit": 5}
    assert 0 < touched(neo4j_driver, statements_by_hand.FACTS_AT, named_group(group) | values) < 150


def test_reading_the_previous_context_costs_only_the_rows_read(stores, neo4j_driver, group):
    """R22: reading the whole group for each episode would make a backfill quadratic."""
    store = stores.open()
    append(store, *(draft(f"said {n}", reference_time=n, group=group) for n in range(400)))
    last = pending(store, group, 1, after=399)[0]

    context = previous(store, [last], 3)[last.sequence]
    assert [row.text for row in context] == ["said 396", "said 397", "said 398"]
    values = {"asked": [[400, last.source, last.reference_time]], "limit": 5}
    assert 0 < touched(neo4j_driver, statements_by_hand.SAID_BEFORE, named_group(group) | values) < 150


def test_the_check_for_pending_rows_costs_the_same_in_a_large_group(stores, neo4j_driver, group):
    """Each write checks for pending rows; by the key's index it would read all episodes of its groups."""
    store = stores.open()
    append(store, *(draft(f"said {n}", group=group) for n in range(400)))
    ended = Patch(
        kind=kinds.EPISODES, columns=("state",), rows=tuple((n, kinds.COMMITTED) for n in range(1, 401))
    )
    store.append([group], lambda log: log.patch(group, ended))

    values = {"rows": {"settled": [group_key(group)]}}
    assert 0 < touched(neo4j_driver, statements_by_hand.WRITE, values) < 100
    assert pending_groups(store).get(group) is None


@pytest.mark.slow
def test_every_read_uses_an_index_and_sorts_no_group(stores, neo4j_driver, group):
    """With any statistics: only requested rows of a large group are read."""
    store = stores.open()
    with store.writing():
        tell(store, "Al", "one", group=group)
    parameters = named_group(group) | {"values": [], "after": [0, 0], "limit": 5}
    for read in READS:
        name, statement = read.name, statements.OF_READ[read]
        plan = neo4j_driver.execute_query(f"EXPLAIN {statement}", parameters).summary.plan
        steps = set(operators(plan))
        results = {step for step in steps if "LabelScan" in step or "AllNodes" in step or "TypeScan" in step}
        assert (name, results) == (name, set())
        assert (name, {step for step in steps if step.startswith(("Top", "Sort"))}) == (name, set())


def operators(plan):
    yield plan["operatorType"]
    for child in plan.get("children", ()):
        yield from operators(child)


def touched(driver, statement, values):
    """Return how many records and index entries the server looks at."""

    def hits(plan):
        return plan.get("dbHits", 0) + sum(hits(child) for child in plan.get("children", ()))

    return hits(driver.execute_query(f"PROFILE {statement}", values).summary.profile)


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


def test_values_that_look_like_queries_match_no_rows_and_change_nothing(
    stores, neo4j_driver, group, other_group
):
    store = stores.open()
    with store.writing():
        tell(store, "Al", "one", group=group)
        tell(store, "Bo", "two", group=other_group)

    def reader_count():
        counted = "MATCH (n) WHERE n.group_id IN $groups RETURN count(n)"
        return neo4j_driver.execute_query(counted, groups=[group, other_group]).records[0].value()

    count_before = reader_count()
    for text in TEXTS:
        view = StoredView(store, group)

        assert not find(store, group, text)
        assert view.entities_named(text) == []
        assert (
            named_episodes(store, Operation(group=group, kind="remove", episodes=(text,), source=text)) == []
        )
        assert (view.facts([text]), view.facts_of([text], None), view.entities([text])) == ([], [], [])
        assert (view.facts_at([text], None, 9), view.supporters([text])) == ([], {})
        assert reader_count() == count_before
