"""Facts without new content are dropped; facts of a careful reader stay (R18)."""

from __future__ import annotations

from typing import Any

import pytest

from kgray.domain import times
from kgray.domain.ontology import shipped
from kgray.domain.records import Episode, Extraction
from kgray.ingest.extract import without_repeats
from kgray.models.prompting.replies import parse_extraction
from kgray.ports import ExtractionRequest
from tests import make
from tests.world import Oracle, World, WorldPlan

SAID_AT = times.parse("2026-03-05T09:00:00Z")[0]
ONTOLOGY = shipped().extended({"ADVISES": {}, "ADMIRES": {}})


def utterance(speaker: str, text: str, sequence: int = 9, kind: Any = "message") -> Episode:
    return make.episode(text, speaker or None, kind, at=SAID_AT, sequence=sequence)


def fact(source: str, relation: str, target: Any, sentence: str, **fields: Any) -> dict[str, Any]:
    end = {"target": target} if isinstance(target, str) else {"value": target}
    return {"source": source, "relation": relation, "fact": sentence, **end, **fields}


def cleaned(
    text: tuple[str, str],
    *facts: dict[str, Any],
    context: tuple[tuple[str, str], ...] = (),
    kind: Any = "message",
) -> Extraction:
    """Return an extraction of a text with these facts, without repeated facts."""
    episode = utterance(*text, kind=kind)
    previous = tuple(utterance(*each, sequence=n) for n, each in enumerate(context, start=1))
    extraction = parse_extraction({"entities": [], "facts": list(facts)}, episode)
    assert extraction.dropped == ()
    return without_repeats(extraction, ExtractionRequest(episode=episode, previous=previous), ONTOLOGY)


def texts(extraction: Extraction) -> list[str]:
    return [fact.text for fact in extraction.facts]


WORKS = fact("Alice", "WORKS_AT", "Acme", "Alice works at Acme")
TEA = fact("Bob", "LIKES", "tea", "Bob likes tea")
JOB = ("Alice", "I work at Acme, in the old town.")


# ------------------------------------------------------------------------- the previous context


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(("Bob", "I like tea."), id="another speaker about another matter"),
        pytest.param(("Alice", "Thanks a lot, Bob likes tea!"), id="the same speaker"),
        pytest.param(("Bob", "Alice and I like tea."), id="one end is named"),
        pytest.param(("", "Bob likes the tea."), id="a text"),
    ],
)
def test_a_fact_of_the_previous_context_is_dropped_and_counted(text):
    extraction = cleaned(text, WORKS, TEA, context=(JOB,), kind="message" if text[0] else "text")

    assert texts(extraction) == ["Bob likes tea"]
    assert extraction.dropped == ("facts[0]: an earlier episode says it, and this one does not",)
    assert {entity.name for entity in extraction.entities} >= {"Alice", "Acme", "Bob", "tea"}


def test_a_value_of_the_previous_context_is_dropped():
    price = fact("desk", "COSTS", {"value": 120, "unit": "EUR"}, "the desk costs 120 EUR")
    context = ("Alice", "The desk costs 120 EUR.")

    assert texts(cleaned(("Bob", "I like tea."), price, TEA, context=(context,))) == ["Bob likes tea"]
    lamp = fact("lamp", "COSTS", {"value": 120, "unit": "EUR"}, "the lamp costs 120 EUR")
    assert texts(cleaned(("Bob", "And the lamp 120."), price, lamp, context=(context,))) == [lamp["fact"]]


