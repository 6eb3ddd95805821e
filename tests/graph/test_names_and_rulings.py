"""Which names are one, which variant an end means, what a changed ontology takes back (R15, R17, R18)."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from kgray import kinds
from kgray.derivation.names import Relations
from kgray.derivation.repair import differences
from kgray.derivation.stored import records_of
from kgray.ontology import shipped
from kgray.ports import Answer, Question
from kgray.records import Ruling
from tests.graph.engine import GROUP, Engine, WildJudge, in_days, reading, triples, works

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
ONE = [
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
def test_names_that_differ_in_what_matters_are_never_one_by_themselves(
    tmp_path: Path, first: str, second: str
) -> None:
    """R15: different digits, dates, versions, qualifiers; neither in texts nor in triples."""
    assert names_after(Engine(tmp_path / "text"), first, second) == sorted((first, second))
    engine = Engine(tmp_path / "triples")
    engine.add(triples(0, {"source": first, "relation": "KNOWS", "target": second}))
    assert [f.relation for f in engine.view().all_facts()] == ["KNOWS"]


@pytest.mark.parametrize(("first", "second"), ONE)
def test_names_that_differ_in_writing_alone_are_one(tmp_path: Path, first: str, second: str) -> None:
    """R14: the second rung of the ladder."""
    [name] = names_after(Engine(tmp_path), first, second)
    assert name in {first, second}


def said(at: float, text: str, kind: str = "holds") -> Any:
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
        # What was not told before is a variant of its own: it has ended, and nothing else has.
        pytest.param("ended", "Alice is not remotely at Acme", {2: False}, {PLAIN, PART_TIME}, id="new"),
    ],
)
def test_an_end_speaks_of_every_variant_unless_it_names_one(
    tmp_path: Path, kind: str, text: str, variants: dict[int, bool], open_now: set[str]
) -> None:
    """R6: each piece of evidence records which; many-valued, so that one variant does not end another."""
    engine = Engine(tmp_path, ontology=shipped().extended({"WORKS_AT": {"cardinality": "many"}}))
    engine.add(said(0, PLAIN), said(10, PART_TIME), said(20, text, kind))
    view = engine.view()
    assert {e.variant: e.every_variant for e in view.records.evidence if e.kind == kind} == variants
    still = {f.statement for f in view.all_facts() if f.invalid_at is None}
    assert {view.graph.statements[s].wording for s in still} == open_now
    engine.check()


def test_an_end_of_every_variant_speaks_of_those_that_are_told_later_too(tmp_path: Path) -> None:
    """R6, R13: by when it was said, not by when it arrived; it makes a span of its own variant alone."""
    engine = Engine(tmp_path, ontology=shipped().extended({"WORKS_AT": {"cardinality": "many"}}))
    engine.add(said(0, PLAIN), said(20, "Alice left Acme", "ended"), said(10, PART_TIME))
    engine.check()
    assert engine.spans() == {"Acme": [(0, 20), (10, 20)]}
    engine.ask("retract", episodes=("Alice left Acme",))
    engine.check()
    assert engine.spans() == {"Acme": [(0, None), (10, None)]}


def test_a_ruling_that_repeats_what_is_in_force_moves_no_record_time(tmp_path: Path) -> None:
    """R2: `expired_at` is that of the last record needed, kept and derived alike."""
    one = shipped().extended({"AA": {"cardinality": "single"}, "BB": {"same_as": "AA"}})
    engine = Engine(tmp_path, ontology=one)
    for at, name in ((0, "x"), (1, "y")):
        engine.add(triples(at, {"source": "s", "relation": "AA", "target": name}))
    two = one.extended({"BB": {"cardinality": "single"}})
    engine = Engine(tmp_path, ontology=two)
    engine.add(triples(2, {"source": "s", "relation": "BB", "target": "z"}))
    engine.check()


def test_what_says_the_same_again_moves_no_record_time() -> None:
    """R2: a ruling on two names, and a verdict on two statements; what says otherwise in between counts."""
    relations = Relations()
    for sequence, value in enumerate(("same_as", "same_as", "independent", "same_as"), 1):
        relations.use("AA", (1, 0))
        relations.use("BB", (1, 1))
        ruling = Ruling(
            sequence=sequence, ordinal=0, name="AA", other="BB", aspect="pair", value=value, judge="m"
        )
        relations.rule(ruling, 10 * sequence)
        assert relations.folded("BB").since == {1: 10, 2: 10, 3: 0, 4: 40}[sequence]


def test_a_verdict_that_says_the_same_again_moves_no_record_time(tmp_path: Path) -> None:
    """R2: and one that says otherwise does."""
    engine = Engine(tmp_path, ontology=shipped().extended({"LIKES": {"cardinality": "many"}}))
    engine.add(triples(0, *({"source": "s", "relation": "LIKES", "target": name} for name in ("x", "y"))))
    graph = engine.view().graph
    a, b = graph.statements
    for at, exclusive, since in ((10, True, 10), (20, True, 10), (30, False, 30), (40, True, 40)):
        graph.take_verdict(a, b, exclusive, at)
        assert graph.verdicts[a][b] == graph.verdicts[b][a] == (exclusive, since)


def test_of_several_rulings_that_exclude_two_relations_the_first_was_enough(tmp_path: Path) -> None:
    """R2, R17: a second name of the class that excludes the same one moves no record time."""
    one = shipped().extended({"AA": {"excludes": ["DD"]}})
    engine = Engine(tmp_path, ontology=one)
    for at, relation in ((0, "DD"), (1, "AA")):
        engine.add(triples(at, {"source": "s", "relation": relation, "target": "x"}))
    before = [fact for fact in engine.view().all_facts() if fact.relation == "DD"]
    assert before[0].invalid_at is not None
    two = one.extended({"BB": {"same_as": "AA", "excludes": ["DD"]}})
    engine = Engine(tmp_path, ontology=two)
    engine.add(triples(2, {"source": "s", "relation": "BB", "target": "y"}))
    engine.check()
    assert [fact for fact in engine.view().all_facts() if fact.relation == "DD"] == before


def test_what_the_ontology_declares_no_longer_is_taken_back(tmp_path: Path) -> None:
    """R17: a changed ontology is recorded as rulings at the group's next commit."""
    tied = {"AA": {"cardinality": "single"}, "BB": {"same_as": "AA"}, "CC": {"excludes": ["DD"]}}
    engine = Engine(tmp_path, ontology=shipped().extended(tied))
    for relation, target in (("AA", "x"), ("BB", "y"), ("CC", "z"), ("DD", "z")):
        engine.add(triples(0, {"source": "s", "relation": relation, "target": target}))
    before, dumped = engine.last_recorded(), engine.dump()
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
    assert engine.dump(before) == dumped


