"""The rules extractor on English sentences: the facts of each, and many sentences without facts (R3, R18)."""

from __future__ import annotations

import pytest

from kgray.domain.ontology import shipped
from kgray.models.rules.extractor import RulesExtractor
from tests.unit.rules_reader import READ_AT, READER, read, timed, triples_in

ALICE = "Alice Nguyen"


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("I work at Acme.", [(ALICE, "WORKS_AT", "Acme")]),
        ("Bob works part-time for Acme now.", [("Bob", "WORKS_AT", "Acme")]),
        ("Alice and Bob work at Acme.", [("Alice", "WORKS_AT", "Acme"), ("Bob", "WORKS_AT", "Acme")]),
        ("Bob, Carol and Dave joined Acme.", [(n, "WORKS_AT", "Acme") for n in ("Bob", "Carol", "Dave")]),
        ("Bob and I work at Acme.", [("Bob", "WORKS_AT", "Acme"), (ALICE, "WORKS_AT", "Acme")]),
        ("Bob started a new job at Beta.", [("Bob", "WORKS_AT", "Beta")]),
        (
            "I'm the new product manager at Beta.",
            [(ALICE, "HAS_ROLE", "<product manager>"), (ALICE, "WORKS_AT", "Beta")],
        ),
        (
            "Dr. Ada Lind is the CEO of Acme.",
            [("Ada Lind", "HAS_ROLE", "<CEO>"), ("Ada Lind", "WORKS_AT", "Acme")],
        ),
        (
            "Bob works at Acme as a data analyst.",
            [("Bob", "WORKS_AT", "Acme"), ("Bob", "HAS_ROLE", "<data analyst>")],
        ),
        ("Bob was promoted to head of design.", [("Bob", "HAS_ROLE", "<head of design>")]),
        ("Bob joined the platform team.", [("Bob", "MEMBER_OF", "platform team")]),
        ("I work at Acme, Inc. in Berlin.", [(ALICE, "WORKS_AT", "Acme, Inc.")]),
        ("Bob joined Acme, Inc.", [("Bob", "WORKS_AT", "Acme, Inc.")]),
        ("Acme, Inc. is based in Berlin.", [("Acme, Inc.", "HEADQUARTERED_IN", "Berlin")]),
        (
            "Bob works at Globex, Ltd and lives in Paris.",
            [("Bob", "WORKS_AT", "Globex, Ltd"), ("Bob", "LIVES_IN", "Paris")],
        ),
        ("I moved to Berlin.", [(ALICE, "LIVES_IN", "Berlin")]),
        ("I'm based in Oslo.", [(ALICE, "LIVES_IN", "Oslo")]),
        ("Acme is headquartered in Munich.", [("Acme", "HEADQUARTERED_IN", "Munich")]),
        ("Bob reports to me.", [("Bob", "REPORTS_TO", ALICE)]),
        ("My manager is Bob.", [(ALICE, "REPORTS_TO", "Bob")]),
        ("Bob is my manager.", [(ALICE, "REPORTS_TO", "Bob")]),
        ("Bob's manager is Carol.", [("Bob", "REPORTS_TO", "Carol")]),
        ("Carol is married to Dave.", [("Carol", "MARRIED_TO", "Dave")]),
        ("I like tea and coffee.", [(ALICE, "LIKES", "tea"), (ALICE, "LIKES", "coffee")]),
        ("I love hiking.", [(ALICE, "LIKES", "<hiking>")]),
        ("I can't stand jazz.", [(ALICE, "DISLIKES", "jazz")]),
        ("I don't like coffee.", [(ALICE, "DISLIKES", "coffee")]),
        ("I have a dog and two cats.", [(ALICE, "OWNS", "dog"), (ALICE, "OWNS", "cats")]),
        ("The design team switched to Figma.", [("design team", "USES", "Figma")]),
        ("Bob speaks fluent Spanish.", [("Bob", "SPEAKS", "Spanish")]),
        ("The desk costs $1,299.00 now.", [("desk", "COSTS", "<1299 USD>")]),
        ("The price of the desk dropped from $120 to $99.50.", [("desk", "COSTS", "<99.5 USD>")]),
        ("The desk's price is 80 euros.", [("desk", "COSTS", "<80 EUR>")]),
        ("The Q3 report is now in progress.", [("Q3 report", "HAS_STATUS", "<in progress>")]),
        ("The status of the Q3 report is done.", [("Q3 report", "HAS_STATUS", "<done>")]),
        ("Ticket 42 is closed.", [("Ticket 42", "HAS_STATUS", "<closed>")]),
        ("My printer prints ghost images.", [("printer", "HAS_PROBLEM", "ghost images")]),
        ("I know Bob and Farid Haddad.", [(ALICE, "KNOWS", "Bob"), (ALICE, "KNOWS", "Farid Haddad")]),
        ('I recommend "Practical Forecasting".', [(ALICE, "RECOMMENDS", "Practical Forecasting")]),
        ("I hate long meetings.", [(ALICE, "DISLIKES", "long meetings")]),
        ("Acme Inc is based in Berlin.", [("Acme Inc", "HEADQUARTERED_IN", "Berlin")]),
        ("My sister is Carol.", [(ALICE, "SIBLING_OF", "Carol")]),
        ("Bob is Carol's manager.", [("Carol", "REPORTS_TO", "Bob")]),
        ("My name is Alice and I work at Acme.", [(ALICE, "WORKS_AT", "Acme")]),
        ("Hi all, I work at Acme.", [(ALICE, "WORKS_AT", "Acme")]),
        ("- Bob works at Acme", [("Bob", "WORKS_AT", "Acme")]),
        ("At Acme, Bob reports to Carol.", [("Bob", "REPORTS_TO", "Carol")]),
        ("We use Airtable for the roadmap.", [(ALICE, "USES", "Airtable")]),
        ("I live in Berlin, close to the canal.", [(ALICE, "LIVES_IN", "Berlin")]),
        ("The ticket KS-20871 is assigned to Priya Raman.", [("KS-20871", "ASSIGNED_TO", "Priya Raman")]),
        ("The order is out of stock.", [("order", "HAS_STATUS", "<out of stock>")]),
        ("I've been working at Acme for three years.", [(ALICE, "WORKS_AT", "Acme")]),
        ("Chidi is a data analyst.", [("Chidi", "HAS_ROLE", "<data analyst>")]),
        ("I am fluent in French.", [(ALICE, "SPEAKS", "French")]),
        ("I was born in Rome in 1980.", [(ALICE, "BORN_IN", "Rome")]),
    ],
)
def test_states_in_the_present_are_extracted(text, facts):
    assert triples_in(text) == [(*fact, "holds") for fact in facts]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("Bob left Acme.", [("Bob", "WORKS_AT", "Acme", "ended")]),
        ("Bob no longer works at Acme.", [("Bob", "WORKS_AT", "Acme", "ended")]),
        ("I quit Acme.", [(ALICE, "WORKS_AT", "Acme", "ended")]),
        ("Bob resigned from Acme.", [("Bob", "WORKS_AT", "Acme", "ended")]),
        ("I stopped using Slack.", [(ALICE, "USES", "Slack", "ended")]),
        ("I used to work at Acme.", [(ALICE, "WORKS_AT", "Acme", "ended")]),
        ("I don't like coffee any more.", [(ALICE, "LIKES", "coffee", "ended")]),
        ("I don't like coffee anymore.", [(ALICE, "LIKES", "coffee", "ended")]),
        ("I moved out of Berlin.", [(ALICE, "LIVES_IN", "Berlin", "ended")]),
        ("Bob hasn't worked at Acme since 2020.", [("Bob", "WORKS_AT", "Acme", "ended")]),
        ("Bob is no longer my manager.", [(ALICE, "REPORTS_TO", "Bob", "ended")]),
        ("Bob was the CEO of Acme.", [("Bob", "HAS_ROLE", "<CEO>", "ended")]),
        ("I no longer work at Acme as a designer.", [(ALICE, "HAS_ROLE", "<designer>", "ended")]),
        ("I lived in Berlin.", [(ALICE, "LIVES_IN", "Berlin", "ended")]),
        ("I have never visited Rome.", [(ALICE, "VISITED", "Rome", "denied")]),
        (
            "I never worked at Acme. I work at Beta.",
            [
                (ALICE, "WORKS_AT", "Acme", "denied"),
                (ALICE, "WORKS_AT", "Beta", "holds"),
            ],
        ),
        ("Bob never worked at Acme.", [("Bob", "WORKS_AT", "Acme", "denied")]),
        ("It is not true that Bob works at Acme.", [("Bob", "WORKS_AT", "Acme", "denied")]),
        (
            "Bob moved from Rome to Oslo.",
            [("Bob", "LIVES_IN", "Oslo", "holds"), ("Bob", "LIVES_IN", "Rome", "ended")],
        ),
        (
            "We switched from Slack to Teams.",
            [(ALICE, "USES", "Teams", "holds"), (ALICE, "USES", "Slack", "ended")],
        ),
        (
            "Bob left Acme for Beta.",
            [("Bob", "WORKS_AT", "Acme", "ended"), ("Bob", "WORKS_AT", "Beta", "holds")],
        ),
        (
            "I left Acme to join Beta.",
            [(ALICE, "WORKS_AT", "Acme", "ended"), (ALICE, "WORKS_AT", "Beta", "holds")],
        ),
        (
            "I left Acme and joined Beta.",
            [(ALICE, "WORKS_AT", "Acme", "ended"), (ALICE, "WORKS_AT", "Beta", "holds")],
        ),
    ],
)
def test_ends_and_denials_are_extracted(text, facts):
    """R3: "no longer" and "left" end, "never" and "that was wrong" deny; a switch is both facts."""
    assert triples_in(text) == facts


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("I visited Rome.", [(ALICE, "VISITED", "Rome", "happened")]),
        ("I have never visited Rome.", [(ALICE, "VISITED", "Rome", "denied")]),
        ("I replaced the cartridge.", [(ALICE, "REPLACED", "cartridge", "happened")]),
        ("I've restarted the printer.", [(ALICE, "RESTARTED", "printer", "happened")]),
        (
            "The ghost images were fixed by the new cartridge.",
            [("ghost images", "SOLVED_BY", "cartridge", "happened")],
        ),
        ("I met Carol.", [(ALICE, "KNOWS", "Carol", "holds"), (ALICE, "MET", "Carol", "happened")]),
        (
            "I bought a new printer.",
            [(ALICE, "OWNS", "printer", "holds"), (ALICE, "BOUGHT", "printer", "happened")],
        ),
        (
            "I bought an HP LaserJet Pro M28w.",
            [
                (ALICE, "OWNS", "HP LaserJet Pro M28w", "holds"),
                (ALICE, "BOUGHT", "HP LaserJet Pro M28w", "happened"),
            ],
        ),
        (
            "Acme Corp bought Beta Inc.",
            [("Acme Corp", "OWNS", "Beta Inc", "holds"), ("Acme Corp", "BOUGHT", "Beta Inc", "happened")],
        ),
        ("I sold my car.", [(ALICE, "OWNS", "car", "ended"), (ALICE, "SOLD", "car", "happened")]),
        (
            "I sold my house in Munich in April.",
            [(ALICE, "OWNS", "house in Munich", "ended"), (ALICE, "SOLD", "house in Munich", "happened")],
        ),
        ("I will restart the printer on Friday.", []),
        ("I restart the printer.", []),
        ("I did not restart the printer.", []),
        ("I restarted the printer?", []),
    ],
)
def test_an_occurrence_gives_an_event_and_the_state_it_began_or_ended(text, facts):
    """R18: an event has its instant and no end."""
    assert triples_in(text) == facts


