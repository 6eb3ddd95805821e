"""Names without common letters are asked about: codes, and names that a text itself gives (R14, R15)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgray.domain.records import Episode, ExtractedEntity, ExtractedFact, Extraction, Value
from kgray.ingest.candidates import NameIndex, code, code_match, told_names
from tests import make
from tests.graph.engine import GROUP, Engine, day, reading
from tests.graph.test_homonyms import Listening


@pytest.mark.parametrize(
    ("letters", "name", "rank"),
    [
        ("IBM", "International Business Machines", 0),
        ("I.B.M.", "International Business Machines Corp", 0),
        ("RR-NG", "Ravenridge Northgate", 0),
        ("TH-ER", "Thomas Erikson", 0),
        ("BMW", "Bayerische Motoren Werke AG", 0),
        ("AT&T", "American Telephone and Telegraph", 0),
        ("BOA", "Bank of America", 0),
        ("МГУ", "Московский государственный университет", 0),
        ("NGAS", "Nord Gas", 1),
        ("MSFT", "Microsoft", 2),
        ("RR-NG", "Rosa Norberg", None),
        ("ACME", "Acme", None),
        ("NG", "Nordgas", None),
        ("ibm", "International Business Machines", None),
        ("Q4", "Quarter four", None),
    ],
)
def test_a_code_matches_a_name_by_its_initials_or_letters(letters: str, name: str, rank: int | None) -> None:
    """0: a letter or a part for each word; 1: more; 2: one word; both ways round."""
    assert (code_match(letters)(name), code_match(name)(letters)) == (rank, rank)


def test_an_index_finds_a_name_by_code_and_a_code_by_name() -> None:
    """The keys hold in both directions whichever came first, and the likeliest is no later than its likes."""
    index = NameIndex()
    for number in range(3000):
        index.add(f"other {number}", [f"Ibo{number % 17}m Berg {number}"])
    index.add("company", ["International Business Machines"])
    index.add("ticker", ["RR-NG"])

    assert "company" in index.coded("IBM")
    assert "ticker" in index.coded("Ravenridge Northgate")
    assert [code(name) for name in ("IBM", "RR-NG", "I.B.M.", "Ibm", "B2B", "X")] == [
        "ibm",
        "rrng",
        "ibm",
        "",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("first", "second"), [("Ravenridge Northgate", "RR-NG"), ("RR-NG", "Ravenridge Northgate")]
)
@pytest.mark.parametrize("answer", [0, None])
def test_a_code_and_a_name_are_merged_only_after_a_question(
    tmp_path: Path, first: str, second: str, answer: int | None
) -> None:
    judge = Listening(lambda _: answer)
    engine = Engine(tmp_path, judge=judge)
    for number, name in enumerate((first, second, second)):
        fact = {"source": name, "relation": "LIKES", "target": f"tea {number}x", "fact": f"{name} likes it"}
        engine.add(reading(number, [], [fact], client_id=f"n{number}"))

    assert [(q.item, q.candidates) for q in judge.questions] == [(second, (first,))]
    results = sorted({first, second} & {e.name for e in engine.view().all_entities()})
    assert results == ([first] if answer == 0 else sorted((first, second)))
    engine.check()


def message(
    text: str, speaker: str | None, *listed: str, facts: tuple[ExtractedFact, ...] = ()
) -> tuple[Extraction, Episode]:
    """Return an extractor's entities of a message, and the message."""
    episode = make.accepted(make.draft(text, speaker, group=GROUP, at=day(0)))
    people = tuple(ExtractedEntity(name=name, type="Person") for name in listed)
    return Extraction(entities=people, facts=facts), episode