def test_a_symmetric_slot_counts_both_ends(tmp_path: Path) -> None:
    """R17: Alice-Bob then Bob-Carl meet in Bob's slot."""
    declared = shipped().extended({"PARTNER": {"symmetric": True}})
    engine = Engine(tmp_path, ontology=declared)
    for at, (a, b) in enumerate((("Alice", "Bob"), ("Bob", "Carl"))):
        engine.add(triples(at, {"source": a, "relation": "PARTNER", "target": b}))
    rulings = [(r.aspect, r.value, r.judge) for r in records_of(engine.store, GROUP).rulings]
    assert ("cardinality", "many", "rules-1") in rulings
    engine.check()


def test_a_married_pair_is_rival_to_any_other_pair_of_either(tmp_path: Path) -> None:
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


TOLD = {
    "an-end": [said(0, PART_TIME), said(20, "Alice left Acme", "ended")],
    "an-end-between": [said(30, PART_TIME), said(20, "Alice left Acme", "ended"), said(0, PLAIN)],
    "two-variants": [said(0, PART_TIME), said(10, PLAIN), said(20, "Alice left Acme", "ended")],
    "two-ends": [
        said(0, "Alice works at Acme full-time"),
        said(10, PART_TIME),
        said(20, "Alice left Acme", "ended"),
        said(40, "Alice quit Acme", "ended"),
    ],
    "a-denial": [said(0, PART_TIME), said(20, "Alice never worked at Acme", "denied")],
    "an-end-of-one": [said(0, PART_TIME), said(10, PLAIN), said(20, f"{PART_TIME} no longer", "ended")],
    "before-all": [said(30, PART_TIME), said(20, "Alice left Acme", "ended")],
    "an-event": [said(5, "Alice met Acme", "happened"), said(20, "Alice left Acme", "ended")],
    "an-event-too": [
        said(5, "Alice met Acme", "happened"),
        said(10, PART_TIME),
        said(20, "Alice left Acme", "ended"),
    ],
    "a-denied-event": [
        said(5, "Alice met Acme", "happened"),
        said(20, "Alice never worked at Acme", "denied"),
    ],
}


