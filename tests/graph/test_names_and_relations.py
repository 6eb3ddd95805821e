"""Names that are one, variants that an end means, declarations and comparisons (R15, R17-R17c, R18)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgray.domain.ontology import shipped
from kgray.domain.records import Declaration, Draft
from kgray.graph.names import Relations
from kgray.graph.repair import differences
from kgray.ports import Answer, Matrix, Question
from tests.graph.by_hand import pointing
from tests.graph.engine import SMALL, Engine, WildJudge, day, in_days, iso, reading, triples, works

APART = [
    ("C", "C++"),
    ("C", "C#"),
    ("Grade A+", "Grade A-"),
    ("Room 1", "Room -1"),
    ("Notepad", "Notepad++"),
    ("World War I", "World War II"),
    ("Phase I", "Phase III"),
    ("Ann Smith", "Anna Smith"),
    ("iPhone X Case", "iPhone XR Case"),
    ("Blood type A", "Blood type AB"),
    ("AS Monaco", "Monaco"),
    ("Team AB", "Team AS"),
    ("Q3 report", "Q4 report"),
    ("Report 2024", "Report 2025"),
]
SAME_NAMES = [
    ("Acme", "ACME"),
    ("Acme Inc.", "Acme"),
    ("The Acme Anvils", "Acme Anvils"),
    ("M. Webb", "Marcus Webb"),
    ("Marcus Webb", "M. Webb"),
    ("Zo\u00eb Moreau", "Zoe Moreau"),
    ("Webb, Marcus", "Marcus Webb"),
]


def names_after(engine: Engine, *names: str) -> list[str]:
    """Return the names shown after episodes that mention each name once."""
    for number, name in enumerate(names):
        fact = {"source": name, "target": f"thing {number}x", "relation": "LIKES", "fact": f"{name} likes it"}
        engine.add(reading(number, [], [fact], client_id=f"n{number}"))
    return sorted(e.name for e in engine.view().all_entities() if not e.name.startswith("thing"))


@pytest.mark.parametrize(("first", "second"), APART + [(b, a) for a, b in APART])
def test_names_with_a_meaningful_difference_are_never_merged_without_evidence(
    tmp_path: Path, first: str, second: str
) -> None:
    """R15: different digits, dates, versions, qualifiers; neither in texts nor in triples."""
    assert names_after(Engine(tmp_path / "text"), first, second) == sorted((first, second))
    engine = Engine(tmp_path / "triples")
    engine.add(triples(0, {"source": first, "relation": "KNOWS", "target": second}))
    assert [f.relation for f in engine.view().all_facts()] == ["KNOWS"]


@pytest.mark.parametrize(("first", "second"), SAME_NAMES)
def test_names_that_differ_only_in_spelling_are_one_entity(tmp_path: Path, first: str, second: str) -> None:
    """R14: the second rung of the ladder."""
    [name] = names_after(Engine(tmp_path), first, second)
    assert name in {first, second}


def worked(at: float, text: str, kind: str = "holds") -> Any:
    """Return an episode about Alice's work at Acme."""
    fact = {"source": "Alice", "target": "Acme", "relation": "WORKS_AT", "fact": text, "kind": kind}
    return reading(at, [], [fact], client_id=text)


PLAIN, PART_TIME = "Alice works at Acme", "Alice works at Acme part-time"


