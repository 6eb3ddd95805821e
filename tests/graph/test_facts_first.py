"""Promise 9: a fact that answers comes before all other hits; hyper-edges, outdated messages, contexts."""

from __future__ import annotations

import pytest

from kgray.domain.times import Instant
from kgray.search import Query, Searcher, context
from kgray.search.context import Context
from tests.graph.search_world import World, a_world, day


@pytest.fixture
async def world(tmp_path):
    """Tell of jobs, leaders and a meeting; one job has ended."""
    with a_world(tmp_path) as world:
        await world.tell(
            "g",
            "Ann Reed works at Acme. Where does she live?",
            day(1),
            facts=[("Ann Reed", "WORKS_AT", "Acme", "Ann Reed works at Acme", day(1), None)],
            client_id="old",
        )
        await world.tell(
            "g",
            "Ann Reed has a new job, at Beta.",
            day(9),
            facts=[("Ann Reed", "WORKS_AT", "Beta", "Ann Reed works at Beta", day(9), None)],
            ends=[("Ann Reed works at Acme", day(9))],
            client_id="new",
        )
        await world.tell(
            "g",
            "Apollo has a head, Ben Cole.",
            day(10),
            facts=[("Apollo", "LED_BY", "Ben Cole", "Apollo is led by Ben Cole", day(10), None)],
        )
        await world.tell(
            "g",
            "Ben moved.",
            day(11),
            facts=[("Ben Cole", "LIVES_IN", "Oslo", "Ben Cole lives in Oslo", day(11), None)],
        )
        await world.tell(
            "g",
            "Lunch.",
            day(12),
            facts=[
                ("Ann Reed", "REPORTS_TO", "Ben Cole", "Ann Reed reports to Ben Cole", day(12), None),
                ("Dan Fox", "REPORTS_TO", "Ann Reed", "Dan Fox reports to Ann Reed", day(12), None),
            ],
        )
        met = "Ann Reed met Ben Cole and Dan Fox"
        await world.tell(
            "g",
            met,
            day(13),
            facts=[
                ("Ann Reed", "MET", "Ben Cole", met, day(13), None),
                ("Ann Reed", "MET", "Dan Fox", met, day(13), None),
            ],
        )
        yield world


async def hits(world: World, text: str, **options):
    return await Searcher(world.store, world.embedder).search(Query(text=text, group="g", **options))


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        pytest.param("Where does Ann Reed work?", "Ann Reed works at Beta", id="current"),
        pytest.param("Who is Ann Reed's employer?", "Ann Reed works at Beta", id="noun-of-the-ontology"),
        pytest.param("Which company is Ann Reed with?", "Ann Reed works at Beta", id="kind-alone"),
        pytest.param("Who leads Apollo?", "Apollo is led by Ben Cole", id="irregular-verb"),
        pytest.param("Who is in charge of Apollo?", "Apollo is led by Ben Cole", id="one-sense"),
        pytest.param("Who does Ann Reed report to?", "Ann Reed reports to Ben Cole", id="subject"),
        pytest.param("Who reports to Ann Reed?", "Dan Fox reports to Ann Reed", id="object"),
        pytest.param("Who is Ann Reed's boss?", "Ann Reed reports to Ben Cole", id="owner"),
        pytest.param("Where did Ann Reed work before?", "Ann Reed works at Acme", id="former"),
    ],
)
async def test_the_fact_that_answers_is_the_first_hit(world, question, answer):
    assert (await hits(world, question))[0].text == answer


@pytest.fixture
async def tastes(tmp_path):
    """Tell of tastes, and of things that are names without a fact about the person."""
    with a_world(tmp_path) as world:
        await world.tell(
            "g",
            "James loves football and plays Civilization. Eva has two dogs. Rex is a dog.",
            day(1),
            facts=[
                ("James", "LIKES", "football", "James loves football", day(1), None),
                ("Eva", "LIKES", "Civilization", "Eva likes Civilization", day(1), None),
                ("Rex", "LIKES", "dogs", "Rex likes dogs", day(1), None),
                ("Eva", "LIVES_IN", "Oslo", "Eva lives in Oslo", day(1), None),
                ("James", "LIVES_IN", "Rome", "James lives in Rome", day(1), None),
            ],
        )
        yield world