def test_an_event_has_its_own_date_or_the_date_of_the_message():
    assert timed("I restarted the printer on Monday.") == [
        ("printer", "happened", "2026-03-09 day", None, False)
    ]
    assert timed("I restarted the printer.") == [("printer", "happened", READ_AT, None, True)]
    assert timed("I sold my house in Munich in April.") == [
        ("house in Munich", "ended", None, "2025-04-01 month", False),
        ("house in Munich", "happened", "2025-04-01 month", None, False),
    ]


@pytest.mark.parametrize(
    ("previous", "text", "facts"),
    [
        ([(ALICE, "I work at Acme.")], "I quit my job.", [(ALICE, "WORKS_AT", "Acme", "ended")]),
        ([(ALICE, "Bob works at Acme.")], "Bob lost his job.", [("Bob", "WORKS_AT", "Acme", "ended")]),
        (
            [("Bob", "I work at Beta."), (ALICE, "I work at Acme."), ("Bob", "Nice.")],
            "I quit my job in January.",
            [(ALICE, "WORKS_AT", "Acme", "ended")],
        ),
        ([], "I quit my job.", []),
        ([("Bob", "I work at Beta.")], "I quit my job.", []),
        ([(ALICE, "I work at Acme."), (ALICE, "I left Acme.")], "I quit my job.", []),
    ],
)
def test_an_unnamed_job_refers_to_the_job_named_before(previous, text, facts):
    assert triples_in(text, previous=tuple(previous)) == facts