@pytest.mark.parametrize(
    ("kind", "text", "variants", "open_now"),
    [
        pytest.param("ended", "Alice left Acme", {0: True}, set(), id="ended"),
        pytest.param("denied", "Alice never worked at Acme", {0: True}, set(), id="denied"),
        pytest.param("ended", "Alice is a former employee of Acme", {0: True}, set(), id="former"),
        pytest.param("ended", "Alice left Acme after 3 years", {0: True}, set(), id="a-duration"),
        pytest.param("ended", "Alice works at Acme part-time no longer", {1: False}, {PLAIN}, id="named"),
        pytest.param("denied", "Alice was never part-time at Acme", {1: False}, {PLAIN}, id="named-denied"),
        # A new sentence is a variant of its own: it has ended, and no other variant has.
        pytest.param("ended", "Alice is not remotely at Acme", {2: False}, {PLAIN, PART_TIME}, id="new"),
    ],
)
def test_an_end_applies_to_every_variant_unless_it_names_a_variant(
    tmp_path: Path, kind: str, text: str, variants: dict[int, bool], open_now: set[str]
) -> None:
    """R6: each piece of evidence records its variant; many-valued, so that a variant does not end another."""
    engine = Engine(tmp_path, ontology=shipped().extended({"WORKS_AT": {"cardinality": "many"}}))
    engine.add(worked(0, PLAIN), worked(10, PART_TIME), worked(20, text, kind))
    view = engine.view()
    assert {e.variant: e.every_variant for e in view.records.evidence if e.kind == kind} == variants
    still = {f.statement for f in view.all_facts() if f.invalid_at is None}
    assert {view.graph.statements[s].wording for s in still} == open_now
    engine.check()


def test_an_end_of_every_variant_applies_to_variants_that_arrive_later(tmp_path: Path) -> None:
    """R6, R13: the reference time decides, not the arrival; the end has a span only of its own variant."""
    engine = Engine(tmp_path, ontology=shipped().extended({"WORKS_AT": {"cardinality": "many"}}))
    engine.add(worked(0, PLAIN), worked(20, "Alice left Acme", "ended"), worked(10, PART_TIME))
    engine.check()
    assert engine.spans() == {"Acme": [(0, 20), (10, 20)]}
    engine.ask("retract", episodes=("Alice left Acme",))
    engine.check()
    assert engine.spans() == {"Acme": [(0, None), (10, None)]}


def test_a_repeated_declaration_does_not_change_record_times(tmp_path: Path) -> None:
    """R2: `expired_at` is the time of the last required record, in cached and derived state."""
    item = shipped().extended({"AA": {"cardinality": "single"}, "BB": {"same_as": "AA"}})
    engine = Engine(tmp_path, ontology=item)
    for at, name in ((0, "x"), (1, "y")):
        engine.add(triples(at, {"source": "s", "relation": "AA", "target": name}))
    two = item.extended({"BB": {"cardinality": "single"}})
    engine = Engine(tmp_path, ontology=two)
    engine.add(triples(2, {"source": "s", "relation": "BB", "target": "z"}))
    engine.check()


def test_a_repeated_synonym_declaration_keeps_its_first_record_time() -> None:
    """R2: a declaration of two names; a contrary declaration in between counts."""
    relations = Relations()
    for sequence, value in enumerate(("same_as", "same_as", "none", "same_as"), 1):
        relations.use("AA")
        relations.use("BB")
        declaration = Declaration(
            sequence=sequence, ordinal=0, name="BB", other="AA", aspect="pair", value=value
        )
        relations.declare(declaration, 10 * sequence)
        assert relations.folded("BB").declared_at == {1: 10, 2: 10, 3: 0, 4: 40}[sequence]
        assert relations.folded("AA") == ("AA", False, 0)


def test_a_repeated_verdict_does_not_change_record_times(tmp_path: Path) -> None:
    """R2: and a contrary declaration does."""
    engine = Engine(tmp_path, ontology=shipped().extended({"LIKES": {"cardinality": "many"}}))
    engine.add(triples(0, *({"source": "s", "relation": "LIKES", "target": name} for name in ("x", "y"))))
    graph = engine.view().graph
    a, b = graph.statements
    for at, exclusive, decided_at in ((10, True, 10), (20, True, 10), (30, False, 30), (40, True, 40)):
        graph.take_verdict(a, b, exclusive, at)
        assert graph.verdicts[a][b] == graph.verdicts[b][a] == (exclusive, decided_at)


