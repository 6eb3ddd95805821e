"""The content of a reply must be in the text; items that only look foreign stay (R18)."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest

from kgray.domain import times
from kgray.domain.ontology import shipped
from kgray.domain.records import Episode, ExtractedEntity, ExtractedFact, Extraction, Value
from kgray.graph.texts import with_own_sentences
from kgray.ingest.extract import ground
from kgray.models.prompting.model_replies import ScriptForm
from kgray.models.prompting.prompts import load
from kgray.models.prompting.replies import parse_extraction
from kgray.ports import ExtractionRequest
from tests import make

SAID_AT = times.parse("2026-03-05T09:00:00Z")[0]


episode = partial(make.episode, at=SAID_AT)


def read(
    text: str, reply: dict[str, Any], *, speaker: str | None = None, state_before: tuple[Episode, ...] = ()
) -> Extraction:
    """Return a reply, grounded in a text."""
    message = episode(text, speaker)
    return ground(parse_extraction(reply, message), ExtractionRequest(episode=message, previous=state_before))


def names_in(
    text: str, *names: str, speaker: str | None = None, state_before: tuple[Episode, ...] = ()
) -> list[str]:
    """Return which of some names stay."""
    result = read(
        text,
        {"entities": [{"name": n} for n in names], "facts": []},
        speaker=speaker,
        state_before=state_before,
    )
    return [entity.name for entity in result.entities if entity.name in names]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param("Annas Hund heißt Rex.", "Anna", id="German genitive"),
        pytest.param("Peter's desk is broken.", "Peter", id="English genitive"),
        pytest.param("Bydlím v Praze.", "Praha", id="Czech case"),
        pytest.param("Я живу в Праге.", "Прага", id="Russian case"),
        pytest.param("Встретил Петром Ивановым.", "Петр Иванов", id="Russian name in a case"),
        pytest.param("Asun Helsingissä.", "Helsinki", id="Finnish case"),
        pytest.param("Two Kestrel lamps stand there.", "Kestrel lamp", id="plural"),
        pytest.param("We sold three phones.", "phone", id="plural of a common noun"),
        pytest.param("I.B.M. has called.", "International Business Machines", id="code in the text"),
        pytest.param("International Business Machines has called.", "IBM", id="code in the reply"),
        pytest.param("M. Webb left.", "Marcus Webb", id="initial in the text"),
        pytest.param("Marcus Webb left.", "M. Webb", id="initial in the reply"),
        pytest.param("Dr. Webb left.", "Doctor Marcus Webb", id="title written out"),
        pytest.param("I met the CEO of Nordglas.", "Nordglas AG", id="legal form added"),
        pytest.param("I work at Microsft.", "Microsoft", id="misspelt in the text"),
        pytest.param("Ich wohne in München.", "Munich", id="translated"),
        pytest.param("Zoe called.", "Zoë", id="accent"),
        pytest.param("Ich wohne in Wien.", "Vienna", id="place in another language"),
        pytest.param("J'habite en Allemagne.", "Germany", id="country in another language"),
        pytest.param("Søren works at Ørsted.", "Orsted", id="letter that is no accent"),
        pytest.param("Łukasz called.", "Lukasz", id="first letter that is no accent"),
        pytest.param("Tom bought it.", "Thomas", id="shortened, letters left out"),
        pytest.param("Liz called.", "Elizabeth Moore", id="shortened to its middle"),
        pytest.param("Kathi called.", "Katharina Brandt", id="pet name"),
        pytest.param("I moved to New York.", "NYC", id="initials and a word that the text leaves out"),
        pytest.param("I drive a Volkswagen.", "VW", id="two letters of one word"),
        pytest.param("Я живу в Москве.", "Moscow", id="Cyrillic in Latin letters"),
        pytest.param("Μένω στην Αθήνα.", "Athens", id="Greek in Latin letters"),
        pytest.param("أعيش في القاهرة", "Cairo", id="Arabic in Latin letters"),
        pytest.param("أعيش في القاهرة", "قاهرة", id="Arabic with an article"),
        pytest.param("我住在北京市。", "北京", id="Chinese without spaces"),
        pytest.param("我住在北京市。", "Beijing", id="Chinese in Latin letters"),
        pytest.param("東京に住んでいます。", "東京", id="Japanese"),
        pytest.param("The Kundenportalprojekt is late.", "Kundenportal", id="part of a compound"),
        pytest.param("my boss is ill", "my boss", id="no proper name"),
        pytest.param("I like tea.", "User", id="who speaks in a text without a speaker"),
        pytest.param("We use C++ at work.", "C++", id="signs"),
    ],
)
def test_a_name_that_occurs_in_the_text_in_any_form_is_kept(text: str, name: str) -> None:
    assert names_in(text, name) == [name]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Tomorrow I meet the customer about the atom.", "Tom"),
        ("The rain has stopped.", "Nordwind"),
        ("Lunch is at noon.", "Mia"),
        ("The company is large.", "The Nordwind"),
        ("Bob paid for it.", "IBM"),
        ("Ich wohne in Hamburg.", "Anna"),
        ("The market is up.", "Mary"),
        ("Marina is here.", "Marcus"),
        ("Ich wohne in Prag.", "Vienna"),
    ],
)
def test_a_name_without_any_word_in_the_text_is_dropped(text: str, name: str) -> None:
    assert names_in(text, name) == []


def test_a_name_of_the_speaker_or_the_previous_context_is_kept() -> None:
    """A pronoun is resolved from them."""
    previous = (episode("Elena Fisk has bought a lamp.", "Tom"),)
    assert names_in("She likes it.", "Elena Fisk", "lamp", "Tom", state_before=previous) == [
        "Elena Fisk",
        "lamp",
        "Tom",
    ]
    assert names_in("I like tea.", "Ann Lee", speaker="Ann Lee") == ["Ann Lee"]
    assert names_in("She likes it.", "Elena Fisk") == []


def test_names_copied_from_the_prompts_example_are_dropped_and_reported() -> None:
    """The example's reply, given to a message about other people."""
    output = re.search(r"^Example\n.*^(\{\"entities.*\})$", load("combined"), re.MULTILINE | re.DOTALL)
    assert output is not None
    example = json.loads(output[1])
    form = ScriptForm(episode("The new printer has arrived, and Bob has set it up.", "Carol Dunn"))
    form.add_entities(example["entities"])
    form.add_facts(example["facts"])
    copied = {"entities": form.entities, "facts": form.facts}
    result = read("The new printer has arrived, and Bob has set it up.", copied, speaker="Carol Dunn")

    assert [entity.name for entity in result.entities] == ["Carol Dunn"]
    assert result.facts == ()
    assert len(result.dropped) == len(copied["entities"]) + len(copied["facts"])