@pytest.mark.parametrize(
    ("context", "text", "stated"),
    [
        pytest.param((("Bob", "Do you still work at Acme?"),), ("Alice", "Yes."), WORKS, id="an answer"),
        pytest.param(
            (("Bob", "Where do you work, Alice?"), JOB),
            ("Alice", "Same place."),
            WORKS,
            id="an answer with an ellipsis",
        ),
        pytest.param(
            (("Bob", "Who works at Acme, Alice or Cid?"),),
            ("Dan", "Alice."),
            WORKS,
            id="an answer with a name",
        ),
        pytest.param(
            (("Bob", "Does Cid work with Alice at Acme?"),),
            ("Cid", "I joined Alice last week."),
            fact("Cid", "WORKS_AT", "Acme", "Cid works at Acme"),
            id="an answer in other words",
        ),
        pytest.param((JOB,), ("Bob", "I heard she loves the work."), WORKS, id="a pronoun"),
        pytest.param((JOB,), ("Bob", "She does."), WORKS, id="a confirmation"),
        pytest.param(
            (JOB,), ("Alice", "And I have been there since 2019."), WORKS, id="a place that is pointed to"
        ),
        pytest.param((JOB,), ("Bob", "Alice works at Acme."), WORKS, id="said again"),
        pytest.param((JOB,), ("Bob", "Alice is at Acme."), WORKS, id="both ends named"),
        pytest.param((JOB,), ("Bob", "Alice has worked hard."), WORKS, id="the telling word, inflected"),
        pytest.param((JOB,), ("Alice", "Not anymore."), {**WORKS, "kind": "ended"}, id="an end"),
        pytest.param((JOB,), ("Alice", "Since 2019."), {**WORKS, "valid_at": "2019"}, id="a date"),
        pytest.param((JOB,), ("Alice", "👍"), WORKS, id="no word"),
        pytest.param((JOB,), ("Alice", "是的"), WORKS, id="another script"),
        pytest.param((JOB,), ("Alice", "Kyllä."), WORKS, id="a language without a list"),
        pytest.param((("Alice", "我在Acme工作"),), ("Bob", "我喜欢茶"), WORKS, id="without spaces"),
        pytest.param(
            (("Alice", "I like Acme."),), ("Bob", "I like tea."), WORKS, id="the context says something else"
        ),
        pytest.param((), ("Bob", "I like tea."), WORKS, id="no context"),
    ],
)
def test_a_fact_that_refers_to_the_context_is_kept(context, text, stated):
    extraction = cleaned(text, stated, context=context)

    assert (len(extraction.facts), extraction.dropped) == (1, ())


# --------------------------------------------------------------------- loops and both directions


def test_a_fact_between_an_entity_and_itself_is_dropped_and_counted():
    extraction = cleaned(
        ("Bob", "Acme is ACME, and I like tea."), fact("Acme", "KNOWS", "ACME.", "Acme knows ACME"), TEA
    )

    assert texts(extraction) == ["Bob likes tea"]
    assert extraction.dropped == ("facts[0]: it connects 'Acme' with itself",)


MANAGES = fact("Alice", "MANAGES", "Bob", "Alice manages Bob")


