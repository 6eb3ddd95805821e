"""The rules extractor on English sentences: the whole answer, sentence by sentence (R3, R18)."""

from __future__ import annotations

import pytest

from tests.unit.rules_reader import READER, read, told

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
        ("Bob is now at Beta.", [("Bob", "WORKS_AT", "Beta")]),
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
        ("Bob likes World War I.", [("Bob", "LIKES", "World War I")]),
        ("I moved to Berlin.", [(ALICE, "LIVES_IN", "Berlin")]),
        ("I'm based in Oslo.", [(ALICE, "LIVES_IN", "Oslo")]),
        ("Acme is based in Berlin.", [("Acme", "HEADQUARTERED_IN", "Berlin")]),
        ("Acme is headquartered in Munich.", [("Acme", "HEADQUARTERED_IN", "Munich")]),
        ("Bob reports to me.", [("Bob", "REPORTS_TO", ALICE)]),
        ("My manager is Bob.", [(ALICE, "REPORTS_TO", "Bob")]),
        ("Bob is my manager.", [(ALICE, "REPORTS_TO", "Bob")]),
        ("Bob's manager is Carol.", [("Bob", "REPORTS_TO", "Carol")]),
        ("My wife Carol works at Beta.", [("Carol", "WORKS_AT", "Beta"), (ALICE, "MARRIED_TO", "Carol")]),
        ("Carol is married to Dave.", [("Carol", "MARRIED_TO", "Dave")]),
        ("I like tea and coffee.", [(ALICE, "LIKES", "tea"), (ALICE, "LIKES", "coffee")]),
        ("I love hiking.", [(ALICE, "LIKES", "<hiking>")]),
        ("I can't stand jazz.", [(ALICE, "DISLIKES", "jazz")]),
        ("I don't like coffee.", [(ALICE, "DISLIKES", "coffee")]),
        ("I prefer tea to coffee.", [(ALICE, "PREFERS", "tea")]),
        ("I bought a new printer.", [(ALICE, "OWNS", "printer")]),
        ("I bought an HP LaserJet Pro M28w.", [(ALICE, "OWNS", "HP LaserJet Pro M28w")]),
        ("I have a dog and two cats.", [(ALICE, "OWNS", "dog"), (ALICE, "OWNS", "cats")]),
        ("The design team switched to Figma.", [("design team", "USES", "Figma")]),
        ("Bob speaks fluent Spanish.", [("Bob", "SPEAKS", "Spanish")]),
        ("I visited Rome.", [(ALICE, "VISITED", "Rome")]),
        ("I met Carol.", [(ALICE, "KNOWS", "Carol")]),
        ("The desk costs $1,299.00 now.", [("desk", "COSTS", "<1299 USD>")]),
        ("The price of the desk dropped from $120 to $99.50.", [("desk", "COSTS", "<99.5 USD>")]),
        ("The desk's price is 80 euros.", [("desk", "COSTS", "<80 EUR>")]),
        ("The Q3 report is now in progress.", [("Q3 report", "HAS_STATUS", "<in progress>")]),
        ("The status of the Q3 report is done.", [("Q3 report", "HAS_STATUS", "<done>")]),
        ("Ticket 42 is closed.", [("Ticket 42", "HAS_STATUS", "<closed>")]),
        ("My printer prints ghost images.", [("printer", "HAS_PROBLEM", "ghost images")]),
        ("I replaced the cartridge.", [(ALICE, "REPLACED", "cartridge")]),
        ("The ghost images were fixed by the new cartridge.", [("ghost images", "SOLVED_BY", "cartridge")]),
        ("Marcus Webb, our new designer, lives in Berlin.", [("Marcus Webb", "LIVES_IN", "Berlin")]),
        ("Bob met Carol, who works at Beta.", [("Bob", "KNOWS", "Carol"), ("Carol", "WORKS_AT", "Beta")]),
        ("Bob called. He works at Beta.", [("Bob", "WORKS_AT", "Beta")]),
        ("Bob said he likes tea.", [("Bob", "LIKES", "tea")]),
        ("I know Bob and Farid Haddad.", [(ALICE, "KNOWS", "Bob"), (ALICE, "KNOWS", "Farid Haddad")]),
        ("Acme Corp. bought Beta Inc.", [("Acme Corp", "OWNS", "Beta Inc")]),
        ('I recommend "Practical Forecasting".', [(ALICE, "RECOMMENDS", "Practical Forecasting")]),
        ("I hate long meetings.", [(ALICE, "DISLIKES", "long meetings")]),
    ],
)
def test_what_holds(text, facts):
    assert told(text) == [(*fact, "holds") for fact in facts]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("Bob left Acme.", [("Bob", "WORKS_AT", "Acme", "ended")]),
        ("Bob no longer works at Acme.", [("Bob", "WORKS_AT", "Acme", "ended")]),
        ("Bob does not work at Acme.", [("Bob", "WORKS_AT", "Acme", "ended")]),
        ("I quit Acme.", [(ALICE, "WORKS_AT", "Acme", "ended")]),
        ("Bob resigned from Acme.", [("Bob", "WORKS_AT", "Acme", "ended")]),
        ("I stopped using Slack.", [(ALICE, "USES", "Slack", "ended")]),
        ("I used to work at Acme.", [(ALICE, "WORKS_AT", "Acme", "ended")]),
        ("I don't like coffee any more.", [(ALICE, "LIKES", "coffee", "ended")]),
        ("I sold my car.", [(ALICE, "OWNS", "car", "ended")]),
        ("I left Berlin.", [(ALICE, "LIVES_IN", "Berlin", "ended")]),
        ("Bob never worked at Acme.", [("Bob", "WORKS_AT", "Acme", "denied")]),
        ("Bob did not join Beta.", [("Bob", "WORKS_AT", "Beta", "denied")]),
        ("It is not true that Bob works at Acme.", [("Bob", "WORKS_AT", "Acme", "denied")]),
        ("That was wrong: Bob does not work at Acme.", [("Bob", "WORKS_AT", "Acme", "denied")]),
        (
            "Bob moved from Acme to Beta.",
            [("Bob", "WORKS_AT", "Beta", "holds"), ("Bob", "WORKS_AT", "Acme", "ended")],
        ),
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
def test_what_ends_and_what_is_denied(text, facts):
    """R3: "no longer" and "left" end, "never" and "that was wrong" deny; a switch is both facts."""
    assert told(text) == facts