def fact(**fields: Any) -> dict[str, Any]:
    """Return a reply about a lamp."""
    item = {"source": "lamp", "relation": "COSTS", "fact": "The lamp costs it", "kind": "holds", **fields}
    return {"entities": [{"name": "lamp"}], "facts": [item]}


@pytest.mark.parametrize(
    ("text", "number", "stays"),
    [
        ("The lamp is 90 EUR.", "90", True),
        ("The lamp is 1,200.50 EUR.", "1200.5", True),
        ("Die lamp kostet 1.200 Euro.", "1200", True),
        ("The lamp is 1.5 million.", "1500000", True),
        ("The lamp is 5k.", "5000", True),
        ("The lamp is twenty-five EUR.", "25", True),
        ("Die lamp kostet fünfundzwanzig Euro.", "25", True),
        ("A dozen lamp is there.", "12", True),
        ("lamppu maksaa kaksikymmentä euroa", "20", True),
        ("这盏灯三十块 lamp", "30", True),
        ("This is a lamp.", "1", True),
        ("The lamp came third.", "3", True),
        ("The lamp is from the XIV century.", "14", True),
        ("The lamp is ½ of the price.", "0.5", True),
        ("This lamp is for his thirties.", "30", True),
        ("The lamp is expensive.", "90", False),
        ("The lamp is 80 EUR.", "90", False),
    ],
)
def test_a_fact_with_an_unsupported_number_is_dropped(text: str, number: str, stays: bool) -> None:
    result = read(text, fact(target=None, value={"type": "number", "value": number, "unit": "EUR"}))
    assert (len(result.facts), len(result.dropped)) == ((1, 0) if stays else (0, 1))


@pytest.mark.parametrize(
    ("text", "date", "stays"),
    [
        ("I have had the lamp since 2018.", "2018", True),
        ("I have had the lamp since last week.", "2026-02-23", True),
        ("I got the lamp on 12.2.26.", "2026-02-12", True),
        ("I got the lamp on the 12th.", "2026-03-12", True),
        ("Die lamp habe ich seit gestern.", "2026-03-04", True),
        ("У меня lamp с прошлого года.", "2025", True),
        ("lamppu on ollut minulla viime vuodesta", "2025", True),
        ("La lampe est là depuis lundi, dans une heure.", "2026-03-02", True),
        ("Ich habe die lamp am Samstagabend geholt.", "2026-02-28", True),
        ("Elle a la lamp, et en été une autre.", "2025-06-01", True),
        ("У меня lamp, и зимой она нужна.", "2026-01", True),
        ("Ik heb een lamp, maandag niet.", "2026-03-02", True),
        ("I have had the lamp, and in the nineties too.", "1990", True),
        ("I have the lamp.", "2018", False),
        ("I have 3 of the lamp.", "2018-05-17", False),
    ],
)
def test_an_unsupported_start_date_is_dropped_and_its_fact_is_kept(text: str, date: str, stays: bool) -> None:
    result = read(text, fact(target=None, value="blue", valid_at=date))
    start, precision = times.parse_iso(date)
    stated = (start, precision, False)
    [item] = result.facts
    assert (item.valid_from, item.from_precision, item.inferred) == (
        stated if stays else (SAID_AT, "instant", True)
    )
    assert len(result.dropped) == (not stays)