@pytest.mark.parametrize(
    "text",
    [
        "My manager is now Mirela, she replaced Lena.",
        "Mirela replaced Lena.",
        "I met Mirela, who replaced Lena.",
        "Mirela is my manager now. She replaced Lena.",
    ],
)
def test_a_statement_about_a_successor_gives_no_replacement_fact(text):
    assert [fact for fact in triples_in(text) if "Lena" in fact or "REPLACED" in fact] == []


@pytest.mark.parametrize(
    ("text", "dropped"),
    [
        ("I work at Acme and Beta.", 2),
        ("I live in Rome. I live in Oslo.", 2),
        ("I used to work at Acme. I work at Acme.", 2),
        ("I never worked at Acme. I work at Acme.", 2),
        ("I joined Acme yesterday and left Acme yesterday.", 2),
    ],
)
def test_facts_of_a_message_that_end_each_other_are_dropped(text, dropped):
    """The extractor misread one of the facts: a message does not end its own span."""
    extraction = read(text)
    assert (extraction.facts, len(extraction.dropped)) == ((), dropped)


def test_a_message_may_state_a_start_and_a_later_end():
    assert triples_in("I joined Acme in 2018. I left Acme in 2020.") == [
        (ALICE, "WORKS_AT", "Acme", "holds"),
        (ALICE, "WORKS_AT", "Acme", "ended"),
    ]


