"""Search: graph steps, filters, rerankers, folded entities, and enough candidates."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import kgray
from kgray.domain.graph import Entity
from kgray.domain.records import Operation, Value
from kgray.graph.change import Difference
from kgray.graph.stored import StoredView
from kgray.ingest.outbox import correction_change
from kgray.search import Filters, Query, Recipe, Searcher
from kgray.search.steps import walk
from kgray.storage.ledger import request
from tests.graph.search_world import a_world, chain, day

ALL = "Ann, Ben, Cleo, Dan, Eve, Olaf: who knows whom, and who owns a boat?"


@pytest.fixture
async def world(tmp_path):
    """Build the chain of five, and an unconnected island."""
    with a_world(tmp_path) as world:
        await chain(world, "demo")
        yield world


async def find(world, text=ALL, **options):
    return await Searcher(world.store, world.embedder).search(Query(text=text, group="demo", **options))


async def facts(world, text=ALL, **options):
    return [hit.text for hit in await find(world, text, scopes=("fact",), **options)]


async def test_graph_steps_from_a_centre_rank_the_nearest_first(world):
    """Two hops: facts at the centre, then facts at its neighbours; beyond that none."""
    centre = world.id_of("demo", "Ann")
    hits = await find(world, recipe="neighbours", centre=centre, scopes=("fact", "entity"))
    assert [(hit.scope, hit.text, hit.methods) for hit in hits] == [
        ("entity", "Ann", {"bfs": 1}),
        ("fact", "Ann knows Ben", {"bfs": 1}),
        ("entity", "Ben", {"bfs": 2}),
        ("fact", "Ben knows Cleo", {"bfs": 2}),
        ("entity", "Cleo", {"bfs": 3}),
    ]


@pytest.mark.parametrize("id_kind", ["client", "ours"])
async def test_recent_episodes_are_seeds_of_graph_steps(world, id_kind):
    """Zep, section 3.1: recently mentioned entities, and their neighbours, for any query."""
    seed = "m9" if id_kind == "client" else world.facts["demo", "Olaf owns a boat"].episodes[0]
    assert await facts(world, recipe="neighbours", seeds=(seed,)) == ["Olaf owns a boat"]
    hits = await find(world, text="Ann", seeds=(seed,), scopes=("fact",), methods=("bm25", "bfs"))
    assert ("Olaf owns a boat", {"bfs": 1}) in [(hit.text, hit.methods) for hit in hits]


async def test_an_episode_without_facts_still_seeds_the_entities_it_made(world):
    await world.tell("demo", "Pia waves.", day(10), names=[("Pia", "Person")], client_id="m10")
    hits = await find(world, recipe="neighbours", seeds=("m10",))
    assert [(hit.scope, hit.text) for hit in hits] == [("entity", "Pia")]


async def test_the_best_hits_seed_graph_steps(world):
    """Words find Ann knows Ben; the step from Ben finds a fact without any word of the query."""
    hits = await find(world, text="Ann", scopes=("fact",), methods=("bm25", "bfs"))
    assert [(hit.text, hit.methods) for hit in hits] == [
        ("Ann knows Ben", {"bm25": 1, "bfs": 1}),
        ("Ben knows Cleo", {"bfs": 2}),
        ("Cleo knows Dan", {"bfs": 3}),
    ]


async def test_steps_follow_only_facts_true_at_the_moment(world):
    """On day 0 only Ann knows Ben: the walk ends there."""
    centre = world.id_of("demo", "Ann")
    assert await facts(world, recipe="neighbours", centre=centre, as_of=day(0)) == ["Ann knows Ben"]


async def test_a_hub_does_not_displace_other_seeds(world):
    """A hub's 300 newer facts cost no more than 10, and the other seed keeps its own."""
    for start in range(0, 300, 60):
        await world.tell(
            "demo",
            "crowd",
            day(20 + start),
            facts=[
                ("Hub", "KNOWS", f"N{n}", f"Hub knows N{n}", day(20), None) for n in range(start, start + 60)
            ],
        )
    view = StoredView(world.store, "demo")
    seeds = [world.id_of("demo", "Hub"), world.id_of("demo", "Ann")]
    walked = walk(view, seeds, day(900), hops=1, room=20, front=8)
    assert sum(fact.text.startswith("Hub") for fact, _ in walked.facts) == 10
    assert walked.facts[-1][0].text == "Ann knows Ben"
    assert len(await facts(world, recipe="neighbours", centre=seeds[0], limit=50, as_of=day(900))) == 50


