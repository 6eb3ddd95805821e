"""Search on a server answers as it does on an embedded store: the same hits in the same order."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import product

import pytest

from kgray.graph.stored import View, records_of
from kgray.ports import Store
from kgray.search import Filters, Query, Searcher, context
from kgray.storage.ledger import episodes_at
from tests.graph.engine import SMALL
from tests.graph.search_world import World, chain, day, jobs
from tests.graph.stores import Neo4jStores, SqliteStores

TEXTS = ("Ann knows Ben", "Where does Alice Webb work?", "80 EUR", "\ud800 (a OR")
OPTION_SETS = (
    {},
    {"as_of": day(0)},
    {"as_of": day(30), "scopes": ("fact", "episode")},
    {"as_of": day(60) - 1},
    {"any_time": True, "limit": 50},
    {"recipe": "lexical"},
    {"recipe": "semantic", "limit": 3},
    {"recipe": "mentions"},
    {"recipe": "diverse", "limit": 20},
    {"recipe": "neighbours", "seeds": ("m2",)},
    {"filters": Filters(relations=("KNOWS",), sources=("mail",))},
    {"filters": Filters(labels=("Person",), valid_at=(day(1), day(60)))},
    {"filters": Filters(invalid_at=(None, None)), "any_time": True},
)


@pytest.fixture
async def worlds(neo4j_server, neo4j_driver, tmp_path):
    """Build one world, under the same names, on a server and in a folder; yield it with its group's name.

    The server has a second group, whose content must not change a hit (promise 5).
    """
    stores = Neo4jStores(neo4j_server, neo4j_driver), SqliteStores(tmp_path)
    group = f"{stores[0].prefix}g"
    with ExitStack() as stack:
        built_worlds = []
        for each in stores:
            stack.callback(each.close)
            store = each.open()
            stack.enter_context(store.writing())
            world = World(store=store, embedder=SMALL)
            for name in (group, f"{group}-other") if store.remote else (group,):
                await chain(world, name)
                await jobs(world, name)
            built_worlds.append(world)
        yield built_worlds, group


def view_at(store: Store, group: str, at: int) -> View:
    """Return the graph as it was known at a moment."""
    return View(records_of(store, group, at), lambda ids: episodes_at(store, group, ids))


@pytest.mark.neo4j
@pytest.mark.seldom_on_neo4j
async def test_searches_on_a_server_give_the_hits_of_the_embedded_store(worlds):
    """R5, R14, promise 5: by words, vectors and steps; at moments; filtered; as known before a retraction."""
    both, group = worlds
    embedder = both[0].embedder

    async def ask(text: str, **options: object) -> list[object]:
        return [
            await Searcher(w.store, embedder).search(Query(text=text, group=group, **options)) for w in both
        ]

    for text, options in product(TEXTS, OPTION_SETS):
        ours, theirs = await ask(text, **options)
        assert ours == theirs, (text, options)
        assert {hit.group for hit in ours} <= {group}
    for recipe in ("neighbours", "nearby"):
        ours, theirs = await ask("Ann", recipe=recipe, centre=both[0].id_of(group, "Ann"))
        assert ours == theirs != []
    job_query = Query(text="Alice's job", group=group)
    blocks = [await context(Searcher(w.store, embedder), job_query) for w in both]
    assert blocks[0] == blocks[1]

    moment_before = both[0].last_recorded(group)
    episode = both[0].facts[group, "The lamp costs 80 EUR"].episodes[0]
    results = []
    for world in both:
        world.retract(group, episode, day(80))
        query = Query(text="lamp costs", group=group, known_at=moment_before)
        view = partial(view_at, world.store, group, moment_before)
        results.append(await Searcher(world.store, embedder).search(query, view=view))
    assert results[0] == results[1]
    assert results[0][0].text == "The lamp costs 80 EUR", "derived anew: as R18a says it"
    ours, theirs = await ask("lamp costs")
    assert ours == theirs
    assert "The lamp costs 80 EUR" not in [hit.text for hit in ours]