def test_a_claim_that_its_sentence_may_retract_is_not_extracted():
    assert triples_in("I joined Acme, but quit after a week, and I live in Rome.") == [
        (ALICE, "LIVES_IN", "Rome", "holds")
    ]


def test_an_unreadable_clause_does_not_affect_other_clauses():
    assert triples_in("My name is Alice, I like long walks in winter rain, and I work at Acme.") == [
        (ALICE, "WORKS_AT", "Acme", "holds")
    ]


def test_the_speaker_is_always_the_first_entity():
    """R18."""
    extraction = read("Bob works at Acme.")
    assert [(e.name, e.type) for e in extraction.entities] == [
        (ALICE, "Person"),
        ("Bob", "Person"),
        ("Acme", "Organization"),
    ]


def test_a_speaker_that_is_a_role_has_no_type():
    extraction = read("I like tea.", speaker="user")
    assert [(e.name, e.type) for e in extraction.entities] == [("user", ""), ("tea", "")]


def test_a_role_can_speak_in_the_first_person():
    assert triples_in("I am a designer at Acme, and I'm based in Oslo.", speaker="user") == [
        ("user", "HAS_ROLE", "<designer>", "holds"),
        ("user", "WORKS_AT", "Acme", "holds"),
        ("user", "LIVES_IN", "Oslo", "holds"),
    ]


def test_a_text_without_a_speaker_has_no_first_person():
    assert triples_in("I work at Acme.", speaker=None, kind="text") == []