@pytest.mark.parametrize("name", TOLD)
def test_an_end_that_names_no_variant_gives_one_graph_in_every_order_of_arrival(
    tmp_path: Path, name: str
) -> None:
    """R6, R13: it speaks of all variants, also of those told after it, and makes no second fact."""
    many = shipped().extended({"WORKS_AT": {"cardinality": "many"}})
    found = {}
    for number, order in enumerate(permutations(TOLD[name])):
        engine = Engine(tmp_path / str(number), ontology=many)
        for draft in order:
            engine.add(draft)
            engine.check()
            assert differences(engine.store, engine.named()) == []
        found[tuple(draft.client_id for draft in order)] = _facts(engine)
        again = Engine(tmp_path / f"again{number}", ontology=many)
        again.add(*order)
        assert _facts(again) == found[tuple(draft.client_id for draft in order)]
    first = next(iter(found.values()))
    assert {order: facts for order, facts in found.items() if facts != first} == {}
    many_facts = {"a-denial": 0, "a-denied-event": 0, "an-end": 1, "an-event": 1}
    assert len(first) == many_facts.get(name, 2), first


class FoldingJudge(WildJudge):
    """Says that KNOWS is ADORES, and that what is part-time excludes all else."""

    @staticmethod
    def _answer(question: Question) -> Answer:
        if question.kind in {"entity", "variant"}:
            return {"duplicate_of": None}
        if question.kind == "relation":
            return {"same_as": True} if {question.item, *question.candidates} == {"KNOWS", "ADORES"} else {}
        if question.kind == "cardinality":
            return {"cardinality": "many"}
        excluded = "part-time" in question.item
        return {"contradicts": list(range(len(question.candidates))) if excluded else []}


def test_every_verdict_of_an_episode_is_kept_where_a_mate_is_found_in_two_ways(tmp_path: Path) -> None:
    """R17, R26: by its slot, as its relation folds just now, and by its ends, as its relation is stored."""

    def says(source: str, relation: str, target: str, text: str) -> dict[str, Any]:
        return {"source": source, "relation": relation, "target": target, "fact": text, "kind": "holds"}

    engine = Engine(tmp_path, judge=FoldingJudge(), judging="statement")
    ann, bob, carol, dave = "Ann Smith", "Bob Jones", "Carol King", "Dave Hall"
    engine.add(reading(0, [], [says(ann, "KNOWS", bob, f"{ann} knows {bob}")], client_id="a"))
    adored = [says(ann, "ADORES", who, f"{ann} adores {who}") for who in (carol, dave)]
    engine.add(reading(1, [], adored, client_id="b"))
    ids = {one.name: one.id for one in engine.view().all_entities()}
    engine.ask("merge", entities=(ids[ann], ids[bob]))  # so no statement of KNOWS is left but a loop
    engine.add(reading(2, [], [says(ann, "KNOWS", carol, f"{ann} knows {carol} part-time")], client_id="c"))

    ruled = [row[0] for row in engine.store.rows(kinds.ALL["verdicts"], engine.named())]
    assert [ruled.count(sequence) for sequence in sorted(set(ruled))] == [1, 2], (
        "of the second and the fourth"
    )
    assert differences(engine.store, engine.named()) == []
    engine.check()
