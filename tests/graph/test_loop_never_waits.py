"""The runner's event loop does not wait for loads, corrections or derivations: other groups continue."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kgray.domain.records import GroupRecords, Operation
from kgray.graph.group import GroupGraph
from kgray.ingest import correct as withdraw
from kgray.ingest.calls import at_length, tell_lag
from kgray.ingest.runner import Runner
from kgray.ingest.state import GroupState
from kgray.storage.ledger import dumped_episodes, request
from tests.graph.engine import Engine
from tests.graph.test_runner import drafts

LARGE, SMALL = "g0", "g1"
PATIENCE_S = 60.0  # of a machine that does much else


class Slowly:
    """A call that, for one group, ends once another group has committed something."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.small_committed, self.went_on = call, threading.Event(), threading.Event()
        self.waited = False

    def __call__(self, store: Any, group: str, *args: Any, **named: Any) -> Any:
        """Wait, then call."""
        if group == LARGE:
            self.small_committed.set()
            assert self.went_on.wait(PATIENCE_S), "nobody else went on meanwhile"
            self.waited = True
        return self.call(store, group, *args, **named)

    def step(self, group: str, _: int, outcome: str) -> None:
        """Take a step of the run."""
        if group == SMALL and outcome == "committed" and self.small_committed.is_set():
            self.went_on.set()


def run(engine: Engine, slowly: Slowly) -> None:
    """Carry out everything, in order of turns: the large group's first."""
    with engine.store.writing():
        asyncio.run(Runner(engine.parts).run(on_step=slowly.step))
    assert slowly.waited, "the slow call was never made: nothing is tested"


def test_other_groups_continue_while_one_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load of seconds keeps its own group waiting; the graph is the plain loop's."""
    engine, plain = Engine(tmp_path / "a"), Engine(tmp_path / "b")
    for item in (engine, plain):
        item.accept(*drafts(5, 24, 2))
    plain.run()
    slowly = Slowly(GroupState.load)
    monkeypatch.setattr(GroupState, "load", slowly)

    run(engine, slowly)

    assert [engine.dump(group=g) for g in (LARGE, SMALL)] == [plain.dump(group=g) for g in (LARGE, SMALL)]


def test_other_groups_continue_while_a_removal_is_derived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal walks over its whole group, in a thread."""
    engine = Engine(tmp_path)
    first = drafts(5, 24, 2)
    engine.accept(*first)
    engine.run()
    removed_id = first[0].client_id or ""
    request(engine.store, Operation(group=LARGE, kind="remove", episodes=(removed_id,)))
    engine.accept(*(replace(draft, client_id=f"later {draft.client_id}") for draft in drafts(6, 24, 2)[1::2]))
    slowly = Slowly(withdraw.stored_records)
    monkeypatch.setattr(withdraw, "stored_records", slowly)

    run(engine, slowly)

    remaining_ids = [episode.client_id for episode in dumped_episodes(engine.store, LARGE)]
    assert remaining_ids
    assert removed_id not in remaining_ids


def test_a_removal_frees_its_derived_state_in_small_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropping a graph of 100,000 facts in one step would hold the interpreter's lock for 0.4 s."""
    engine, built = Engine(tmp_path), list[GroupGraph]()
    first = drafts(5, 24, 2)
    engine.accept(*first)
    engine.run()
    build = GroupGraph.build

    def noted(records: GroupRecords) -> GroupGraph:
        built.append(build(records))
        return built[-1]

    monkeypatch.setattr(withdraw.GroupGraph, "build", noted)
    request(engine.store, Operation(group=LARGE, kind="remove", episodes=(first[0].client_id or "",)))
    engine.run()

    first_state, second_state, *_ = built
    assert (first_state.statements, first_state.entities, first_state.texts, second_state.statements) == (
        {},
        {},
        {},
        {},
    )


def test_the_collector_waits_for_the_last_of_several_long_calls() -> None:
    """A collection during the calls would scan all their new objects, and block every thread."""
    first, second = threading.Event(), threading.Event()

    async def overlapping() -> bool:
        calls = [asyncio.create_task(at_length(item.wait)) for item in (first, second)]
        await asyncio.sleep(0)
        first.set()
        await calls[0]
        collects = gc.isenabled()
        second.set()
        await calls[1]
        return collects

    assert gc.isenabled()
    assert not asyncio.run(overlapping())
    assert gc.isenabled()


def test_lag_is_the_delay_of_the_event_loop() -> None:
    """A call in a thread adds nothing that counts; the same call in the loop is seen as a whole."""

    def busy() -> None:
        threading.Event().wait(0.3)

    async def lags(*, apart: bool) -> float:
        lags: list[float] = []
        probing = asyncio.create_task(tell_lag(lags.append))
        await asyncio.sleep(0.1)
        await at_length(busy) if apart else busy()
        await asyncio.sleep(0.1)
        probing.cancel()
        return max(lags)

    assert asyncio.run(lags(apart=False)) >= 0.2
    assert asyncio.run(lags(apart=True)) < 0.2


@pytest.mark.parametrize("usual", [0.005, 0.0004])
async def test_the_thread_switch_interval_is_restored_after_long_work(usual):
    interval_before = sys.getswitchinterval()
    sys.setswitchinterval(usual)
    try:
        interval = sys.getswitchinterval()
        for _ in range(20):
            during = await asyncio.gather(*(at_length(sys.getswitchinterval) for _ in range(2)))
        assert during == [min(interval, 0.001)] * 2
        assert sys.getswitchinterval() == interval
    finally:
        sys.setswitchinterval(interval_before)
