"""R18: the text of a fact, from the names of its ends, its relation, its qualifiers, and its date."""

from __future__ import annotations

import pytest

from kgray.domain import times
from kgray.domain.ontology import shipped
from kgray.domain.records import Declaration, Evidence, Value, as_value
from kgray.graph.names import EntityNote, Relations
from kgray.graph.sentences import MAX_SENTENCE, reads_true, verb_phrase
from kgray.graph.statements import Statement
from kgray.graph.texts import composed_text

# name: as a state, as an event
PHRASES = {
    # third person, and the base form
    "WORKS_AT": ("works at", "worked at"),
    "WORK_AT": ("works at", "worked at"),
    "HAVE": ("has", "had"),
    "STUDY": ("studies", "studied"),
    "TEACH": ("teaches", "taught"),
    "PREFERS": ("prefers", "preferred"),
    "WATCHES": ("watches", "watched"),
    "PLANS_TO_VISIT": ("plans to visit", "planned to visit"),
    "CONSISTS_OF": ("consists of", "consisted of"),
    # IS_ and HAS_
    "IS_OPEN_TO": ("is open to", "was open to"),
    "HAS_BUDGET": ("has budget", "had budget"),
    # participles
    "LOCATED_IN": ("is located in", "was located in"),
    "MARRIED_TO": ("is married to", "was married to"),
    "MADE_BY": ("is made by", "was made by"),
    "REPAIRED_BY": ("is repaired by", "was repaired by"),
    "BORN_IN": ("was born in", "was born in"),
    "WORKING_ON": ("is working on", "was working on"),
    # nouns, adjectives, prepositions
    "MANAGER_OF": ("is manager of", "was manager of"),
    "BOSS_OF": ("is boss of", "was boss of"),
    "ALLERGIC_TO": ("is allergic to", "was allergic to"),
    "RESPONSIBLE_FOR": ("is responsible for", "was responsible for"),
    "NEAR": ("is near", "was near"),
    # the past: of states it becomes the present, of acts it stays true
    "WORKED_AT": ("works at", "worked at"),
    "OWNED": ("owns", "owned"),
    "FOUNDED": ("founded", "founded"),
    "CONTRIBUTED_TO": ("contributed to", "contributed to"),
    "USED_TO_WORK_AT": ("works at", "worked at"),
    # the future: a fact about it begins when it does
    "WILL_START": ("starts", "started"),
    "WILL_BE_AT": ("is at", "was at"),
    "BOUGHT": ("bought", "bought"),
    "MET_WITH": ("met with", "met with"),
    # events named in the present
    "RESTARTS": ("restarts", "restarted"),
    "VISITS": ("visits", "visited"),
    "TRIES": ("tries", "tried"),
    "BUYS": ("buys", "bought"),
    # words that are no English verbs stay unchanged
    "ARBEITET_BEI": ("arbeitet bei", "arbeitet bei"),
    "STATUS": ("status", "status"),
    "住在": ("住在", "住在"),
}


@pytest.mark.parametrize(("name", "expected"), PHRASES.items())
def test_a_relation_name_becomes_a_verb_phrase(name, expected):
    assert (verb_phrase(name), verb_phrase(name, event=True)) == expected


def text_of(
    relation: str, text: str, target: str | Value = "Acme", words: str = "", **overrides: object
) -> str:
    """Return the text of a statement about Tom whose first evidence is this."""
    relations = Relations()
    if words:
        declared = Declaration(sequence=1, ordinal=0, name=relation, aspect="text", value=words)
        relations.declare(declared, 1)
    entity, value = (target, None) if isinstance(target, str) else (None, target)
    first = Evidence(
        sequence=1, ordinal=0, statement="s", variant=0, relation=relation, text=text, subject=0,
        object=None if value else 1, value=value, **({"kind": "holds"} | overrides),
    )  # fmt: skip
    notes = {name: EntityNote(name, (1, 0), name) for name in ("Tom", entity) if name}
    return composed_text(Statement("s", (1, 0), "Tom", relation, entity, value, 0, first), notes, relations)


