"""An idle shard leaves looking at the log to one watch, which calls it when it gets entries."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kgray.ingest.runner import Runner
from kgray.ports import Store
from kgray.runtime.pools import Lost
from kgray.storage.sqlite import open_sqlite
from kgray.storage.transactions import slot_of
from tests.graph.engine import SMALL, Engine, triples, works
from tests.waiting import until

FEW_S = 1.0  # four looks of a run that looks for itself


class CountedReads:
    """A store that counts requests for pending work."""

    def __init__(self, store: Store) -> None:
        self._store, self.looks = store, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def newly_pending(self, mark: int, shard: int | None = None) -> tuple[dict[str, bool], int]:
        """Count a look, and answer it."""
        self.looks += 1
        return self._store.newly_pending(mark, shard)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """Return an engine whose store counts the looks at its log."""
    store = open_sqlite(tmp_path, embedder=SMALL.identity, dimensions=SMALL.dimensions)
    return Engine(store=CountedReads(store), window=8)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_watched", [True, False])
async def test_a_watched_idle_run_polls_only_when_it_is_called(engine: Engine, is_watched: bool) -> None:
    """A run without a watch looks by itself, so that the test notices a watch that does nothing."""
    store, ended, stopping = engine.store, [], False
    runner = Runner(engine.parts)
    with store.writing():
        served = asyncio.create_task(
            runner.serve(
                stop=lambda: stopping,
                on_step=lambda *step: ended.append(step),
                is_watched=lambda: is_watched,
            )
        )
        engine.accept(triples(1, works("Acme")))
        await until(lambda: len(ended) == 1 and runner.current is not None and runner.current.rests)
        await asyncio.sleep(0.1)
        looks_before = store.looks  # type: ignore[attr-defined]
        engine.accept(triples(2, works("Oslo")))
        await asyncio.sleep(FEW_S)
        if is_watched:
            assert (len(ended), store.looks - looks_before) == (1, 0)  # type: ignore[attr-defined]
            assert runner.current is not None
            runner.current.look()
        await until(lambda: len(ended) == 2)
        stopping = True
        await served


class FakeMethod:
    """A method of an actor that cannot be reached the first times."""

    def __init__(self, losses: int) -> None:
        self.losses, self.calls = losses, 0

    async def remote(self) -> None:
        """Answer, or raise the error of a lost actor."""
        self.calls += 1
        if self.calls <= self.losses:
            raise Lost("no answer")


class FakeSequencer:
    """A sequencer that was found by its name."""

    def __init__(self, losses: int = 0) -> None:
        self.look = FakeMethod(losses)


async def test_the_watch_calls_shards_with_new_entries_until_they_answer(tmp_path: Path) -> None:
    """A shard without entries is not called, and each look of the watch serves all shards."""
    pytest.importorskip("ray")
    from kgray.runtime.watch import LogWatch, name_of

    store = open_sqlite(tmp_path, embedder=SMALL.identity, dimensions=SMALL.dimensions)
    with store.writing(shard=0, shards=3):
        pass  # this divides the slots
    engine = Engine(store=store)
    owners = store.shard_map().owners
    groups = {owners[slot_of(name)]: name for name in (f"g{number}" for number in range(50))}
    sequencers = {name_of(shard): FakeSequencer(losses=shard) for shard in range(3)}
    watch = LogWatch(lambda: store, sequencers.__getitem__)
    watching = asyncio.create_task(watch.run())
    await until(lambda: watch.shards == 3)
    for shard in (0, 2):
        engine.accept(triples(1, works("Acme"), group=groups[shard]))
    await until(lambda: sequencers["sequencer-2"].look.calls == 3)
    assert sequencers["sequencer-0"].look.calls == 1
    assert sequencers["sequencer-1"].look.calls == 0
    watching.cancel()
