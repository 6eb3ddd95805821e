"""The worked cases of semantics section 7 on the real stores, in the given and the reversed order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graph.engine import engine_on, iso, triples, works
from tests.graph.stores import Stores

Said = tuple[float, dict[str, Any]]


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


NOW = None
CASES: list[Any] = [
    pytest.param([at(0, "Acme"), at(60, "Beta")], {"Acme": [(0, 60)], "Beta": [(60, NOW)]}, id="a"),
    pytest.param(
        [at(0, "Acme"), at(60, "Beta"), at(120, "Acme")],
        {"Acme": [(0, 60), (120, NOW)], "Beta": [(60, 120)]},
        id="b",
    ),
    pytest.param([at(0, "Acme"), since(60, 70, "Beta")], {"Acme": [(0, 60)], "Beta": [(60, NOW)]}, id="d"),
    pytest.param(
        [at(0, "Acme"), at(60, "Beta"), at(90, "Gama")],
        {"Acme": [(0, 60)], "Beta": [(60, 90)], "Gama": [(90, NOW)]},
        id="e",
    ),
    pytest.param(
        [at(0, "Acme"), at(60, "Beta"), at(90, "Gama"), at(130, "Acme"), at(140, "Acme"), at(150, "Delta")],
        {"Acme": [(0, 60), (130, 150)], "Beta": [(60, 90)], "Gama": [(90, 130)], "Delta": [(150, NOW)]},
        id="f",
    ),
    pytest.param([at(0, "Acme"), left(31, 90, "Acme")], {"Acme": [(0, 31)]}, id="l"),
    pytest.param(
        [at(0, "Acme"), left(31, 90, "Acme"), left(31, 91, "Acme")], {"Acme": [(0, 31)]}, id="l-twice"
    ),
    pytest.param(
        [at(0, "Acme"), since(40, 10, "Beta"), at(20, "Acme")],
        {"Acme": [(0, 40)], "Beta": [(40, NOW)]},
        id="m",
    ),
    pytest.param(
        [at(0, "Acme"), at(95, "Acme"), since(70, 100, "Beta")],
        {"Acme": [(0, 70)], "Beta": [(70, NOW)]},
        id="o",
    ),
    pytest.param([at(70, "Beta"), since(50, 100, "Acme")], {"Acme": [(50, NOW)], "Beta": [(70, 70)]}, id="p"),
    pytest.param(
        [since(18, 25, "Acme"), since(21, 26, "X", 22)],
        {"Acme": [(18, 21), (22, NOW)], "X": [(21, 22)]},
        id="q",
    ),
    pytest.param(
        [since(18, 19, "Acme"), since(21, 24, "X", 23)], {"Acme": [(18, 21)], "X": [(21, 23)]}, id="r"
    ),
    pytest.param([at(0, "Acme"), at(95, "Acme"), left(50, 100, "Acme")], {"Acme": [(0, 50)]}, id="s-late"),
    pytest.param(
        [at(0, "Acme"), at(95, "Acme"), left(50, 60, "Acme")], {"Acme": [(0, 50), (95, NOW)]}, id="s-early"
    ),
    pytest.param(
        [at(0, "Acme"), at(50, "Acme"), never(80, "Acme"), at(90, "Acme")], {"Acme": [(90, NOW)]}, id="t"
    ),
    pytest.param([left(90, 90, "Acme")], {"Acme": [(NOW, 90)]}, id="v"),
    pytest.param(
        [at(2024, "Acme"), since(2010, 2025, "Acme", 2015)], {"Acme": [(2010, 2015), (2024, NOW)]}, id="y0"
    ),
    pytest.param(
        [at(0, "Acme"), at(95, "Acme"), since(70, 100, "Beta"), left(80, 110, "Beta")],
        {"Acme": [(0, 70), (95, NOW)], "Beta": [(70, 80)]},
        id="y1",
    ),
    pytest.param([until(100, 0, "Acme"), until(200, 50, "Acme")], {"Acme": [(0, 200)]}, id="y2-longer"),
    pytest.param([left(80, 90, "Acme"), since(50, 100, "Acme")], {"Acme": [(50, NOW)]}, id="y2-lifted"),
    pytest.param([at(0, "Acme"), left(50, 10, "Acme"), at(20, "Acme")], {"Acme": [(0, 50)]}, id="y3"),
    pytest.param([since(0, 10, "Acme"), left(0, 10, "Acme")], {"Acme": [(0, 0)]}, id="y4"),
    pytest.param(
        [left(50, 100, "Acme"), left(90, 100, "Beta")], {"Acme": [(NOW, 50)], "Beta": [(50, 90)]}, id="y5"
    ),
    pytest.param([since(0, 0, "Acme", 50), since(0, 60, "Acme")], {"Acme": [(0, NOW)]}, id="y6"),
]


@pytest.mark.parametrize(("said", "expected"), CASES)
def test_a_history_gives_its_spans_whatever_the_order_of_arrival(
    stores: Stores, said: list[Said], expected: dict[str, Any]
) -> None:
    """Section 7, R13: as given; reversed where the instants of saying differ; one by one and at once.

    On a server in the given order alone: what else is held here does not depend on the store.
    """
    orders = {"given": said}
    if stores.thorough and len({when for when, _ in said}) == len(said):
        orders["reversed"] = said[::-1]
    for name, order in orders.items():
        at_once = engine_on(stores)
        at_once.add(*(triples(when, triple) for when, triple in order))
        at_once.check()
        spans, dumped = at_once.spans(), at_once.dump()
        assert spans == expected, name
        if not stores.thorough:
            continue
        one_by_one = engine_on(stores)
        for when, triple in order:
            one_by_one.add(triples(when, triple))
            one_by_one.check()
        assert one_by_one.spans() == expected, name
        assert one_by_one.dump() == dumped