@pytest.mark.parametrize(
    "text",
    [
        "Do you work at Acme?",
        "If I move to Paris, I will work at Beta.",
        "When I move to Paris, I will work at Beta.",
        "I might move to Paris.",
        "I would like to work at Acme.",
        "I want to join Beta.",
        "I am thinking of moving to Paris.",
        "I hope Bob joins Acme.",
        "Maybe Bob works at Acme.",
        "I think Bob works at Acme.",
        "I almost bought a printer.",
        "I will join Beta.",
        "I'd like a coffee.",
        "It looks like rain.",
        "Nobody works at Acme.",
        "Bob has always lived in Rome.",
        '"I work at Acme", said Bob.',
        "Bob and Carol met. She lives in Rome.",
        "It costs $199.",
        "I have a meeting at 5.",
        "Bob is at home.",
        "Our team uses Slack.",
        "I know Python and Rust.",
        "Bob is at the Hilton.",
        "Bob left the room.",
        "I quit smoking.",
        "Bob is open to suggestions.",
        "A friend of Bob works at Acme.",
        "Work at Acme!",
        "I'll have been working at Acme.",
    ],
)
def test_what_says_nothing_sure(text):
    """Questions, conditions, hopes, quotations and pronouns that can mean several give no fact."""
    assert told(text) == []


def test_the_speaker_is_always_the_first_entity():
    """R18."""
    extraction = read("Bob works at Acme.")
    assert [(e.name, e.type) for e in extraction.entities] == [
        (ALICE, "Person"),
        ("Bob", "Person"),
        ("Acme", "Organization"),
    ]


def test_a_role_speaks_without_a_type():
    extraction = read("I like tea.", speaker="user")
    assert [(e.name, e.type) for e in extraction.entities] == [("user", ""), ("tea", "")]


def test_in_a_text_nobody_is_i():
    assert told("I work at Acme.", speaker=None, kind="text") == []


def test_names_are_found_where_they_stand():
    text = (
        "Yesterday M. Webb showed Dr. Ada Lind the University of Oslo and an HP LaserJet M28w. Thanks Zorg!"
    )
    extraction = read(text)
    found = {e.name: (e.type, text[slice(*e.span)]) for e in extraction.entities if e.span}
    assert found == {
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
        ("I've been at Acme since 2018.", "Alice Nguyen has been at Acme"),
        ("We like tea.", "Alice Nguyen likes tea"),
        ("I quit Acme last month.", "Alice Nguyen quit Acme"),
        ("Bob left Acme on 5 May and joined Beta.", "Bob left Acme"),
        ("I sold my car.", "Alice Nguyen sold their car"),
        ("My manager is Bob.", "Alice Nguyen's manager is Bob"),
        ("I don't like tea.", "Alice Nguyen doesn't like tea"),
    ],
)
def test_a_wording_names_both_ends_and_leaves_dates_to_the_fields(text, wording):
    assert read(text).facts[0].text == wording


def test_a_pronoun_reaches_into_the_previous_context():
    before = (("Carol Diaz", "Bob called."),)
    assert told("He works at Beta.", previous=before) == [("Bob", "WORKS_AT", "Beta", "holds")]
    assert told("He works at Beta.") == []


def test_one_sentence_about_several_pairs_has_one_wording():
    """R18: evidence of one episode with the same text shares its group."""
    assert {fact.text for fact in read("Bob and Carol like tea and jazz.").facts} == {
        "Bob and Carol like tea and jazz"
    }
    assert len(read("Bob and Carol like tea and jazz.").facts) == 4


def test_the_identity_follows_the_ontology():
    from kgray.backends.rules import RulesExtractor
    from kgray.ontology import shipped

    other = RulesExtractor(shipped().extended({"FEEDS": {"phrases": ["feed {thing}"]}}))
    assert READER.identity.startswith("rules-1/")
    assert other.identity.startswith("rules-1/")
    assert other.identity != READER.identity


def test_a_numeral_is_no_speaker_and_a_legal_form_no_name():
    read_of = read("Carol Jones works at Acme, Inc. now. Bob likes World War I. I live in Oslo.")
    assert [entity.name for entity in read_of.entities] == [
        ALICE, "Carol Jones", "Acme, Inc.", "Bob", "World War I", "Oslo",
    ]  # fmt: skip
    assert {e.name: e.type for e in read_of.entities}["Acme, Inc."] == "Organization"
    assert [fact.text for fact in read_of.facts] == [
        "Carol Jones works at Acme, Inc. now", "Bob likes World War I", f"{ALICE} lives in Oslo",
    ]  # fmt: skip


def test_a_speaker_after_a_name_is_no_numeral():
    assert told("At Acme I met Carol.") == [(ALICE, "KNOWS", "Carol", "holds")]
    assert told("Bob and I work at Acme.") == [
        ("Bob", "WORKS_AT", "Acme", "holds"), (ALICE, "WORKS_AT", "Acme", "holds"),
    ]  # fmt: skip
