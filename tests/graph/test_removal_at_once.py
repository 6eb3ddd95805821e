"""Retractions and removals wait for nothing; the place recorded with them gives the same graph (R20, R27)."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kgray.domain.records import Extraction, Operation
from kgray.errors import InvalidAnswer, Unavailable
from kgray.ingest.correct import withdraw_requested
from kgray.ingest.runner import Runner
from kgray.ports import ExtractionRequest
from kgray.ports.ingest import embedded
from kgray.settings import PipelineSettings
from kgray.storage.ledger import pending, request, result
from tests.graph.engine import GROUP, SMALL, Engine, WildJudge, engine_on, reading, works
from tests.graph.stores import EMBEDDED, Stores
from tests.graph.test_runner import COUNT, Shuffled, drafts
from tests.waiting import until


class Asking:
    """Requests retractions and removals of committed or pending episodes during a run."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine, self._rng = engine, random.Random(seed)
        self.requests: list[tuple[int, Operation]] = []
        self.steps = 0

    def __call__(self, _group: str, _sequence: int, outcome: str) -> None:
        """Receive a step; request an operation now and then."""
        self.steps += 1
        if outcome == "done" or self._rng.random() < 0.8:
            return
        kind = self._rng.choice(["retract", "remove"])
        named = tuple(f"e{self._rng.randrange(COUNT)}" for _ in range(self._rng.randrange(1, 4)))
        operation = Operation(group=GROUP, kind=kind, episodes=named)
        self.requests.append((request(self._engine.store, operation), operation))


def places(engine: Engine, requests: list[tuple[int, Operation]]) -> list[int]:
    """Return the recorded place of each."""
    answers = [result(engine.store, GROUP, sequence) for sequence, _ in requests]
    assert None not in answers
    return [answer["after"] for answer in answers if answer is not None]


@pytest.mark.parametrize(("seed", "window"), [pytest.param(0, 4, marks=pytest.mark.slow), (5, 64)])
def test_a_run_with_removals_gives_the_graph_of_the_plain_loop(tmp_path, seed, window):
    """Promise 1, in windows of 4 and 64, with wild answers, outages, refused texts, in any order.

    A run may end before it looks for requests again, so several follow one another. Episodes have no previous
    context here: a request sent before a removal keeps its context (R22), which the place does not show.
    """
    alone = PipelineSettings(previous_episodes=0)
    engine = Engine(tmp_path / "windowed", judge=WildJudge())
    engine.accept(*drafts(seed, COUNT))
    model = Shuffled(engine.parts.extractor, engine.parts.judge, seed)
    parts = replace(engine.parts, pipeline=alone, extractor=model, judge=model)
    parts = replace(parts, window=window, streams=8, patience_s=30)
    asking = Asking(engine, seed)
    while engine.store.pending_count():
        bound = asking.steps + COUNT // 4
        with engine.store.writing():
            asyncio.run(Runner(parts).run(on_step=asking, stop=lambda: asking.steps >= bound))  # noqa: B023
    recorded = places(engine, asking.requests)
    assert recorded == sorted(recorded)
    assert len(set(recorded)) > 2, "they came while episodes were pending"

    plain = Engine(tmp_path / "plain", judge=WildJudge())
    plain.accept(*drafts(seed, COUNT))
    model = Shuffled(plain.parts.extractor, plain.parts.judge, seed)
    plain.loop = type(plain.loop)(replace(plain.parts, pipeline=alone, extractor=model, patience_s=30))
    for (sequence, operation), place in zip(asking.requests, recorded, strict=True):
        replay(plain, end=place)
        assert request(plain.store, operation) == sequence
        with plain.store.writing():
            asyncio.run(withdraw_requested(plain.store, partial(embedded, SMALL), GROUP))
    plain.run()
    assert places(plain, asking.requests) == recorded
    assert engine.dump() == plain.dump()
    engine.check()


def replay(engine: Engine, end: int) -> None:
    """Carry out the pending rows, one by one, up to a sequence."""

    def reached() -> bool:
        pending = engine.store.pending_sequences(GROUP, 0, 1)
        return not pending or pending[0][0] > end

    with engine.store.writing():
        asyncio.run(engine.loop.run(stop=reached))