def test_a_second_exclusion_of_two_relations_does_not_change_record_times(tmp_path: Path) -> None:
    """R2, R17: a second name of the class that excludes the same one moves no record time."""
    item = shipped().extended({"AA": {"excludes": ["DD"]}})
    engine = Engine(tmp_path, ontology=item)
    for at, relation in ((0, "DD"), (1, "AA")):
        engine.add(triples(at, {"source": "s", "relation": relation, "target": "x"}))
    facts_before = [fact for fact in engine.view().all_facts() if fact.relation == "DD"]
    assert facts_before[0].invalid_at is not None
    two = item.extended({"BB": {"same_as": "AA", "excludes": ["DD"]}})
    engine = Engine(tmp_path, ontology=two)
    engine.add(triples(2, {"source": "s", "relation": "BB", "target": "y"}))
    engine.check()
    assert [fact for fact in engine.view().all_facts() if fact.relation == "DD"] == facts_before


def test_a_declaration_dropped_from_the_ontology_is_withdrawn(tmp_path: Path) -> None:
    """R17: a changed ontology is recorded at the group's next commit."""
    tied = {"AA": {"cardinality": "single"}, "BB": {"same_as": "AA"}, "CC": {"excludes": ["DD"]}}
    engine = Engine(tmp_path, ontology=shipped().extended(tied))
    for relation, target in (("AA", "x"), ("BB", "y"), ("CC", "z"), ("DD", "z")):
        engine.add(triples(0, {"source": "s", "relation": relation, "target": target}))
    moment_before, dumped = engine.last_recorded(), engine.dump()
    engine = Engine(tmp_path)
    engine.add(triples(1, {"source": "s", "relation": "LIKES", "target": "tea"}))
    engine.check()
    rows = [json.loads(line) for line in engine.dump()]
    relations = {r["name"]: r for r in rows if r["type"] == "relation"}
    assert {
        n: (r["same_as"], r["excludes"], r["cardinality"]) for n, r in relations.items() if n != "LIKES"
    } == {
        "AA": (None, [], None),
        "BB": (None, [], None),
        "CC": (None, [], None),
        "DD": (None, [], None),
    }
    assert engine.dump(moment_before) == dumped


def test_a_symmetric_slot_counts_both_ends(tmp_path: Path) -> None:
    """R17: Alice-Bob then Bob-Carl meet in Bob's slot, if the relation is declared single-valued."""
    for cardinality, still in (
        ("single", ["Bob partner Carl"]),
        ("many", ["Alice partner Bob", "Bob partner Carl"]),
    ):
        declared = shipped().extended({"PARTNER": {"symmetric": True, "cardinality": cardinality}})
        engine = Engine(tmp_path / cardinality, ontology=declared)
        for at, (a, b) in enumerate((("Alice", "Bob"), ("Carl", "Bob"))):
            engine.add(triples(at, {"source": a, "relation": "PARTNER", "target": b}))
        assert [f.text for f in engine.view().all_facts() if f.invalid_at is None] == still
        engine.check()


def test_a_second_marriage_ends_the_first_marriage_of_either_person(tmp_path: Path) -> None:
    """R17: MARRIED_TO is symmetric and single-valued, so Bob's second marriage ends Alice's."""
    engine = Engine(tmp_path)
    engine.add(triples(0, {"source": "Alice", "relation": "MARRIED_TO", "target": "Bob"}))
    engine.add(
        triples(10, {"source": "Carl", "relation": "MARRIED_TO", "target": "Bob"}), triples(1, works("Acme"))
    )
    spans = {f.text: f.invalid_at is None for f in engine.view().all_facts()}
    assert spans == {
        "Alice is married to Bob": False,
        "Bob is married to Carl": True,
        "Alice works at Acme": True,
    }
    engine.check()


def _facts(engine: Engine) -> list[tuple[str, Any, Any]]:
    view = engine.view()
    return sorted(((f.text, in_days(f.valid_at), in_days(f.invalid_at)) for f in view.all_facts()), key=repr)