def test_names_are_found_with_their_positions():
    text = (
        "Yesterday M. Webb showed Dr. Ada Lind the University of Oslo and an HP LaserJet M28w. Thanks Zorg!"
    )
    extraction = read(text)
    result = {e.name: (e.type, text[slice(*e.span)]) for e in extraction.entities if e.span}
    assert result == {
        "M. Webb": ("Person", "M. Webb"),
        "Ada Lind": ("Person", "Ada Lind"),
        "University of Oslo": ("Organization", "University of Oslo"),
        "HP LaserJet M28w": ("Product", "HP LaserJet M28w"),
        "Zorg": ("", "Zorg"),
    }


def test_dates_are_no_entities():
    """R18."""
    names = [e.name for e in read("On Monday, March 2 and in May 2025 I visited Rome.").entities]
    assert names == [ALICE, "Rome"]


@pytest.mark.parametrize(
    ("text", "wording"),
    [
        ("I'm working part-time at Acme since 2018.", "Alice Nguyen is working part-time at Acme"),
        ("I've worked at Acme since 2018.", "Alice Nguyen has worked at Acme"),
        ("We like tea.", "Alice Nguyen likes tea"),
        ("I quit Acme last month.", "Alice Nguyen quit Acme"),
        ("Bob left Acme on 5 May and joined Beta.", "Bob left Acme"),
        ("I can't stand jazz.", "Alice Nguyen can't stand jazz"),
        ("I don't like tea any more.", "Alice Nguyen doesn't like tea any more"),
        ("I sold my car.", "Alice Nguyen sold their car"),
        ("My manager is Bob.", "Alice Nguyen's manager is Bob"),
        ("I don't like tea.", "Alice Nguyen doesn't like tea"),
    ],
)
def test_a_wording_has_both_ends_and_no_date(text, wording):
    assert read(text).facts[0].text == wording


def test_a_sentence_about_several_pairs_has_one_wording():
    """R18: evidence of one episode with the same text shares its group."""
    assert {fact.text for fact in read("Bob and Carol like tea and jazz.").facts} == {
        "Bob and Carol like tea and jazz"
    }
    assert len(read("Bob and Carol like tea and jazz.").facts) == 4


def test_the_identity_follows_the_ontology():
    second_extractor = RulesExtractor(shipped().extended({"FEEDS": {"phrases": ["feed {thing}"]}}))
    assert READER.identity.startswith("rules-3/")
    assert second_extractor.identity.startswith("rules-3/")
    assert second_extractor.identity != READER.identity


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("Big news: I moved to Lisbon.", [("Alice Nguyen", "LIVES_IN", "Lisbon", "holds")]),
        ("New address for the file: I moved to Oslo.", [("Alice Nguyen", "LIVES_IN", "Oslo", "holds")]),
        ("Last update from me: I visited Lisbon.", [("Alice Nguyen", "VISITED", "Lisbon", "happened")]),
        ("I like green tea, to be honest.", [("Alice Nguyen", "LIKES", "green tea", "holds")]),
        ("Fake news: I work at Acme.", []),
        ("Bob's update: I work at Acme.", []),
        ("Carol: I work at Acme.", []),
    ],
)
def test_words_with_a_colon_may_introduce_a_clause(text, facts):
    assert [row for row in triples_in(text) if row[1] != "OWNS"] == facts


@pytest.mark.parametrize("end", [":", ".", ",", "!", ""])
@pytest.mark.parametrize("name", ["B. Smith", "Smith", "Bob Smith", "Hi, Bob"])
def test_only_the_speakers_name_at_the_start_keeps_the_first_person(name, end):
    """The name of the speaker, or a short form, may open the message; another name makes "I" ambiguous."""
    text = f"{name} here{end} I quit my job."
    previous = (("Bob Smith", "I work at Acme."),)
    assert triples_in(text, speaker="Bob Smith", previous=previous) == [
        ("Bob Smith", "WORKS_AT", "Acme", "ended")
    ]
    previous = (("Ann Webb", "I work at Acme."),)
    assert triples_in(text, speaker="Ann Webb", previous=previous) == []
