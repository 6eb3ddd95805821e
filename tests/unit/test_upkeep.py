"""The time of loading models, restarts of workers that cannot load, and reports in between."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kgray.errors import SettingsError
from kgray.runtime.upkeep import Starts

FAULT = SettingsError("no memory on the card")


def row(pid: int, state: str = "fresh") -> dict[str, Any]:
    """Return the stats of a worker that is fresh, loading, loaded or faulty."""
    flags = {"loading": state == "loading", "loaded": state == "loaded"}
    return {"pid": pid, "fault": FAULT if state == "faulty" else None} | flags


def test_a_restarted_worker_loads_its_model_once() -> None:
    starts = Starts(5.0)
    assert starts.update({"a": row(1), "b": {"state": "unreachable"}}, 0.0) == (["a"], [])
    assert starts.update({"a": row(1, "loading"), "b": row(2)}, 1.0) == (["b"], [])
    assert starts.update({"a": row(1, "loaded"), "b": {}}, 2.0) == ([], [])
    assert starts.update({"a": {}, "b": row(2, "loaded")}, 3.0) == ([], [])
    assert starts.up() == ["a", "b"], "one is slow to answer"
    assert starts.update({"a": {}, "b": row(2, "loaded")}, 4.0) == ([], [])
    assert starts.up() == ["b"]
    assert starts.update({"a": row(9), "b": {}}, 5.0) == (["a"], []), "its process died at work: no pause"
    assert starts.quarantined() == {}


@pytest.mark.parametrize("fault", ["faulty", "ends"])
def test_a_failed_start_is_repeated_after_growing_pauses(fault: str) -> None:
    """It fails with a fault of the model, or the process ends while it loads it."""
    starts, pid, moment, tried = Starts(5.0), 1, 0.0, list[float]()
    while moment < 1500.0:
        state = (
            "loading"
            if pid == 1 and moment == 0.0
            else "fresh"
            if fault == "ends" or moment in tried
            else "faulty"
        )
        load, second_result = starts.update({"a": row(pid, state)}, moment)
        if load and fault == "ends":
            tried.append(moment)
            pid += 1
        if second_result:
            pid += 1
            tried.append(moment + 1.0)
        elif moment == 0.0 and fault == "ends":
            pid += 1
        moment += 1.0

    pauses = [round(second - first) for first, second in pairwise(tried)]
    assert pauses == sorted(pauses)
    assert pauses[:4] == pytest.approx([10, 20, 40, 80], abs=3)
    assert max(pauses) == pytest.approx(300, abs=3)
    why = {"faulty": "no memory on the card", "ends": "its process ended while it loaded its model"}[fault]
    assert starts.quarantined()["a"].startswith(f"{why} (")

    assert starts.update({"a": row(pid, "loaded")}, moment) == ([], [])
    assert starts.quarantined() == {}
    starts.update({"a": row(pid + 1, "faulty")}, moment + 100)
    assert starts.quarantined() == {"a": str(FAULT)}
    assert starts.update({"a": row(pid + 1, "faulty")}, moment + 104) == ([], [])
    assert starts.update({"a": row(pid + 1, "faulty")}, moment + 105) == ([], ["a"]), "the pauses begin anew"
    starts.update({}, moment + 106)
    assert starts.quarantined() == {}, "it was ended for good"