@pytest.mark.parametrize(
    ("text", "facts", "places"),
    [
        pytest.param(
            "Alice manages Bob.",
            [MANAGES, fact("Bob", "MANAGES", "Alice", "Bob manages Alice")],
            [0],
            id="one relation",
        ),
        pytest.param(
            "Alice manages Bob.",
            [fact("Bob", "MANAGES", "Alice", "Bob manages Alice"), MANAGES],
            [1],
            id="the sentence of the text stays",
        ),
        pytest.param(
            "Alice manages Bob.",
            [fact("Bob", "MANAGES", "Alice", "Alice manages Bob"), MANAGES],
            [1],
            id="the sentence begins with its subject",
        ),
        pytest.param(
            "Bob is managed by Alice.",
            [
                fact("Bob", "MANAGES", "Alice", "Bob is managed by Alice"),
                fact("Alice", "MANAGES", "Bob", "Bob is managed by Alice"),
            ],
            [1],
            id="passive",
        ),
        pytest.param(
            "Alice advises Bob.",
            [
                fact("Alice", "ADVISES", "Bob", "Alice advises Bob"),
                fact("Bob", "ADVISES", "Alice", "Bob advises Alice"),
            ],
            [0],
            id="a relation of the user's",
        ),
        pytest.param(
            "Alice manages Bob.",
            [MANAGES, fact("Bob", "REPORTS_TO", "Alice", "Bob reports to Alice")],
            [0],
            id="inverse relations",
        ),
        pytest.param(
            "Alice is married to Bob.",
            [
                fact("Alice", "MARRIED_TO", "Bob", "Alice is married to Bob"),
                fact("Bob", "MARRIED_TO", "Alice", "Bob is the husband of Alice"),
            ],
            [0],
            id="a symmetric relation",
        ),
        pytest.param(
            "Tom likes Ann and she likes him back.",
            [fact("Tom", "LIKES", "Ann", "Tom likes Ann"), fact("Ann", "LIKES", "Tom", "Ann likes Tom")],
            [0, 1],
            id="two sentences",
        ),
        pytest.param(
            "Tom likes Ann. Ann likes Tom.",
            [fact("Tom", "LIKES", "Ann", "Tom likes Ann"), fact("Ann", "LIKES", "Tom", "Ann likes Tom")],
            [0, 1],
            id="two sentences with names",
        ),
        pytest.param(
            "Tom and Ann like each other.",
            [fact("Tom", "LIKES", "Ann", "Tom likes Ann"), fact("Ann", "LIKES", "Tom", "Ann likes Tom")],
            [0, 1],
            id="each other",
        ),
        pytest.param(
            "Tom admires Ann.",
            [fact("Tom", "ADMIRES", "Ann", "Tom admires Ann"), fact("Ann", "LIKES", "Tom", "Ann likes Tom")],
            [0, 1],
            id="two relations",
        ),
        pytest.param(
            "Tom manages Ann.",
            [
                fact("Tom", "MANAGES", "Ann", "Tom manages Ann"),
                fact("Ann", "MANAGES", "Tom", "Ann manages Tom", kind="ended"),
            ],
            [0, 1],
            id="two kinds",
        ),
        pytest.param(
            "Tom manages Ann, and context 2020 Ann was his boss.",
            [
                fact("Tom", "MANAGES", "Ann", "Tom manages Ann"),
                fact("Ann", "MANAGES", "Tom", "Ann manages Tom", valid_at="2015", invalid_at="2020"),
            ],
            [0, 1],
            id="two spans",
        ),
        pytest.param(
            "张三管理李四。",
            [
                fact("张三", "MANAGES", "李四", "张三管理李四"),
                fact("李四", "MANAGES", "张三", "李四管理张三"),
            ],
            [0, 1],
            id="without spaces",
        ),
        pytest.param(
            "Alice is the boss of Bob.",
            [MANAGES, fact("Bob", "MANAGES", "Alice", "Bob manages Alice")],
            [0, 1],
            id="in words of its own",
        ),
    ],
)
def test_a_fact_stated_once_counts_once_in_both_directions(text, facts, places):
    extraction = cleaned(("", text), *facts, kind="text")

    assert texts(extraction) == [facts[place]["fact"] for place in places]
    first, absent = places[0], sorted({0, 1} - set(places))
    assert extraction.dropped == tuple(
        f"facts[{n}]: facts[{first}] says it in the other direction" for n in absent
    )


def test_facts_of_json_records_are_not_dropped():
    loop = fact("Acme", "KNOWS", "ACME.", "Acme knows ACME")

    assert len(cleaned(("", '{"a": 1}'), loop, kind="json").facts) == 1


# ------------------------------------------------------------------------------ a perfect reader


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(WorldPlan(episodes=600), id="plain"),
        pytest.param(
            WorldPlan(episodes=400, seed=2, homonyms=0.1, tickers=0.3, nicknames=0.3), id="many names"
        ),
        pytest.param(
            WorldPlan(episodes=300, seed=3, entities=60, sources=1), id="few things in one conversation"
        ),
    ],
)
def test_no_fact_of_a_perfect_reader_is_dropped(plan):
    """The previous context of each episode equals the runner's: four episodes of its source."""
    oracle = Oracle(World(plan=plan))
    context: dict[tuple[str, str], list[Episode]] = {}
    dropped: list[str] = []
    for number, world_episode in enumerate(oracle.world, start=1):
        episode = world_episode.draft.episode(number, now=SAID_AT, state="accepted")
        source = context.setdefault((episode.group, episode.source), [])
        extraction = parse_extraction(oracle.extraction(episode.text), episode)
        request = ExtractionRequest(episode=episode, previous=tuple(source[-4:]))
        dropped += without_repeats(extraction, request, shipped()).dropped[len(extraction.dropped) :]
        source.append(episode)

    assert dropped == []