MARCH_5 = times.parse("2026-03-05T09:30:00Z")[0]
AMOUNT = as_value({"value": 100, "unit": "eur"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(text_of("WORKS_AT", "Tom joined Acme"), "Tom works at Acme", id="joined"),
        pytest.param(text_of("WORKS_AT", "Tom quit his job", kind="ended"), "Tom works at Acme", id="quit"),
        pytest.param(text_of("WORKS_AT", "Tom will start at Acme"), "Tom works at Acme", id="will-start"),
        pytest.param(
            text_of("OWNS", "Tom sold his house in Munich in April", "house in Munich", kind="ended"),
            "Tom owns house in Munich",
            id="sold",
        ),
        pytest.param(text_of("COSTS", "Tom is now 100 EUR", AMOUNT), "Tom costs 100 EUR", id="value"),
        pytest.param(
            text_of("HAS_STATUS", "Tom was delayed", as_value("delayed"), "has the status"),
            "Tom has the status delayed",
            id="declared-words",
        ),
        pytest.param(
            text_of("HAS_COLOR", "Tom is not blue but dark blue", as_value("blue")),
            "Tom has color blue (not, dark)",
            id="the-value-sets-nothing-apart",
        ),
        pytest.param(
            text_of("HAS_STOCK", "12 of Tom are there", as_value(12), "has {object} in stock"),
            "Tom has 12 in stock",
            id="declared-words-around-the-object",
        ),
        pytest.param(
            text_of("IN_STOCK", "Tom is available", as_value(True)), "Tom is in stock: true", id="boolean"
        ),
        # A variant names its difference, and not the names, the value or the dates.
        pytest.param(
            text_of("WORKS_AT", "Tom works part-time at Acme"),
            "Tom works at Acme (part-time)",
            id="qualifier",
        ),
        pytest.param(
            text_of("WORKS_AT", "Tom works 3 days at Acme 360", "Acme 360"),
            "Tom works at Acme 360 (3 days)",
            id="digits",
        ),
        pytest.param(text_of("LIKES", "Tom doesn't like tea", "tea"), "Tom likes tea (not)", id="negation"),
        pytest.param(text_of("DISLIKES", "Tom doesn't like tea", "tea"), "Tom dislikes tea", id="said"),
        pytest.param(
            text_of("LIKES", "No, Tom likes tea", "tea"), "Tom likes tea", id="no-to-something-else"
        ),
        pytest.param(
            text_of("WORKS_AT", "Tom, a former clerk of Acme", kind="ended"), "Tom works at Acme", id="former"
        ),
        pytest.param(
            text_of("WORKS_AT", "Tom works at Acme since 2018", valid_from=times.parse("2018")[0]),
            "Tom works at Acme",
            id="the-date-is-no-variant",
        ),
        # An event: past tense, and its date in the stated precision.
        pytest.param(
            text_of("RESTARTED", "Tom restarted it 2 times", "printer", kind="happened", valid_from=MARCH_5,
                    from_precision="instant"),
            "Tom restarted printer on 2026-03-05",
            id="event",
        ),
        pytest.param(
            text_of("VISITS", "Tom went to Rome", "Rome", kind="happened",
                    valid_from=times.parse("2026-03")[0], from_precision="month"),
            "Tom visited Rome in 2026-03",
            id="event-of-a-month",
        ),
    ],
)  # fmt: skip
def test_a_fact_text_has_the_relation_between_its_ends(text, expected):
    assert text == expected


def test_the_shipped_relations_read_well_in_a_sentence():
    declared = {kind.name: kind.text or verb_phrase(kind.name) for kind in shipped()}
    assert {name: declared[name] for name in ("MEMBER_OF", "HAS_ROLE", "REPORTS_TO", "HAS_DEADLINE")} == {
        "MEMBER_OF": "is a member of",
        "HAS_ROLE": "has the role",
        "REPORTS_TO": "reports to",
        "HAS_DEADLINE": "is due on",
    }