HISTORIES_OF_NAMES = {
    "an-end": [worked(0, PART_TIME), worked(20, "Alice left Acme", "ended")],
    "an-end-between": [worked(30, PART_TIME), worked(20, "Alice left Acme", "ended"), worked(0, PLAIN)],
    "two-variants": [worked(0, PART_TIME), worked(10, PLAIN), worked(20, "Alice left Acme", "ended")],
    "two-ends": [
        worked(0, "Alice works at Acme full-time"),
        worked(10, PART_TIME),
        worked(20, "Alice left Acme", "ended"),
        worked(40, "Alice quit Acme", "ended"),
    ],
    "a-denial": [worked(0, PART_TIME), worked(20, "Alice never worked at Acme", "denied")],
    "an-end-of-one": [worked(0, PART_TIME), worked(10, PLAIN), worked(20, f"{PART_TIME} no longer", "ended")],
    "before-all": [worked(30, PART_TIME), worked(20, "Alice left Acme", "ended")],
    "an-event": [worked(5, "Alice met Acme", "happened"), worked(20, "Alice left Acme", "ended")],
    "an-event-too": [
        worked(5, "Alice met Acme", "happened"),
        worked(10, PART_TIME),
        worked(20, "Alice left Acme", "ended"),
    ],
    "a-denied-event": [
        worked(5, "Alice met Acme", "happened"),
        worked(20, "Alice never worked at Acme", "denied"),
    ],
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "two-ends" else name
        for name in HISTORIES_OF_NAMES
    ],
)
def test_an_end_without_a_variant_gives_one_graph_in_any_order_of_arrival(tmp_path: Path, name: str) -> None:
    """R6, R13: it concerns all variants, also later variants, and makes no second fact."""
    many_valued = shipped().extended({"WORKS_AT": {"cardinality": "many"}})
    results = {}
    for number, order in enumerate(permutations(HISTORIES_OF_NAMES[name])):
        engine = Engine(tmp_path / str(number), ontology=many_valued)
        for draft in order:
            engine.add(draft)
            engine.check()
            assert differences(engine.store, engine.named()) == []
        results[tuple(draft.client_id for draft in order)] = _facts(engine)
        second_engine = Engine(tmp_path / f"again{number}", ontology=many_valued)
        second_engine.add(*order)
        assert _facts(second_engine) == results[tuple(draft.client_id for draft in order)]
    first = next(iter(results.values()))
    assert {order: facts for order, facts in results.items() if facts != first} == {}
    many_facts = {"a-denial": 0, "a-denied-event": 0, "an-end": 1, "an-event": 1}
    assert len(first) == many_facts.get(name, 2), first


class ByRelation(WildJudge):
    """A judge that answers a comparison by the names of relations in its two sentences, and notes it.

    answers     (words of the new sentence, words of a candidate) -> answer; `independent` where none fits
    """

    def __init__(self, answers: dict[tuple[str, str], str]) -> None:
        self.answers = answers
        self.compared: list[tuple[str, tuple[str, ...]]] = []

    def _answer(self, question: Question) -> Answer:  # type: ignore[override]
        if question.kind == "entity":
            return {"duplicate_of": None}
        self.compared.append((question.item, question.candidates))
        return {"answers": [self._word(question.item, candidate) for candidate in question.candidates]}

    def _word(self, item: str, candidate: str) -> str:
        fits = (word for (new, earlier), word in self.answers.items() if new in item and earlier in candidate)
        return next(fits, "independent")


