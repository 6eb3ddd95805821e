"""Search: the true facts of a moment, as known at a moment, in one group."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgray.domain.graph import FactSpan, Hit, SourceMessage
from kgray.domain.times import to_datetime
from kgray.errors import NotFound
from kgray.graph.stored import StoredView, View, records_of
from kgray.search import Filters, Query, Searcher, context, count_tokens
from kgray.storage.ledger import episodes_at
from tests.graph import search_world
from tests.graph.search_world import a_world, day

HOSTILE = [
    '"',
    "'",
    "NEAR(a b)",
    "alice AND NOT beta",
    "text:alice*",
    "^alice",
    "(",
    "a OR",
    "--",
    "\x00",
    "a\x00b",
    "🖨️👩‍👩‍👧",
    "مرحبا بالعالم",
    "\ud800",
    "\u202eecila",
    "%",
    "_",
    "\\",
    "{alice beta}",
    "; DROP TABLE facts",
    "x" * 1_000_000,
    "alice " * 170_000,
]


@pytest.fixture
def world(tmp_path):
    """Open an empty store."""
    with a_world(tmp_path) as world:
        yield world


@pytest.fixture
async def jobs(world):
    """Tell of two jobs and a price."""
    await search_world.jobs(world, "demo")
    return world


async def find(world, text="Where does Alice Webb work?", group="demo", view=None, **options):
    query, read = Query(text=text, group=group, **options), None if view is None else (lambda: view)
    return await Searcher(world.store, world.embedder).search(query, view=read)


def texts(hits, scope="fact"):
    return [hit.text for hit in hits if hit.scope == scope]


@pytest.mark.parametrize(
    ("moment", "employers"),
    [
        pytest.param(day(-1), [], id="before"),
        pytest.param(day(0), ["Alice Webb works at Acme"], id="from-the-start"),
        pytest.param(day(60) - 1, ["Alice Webb works at Acme"], id="until-the-end"),
        pytest.param(day(60), ["Alice Webb works at Beta"], id="half-open"),
        pytest.param(None, ["Alice Webb works at Beta"], id="now"),
    ],
)
async def test_a_search_finds_facts_of_the_requested_moment(jobs, moment, employers):
    """R5: reads default to now; spans are half open (R1)."""
    hits = await find(jobs, as_of=moment, scopes=("fact",))
    assert [text for text in texts(hits) if "works" in text] == employers


async def test_any_time_finds_every_span(jobs):
    hits = await find(jobs, any_time=True, scopes=("fact",))
    assert set(texts(hits)) >= {"Alice Webb works at Acme", "Alice Webb works at Beta"}


async def test_as_of_does_not_filter_messages(jobs):
    """R5: a fact is shown with the message that states it, also if that message is later."""
    await jobs.tell("demo", "Alice Webb says hello from the future.", day(40_000))
    episode_texts = texts(await find(jobs, scopes=("episode",), limit=50), "episode")
    assert "Alice Webb says hello from the future." in episode_texts
    assert len(episode_texts) > 2
    assert texts(await find(jobs, as_of=day(30), scopes=("episode",), limit=50), "episode") == episode_texts
    late = Filters(said=(day(40_000), None))
    early = Filters(said=(None, day(40_000)))
    for filters, to_come in ((late, True), (early, False)):
        hits = await find(jobs, scopes=("episode",), limit=50, filters=filters)
        assert texts(hits, "episode") == [text for text in episode_texts if ("future" in text) is to_come]


async def test_a_fact_hit_has_all_fields_of_the_interface(jobs):
    hits = await find(jobs, text="Alice Webb works at Beta", scopes=("fact",))
    fact = jobs.facts["demo", "Alice Webb works at Beta"]
    assert hits[0].signals.keys() == {"words", "vectors", "linked", "answers"}
    assert 0.4 < hits[0].score < 1
    assert hits[0] == Hit(
        scope="fact",
        id=fact.id,
        text="Alice Webb works at Beta",
        score=hits[0].score,
        group="demo",
        methods={"bm25": 1, "cosine": 1},
        signals=hits[0].signals,
        message=SourceMessage(
            id=fact.episodes[0],
            client_id="m2",
            speaker="Ann",
            text="Now Alice Webb works at Beta!",
            reference_time=to_datetime(day(60)),
        ),
        fact=FactSpan(
            id=fact.id,
            statement=fact.statement,
            text="Alice Webb works at Beta",
            subject_id=fact.source,
            subject="Alice Webb",
            relation="WORKS_AT",
            object_id=fact.target,
            object="Beta",
            valid_at=to_datetime(fact.valid_at),
            invalid_at=None,
            created_at=to_datetime(fact.created_at),
            expired_at=None,
            episodes=((fact.episodes[0], "m2"),),
            ended_by=None,
        ),
    )


async def test_a_value_is_shown_with_its_unit_and_is_not_an_entity(jobs):
    hits = await find(jobs, text="lamp costs", limit=3)
    fact = next(hit for hit in hits if hit.scope == "fact")
    assert (fact.subject, fact.object, fact.fact.object_id) == ("lamp", "80 EUR", None)
    assert {hit.text for hit in await find(jobs, text="80 EUR", scopes=("entity",))} <= {
        "Alice Webb",
        "Acme",
        "Beta",
        "lamp",
    }


async def test_an_episode_hit_carries_its_client_id_time_and_speaker(jobs):
    hit = (await find(jobs, text="lamp euros", scopes=("episode",), recipe="lexical"))[0]
    assert (hit.text, hit.client_id, hit.reference_time, hit.speaker) == (
        "The lamp costs 80 euros.",
        None,
        to_datetime(day(61)),
        "Ann",
    )


async def test_the_scores_of_the_paper_are_sums_of_reciprocal_ranks(jobs):
    hits = await find(jobs, limit=50, recipe="paper")
    assert {hit.scope for hit in hits} == {"fact", "entity"}
    assert any(len(hit.methods) == 3 for hit in hits)
    for hit in hits:
        assert hit.score == math.fsum(1 / (60 + rank) for rank in hit.methods.values())


async def test_the_same_search_gives_the_same_list(jobs):
    assert await find(jobs, limit=50) == await find(jobs, limit=50)


async def test_a_search_returns_only_hits_of_its_group(jobs):
    """Promise 5: the same text in two groups gives no hit across."""
    await jobs.tell(
        "other",
        "Alice Webb works at Gama.",
        day(70),
        facts=[("Alice Webb", "WORKS_AT", "Gama", "Alice Webb works at Gama", day(70), None)],
    )
    ours, theirs = await find(jobs, limit=100), await find(jobs, group="other", limit=100)
    assert any("Gama" in hit.text for hit in theirs)
    assert not any("Gama" in hit.text for hit in ours)
    assert {hit.group for hit in ours} == {"demo"}
    assert {hit.group for hit in theirs} == {"other"}
    assert not {hit.id for hit in ours} & {hit.id for hit in theirs}


async def test_an_id_of_another_group_is_not_found(jobs):
    await jobs.tell("other", "Zed is here.", day(70), names=[("Zed", "Person")], client_id="z")
    for identifier in (jobs.id_of("other", "Zed"), "z", "nobody"):
        with pytest.raises(NotFound, match="group demo has no entity or episode"):
            await find(jobs, seeds=(identifier,), recipe="mix")


async def test_an_unknown_group_reads_as_empty(jobs):
    assert await find(jobs, group="nowhere") == []
    block = await context(Searcher(jobs.store, jobs.embedder), Query(text="anything?", group="nowhere"))
    assert (block.text, block.hits) == ("Nothing that this memory holds bears on the question.", ())


async def test_a_retracted_episode_is_found_only_as_known_before(jobs):
    """R25: retraction ends the records' part from now on; `known_at` before it still sees them."""
    episode = jobs.facts["demo", "The lamp costs 80 EUR"].episodes[0]
    moment_before = jobs.last_recorded("demo")
    jobs.retract("demo", episode, day(80))
    assert "The lamp costs 80 EUR" not in texts(await find(jobs, text="lamp costs", limit=50))
    assert "The lamp costs 80 euros." not in texts(await find(jobs, text="lamp costs", limit=50), "episode")
    store = jobs.store
    earlier_view = View(records_of(store, "demo", moment_before), lambda ids: episodes_at(store, "demo", ids))
    hits = await find(jobs, text="lamp costs", known_at=moment_before, view=earlier_view)
    assert hits[0].text == "The lamp costs 80 EUR"
    messages = await find(
        jobs, text="lamp costs", known_at=moment_before, view=earlier_view, scopes=("episode",)
    )
    assert "The lamp costs 80 euros." in texts(messages, "episode")
    around = await find(
        jobs, known_at=moment_before, view=earlier_view, recipe="neighbours", seeds=(episode,)
    )
    assert [hit.text for hit in around] == ["lamp", "The lamp costs 80 EUR"]
    assert texts(await find(jobs, recipe="neighbours", seeds=(episode,))) == []