@pytest.mark.parametrize(
    ("filters", "expected_facts"),
    [
        pytest.param(Filters(relations=("OWNS",)), {"Olaf owns a boat"}, id="relation"),
        pytest.param(Filters(labels=("Sailor",)), {"Olaf owns a boat"}, id="label"),
        pytest.param(Filters(sources=("chat",)), {"Ben knows Cleo", "Dan knows Eve"}, id="source"),
        pytest.param(
            Filters(valid_at=(day(1), day(3))), {"Ben knows Cleo", "Cleo knows Dan"}, id="began-within"
        ),
        pytest.param(
            Filters(created_at=(day(3), None)), {"Dan knows Eve", "Olaf owns a boat"}, id="learned-since"
        ),
        pytest.param(Filters(invalid_at=(None, None)), set(), id="ended"),
        pytest.param(
            Filters(relations=("KNOWS",), sources=("mail",)), {"Ann knows Ben", "Cleo knows Dan"}, id="both"
        ),
    ],
)
async def test_filters_narrow_facts(world, filters, expected_facts):
    assert set(await facts(world, filters=filters)) == expected_facts


async def test_a_filter_applies_only_to_its_scope(world):
    hits = await find(world, filters=Filters(labels=("Sailor",), sources=("chat",)), limit=100)
    assert {hit.text for hit in hits if hit.scope == "entity"} == {"Olaf"}
    assert {hit.text for hit in hits if hit.scope == "episode"} == {"Ben met Cleo.", "Dan met Eve."}
    ranking = await Searcher(world.store, world.embedder).ranking(
        Query(text=ALL, group="demo", filters=Filters(relations=("OWNS",)), limit=100)
    )
    assert len([hit for hit in ranking.hits if hit.scope == "episode"]) == 4
    assert [(scope, text) for scope, _, text in ranking.said_above] == [("episode", "Far away Olaf rows.")]


async def test_ended_facts_are_found_by_the_range_of_their_end_at_any_time(world):
    await world.tell("demo", "Olaf sold it.", day(12), ends=[("Olaf owns a boat", day(12))])
    filters = Filters(invalid_at=(day(11), day(13)))
    assert await facts(world, filters=filters) == []
    assert await facts(world, filters=filters, any_time=True) == ["Olaf owns a boat"]


async def test_a_rare_fact_is_found_behind_hundreds_of_excluded_facts(world):
    """Hits dropped after ranking (ended, filtered) must not make a search come back short."""
    distractors = [(f"Z{n}", "MADE", f"q{n}", f"Z{n} made q{n} of x{n}", day(20), None) for n in range(300)]
    await world.tell("demo", "other things", day(19), facts=distractors)
    for start in range(0, 200, 100):
        await world.tell(
            "demo",
            "log",
            day(30),
            facts=[
                ("Kim", "VISITED", f"Town {n}", f"Kim visited Kim's town {n}", day(20), day(21))
                for n in range(start, start + 100)
            ],
        )
    await world.tell(
        "demo",
        "by the way",
        day(31),
        facts=[
            (
                "Kim",
                "VISITED",
                "Oslo",
                "In the long run and all things considered Kim visited Oslo too",
                day(31),
                None,
            )
        ],
    )
    for recipe in ("lexical", "semantic", "hybrid"):
        fact_texts = await facts(
            world, text="Kim visited Kim's town", recipe=recipe, limit=1 if recipe == "lexical" else 5
        )
        assert "In the long run and all things considered Kim visited Oslo too" in fact_texts


async def test_a_fact_with_several_pieces_of_evidence_is_one_hit_at_its_best_rank(world):
    for at in range(3):
        await world.tell(
            "demo",
            f"again {at}",
            day(15 + at),
            facts=[("Olaf", "OWNS", "boat", "Olaf owns a boat", day(9), None)],
        )
    hits = await find(world, text="Olaf boat", recipe="lexical", scopes=("fact",))
    assert [(hit.text, hit.methods, len(hit.fact.episodes)) for hit in hits] == [
        ("Olaf owns a boat", {"bm25": 1}, 4)
    ]


async def test_merged_entities_are_one_hit_at_the_best_rank(world):
    """R16: recorded ids fold; the view decides what shows."""
    await world.tell("demo", "O. Nord sails.", day(13), names=[("Olaf Nord", "Sailor")])
    old, new = (world.entities["demo", name] for name in ("Olaf", "Olaf Nord"))
    operation = Operation(group="demo", kind="merge", entities=(old.id, new.id))
    operation = replace(operation, sequence=request(world.store, operation))
    folded = Entity(id=old.id, name="Olaf Nord", aliases=("Olaf",), labels=("Sailor",), born=old.born)
    difference = Difference(
        entities=(folded,), gone_entities=(new.id,), shown=((new.id, old.id),), unshown=((new.id, new.id),)
    )
    world.store.apply([correction_change(operation, {}, world.last_recorded("demo") + 1, difference)])
    hits = await find(world, text="Olaf", scopes=("entity",), recipe="lexical")
    assert [(hit.entity, hit.methods) for hit in hits] == [(folded, {"bm25": 1})]


