"""The cost of an episode of many triples: in proportion to its length, for any shape."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.graph.engine import Engine, triples

RELATIONS = ("KNOWS", "WORKS_AT", "LIKES", "HAS_NOTE", "OWNS")


SHAPES: dict[str, Callable[[int], dict[str, Any]]] = {
    "many subjects": lambda i: {
        "source": f"Ann {i // 3}",
        "relation": RELATIONS[i % 5],
        "target": f"thing {i}",
    },
    "one subject": lambda i: {"source": "Ann", "relation": "LIKES", "target": f"thing {i}"},
    "values": lambda i: {"source": f"desk {i}", "relation": "COSTS", "target": i},
    "one slot": lambda i: {
        "source": "Ann",
        "relation": "WORKS_AT",
        "target": f"firm {i}",
        "valid_at": f"{1000 + i}-01-01",
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_episode_of_triples_costs_in_proportion_to_its_length(tmp_path: Path, shape: str) -> None:
    """In function calls, which do not depend on the machine; twice the triples took four times the calls."""
    calls = {}
    for length in (120, 240):
        engine = Engine(tmp_path / str(length))
        engine.add(triples(0, {"source": "Bob", "relation": "KNOWS", "target": "Cid"}))
        profile = cProfile.Profile()
        profile.runcall(engine.add, triples(1, *map(SHAPES[shape], range(length))))
        calls[length] = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
        assert len(engine.view().all_facts()) == length + 1
        engine.store.close()

    assert calls[240] < 2.3 * calls[120]
