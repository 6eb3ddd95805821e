"""R18: a past occurrence is an event: one date, no rivals, no confirmation, no end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kgray.domain.ontology import shipped
from kgray.ports import Answer, Question
from tests.graph.engine import Engine, WildJudge, day, engine_on, in_days, iso, reading
from tests.graph.stores import EMBEDDED, Stores


def restarted(
    at: float, text: str, kind: str = "happened", relation: str = "RESTARTED", **fields: Any
) -> Any:
    """Return an episode about Tom and the printer, dated to a day."""
    fact = {"source": "Tom", "target": "printer", "relation": relation, "fact": text, "kind": kind} | fields
    return reading(at, [], [fact], client_id=text)


def restarts(engine: Engine) -> list[tuple[Any, Any, bool, int]]:
    """Return (from, to, whether it is an event, supporters) of the facts, by start."""
    facts = engine.view().all_facts()
    facts.sort(key=lambda f: (f.valid_at is not None, f.valid_at))
    return [(in_days(f.valid_at), in_days(f.invalid_at), f.event, len(f.episodes)) for f in facts]


@EMBEDDED
def test_each_date_of_an_occurrence_is_one_event(stores: Stores) -> None:
    """Undated events happened when they were stated; another wording of one date is no other event."""
    engine = engine_on(stores)
    engine.add(restarted(3, "Tom restarted the printer"), restarted(9, "Tom rebooted the printer again"))
    engine.add(restarted(12, "On day 3 Tom restarted the printer 2 times", valid_at=iso(3)))
    engine.check()
    assert restarts(engine) == [(3, None, True, 2), (9, None, True, 1)]
    evidence = engine.view().records.evidence
    assert [(e.kind, e.variant, e.valid_from) for e in evidence] == [
        ("happened", 0, day(3)),
        ("happened", 1, day(9)),
        ("happened", 0, day(3)),
    ]


def test_an_event_has_no_rivals_and_no_end(tmp_path: Path) -> None:
    """Not in a slot of a single-valued relation, and not by an end that names no variant."""
    engine = Engine(tmp_path, ontology=shipped().extended({"RESTARTED": {"cardinality": "single"}}))
    router = {"source": "Tom", "target": "router", "relation": "RESTARTED", "kind": "happened"}
    engine.add(restarted(3, "Tom restarted the printer"), reading(5, [], [router]))
    engine.add(restarted(7, "Tom no longer restarts the printer", "ended"))
    engine.check()
    assert restarts(engine) == [(3, None, True, 1), (5, None, True, 1)]


def test_a_state_and_an_event_of_one_relation_are_separate_statements(tmp_path: Path) -> None:
    """One relation may be stated as a state and as an event: two statements, each with its own facts."""
    engine = Engine(tmp_path)
    engine.add(
        restarted(1, "Tom uses the printer", "holds", "USES"),
        restarted(4, "Tom used the printer", relation="USES"),
    )
    engine.add(restarted(6, "Tom stopped using the printer", "ended", "USES"))
    engine.check()
    assert restarts(engine) == [(1, 6, False, 2), (4, None, True, 1)]


def test_a_denial_also_cancels_earlier_events(tmp_path: Path) -> None:
    """R6: it concerns every earlier variant; later variants count by their reference time."""
    engine = Engine(tmp_path)
    engine.add(
        restarted(1, "Tom restarted the printer"), restarted(5, "Tom never restarted the printer", "denied")
    )
    engine.add(restarted(3, "Tom rebooted the printer"), restarted(8, "Tom restarted the printer now"))
    engine.check()
    assert restarts(engine) == [(8, None, True, 1)]


def test_an_event_is_removed_with_its_last_episode_and_merges_with_its_entities(tmp_path: Path) -> None:
    """R16, R26: two things that are one have one event a date."""
    engine = Engine(tmp_path)
    laserjet = {"source": "Tom", "target": "Laserjet", "relation": "RESTARTED", "kind": "happened"}
    engine.add(
        restarted(3, "Tom restarted the printer"), reading(3, [], [laserjet]), reading(6, [], [laserjet])
    )
    devices = [e.id for e in engine.view().all_entities() if e.name != "Tom"]
    merged = engine.ask("merge", entities=tuple(devices))
    engine.check()
    assert restarts(engine) == [(3, None, True, 2), (6, None, True, 1)]
    engine.ask("undo", target=merged["sequence"])
    engine.ask("remove", episodes=("Tom restarted the printer",))
    engine.check()
    assert restarts(engine) == [(3, None, True, 1), (6, None, True, 1)]


class Notes(WildJudge):
    """A judge that notes each comparison and answers it with one word throughout."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.compared: list[tuple[str, tuple[str, ...]]] = []

    def _answer(self, question: Question) -> Answer:  # type: ignore[override]
        if question.kind == "entity":
            return {"duplicate_of": None}
        self.compared.append((question.item, question.candidates))
        return {"answers": [self.word] * len(question.candidates)}


TOURED, VISITED = "Tom toured Bonn", "Tom visited Bonn again"


@pytest.mark.parametrize(
    ("name", "relation", "on", "compared"),
    [
        pytest.param("Tom", "TOURED", 9, [], id="one-name-at-two-dates"),
        pytest.param("Tom", "VISITED", 9, [], id="two-names-at-two-dates"),
        pytest.param("Tom", "VISITED", 3, [(VISITED, (TOURED,))], id="two-names-at-one-date"),
        pytest.param("Ida", "VISITED", 3, [], id="of-other-things"),
    ],
)
def test_only_events_that_may_be_the_same_are_compared(
    tmp_path: Path, name: str, relation: str, on: float, compared: list[Any]
) -> None:
    """R17a, R18: an event excludes nothing, so only another name of the same event is worth a question."""
    judge = Notes("same")
    engine = Engine(tmp_path, judge=judge)
    place = "Bonn" if name == "Tom" else "Ulm"
    engine.add(restarted(3, TOURED, relation="TOURED", target="Bonn"))
    text = f"{name} {relation.lower()} {place} again"
    engine.add(restarted(on, text, source=name, relation=relation, target=place))

    assert judge.compared == compared
    items = [(3, None, True, 2)]
    assert restarts(engine) == (items if compared else [(3, None, True, 1), (on, None, True, 1)])
    engine.check()


@pytest.mark.parametrize("word", ["contradicts", "ends"])
def test_no_model_answer_makes_an_event_a_rival_or_ends_it(tmp_path: Path, word: str) -> None:
    """R17a: such an answer is not allowed for two events, and reads as independent."""
    judge = Notes(word)
    engine = Engine(tmp_path, judge=judge)
    engine.add(
        restarted(3, TOURED, relation="TOURED", target="Bonn"),
        restarted(3, VISITED, relation="VISITED", target="Bonn"),
    )
    assert judge.compared != []
    assert restarts(engine) == [(3, None, True, 1), (3, None, True, 1)]
    engine.check()