@pytest.mark.parametrize(
    "question",
    [
        pytest.param("How many dogs does James have?", id="an-object-of-another-fact"),
        pytest.param("When did James start playing Civilization?", id="a-verb-of-beginning"),
        pytest.param("Who inspired James to start?", id="a-verb-of-beginning-alone"),
        pytest.param("Why does James want dogs near the football ground?", id="most-words-are-open"),
    ],
)
async def test_a_fact_about_another_subject_is_not_an_answer(tastes, question):
    assert not any("answers" in hit.signals for hit in await hits(tastes, question))


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        pytest.param("Does James love football?", {"James loves football"}, id="both-ends"),
        pytest.param("Which cities has James lived in?", {"James lives in Rome"}, id="kind-in-the-plural"),
        pytest.param("Does James love football or dogs?", {"James loves football"}, id="alternatives"),
        pytest.param(
            "Where do James and Eva live?", {"Eva lives in Oslo", "James lives in Rome"}, id="two-subjects"
        ),
    ],
)
async def test_only_facts_that_match_the_question_are_answers(tastes, question, answers):
    first = {hit.text for hit in await hits(tastes, question) if "answers" in hit.signals}

    assert first == answers


async def test_as_of_puts_the_fact_of_that_moment_first(world):
    assert (await hits(world, "Where does Ann Reed work?", as_of=day(5)))[0].text == "Ann Reed works at Acme"


async def test_a_question_over_two_steps_is_answered_by_two_facts(world):
    result = await hits(world, "Where does the head of Apollo live?")
    assert [hit.text for hit in result[:2]] == ["Apollo is led by Ben Cole", "Ben Cole lives in Oslo"]


async def test_a_question_about_spoken_words_has_no_answering_fact(world):
    result = await hits(world, "What did Ann Reed say about where she works?")
    assert not any("answers" in hit.signals for hit in result)


async def test_a_fact_hit_includes_its_message_and_older_messages_are_outdated(world):
    result = await hits(world, "Where does Ann Reed work?")
    assert result[0].message.client_id == "new"
    assert "new" not in {hit.client_id for hit in result}
    old = next(hit for hit in result if hit.client_id == "old")
    assert (old.outdated, old.as_dict()["outdated"]) == (True, True)


async def test_facts_of_a_sentence_form_one_hit_with_all_participants(world):
    results = [hit for hit in await hits(world, "Whom did Ann Reed meet?") if hit.fact]
    met = [hit for hit in results if hit.fact.relation == "MET"]
    assert [set(hit.participants) for hit in met] == [{"Ann Reed", "Ben Cole", "Dan Fox"}]


async def built(world: World, text: str, as_of: Instant | None = None, **options) -> Context:
    query = Query(text=text, group="g", as_of=as_of)
    return await context(Searcher(world.store, world.embedder), query, **options)


async def test_a_context_begins_with_the_current_fact_and_omits_ended_facts(world):
    text = (await built(world, "Where does Ann Reed work?", tokens=300)).text
    facts = text.split("<FACTS>\n")[1].split("\n</FACTS>")[0].splitlines()
    assert facts[0] == "- [1] Ann Reed works at Beta (Date range: 2026-01-10 - present)"
    assert not any("Acme" in line for line in facts)


async def test_a_context_shows_a_hyper_edge_once_and_marks_an_outdated_message(world):
    both = "They met in Bern"
    await world.tell(
        "g",
        "Ann Reed, Ben Cole and Dan Fox again: they met in Bern.",
        day(14),
        facts=[
            ("Ann Reed", "MET", "Ben Cole", both, day(14), None),
            ("Ann Reed", "MET", "Dan Fox", both, day(14), None),
        ],
    )
    text = (await built(world, "Whom did Ann Reed meet in Bern?", tokens=400)).text
    facts = text.split("<FACTS>\n")[1].split("\n</FACTS>")[0].splitlines()
    assert len([line for line in facts if "Ann Reed met Ben Cole and Dan Fox" in line]) == 1
    (line,) = [line for line in facts if both in line]
    listed = line.split("(participants: ")[1].split(")")[0]
    assert set(listed.split(", ")) == {"Ann Reed", "Ben Cole", "Dan Fox"}
    text = (await built(world, "Where does Ann Reed work?", tokens=400)).text
    assert "(outdated): Ann Reed works at Acme. Where does she live?" in text


async def test_the_template_of_the_paper_has_only_facts_and_entities(world):
    block = await built(world, "Where does Ann Reed work?", tokens=400, template="paper")
    assert block.text.startswith("FACTS and ENTITIES represent relevant context to the current conversation.")
    assert "- Ann Reed works at Beta (Date range: 2026-01-10 - present)" in block.text
    assert "- Ann Reed" in block.text.splitlines()
    assert "EPISODES" not in block.text
    assert block.cited == ()


async def test_a_scope_stays_within_its_share_of_a_context(world):
    query = Query(text="Ann Reed Ben Cole Dan Fox Apollo", group="g", recipe="lightrag_mix")
    block = await context(Searcher(world.store, world.embedder), query, tokens=120)
    lines = [line for line in block.text.splitlines() if line.startswith("- [")]
    assert sum(map(len, lines)) * 0.8 <= 4 * 0.27 * 120
