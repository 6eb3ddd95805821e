"""The reads of the page (graph, overview, completion, difference, reasons, preview) on each store."""

from __future__ import annotations

import asyncio

import pytest

from kgray.errors import NotFound
from kgray.memory import AsyncMemory
from tests.graph.engine import SMALL, Engine, day, triples, works

JOBS = [  # in order of time
    triples(0, works("Acme"), client_id="acme"),
    triples(10, works("Beta"), client_id="beta"),
    triples(20, {"source": "Bob", "relation": "KNOWS", "target": "Alice"}, client_id="knows"),
    triples(30, {"source": "Bob", "relation": "LIKES", "target": "Tea", "invalid_at": "2026-03-01"}),
    triples(40, {"source": "Alyce", "relation": "KNOWS", "target": "Bob"}, client_id="alyce"),
]


@pytest.fixture
def engine(store, stores):
    engine = Engine(store=store, prefix=stores.prefix)
    for job in JOBS:
        engine.add(job)
    return engine


@pytest.fixture
def memory(engine):
    return AsyncMemory(engine.store, lambda: SMALL, lambda: engine.parts)


def names(graph):
    return [entity.name for entity in graph.entities]


def texts(facts):
    return [fact.text for fact in facts]


@pytest.mark.seldom_on_neo4j
async def test_the_graph_has_the_most_connected_entities_and_their_total(memory, group):
    complete = await memory.neighbourhood(group=group)
    assert names(complete) == ["Alice", "Bob", "Acme", "Beta", "Tea", "Alyce"]
    assert (len(complete.facts), complete.truncated) == (5, False)
    part = await memory.neighbourhood(group=group, limit=2)
    assert (names(part), texts(part.facts)) == (["Alice", "Bob"], ["Bob knows Alice"])
    assert (part.truncated, part.total) == (True, {"entities": 6, "facts": 5})
    earlier_neighbourhood = await memory.neighbourhood(group=group, as_of=day(5) / 1e6)
    assert texts(earlier_neighbourhood.facts) == ["Alice works at Acme"]


@pytest.mark.seldom_on_neo4j
async def test_a_neighbourhood_lists_the_nearest_entities_first(memory, group):
    near = await memory.neighbourhood("Acme", group=group)
    assert names(near) == ["Acme", "Alice"]
    far = await memory.neighbourhood("acme", group=group, depth=2)
    assert names(far) == ["Acme", "Alice", "Beta", "Bob"]
    with pytest.raises(NotFound):
        await memory.neighbourhood("Nobody", group=group)


@pytest.mark.seldom_on_neo4j
async def test_name_completion_prefers_entities_with_most_facts(memory, group, engine):
    assert [(row.name, row.facts) for row in await memory.complete("al", group=group)] == [
        ("Alice", 3),
        ("Alyce", 1),
    ]
    assert await memory.complete("zo", group=group) == []


@pytest.mark.seldom_on_neo4j
async def test_a_diff_compares_two_moments_on_either_clock(memory, group, engine):
    known_at = engine.last_recorded()
    world = await memory.diff(group=group, from_as_of=day(5) / 1e6, to_as_of=day(15) / 1e6)
    assert (texts(world.opened), texts(world.ended)) == (
        ["Alice works at Beta"],
        ["Alice works at Acme"],
    )
    assert (await memory.diff(group=group)).total["opened"] == 0

    ids = [(await memory.complete(name, group=group))[0].id for name in ("alice", "alyce")]
    await asyncio.to_thread(engine.ask, "merge", entities=tuple(ids))
    await asyncio.to_thread(engine.add, triples(50, {"source": "Bob", "relation": "KNOWS", "target": "Cleo"}))

    record = await memory.diff(group=group, from_known_at=known_at / 1e6)
    assert texts(record.opened) == ["Bob knows Cleo"]
    assert [row.after.text for row in record.changed] == ["Alyce knows Bob"]  # now of Alice
    assert [(row.name, row.into_name) for row in record.merged] == [("Alyce", "Alice")]
    assert [row.name for row in record.entities_new] == ["Cleo"]
    back = await memory.diff(group=group, to_known_at=known_at / 1e6)
    assert (texts(back.ended), texts(back.opened)) == (["Bob knows Cleo"], [])


@pytest.mark.seldom_on_neo4j
async def test_the_provenance_of_a_fact_includes_the_message_that_ended_it(memory, group):
    graph = await memory.neighbourhood("Acme", group=group)
    matches = await memory.provenance(graph.facts[0].id, group=group)
    assert texts(matches.facts) == ["Alice works at Acme"]
    roles = {row.client_id: row.role for row in matches.messages}
    assert {name: roles[name] for name in ("acme", "beta", "knows")} == {
        "acme": "evidence", "beta": "end", "knows": "around",
    }  # fmt: skip
    assert [row.kind for row in matches.evidence] == ["holds"]
    with pytest.raises(NotFound):
        await memory.provenance("nothing", group=group)


@pytest.mark.seldom_on_neo4j
async def test_previews_of_a_retraction_and_a_merge_do_not_change_the_graph(memory, group):
    state_before = await memory.dump(group=group)
    (beta,) = [row for row in (await memory.log(group=group)).episodes if row.client_id == "beta"]
    rows = await memory.foresee("retract", group=group, episodes=(beta.id,))
    facts = {(row["op"], row["text"], row["invalid_at"]) for row in rows if row["type"] == "fact"}
    assert ("change", "Alice works at Acme", None) in facts
    assert [text for op, text, _ in facts if op == "remove"] == ["Alice works at Beta"]
    merged = await memory.foresee("merge", group=group, entities=("Alice", "Alyce"))
    assert ("remove", "Alyce") in {(row["op"], row.get("name")) for row in merged if row["type"] == "entity"}
    assert await memory.dump(group=group) == state_before


@pytest.mark.seldom_on_neo4j
async def test_the_community_graph_has_communities_and_their_links(memory, other_group, engine):
    sides = [[f"{side}{number}" for number in range(5)] for side in "XY"]
    knows = [
        {"source": a, "relation": "KNOWS", "target": b} for side in sides for a in side for b in side if a < b
    ]
    bridge = {"source": "X0", "relation": "KNOWS", "target": "Y0"}
    await asyncio.to_thread(engine.add, triples(60, *knows, bridge, group="h"))
    await memory.communities.refresh([other_group])

    matches = await memory.overview(group=other_group)

    ids = [community.id for community in matches.communities]
    members = [sorted(names(await memory.neighbourhood(group=other_group, community=id_))) for id_ in ids]
    assert sorted(members) == sides
    assert [({*link[:2]}, link[2]) for link in matches.links] == [({*ids}, 1)]
    assert matches.total == {"communities": 2, "links": 1}
