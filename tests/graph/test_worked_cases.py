"""The worked cases of semantics section 7 that are one slot's history: a-f, l, m, o-t, v, y0-y7."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kgray
from kgray import times
from tests.graph.engine import Engine, day, iso, triples, works
from tests.graph.stores import Stores, prefix

Said = tuple[float, dict[str, Any]]
Spans = dict[str, list[tuple[Any, Any]]]


def at(when: float, name: str) -> Said:
    """`name@when`: present tense, said on that day."""
    return when, works(name)


def since(start: float, said: float, name: str, until: float | None = None) -> Said:
    """`name since start (said)`, maybe with a stated end."""
    more = {"valid_at": iso(start)} | ({} if until is None else {"invalid_at": iso(until)})
    return said, works(name, **more)


def until(end: float, said: float, name: str) -> Said:
    """`at name until end (said)`: present tense with a stated end."""
    return said, works(name, invalid_at=iso(end))


def left(end: float, said: float, name: str) -> Said:
    """`left name on end (said)`: an end with no start."""
    return said, works(name, valid_at=None, invalid_at=iso(end))


def never(said: float, name: str) -> Said:
    """`never worked at name (said)`: a denial."""
    return said, works(name, denied=True)


PLAIN, PART_TIME = "Alice works at Acme", "Alice works at Acme part-time"


def worded(when: float, text: str, **more: Any) -> Said:
    """`Acme@when` in a sentence of its own, which may make it another variant."""
    return when, works("Acme", text=text, **more)


NOW = None
NO_LONGER = {"valid_at": None, "invalid_at": iso(70)}
# id: what is said, in order of arrival; the spans that it gives. d and e are said at once, c is both orders.
CASES: dict[str, tuple[list[Said], Spans]] = {
    "a": ([at(0, "Acme"), at(60, "Beta")], {"Acme": [(0, 60)], "Beta": [(60, NOW)]}),
    "b": (
        [at(0, "Acme"), at(60, "Beta"), at(120, "Acme")],
        {"Acme": [(0, 60), (120, NOW)], "Beta": [(60, 120)]},
    ),
    "d": ([at(0, "Acme"), since(60, 70, "Beta")], {"Acme": [(0, 60)], "Beta": [(60, NOW)]}),
    "e": (
        [at(0, "Acme"), at(60, "Beta"), at(90, "Gama")],
        {"Acme": [(0, 60)], "Beta": [(60, 90)], "Gama": [(90, NOW)]},
    ),
    "f": (
        [at(0, "Acme"), at(60, "Beta"), at(90, "Gama"), at(130, "Acme"), at(140, "Acme"), at(150, "Delta")],
        {"Acme": [(0, 60), (130, 150)], "Beta": [(60, 90)], "Gama": [(90, 130)], "Delta": [(150, NOW)]},
    ),
    "l": ([at(0, "Acme"), left(31, 90, "Acme")], {"Acme": [(0, 31)]}),
    "l-twice": ([at(0, "Acme"), left(31, 90, "Acme"), left(31, 91, "Acme")], {"Acme": [(0, 31)]}),
    "m": ([at(0, "Acme"), since(40, 10, "Beta"), at(20, "Acme")], {"Acme": [(0, 40)], "Beta": [(40, NOW)]}),
    "o": ([at(0, "Acme"), at(95, "Acme"), since(70, 100, "Beta")], {"Acme": [(0, 70)], "Beta": [(70, NOW)]}),
    "p": ([at(70, "Beta"), since(50, 100, "Acme")], {"Acme": [(50, NOW)], "Beta": [(70, 70)]}),
    "q": ([since(18, 25, "Acme"), since(21, 26, "X", 22)], {"Acme": [(18, 21), (22, NOW)], "X": [(21, 22)]}),
    "r": ([since(18, 19, "Acme"), since(21, 24, "X", 23)], {"Acme": [(18, 21)], "X": [(21, 23)]}),
    "s-late": ([at(0, "Acme"), at(95, "Acme"), left(50, 100, "Acme")], {"Acme": [(0, 50)]}),
    "s-early": ([at(0, "Acme"), at(95, "Acme"), left(50, 60, "Acme")], {"Acme": [(0, 50), (95, NOW)]}),
    "t": ([at(0, "Acme"), at(50, "Acme"), never(80, "Acme"), at(90, "Acme")], {"Acme": [(90, NOW)]}),
    "v": ([left(90, 90, "Acme")], {"Acme": [(NOW, 90)]}),
    "y0": ([at(2024, "Acme"), since(2010, 2025, "Acme", 2015)], {"Acme": [(2010, 2015), (2024, NOW)]}),
    "y1": (
        [at(0, "Acme"), at(95, "Acme"), since(70, 100, "Beta"), left(80, 110, "Beta")],
        {"Acme": [(0, 70), (95, NOW)], "Beta": [(70, 80)]},
    ),
    "y2-longer": ([until(100, 0, "Acme"), until(200, 50, "Acme")], {"Acme": [(0, 200)]}),
    "y2-lifted": ([left(80, 90, "Acme"), since(50, 100, "Acme")], {"Acme": [(50, NOW)]}),
    "y3": ([at(0, "Acme"), left(50, 10, "Acme"), at(20, "Acme")], {"Acme": [(0, 50)]}),
    "y4": ([since(0, 10, "Acme"), left(0, 10, "Acme")], {"Acme": [(0, 0)]}),
    "y5": ([left(50, 100, "Acme"), left(90, 100, "Beta")], {"Acme": [(NOW, 50)], "Beta": [(50, 90)]}),
    "y7-denied": ([at(0, "Acme"), worded(5, PART_TIME), never(80, "Acme")], {}),
    "y7-denied-then-said": (
        [at(0, "Acme"), worded(5, PART_TIME), never(80, "Acme"), worded(90, PART_TIME)],
        {"Acme": [(90, NOW)]},
    ),
    "y7-one-denied": (
        [
            worded(0, PLAIN),
            worded(50, PART_TIME),
            worded(80, "Alice never worked at Acme part-time", denied=True),
        ],
        {"Acme": [(0, NOW)]},
    ),
    "y7-left": ([at(0, "Acme"), worded(50, PART_TIME), left(70, 90, "Acme")], {"Acme": [(0, 50), (50, 70)]}),
    "y7-left-early": (
        [at(0, "Acme"), left(31, 40, "Acme"), worded(50, PART_TIME)],
        {"Acme": [(0, 31), (50, NOW)]},
    ),
    "y7-one-left": (
        [worded(0, PLAIN), worded(90, "Alice no longer works at Acme part-time", **NO_LONGER)],
        {"Acme": [(NOW, 0), (0, NOW)]},
    ),
    "y6": ([since(0, 0, "Acme", 50), since(0, 60, "Acme")], {"Acme": [(0, NOW)]}),
}


def histories() -> dict[str, tuple[list[Said], Spans]]:
    """Return every case as given, and reversed where no two things are said at one instant (R13)."""
    found = {}
    for name, (said, expected) in CASES.items():
        found[f"{name}-given"] = said, expected
        if len({when for when, _ in said}) == len(said) > 1:
            found[f"{name}-reversed"] = said[::-1], expected
    return found


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Return the plain loop that was told of every case, one episode at a time; checked after each."""
    engine = Engine(tmp_path_factory.mktemp("one-by-one"), prefix=prefix())
    for name, (said, expected) in histories().items():
        for told in said:
            engine.add(triples(*told, group=name))
            engine.check(name)
        assert engine.spans(group=name) == expected, name
    return engine