class Silent:
    """A model that never answers; its extractions of some episodes are refused instead."""

    identity = "silent"

    def __init__(self, refused: frozenset[int] = frozenset()) -> None:
        self._refused = refused

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Wait for ever."""
        if request.episode.sequence in self._refused:
            raise InvalidAnswer("no usable answer")
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("kind", ["retract", "remove"])
def test_operations_are_carried_out_while_a_model_does_not_answer(tmp_path, kind):
    """Episodes in flight are dropped, the named episodes leave the log, and the others are read again."""
    engine = Engine(tmp_path)
    engine.add(*(reading(n, [], [works(f"F{n}")], client_id=f"e{n}") for n in range(1, 4)))
    engine.accept(*(reading(n, [], [works(f"F{n}")], client_id=f"e{n}") for n in range(4, 8)))
    runner = Runner(replace(engine.parts, extractor=Silent(frozenset({4})), window=3))

    def in_flight() -> int:
        return 0 if runner.current is None else runner.current.in_flight

    async def served() -> int:
        running = asyncio.create_task(runner.run())
        await until(lambda: in_flight() == 3 and engine.store.counts(GROUP)[GROUP].failed == 1)
        sequence = request(engine.store, Operation(group=GROUP, kind=kind, episodes=("e2", "e6")))
        await until(lambda: result(engine.store, GROUP, sequence) is not None)
        await until(lambda: in_flight() == 2)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return sequence

    with engine.store.writing():
        sequence = asyncio.run(served())
    answer = result(engine.store, GROUP, sequence)
    assert answer is not None
    assert (answer["after"], answer["episodes"]) == (4, 2)
    assert [item.sequence for item in pending(engine.store, GROUP, 9)] == [5, 7]
    engine.run()
    assert list(engine.spans()) == ["F1", "F3", "F5", "F7"]
    engine.check()


def test_a_correction_in_its_place_is_finished_before_a_removal(tmp_path):
    """A merge keeps its place behind a pending episode, and is decided on the entities that remain then."""
    engine = Engine(tmp_path)
    engine.add(reading(1, [], [works("Acme")], client_id="a"), reading(2, [], [works("Beta")], client_id="b"))
    engine.accept(reading(3, [], [works("Gama")], client_id="c"))
    names = {e.name: e.id for e in engine.view().all_entities()}
    merge = request(
        engine.store, Operation(group=GROUP, kind="merge", entities=(names["Acme"], names["Beta"]))
    )
    response = request(engine.store, Operation(group=GROUP, kind="remove", episodes=("b",)))
    engine.loop = Runner(replace(engine.parts, window=8))
    engine.run()
    removed, refused = result(engine.store, GROUP, response), result(engine.store, GROUP, merge)
    assert removed is not None
    assert refused is not None
    assert removed["after"] == 2
    assert names["Beta"] in refused["error"]
    assert list(engine.spans()) == ["Acme", "Gama"]


@EMBEDDED
@pytest.mark.parametrize("kind", ["retract", "remove"])
def test_removed_pending_episodes_appear_in_no_dump(stores: Stores, kind: str) -> None:
    """A withdrawn pending episode was never known: it is not pending, not failed, and in no dump."""
    engine = engine_on(stores)
    engine.add(reading(1, [], [works("Acme")], client_id="a"))
    dump_before, known_at = engine.dump(), engine.last_recorded()
    engine.accept(reading(2, [], [works("Beta")], client_id="b"))
    answer = engine.ask(kind, episodes=("b",))
    assert answer == {
        "after": 1, "episodes": 1, "statements": 0, "facts_closed": 0, "facts_reopened": 0, "entities": 0
    }  # fmt: skip
    assert engine.store.pending_count(engine.named()) == 0
    for at in (None, known_at, engine.last_recorded() - 1, engine.last_recorded()):
        assert engine.dump(at) == dump_before
    counts = engine.store.counts(engine.named())[engine.named()]
    assert (counts.accepted, counts.committed, counts.failed) == (0, 1, 0)
    assert engine.store.heads([engine.named()])[engine.named()].last == 3


def test_a_group_can_be_cleared_during_an_outage(tmp_path: Path) -> None:
    """R27: a group is emptied with all its pending rows; later episodes stay."""
    engine = Engine(tmp_path)
    engine.accept(*drafts(1, 5))

    class Away:
        identity = "away"

        async def extract(self, request: ExtractionRequest) -> Extraction:
            raise Unavailable(f"nobody answers for {request.episode.sequence}")

    request(engine.store, Operation(group=GROUP, kind="remove", everything=True))
    engine.accept(reading(1, [], [works("Acme")], client_id="a"))
    parts = replace(engine.parts, extractor=Away(), patience_s=0)
    with engine.store.writing(), pytest.raises(Unavailable, match="nobody answers for 7"):
        asyncio.run(Runner(parts).run())
    assert [item.sequence for item in pending(engine.store, GROUP, 9)] == [7]
    engine.run()
    assert list(engine.spans()) == ["Acme"]
