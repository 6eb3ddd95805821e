"""R18: what took place is an event: one date, no rivals, no confirmation, no end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kgray.graph import Fact
from kgray.ontology import shipped
from tests.graph.engine import Engine, day, engine_on, in_days, iso, reading
from tests.graph.stores import EMBEDDED, Stores


def told(at: float, text: str, kind: str = "happened", relation: str = "RESTARTED", **more: Any) -> Any:
    """Return an episode about Tom and the printer, said on a day."""
    fact = {"source": "Tom", "target": "printer", "relation": relation, "fact": text, "kind": kind} | more
    return reading(at, [], [fact], client_id=text)


def restarts(engine: Engine) -> list[tuple[Any, Any, bool, int]]:
    """Return (from, to, whether it is an event, supporters) of the facts, by start."""
    facts = engine.view().all_facts()
    facts.sort(key=lambda f: (f.valid_at is not None, f.valid_at))
    return [(in_days(f.valid_at), in_days(f.invalid_at), f.event, len(f.episodes)) for f in facts]


@EMBEDDED
def test_each_date_is_an_event_of_its_own_and_one_date_is_one_event(stores: Stores) -> None:
    """Undated ones happened when they were told; another wording of one date is no other event."""
    engine = engine_on(stores)
    engine.add(told(3, "Tom restarted the printer"), told(9, "Tom rebooted the printer again"))
    engine.add(told(12, "On day 3 Tom restarted the printer 2 times", valid_at=iso(3)))
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
    other = {"source": "Tom", "target": "router", "relation": "RESTARTED", "kind": "happened"}
    engine.add(told(3, "Tom restarted the printer"), reading(5, [], [other]))
    engine.add(told(7, "Tom no longer restarts the printer", "ended"))
    engine.check()
    assert restarts(engine) == [(3, None, True, 1), (5, None, True, 1)]


def test_a_state_of_the_same_ends_is_no_event(tmp_path: Path) -> None:
    """One relation may be told as a state and as an event: two statements, each with its own facts."""
    engine = Engine(tmp_path)
    engine.add(
        told(1, "Tom uses the printer", "holds", "USES"), told(4, "Tom used the printer", relation="USES")
    )
    engine.add(told(6, "Tom stopped using the printer", "ended", "USES"))
    engine.check()
    assert restarts(engine) == [(1, 6, False, 2), (4, None, True, 1)]


def test_a_denial_sets_events_aside_too(tmp_path: Path) -> None:
    """R6: it speaks of every variant said before it; of those told later by when they were said."""
    engine = Engine(tmp_path)
    engine.add(told(1, "Tom restarted the printer"), told(5, "Tom never restarted the printer", "denied"))
    engine.add(told(3, "Tom rebooted the printer"), told(8, "Tom restarted the printer now"))
    engine.check()
    assert restarts(engine) == [(8, None, True, 1)]


def test_an_event_goes_with_its_last_episode_and_folds_with_its_ends(tmp_path: Path) -> None:
    """R16, R26: two things that are one have one event a date."""
    engine = Engine(tmp_path)
    other = {"source": "Tom", "target": "Laserjet", "relation": "RESTARTED", "kind": "happened"}
    engine.add(told(3, "Tom restarted the printer"), reading(3, [], [other]), reading(6, [], [other]))
    things = [e.id for e in engine.view().all_entities() if e.name != "Tom"]
    merged = engine.ask("merge", entities=tuple(things))
    engine.check()
    assert restarts(engine) == [(3, None, True, 2), (6, None, True, 1)]
    engine.ask("undo", target=merged["sequence"])
    engine.ask("remove", episodes=("Tom restarted the printer",))
    engine.check()
    assert restarts(engine) == [(3, None, True, 1), (6, None, True, 1)]


def test_no_question_is_asked_about_events(tmp_path: Path) -> None:
    """R17: what excludes nothing needs no cardinality and no verdict, however statements are judged."""

    class Deaf:
        identity = "deaf"

        def key(self, request: Any) -> str:
            raise AssertionError(request)

    engine = Engine(tmp_path, judge=Deaf())  # type: ignore[arg-type]
    facts = [
        {"source": "Tom", "target": place, "relation": "TOURED", "kind": "happened"}
        for place in ("Bonn", "Ulm")
    ]
    engine.add(reading(1, [], facts), reading(2, [], facts))
    found: list[Fact] = engine.view().all_facts()
    assert len(found) == 4