@pytest.mark.parametrize("words", ["of {subject}", "{object} or {object}", "x" * 81])
def test_relation_words_with_invalid_characters_are_refused(words):
    from kgray.errors import SettingsError

    with pytest.raises(SettingsError, match=r"ontology\.relations\.AA\.text = .* the words between subject"):
        shipped().extended({"AA": {"text": words}})


# Sentence, subject, object: it is true as long as the state lasts.
LASTING = [
    ("Bartek Wilk plays the cello in the city orchestra", "Bartek Wilk", "city orchestra"),
    ("Alice works at Acme", "Alice", "Acme"),
    ("Bob leads Beta", "Bob", "Beta"),
    ("Anna arbeitet bei Acme", "Anna", "Acme"),
    ("Annas Hund ist Rex", "Anna", "Rex"),
    ("Luis trabaja en Acme", "Luis", "Acme"),
    ("Marie travaille chez Acme", "Marie", "Acme"),
    ("Marie est mariée à Paul", "Marie", "Paul"),
    ("Tom is happily married to Ann", "Tom", "Ann"),
    ("Will Smith reports to May Lin", "Will Smith", "May Lin"),
    ("Anna Weber owns Anna Weber GmbH", "Anna Weber", "Anna Weber GmbH"),
    ("Tom runs the New York office of Acme", "Tom", "Acme"),
    ("Tom doesn't like tea", "Tom", "tea"),
    ("Anna isst kein Fleisch", "Anna", "Fleisch"),
    ("Anna hat einen Hund", "Anna", "Hund"),
    ("Marie a un chat", "Marie", "chat"),
    ("Luis tiene un gato", "Luis", "gato"),
    ("Anna plays tennis on Mondays with Bob", "Anna", "Bob"),
    ("The office of Acme is located in Rome", "Acme", "Rome"),
    ("Tom works 3 days a week at Acme", "Tom", "Acme"),
    ("Anna plays the war drum for Acme", "Anna", "Acme"),
]
# It is true before, after or once, or it does not say who.
PASSING = [
    ("Alice will work at Acme", "Alice", "Acme"),
    ("I work at Acme as Alice", "Alice", "Acme"),
    ("Alice now works at Acme", "Alice", "Acme"),
    ("Alice joined Acme", "Alice", "Acme"),
    ("Alice works at Acme since 2018", "Alice", "Acme"),
    ("Alice worked at Acme", "Alice", "Acme"),
    ("Alice has worked at Acme", "Alice", "Acme"),
    ("Alice works at Acme", "Bob", "Acme"),
    ("Alice is going to work at Acme", "Alice", "Acme"),
    ("Anna arbeitete bei Acme", "Anna", "Acme"),
    ("Anna hat bei Acme gearbeitet", "Anna", "Acme"),
    ("Anna wird bei Acme arbeiten", "Anna", "Acme"),
    ("Anna arbeitet seit 2019 bei Acme", "Anna", "Acme"),
    ("Anna arbeitet jetzt bei Acme", "Anna", "Acme"),
    ("Mein Chef Anna arbeitet bei Acme", "Anna", "Acme"),
    ("Anna arbeitet nicht mehr bei Acme", "Anna", "Acme"),
    ("Luis trabajó en Acme", "Luis", "Acme"),
    ("Luis trabajará en Acme", "Luis", "Acme"),
    ("Luis vivía en Roma", "Luis", "Roma"),
    ("Luis va a trabajar en Acme", "Luis", "Acme"),
    ("Luis trabaja en Acme desde mayo", "Luis", "Acme"),
    ("Luis ya no trabaja en Acme", "Luis", "Acme"),
    ("Marie a travaillé chez Acme", "Marie", "Acme"),
    ("Marie travaillait chez Acme", "Marie", "Acme"),
    ("Marie travaillera chez Acme", "Marie", "Acme"),
    ("Marie ne travaille plus chez Acme", "Marie", "Acme"),
    ("Marie va travailler chez Acme", "Marie", "Acme"),
    ("Mon amie Marie travaille chez Acme", "Marie", "Acme"),
    ("Анна работает в Acme", "Анна", "Acme"),
    ("Tom works at Acme and likes tea", "Tom", "Acme"),
    ("Tom moved to Rome in May", "Tom", "Rome"),
    ("Does Tom work at Acme?", "Tom", "Acme"),
    ("Alice starts in May at Acme", "Alice", "Acme"),
    ("Lena Fischer sold Salzburg", "Lena Fischer", "Salzburg"),
    ("Tom has been at Acme for 3 years", "Tom", "Acme"),
    ("Tom used to live in Rome", "Tom", "Rome"),
    ("Tom is the former boss of Acme", "Tom", "Acme"),
    ("Tom works at Acme next year", "Tom", "Acme"),
]
EVENTS = [
    ("Tom restarted the printer", "Tom", "printer"),
    ("Tom bought a new house", "Tom", "house"),
    ("Anna hat das Auto gekauft", "Anna", "Auto"),
    ("Luis compró la casa", "Luis", "casa"),
    ("Marie a acheté la maison", "Marie", "maison"),
    ("Tom has restarted the printer", "Tom", "printer"),
    ("Tom met Ann, who is a doctor", "Tom", "Ann"),
]
NO_EVENTS = [
    ("Tom visits Rome", "Tom", "Rome"),
    ("Tom will visit Rome", "Tom", "Rome"),
    ("Tom bought the house yesterday", "Tom", "house"),
    ("Tom bought the house on 3 May 2026", "Tom", "house"),
    ("Anna kauft morgen das Auto", "Anna", "Auto"),
    ("Luis comprará la casa", "Luis", "casa"),
    ("Marie achètera la maison", "Marie", "maison"),
    ("I restarted the printer, Tom", "Tom", "printer"),
]