@pytest.mark.parametrize(
    ("stores", "window"),
    [
        pytest.param("sqlite", 0, id="sqlite-plain-loop"),
        pytest.param("sqlite", 8, id="sqlite-windowed"),
        pytest.param("neo4j", 8, id="neo4j-windowed", marks=pytest.mark.neo4j),
    ],
    indirect=["stores"],
)
def test_a_history_gives_its_spans_whatever_the_order_of_arrival(
    stores: Stores, one_by_one: Engine, window: int
) -> None:
    """R13, R20: all cases at once, each in a group of its own; the graph is that of one episode at a time."""
    stores.prefix = one_by_one.prefix  # the ids of a graph are made of its group's name
    engine = Engine(store=stores.open(), prefix=stores.prefix, window=window)
    played = histories()
    engine.accept(*(triples(*told, group=name) for name, (said, _) in played.items() for told in said))
    engine.run()

    spans = {name: engine.spans(group=name) for name in played}
    assert spans == {name: expected for name, (_, expected) in played.items()}
    for name in played:
        if window and not engine.store.remote:
            engine.check(name)
        assert one_by_one.dump(group=name) == engine.dump(group=name), name


PERSON = "Tom Okafor"


def scripted_reply(said: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a message about a full name, and what a reader who is always right says of it."""
    given = {key: value for key, value in said.items() if key != "denied"}
    if said.get("denied"):
        given["kind"] = "denied"
    words = f"{PERSON} works at {said['target']}"
    dates = "".join(f" on {str(said[key])[:10]}" for key in ("valid_at", "invalid_at") if said.get(key))
    fact = given | {"source": PERSON, "fact": words}
    return words + dates, {"entities": [{"name": PERSON}, {"name": said["target"]}], "facts": [fact]}


@pytest.mark.parametrize("speaker", [None, PERSON, "Nina Petrova"], ids=["none", "himself", "another"])
def test_a_history_told_in_messages_needs_a_script_of_extractions_alone(
    tmp_path: Path, speaker: str | None
) -> None:
    """All cases but those of variants, which a judge is asked about; nothing else is."""
    played = {name: case for name, case in histories().items() if not name.startswith("y7")}
    script, rows = [], []
    for name, (said, _) in played.items():
        for number, (when, fact) in enumerate(said):
            text, reply = scripted_reply(fact)
            script.append({"episode": f"{name}-{number}", "extraction": reply})
            row = {"id": f"{name}-{number}", "group": name, "text": text, "at": iso(when)}
            rows.append(row if speaker is None else row | {"speaker": speaker})
    path = tmp_path / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in script))

    with kgray.open(tmp_path / "data", model_backend="scripted", model_script=str(path)) as memory:
        report = memory.add_many(rows)
        assert (report.committed, report.failed) == (len(rows), 0)
        for name, (_, expected) in played.items():
            found: Spans = {}
            for fact in map(json.loads, memory.dump(group=name)):
                if fact["type"] == "fact":
                    span = tuple(
                        NOW if at is None else (times.parse(at)[0] - day(0)) / times.DAY
                        for at in (fact["valid_at"], fact["invalid_at"])
                    )
                    found.setdefault(fact["text"].removeprefix(f"{PERSON} works at "), []).append(span)
            assert {org: set(spans) for org, spans in found.items()} == {
                org: set(spans) for org, spans in expected.items()
            }, name