class Alike:
    """An embedder that gives all texts one vector, so that similarity excludes no candidate."""

    identity, dimensions = SMALL.identity, SMALL.dimensions

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return one vector for all texts."""
        return np.tile(pointing(0), (len(texts), 1))


def asserts(
    at: float, source: str, relation: str, target: str, text: str, kind: str = "holds", **fields: Any
) -> Draft:
    """Return an episode with one fact; its client id is its text."""
    fact = {"source": source, "relation": relation, "target": target, "fact": text, "kind": kind, **fields}
    return reading(at, [], [fact], client_id=text)


HEADS = asserts(0, "Alice", "HEADS_UP", "the lab", "Alice heads the lab")
CHARGE = asserts(1, "Alice", "IN_CHARGE_OF", "the lab", "Alice is in charge of the lab")
LED = asserts(1, "the lab", "UNDER", "Alice", "the lab is under Alice")
SAME_RELATIONS = {("in charge", "heads"): "same", ("under", "heads"): "same"}


def relation_counts(engine: Engine) -> list[tuple[str, int]]:
    """Return (relation, number of supporters) of each fact, sorted."""
    return sorted((f.relation, len(f.episodes)) for f in engine.view().all_facts())


@pytest.mark.parametrize(("second", "is_reversed"), [(CHARGE, False), (LED, True)])
def test_an_equal_sentence_under_another_relation_name_supports_the_statement(
    tmp_path: Path, second: Draft, is_reversed: bool
) -> None:
    """R17c: and no names fold: the same name between other ends is a statement of its own."""
    judge = ByRelation(SAME_RELATIONS)
    engine = Engine(tmp_path, judge=judge)
    engine.add(HEADS, second)
    assert relation_counts(engine) == [("HEADS_UP", 2)]
    assert [e.is_reversed for e in engine.view().records.evidence] == [False, is_reversed]
    assert judge.compared == [(second.client_id, (HEADS.client_id,))]

    engine.add(asserts(2, "Bob", "IN_CHARGE_OF", "the shop", "Bob is in charge of the shop"))
    assert relation_counts(engine) == [("HEADS_UP", 2), ("IN_CHARGE_OF", 1)]
    folds = {name: engine.view().graph.relations.folded(name).name for name in ("HEADS_UP", "IN_CHARGE_OF")}
    assert folds == {name: name for name in folds}
    engine.check()


def test_an_attached_relation_name_is_matched_without_a_new_question(tmp_path: Path) -> None:
    """R17c: later evidence finds the statement under every name that its evidence has."""
    judge = ByRelation(SAME_RELATIONS)
    engine = Engine(tmp_path, judge=judge)
    engine.add(HEADS, CHARGE)
    judge.compared.clear()
    engine.add(replace(CHARGE, reference_time=day(5), client_id="again"))
    assert judge.compared == []
    assert relation_counts(engine) == [("HEADS_UP", 3)]
    engine.check()


@pytest.mark.parametrize(
    ("listed", "removed_draft", "name"),
    [
        pytest.param((), None, "HEADS_UP", id="none-is-listed"),
        pytest.param(("IN_CHARGE_OF",), None, "IN_CHARGE_OF", id="the-second-is-listed"),
        pytest.param((), HEADS, "IN_CHARGE_OF", id="the-first-is-removed"),
        pytest.param(("IN_CHARGE_OF",), CHARGE, "HEADS_UP", id="the-listed-one-is-removed"),
    ],
)
def test_a_statement_shows_its_listed_relation_name_or_its_earliest_name(
    tmp_path: Path, listed: tuple[str, ...], removed_draft: Draft | None, name: str
) -> None:
    """R17c: computed again after a removal, which also gives the statement another first sentence."""
    ontology = shipped().extended({item: {"cardinality": "many"} for item in listed})
    engine = Engine(tmp_path, judge=ByRelation(SAME_RELATIONS), ontology=ontology)
    engine.add(HEADS, CHARGE, asserts(3, "Bob", "LIKES", "tea", "Bob likes tea"))
    if removed_draft is not None:
        engine.ask("remove", episodes=(removed_draft.client_id,))
    assert [relation for relation, _ in relation_counts(engine) if relation != "LIKES"] == [name]
    engine.check()
    assert differences(engine.store, engine.named()) == []


@pytest.mark.parametrize(
    ("word", "second"),
    [
        ("same", asserts(1, "Alice", "LEADS_ON", "the shop", "Alice leads the shop")),
        ("ends", asserts(1, "Alice", "LEADS_ON", "the shop", "Alice leads the shop")),
        ("same", asserts(1, "Alice", "TOOK_ON", "the lab", "Alice took on the lab", "happened")),
        ("contradicts", asserts(1, "Alice", "TOOK_ON", "the lab", "Alice took on the lab", "happened")),
    ],
)
def test_a_disallowed_answer_about_a_pair_counts_as_independent(
    tmp_path: Path, word: str, second: Draft
) -> None:
    """R17a: `same` and `ends` need the same ends; an event is no state and excludes none."""
    dumps = []
    for answer in (word, "independent"):
        judge = ByRelation({("Alice", "Alice"): answer})
        engine = Engine(tmp_path / answer, judge=judge, embedder=Alike())
        engine.add(HEADS, second)
        assert judge.compared == [(second.client_id, (HEADS.client_id,))]
        assert [f.invalid_at for f in engine.view().all_facts()] == [None, None]
        engine.check()
        dumps.append(engine.dump())
    assert dumps[0] == dumps[1]


def test_a_contradiction_ends_only_one_statement_of_a_relation(tmp_path: Path) -> None:
    """R17a: one answer is about two statements."""
    judge = ByRelation({("on leave", "works on the launch"): "contradicts"})
    engine = Engine(tmp_path, judge=judge, embedder=Alike())
    engine.add(
        asserts(0, "Alice", "WORKS_ON_IT", "the launch", "Alice works on the launch"),
        asserts(0, "Bob", "WORKS_ON_IT", "the launch", "Bob works on the launch"),
        asserts(0, "Alice", "WORKS_ON_IT", "the menu", "Alice works on the menu"),
        asserts(5, "Alice", "TAKES", "parental leave", "Alice is on leave"),
        asserts(6, "Bob", "TAKES", "a course", "Bob takes a course"),
    )
    names = {e.id: e.name for e in engine.view().all_entities()}
    facts = engine.view().all_facts()
    ends = {(names[f.source], names[str(f.target)]): in_days(f.invalid_at) for f in facts}
    assert {pair: end for pair, end in ends.items() if end is not None} == {("Alice", "the launch"): 5}
    assert len(ends) == 5
    engine.check()


LEFT_ACME = "Alice left Acme on day 4"


@pytest.mark.parametrize(
    ("kind", "dates", "spans"),
    [
        ("happened", {"valid_at": iso(4)}, {("WORKS_AT", 0, 4), ("WALKED_OUT", 4, None)}),
        ("happened", {}, {("WORKS_AT", 0, 9), ("WALKED_OUT", 9, None)}),
        ("ended", {"invalid_at": iso(4)}, {("WORKS_AT", 0, 4)}),
        ("denied", {}, set()),
        ("holds", {"valid_at": iso(4)}, {("WORKS_AT", 0, 4), ("WALKED_OUT", 4, None)}),
    ],
)
def test_an_end_under_another_relation_name_ends_the_state(
    tmp_path: Path, kind: str, dates: dict[str, str], spans: set[tuple[str, Any, Any]]
) -> None:
    """R17b: the end is at its stated instant or its reference time; an event and a new state remain."""
    judge = ByRelation({("left", "works at"): "ends"})
    engine = Engine(tmp_path, judge=judge)
    engine.add(asserts(0, "Alice", "WORKS_AT", "Acme", "Alice works at Acme"))
    engine.add(asserts(1, "Bob", "WORKS_AT", "Acme", "Bob works at Acme"))
    engine.add(asserts(9, "Alice", "WALKED_OUT", "Acme", LEFT_ACME, kind, **dates))
    names = {e.id: e.name for e in engine.view().all_entities()}
    facts = [f for f in engine.view().all_facts() if names[f.source] == "Alice"]
    assert {(f.relation, in_days(f.valid_at), in_days(f.invalid_at)) for f in facts} == spans
    [fact_of_bob] = [f for f in engine.view().all_facts() if names[f.source] == "Bob"]
    assert fact_of_bob.invalid_at is None
    engine.check()

    engine.ask("remove", episodes=(LEFT_ACME,))
    assert engine.spans() == {"Acme": [(0, None), (1, None)]}
    engine.check()


RETIRED = asserts(4, "Alice", "RETIRED_FROM", "Acme", "Alice is retired from Acme")


def test_a_relation_name_that_ended_a_state_does_not_restate_it(tmp_path: Path) -> None:
    """R17b, R17c: "retired" ends COACHES, and is no other word for it, though the ontology lists it alone."""
    judge = ByRelation({("retired", "coaches"): "ends"})
    ontology = shipped().extended({"RETIRED_FROM": {"cardinality": "many"}})
    engine = Engine(tmp_path, judge=judge, ontology=ontology)
    engine.add(asserts(0, "Alice", "COACHES", "Acme", "Alice coaches Acme"), RETIRED)
    once = {("COACHES", 0, 4), ("RETIRED_FROM", 4, None)}

    def spans() -> set[tuple[str, Any, Any]]:
        facts = engine.view().all_facts()
        return {(f.relation, in_days(f.valid_at), in_days(f.invalid_at)) for f in facts}

    assert spans() == once
    engine.check()
    engine.add(replace(RETIRED, reference_time=day(8), client_id="again"))
    assert spans() == once
    engine.check()


def test_a_repeated_end_under_another_relation_name_ends_the_same_state(tmp_path: Path) -> None:
    """R17c: an end finds the state by the name of an earlier end, and makes no statement of its own."""
    engine = Engine(tmp_path, judge=ByRelation({("quits", "coaches"): "ends"}))
    engine.add(asserts(0, "Alice", "COACHES", "Acme", "Alice coaches Acme"))
    for at in (4, 8):
        text = f"Alice quits Acme{' now' * (at // 8)}"
        engine.add(asserts(at, "Alice", "QUITS_IT", "Acme", text, "ended", invalid_at=iso(4)))
    [fact] = engine.view().all_facts()
    assert (fact.relation, in_days(fact.valid_at), in_days(fact.invalid_at)) == ("COACHES", 0, 4)
    engine.check()


def test_a_new_statement_with_a_listed_name_becomes_a_separate_variant(
    tmp_path: Path,
) -> None:
    """R17c: the state in memory equals the state from the records, if the group has the key already."""
    judge = ByRelation({("guides", "trains"): "same"})
    ontology = shipped().extended({"GUIDES": {"cardinality": "many"}})
    engine = Engine(tmp_path, judge=judge, ontology=ontology)
    engine.add(asserts(0, "Alice", "GUIDES", "Bob", "Alice steers Bob"))
    facts = [
        {"source": "Alice", "relation": relation, "target": "Bob", "fact": text, "valid_at": iso(1)}
        for relation, text in (
            ("TRAINS_HIM", "Alice trains Bob part-time"),
            ("GUIDES", "Alice guides Bob by hand"),
        )
    ]
    engine.add(reading(2, [], facts, client_id="both"))
    view = engine.view()
    assert sorted((s.relation, s.variant) for s in view.graph.statements.values()) == [
        ("GUIDES", 0),
        ("GUIDES", 1),
    ]
    engine.check()


def test_only_triples_of_a_depends_relation_are_compared(tmp_path: Path) -> None:
    """R17a: FEELS depends on the values; of LEADS_ON nothing is declared."""
    judge = ByRelation({("tense", "calm"): "contradicts"})
    ontology = shipped().extended({"FEELS": {"cardinality": "depends"}})
    engine = Engine(tmp_path, judge=judge, ontology=ontology)
    for at, (relation, mood) in enumerate((("FEELS", "calm"), ("FEELS", "tense"), ("LEADS_ON", "tense"))):
        engine.add(triples(at, {"source": "Bob", "relation": relation, "target": mood}))
    assert judge.compared == [("Bob feels tense", ("Bob feels calm",))]
    ends = {f.text: in_days(f.invalid_at) for f in engine.view().all_facts()}
    assert ends == {"Bob feels calm": 1, "Bob feels tense": None, "Bob leads on tense": None}
    engine.check()