@pytest.mark.parametrize(("sentence", "subject", "target"), LASTING)
def test_a_sentence_in_the_present_can_be_the_text_of_a_state(sentence, subject, target):
    assert reads_true(sentence, subject, target, False)


@pytest.mark.parametrize(("sentence", "subject", "target"), PASSING)
def test_a_sentence_in_another_tense_cannot_be_the_text_of_a_state(sentence, subject, target):
    assert not reads_true(sentence, subject, target, False)


@pytest.mark.parametrize(("sentence", "subject", "target"), EVENTS)
def test_a_sentence_in_the_past_can_be_the_text_of_an_event(sentence, subject, target):
    assert reads_true(sentence, subject, target, True)


@pytest.mark.parametrize(("sentence", "subject", "target"), NO_EVENTS)
def test_a_future_or_a_date_cannot_be_the_text_of_an_event(sentence, subject, target):
    assert not reads_true(sentence, subject, target, True)


@pytest.mark.parametrize(
    ("sentence", "value", "passes"),
    [
        ("The lamp costs 100 EUR", AMOUNT, True),
        ("The lamp costs €1,500", as_value({"value": 1500, "unit": "eur"}), True),
        ("The lamp costs 100", AMOUNT, False),
        ("The lamp costs 10 EUR", AMOUNT, False),
        ("The lamp has the status delayed", as_value("delayed"), True),
        ("The lamp has a status", as_value("delayed"), False),
        ("The lamp is due on 2026-05-01", as_value({"type": "date", "value": "2026-05-01"}), True),
        ("The lamp is in stock", as_value(True), False),
    ],
)
def test_a_sentence_must_contain_the_value(sentence, value, passes):
    assert reads_true(sentence, "lamp", value, False) == passes


def test_a_sentence_that_is_too_long_cannot_be_a_fact_text():
    sentence = "Tom works at Acme" + " and at the desk" * 15
    assert len(sentence) > MAX_SENTENCE
    assert not reads_true(sentence, "Tom", "Acme", False)
    assert reads_true(sentence[:200], "Tom", "Acme", False)