async def test_episode_mentions_ranks_the_most_frequent_facts_first(world):
    """The paper's episode-mentions reranker: the number of supporting episodes is the score."""
    for at in range(3):
        await world.tell(
            "demo",
            f"again {at}",
            day(15 + at),
            facts=[("Cleo", "KNOWS", "Dan", "Cleo knows Dan", day(2), None)],
        )
    hits = await find(world, text="Ann knows Ben", recipe="mentions", scopes=("fact",), limit=3)
    assert (hits[0].text, hits[0].score) == ("Cleo knows Dan", 4.0)
    people = await find(world, text="Ann Ben Cleo Dan", recipe="mentions", scopes=("entity",), limit=2)
    assert {(hit.text, hit.score) for hit in people} == {("Cleo", 5.0), ("Dan", 5.0)}


async def test_node_distance_orders_by_steps_from_the_centre(world):
    """1 / (1 + distance): facts at Dan 1, one step away 1/2; unreached facts 0."""
    hits = await find(
        world,
        text="Ann knows Ben, Olaf owns a boat",
        recipe="nearby",
        centre=world.id_of("demo", "Dan"),
        scopes=("fact",),
    )
    assert {hit.text: hit.score for hit in hits} == {
        "Cleo knows Dan": 1.0,
        "Dan knows Eve": 1.0,
        "Ben knows Cleo": 0.5,
        "Ann knows Ben": 1 / 3,
        "Olaf owns a boat": 0.0,
    }
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@pytest.mark.parametrize("scope", ["fact", "entity", "episode"])
async def test_mmr_returns_every_candidate_in_order_of_score(world, scope):
    plain = await find(world, text="Ann knows Ben", scopes=(scope,), limit=20)
    hits = await find(world, text="Ann knows Ben", scopes=(scope,), limit=20, recipe="diverse")
    assert {hit.id for hit in hits} == {hit.id for hit in plain}
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)


async def test_the_limit_applies_to_all_scopes_together(world):
    """Without the rule that a fact and its messages count once, the list has all three scopes."""
    for limit in (1, 4, 9):
        assert len(await find(world, text=ALL, limit=limit)) == limit
    hits = await find(world, text=ALL, limit=20, recipe=Recipe(once=False))
    assert {hit.scope: hit.text for hit in hits}.keys() == {"fact", "entity", "episode"}
    hits = await find(world, text=ALL, limit=20, recipe=Recipe(once=False, places={"fact": 2, "episode": 1}))
    assert [sum(hit.scope == scope for hit in hits) for scope in ("fact", "episode")] == [2, 1]


async def test_one_scope_fills_the_list_when_other_scopes_have_few_hits(world):
    """One entity, one episode, 300 facts and values: a limit of 200 is met."""
    await world.tell(
        "values",
        "readings",
        day(0),
        facts=[
            ("probe", "READS", Value("number", str(n), "C"), f"The probe reads {n} C", day(0), None)
            for n in range(300)
        ],
    )
    hits = await Searcher(world.store, world.embedder).search(Query(text="probe", group="values", limit=200))
    counts = {scope: sum(hit.scope == scope for hit in hits) for scope in ("fact", "entity", "episode")}
    assert counts == {"fact": 200, "entity": 0, "episode": 0}, "the message says no more than its facts"


def test_a_rank_does_not_depend_on_the_number_of_rows_read(tmp_path):
    """Forty messages match in fewer words; the message of the named speaker ranks above them."""
    start = datetime(2026, 3, 1, tzinfo=UTC)
    messages = [("Bob", "kettle blue")] * 40 + [("Ann", "kettle blue morning")]
    rows = [
        {"id": f"m{n}", "speaker": speaker, "text": text, "at": start + timedelta(hours=8 * n)}
        for n, (speaker, text) in enumerate(messages)
    ]
    with kgray.open(tmp_path / "ranks", create=True) as memory:
        memory.add_many(rows, group="demo")
        for limit in (1, 10, 50):
            hits = memory.search(
                "Ann blue kettle", group="demo", scopes=["episode"], recipe="lexical", limit=limit
            )
            assert (hits[0].client_id, hits[0].methods) == ("m40", {"bm25": 41})
            assert {tuple(hit.methods.items()) for hit in hits[1:]} <= {(("bm25", 1),)}