@pytest.mark.parametrize(
    ("text", "speaker", "listed", "pairs"),
    [
        ("Please call me Kathi.", "Katharina Webb", [], [("Katharina Webb", "Kathi")]),
        ("My friends call me “Kathi”!", "Katharina Webb", [], [("Katharina Webb", "Kathi")]),
        ("Katharina, known as Kathi, likes tea.", None, ["Katharina"], [("Katharina", "Kathi")]),
        ("Katharina Webb (aka Kathi) likes tea.", "Tom", ["Katharina Webb"], [("Katharina Webb", "Kathi")]),
        (
            "Tom met Katharina Webb, also known as Kathi.",
            None,
            ["Tom", "Katharina Webb"],
            [("Katharina Webb", "Kathi")],
        ),
        (
            "I'm Anna Weber now, formerly Anna Schmidt.",
            "Anna Weber",
            ["Anna Schmidt"],
            [("Anna Weber", "Anna Schmidt")],
        ),
        ("I'm Anna Weber now, formerly Anna Schmidt.", "Anna Weber", [], [("Anna Weber", "Anna Schmidt")]),
        ("I'm Anna Weber now.", "Anna Schmidt", [], [("Anna Schmidt", "Anna Weber")]),
        ("Anna Weber, née Schmidt, moved.", None, ["Anna Weber"], [("Anna Weber", "Anna Schmidt")]),
        (
            "Anna Weber, formerly Anna Schmidt, is back.",
            None,
            ["Anna Schmidt"],
            [("Anna Schmidt", "Anna Weber")],
        ),
        ("Alle nennen mich Kathi.", "Katharina Webb", [], [("Katharina Webb", "Kathi")]),
        ("Anna Weber, geb. Schmidt, ist umgezogen.", None, ["Anna Weber"], [("Anna Weber", "Anna Schmidt")]),
        ("Appelle-moi Kathi.", "Katharina Webb", [], [("Katharina Webb", "Kathi")]),
        ("Зовите меня Катя.", "Екатерина Орлова", [], [("Екатерина Орлова", "Катя")]),
        ("Tom called Anna yesterday.", None, ["Tom", "Anna"], []),
        ("Call me tomorrow.", "Anna", [], []),
        ("I'm now at home.", "Anna", [], []),
        ("She is known as a good cook.", "Anna", ["Tom"], []),
        ("Tom likes tea.", "Anna", ["Tom"], []),
    ],
)
def test_a_name_given_in_a_text_is_recorded_as_another_name(
    text: str, speaker: str | None, listed: list[str], pairs: list[tuple[str, str]]
) -> None:
    """Independent of the extractor's list; a text that only resembles one names nothing."""
    extracted_names = told_names(*message(text, speaker, *([speaker] if speaker else []), *listed))

    results = {tuple(sorted((a, b))) for a, equals in extracted_names.same_entities.items() for b in equals}
    names = [entity.name for entity in extracted_names.extraction.entities]
    assert sorted(sorted((names[a], names[b])) for a, b in results) == sorted(map(sorted, pairs))
    assert len(names) == len(set(names))


def test_a_fact_about_a_name_adds_an_alias() -> None:
    """An extractor may say it as a fact, with a name or with a value."""
    facts = (
        ExtractedFact(source=0, target=1, relation="FORMERLY_KNOWN_AS", text="Anna Weber was Anna Schmidt"),
        ExtractedFact(
            source=0, value=Value("text", "Momo"), relation="HAS_NICKNAME", text="Her nickname is Momo"
        ),
    )
    extracted_names = told_names(*message("...", None, "Anna Weber", "Anna Schmidt", facts=facts))

    assert [entity.name for entity in extracted_names.extraction.entities] == [
        "Anna Weber",
        "Anna Schmidt",
        "Momo",
    ]
    assert extracted_names.same_entities == {1: [0], 0: [1, 2], 2: [0]}


@pytest.mark.parametrize("answer", [0, None])
def test_one_question_decides_about_a_nickname(tmp_path: Path, answer: int | None) -> None:
    """R14, R15: never merged unasked; a yes makes it an alias, a no an entity of its own."""
    judge = Listening(lambda _: answer)
    engine = Engine(tmp_path, judge=judge)
    given_names = {
        "source": "Katharina",
        "relation": "HAS_NICKNAME",
        "value": "Momo",
        "fact": "Her nickname is Momo",
    }
    used = {"source": "Momo", "relation": "LIKES", "target": "tea", "fact": "Momo likes tea"}
    engine.add(reading(0, ["Katharina"], [given_names], client_id="given"))
    engine.add(reading(1, [], [used], client_id="used"))

    assert [(q.item, q.candidates) for q in judge.questions] == [("Momo", ("Katharina",))]
    likes = [f.source for f in engine.view().all_facts() if f.relation == "LIKES"]
    names = {e.id: (e.name, e.aliases) for e in engine.view().all_entities()}
    assert [names[id_] for id_ in likes] == [("Katharina", ("Momo",)) if answer == 0 else ("Momo", ())]
    engine.check()


def test_a_new_married_name_is_compared_with_the_former_name(tmp_path: Path) -> None:
    """The new name is new to the group; the text ties it to the known name."""
    judge = Listening(lambda _: 0)
    engine = Engine(tmp_path, judge=judge)
    worked = {
        "source": "Anna Schmidt",
        "relation": "WORKS_AT",
        "target": "Acme",
        "fact": "Anna works at Acme",
    }
    renamed = {
        "source": "Anna Weber",
        "relation": "FORMERLY_KNOWN_AS",
        "target": "Anna Schmidt",
        "fact": "Anna Weber was Anna Schmidt",
    }
    engine.add(reading(0, [], [worked], client_id="worked"))
    engine.add(reading(1, [], [renamed], client_id="renamed"))

    assert [(q.item, q.candidates) for q in judge.questions] == [("Anna Weber", ("Anna Schmidt",))]
    people = [(e.name, e.aliases) for e in engine.view().all_entities() if e.name.startswith("Anna")]
    assert people == [("Anna Schmidt", ("Anna Weber",))]