async def test_known_at_requires_a_view_of_the_same_group(jobs):
    with pytest.raises(ValueError, match="known_at needs a view"):
        await find(jobs, known_at=day(1))
    with pytest.raises(ValueError, match="the view shows group other"):
        await find(jobs, view=StoredView(jobs.store, "other"))


async def test_any_text_is_accepted_as_a_query(jobs):
    """Neither a query language nor a crash: hits of the group, or none."""
    for text in HOSTILE:
        assert {hit.group for hit in await find(jobs, text=text)} <= {"demo"}, text[:50]


async def test_chinese_and_japanese_text_is_found(world):
    await world.tell(
        "demo",
        "爱丽丝搬到东京了。",
        day(1),
        facts=[("爱丽丝", "LIVES_IN", "东京", "爱丽丝住在东京", day(1), None)],
    )
    await world.tell(
        "demo", "鮑勃喜歡咖啡。", day(2), facts=[("鮑勃", "LIKES", "咖啡", "鮑勃喜歡咖啡", day(2), None)]
    )
    for scope, expected_text in (
        ("fact", "爱丽丝住在东京"),
        ("entity", "东京"),
        ("episode", "爱丽丝搬到东京了。"),
    ):
        assert texts(await find(world, text="谁在东京?", recipe="lexical", scopes=(scope,)), scope) == [
            expected_text
        ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(min_size=1).filter(str.strip), tokens=st.integers(64, 300))
async def test_a_context_block_stays_within_its_budget(jobs, text, tokens):
    block = await context(Searcher(jobs.store, jobs.embedder), Query(text=text, group="demo"), tokens=tokens)
    assert block.tokens == count_tokens(block.text) <= tokens


async def test_the_context_block_has_the_current_facts(jobs):
    work_query = Query(text="Where does Alice Webb work?", group="demo")
    block = await context(Searcher(jobs.store, jobs.embedder), work_query)
    facts = block.text.split("<FACTS>\n")[1].split("\n</FACTS>")[0].split("\n")
    assert facts[0] == "- [1] Alice Webb works at Beta (Date range: 2026-03-02 - present)"
    assert "Acme (Date range" not in block.text
    assert "- Alice Webb (Person)" in block.text
    assert "Ann: Now Alice Webb works at Beta!" in block.text