def test_an_unsupported_end_date_becomes_the_reference_time() -> None:
    result = read(
        "I no longer have the lamp.", fact(target=None, value="blue", kind="ended", invalid_at="2019-04-01")
    )
    assert [(f.kind, f.valid_to, f.inferred) for f in result.facts] == [("ended", SAID_AT, True)]


def test_json_records_are_grounded_like_any_text() -> None:
    """The names and numbers of a JSON episode are words of its text."""
    message = episode('{"account":"Nordglas","arr":12500,"owner":{"name":"Ann Lee"}}', kind="json")
    reply = {
        "entities": [{"name": "Nordglas"}, {"name": "Ann Lee"}, {"name": "Mia"}],
        "facts": [
            {"source": 0, "relation": "HAS_ARR", "value": 12500, "fact": "ARR"},
            {"source": 0, "target": 1, "relation": "OWNED_BY", "fact": "Owner"},
        ],
    }
    result = ground(parse_extraction(reply, message), ExtractionRequest(episode=message))
    assert ([e.name for e in result.entities], len(result.facts)) == (["Nordglas", "Ann Lee"], 2)


@pytest.mark.parametrize(
    ("text", "sentence", "expected"),
    [
        pytest.param("I play in the city band.", "Bob plays the cello in band", None, id="grounded"),
        pytest.param("I play in the band.", "Bob plays in band of Berlin", "Bob plays in band", id="name"),
        pytest.param("I play in the band.", "Alice says Bob plays in band", "Bob plays in band", id="first"),
        pytest.param("I play in the band.", "Currently Bob plays in band", None, id="word at the start"),
        pytest.param("I play in the band.", "Bob plays 7 songs in band", "Bob plays in band", id="number"),
        pytest.param("I play 7 songs in the band.", "Bob plays 7 songs in band", None, id="its number"),
        pytest.param(
            "I don't play in the band.",
            "Bob does not play in band of Berlin",
            "Bob plays in band (not)",
            id="negation stays",
        ),
    ],
)
def test_a_sentence_with_a_foreign_name_is_replaced_by_a_composed_text(text, sentence, expected):
    """R18a: the sentence can become the text of a fact."""
    fact = {"source": "Bob", "target": "band", "relation": "PLAYS_IN", "fact": sentence}
    extraction = read(text, {"entities": [], "facts": [fact]}, speaker="Bob")
    assert [item.text for item in extraction.facts] == [expected or sentence]
    assert ["its sentence names" in line for line in extraction.dropped] == [True] * (expected is not None)


def test_a_sentence_may_have_the_date_of_a_relative_time_expression():
    fact = {
        "source": "Bob", "target": "band", "relation": "PLAYS_IN", "valid_at": "2026-03-04",
        "fact": "Bob plays in band since 2026-03-04",
    }  # fmt: skip
    reply = {"entities": [], "facts": [fact]}
    extraction = read("I am in the band since yesterday.", reply, speaker="Bob")
    assert (extraction.facts[0].text, extraction.dropped) == (fact["fact"], ())


def test_states_of_two_relations_do_not_share_a_sentence():
    """One of them may end before the other, whose text would then be wrong."""
    alice, acme = ExtractedEntity(name="Alice"), ExtractedEntity(name="Acme")
    sentence, end_sentence = "Alice works at Acme as a designer", "Alice left Acme as a designer"
    role = Value("text", "designer")
    facts = (
        ExtractedFact(source=0, relation="WORKS_AT", target=1, text=sentence),
        ExtractedFact(source=0, relation="HAS_ROLE", value=role, text=sentence),
        ExtractedFact(source=0, relation="WORKS_AT", target=1, text=end_sentence, kind="ended"),
        ExtractedFact(source=0, relation="HAS_ROLE", value=role, text=end_sentence, kind="ended"),
        ExtractedFact(source=0, relation="KNOWS", target=1, text="Alice knows Acme well"),
    )
    extraction = Extraction(entities=(alice, acme), facts=facts)

    texts = [fact.text for fact in with_own_sentences(extraction, shipped()).facts]

    assert texts == [
        "Alice works at Acme",
        "Alice has the role designer",
        end_sentence,
        end_sentence,
        "Alice knows Acme well",
    ]
