"""A group has one owner (R23): the store records the division, and a commit depends on its owner's state.

The model never answers the same twice, so that a decision on anything but stored rows is noticed at
once: the stored graph then differs from the derivation of its records.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kgray.domain.records import Draft, Extraction
from kgray.errors import Locked, Outrun, StaleWriter, StoreError
from kgray.graph.repair import differences
from kgray.ingest.runner import Runner
from kgray.ports import ExtractionRequest, Judged, QuestionRequest, RowChanges, Store
from kgray.schema.kinds import COMMITTED
from kgray.schema.reads import EPISODE_HEADS
from kgray.storage.transactions import slot_of
from tests.graph.by_hand import append, draft, statement_commit
from tests.graph.engine import Engine, ReadsItself, WildJudge, in_group, reading
from tests.graph.stores import Stores

EPISODES, GROUPS = 12, ("g", "h")
NAMES = ("Ada", "Bo", "Cy", "Dee")


class Fickle:
    """A model that reads something else, and judges otherwise, each time that it is asked."""

    identity = "fickle"

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Read an employer that no other call has read."""
        await asyncio.sleep(self._rng.random() * 0.004)
        fact = {
            "source": self._rng.choice(NAMES),
            "relation": "WORKS_AT",
            "target": f"Firm {self._rng.randrange(10_000)}",
        }
        text = reading(1, [], [fact]).text
        return await ReadsItself().extract(replace(request, episode=replace(request.episode, text=text)))

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key."""
        return request.key(self.identity)

    async def judge(self, request: QuestionRequest) -> Judged:
        """Answer each question; any answer that is valid will do."""
        await asyncio.sleep(self._rng.random() * 0.004)
        salted = [replace(q, text=f"{q.text} {self._rng.random()}") for q in request.questions]
        return Judged(answers=tuple(WildJudge._answer(q) for q in salted), calls=1)


def filled(stores: Stores) -> Engine:
    """Return an engine with pending episodes in two new groups."""
    engine = Engine(store=stores.open(), prefix=stores.fresh())
    drafts_of_groups: list[Draft] = [
        in_group(reading(n, [], []), GROUPS[n % len(GROUPS)]) for n in range(EPISODES)
    ]
    engine.accept(*drafts_of_groups)
    return engine


def checked(engine: Engine, steps: list[tuple[str, int]]) -> None:
    """Assert that each episode was reported committed once, is, and that the graph matches the records."""
    assert len(steps) == len(set(steps))
    for group in map(engine.named, GROUPS):
        reported = {sequence for name, sequence in steps if name == group}
        rows = engine.store.rows(EPISODE_HEADS, group)
        assert {row.sequence for row in rows if row.state == COMMITTED} == reported
        assert differences(engine.store, group) == []


def note(steps: list[tuple[str, int]], group: str, sequence: int, outcome: str) -> None:
    """Note a step that reports a commit."""
    if outcome == "committed":
        steps.append((group, sequence))


def runners(
    engine: Engine, seed: int, steps: list[tuple[str, int]], *stores: Any, shards: int = 1
) -> list[Any]:
    """Return the runs of as many runners as stores, each with a model and a memory of its own.

    shards: the total count; each store has the next shard, so that its runner sees that shard's groups
    """
    groups = {
        number: [g for g in map(engine.named, GROUPS) if slot_of(g) % shards == number]
        for number in range(shards)
    }
    new_runners = []
    for number, store in enumerate(stores):
        model = Fickle(2 * seed + number)
        parts = replace(engine.parts, store=store, extractor=model, judge=model, window=8, streams=4)
        new_runners.append(Runner(parts).run(groups=groups[number % shards], on_step=partial(note, steps)))
    return new_runners


def two_deciders(stores: Stores, seed: int) -> None:
    """Two runners that both pass the fence: one writer that two commit through."""
    engine, steps = filled(stores), list[tuple[str, int]]()
    store = engine.store

    async def both() -> None:
        await asyncio.gather(*runners(engine, seed, steps, store, store))

    with store.writing():
        asyncio.run(both())
    assert len(steps) == EPISODES
    checked(engine, steps)


def taken_over(stores: Stores, seed: int) -> None:
    """Let a second process take the hold from a run that lives: the first ends as stale."""
    engine, steps = filled(stores), list[tuple[str, int]]()
    other_memory = stores.open()

    async def both() -> list[Any]:
        first, second = runners(engine, seed, steps, engine.store, other_memory)
        going = asyncio.create_task(first)
        await asyncio.sleep(random.Random(seed).random() * 0.02)
        stores.lose_hold()
        with other_memory.writing():
            return await asyncio.gather(going, second, return_exceptions=True)

    with engine.store.writing():
        ended = asyncio.run(both())
    assert ended[0] is None or not isinstance(ended[0], Exception) or isinstance(ended[0], StaleWriter)
    assert not isinstance(ended[1], Exception)
    checked(engine, steps)


def divided_anew(stores: Stores, seed: int) -> None:
    """Let a deployment of 2 shards take the store from a live deployment of 3: its runs end as stale.

    On a server a shard is held by a process of its own, in a file all are held by one.
    """
    engine, steps = filled(stores), list[tuple[str, int]]()
    one_file = "Sqlite" in type(stores).__name__
    second = stores.open()
    first, other_stores = (
        [opened, *(opened if one_file else stores.open() for _ in range(count))]
        for opened, count in ((engine.store, 2), (second, 1))
    )

    async def both() -> tuple[list[Any], list[Any]]:
        going = [asyncio.create_task(run) for run in runners(engine, seed, steps, *first, shards=3)]
        await asyncio.sleep(random.Random(seed).random() * 0.02)
        stores.lose_hold()
        with ExitStack() as shard_holds:
            for shard, store in enumerate(other_stores):
                shard_holds.enter_context(store.writing(shard=shard, shards=2))
            newer = runners(engine, seed + 7_000, steps, *other_stores, shards=2)
            ended = await asyncio.gather(*going, *newer, return_exceptions=True)
            return ended[:3], ended[3:]

    with ExitStack() as shard_holds:
        for shard, store in enumerate(first):
            shard_holds.enter_context(store.writing(shard=shard, shards=3))
        older, newer = asyncio.run(both())
    assert all(not isinstance(end, Exception) or isinstance(end, StaleWriter) for end in older)
    assert not any(isinstance(end, Exception) for end in newer)
    checked(engine, steps)
    with engine.store.writing(shard=0, shards=1):
        pass  # as the database of the other tests is divided


class Under:
    """A writer of decisions that were made under one epoch."""

    def __init__(self, store: Store, epoch: int) -> None:
        self._store, self._epoch = store, epoch

    async def write(self, changes: Sequence[RowChanges]) -> None:
        """Apply the changes."""
        await asyncio.to_thread(self._store.apply, changes, epoch=self._epoch)


def moved(stores: Stores, seed: int) -> None:
    """Move the slot of a group from one run that lives to another: the first ends as stale."""
    engine, steps = filled(stores), list[tuple[str, int]]()
    group = engine.named(GROUPS[0])
    own_shard, slot = slot_of(group) % 2, [slot_of(group)]
    second = engine.store if "Sqlite" in type(stores).__name__ else stores.open()

    def run(store: Store, epoch: int, groups: list[str]) -> Any:
        model = Fickle(seed + epoch)
        writer = Under(store, epoch)
        parts = replace(engine.parts, store=store, extractor=model, judge=model, writer=writer, window=8)
        on_step = partial(note, steps)
        return Runner(parts).run(groups=groups, on_step=on_step)

    async def both(old: int, new: int) -> list[Any]:
        going = asyncio.create_task(run(engine.store, old, [group]))
        await asyncio.sleep(random.Random(seed).random() * 0.05)
        with engine.store.moving(slot, 1 - own_shard):
            await asyncio.sleep(random.Random(seed).random() * 0.01)
        return await asyncio.gather(going, run(second, new, [group]), return_exceptions=True)

    with (
        engine.store.writing(shard=own_shard, shards=2) as old,
        second.writing(shard=1 - own_shard, shards=2) as new,
    ):
        ended = asyncio.run(both(old, new))
    assert not isinstance(ended[0], Exception) or isinstance(ended[0], StaleWriter)
    assert not isinstance(ended[1], Exception)
    with engine.store.writing(shard=0, shards=1) as epoch:  # as the database of the other tests is divided
        asyncio.run(run(engine.store, epoch, [engine.named(GROUPS[1])]))
    checked(engine, steps)


CASES = [two_deciders, taken_over, divided_anew, moved]


@pytest.mark.parametrize(
    "case",
    [
        case if case is two_deciders else pytest.param(case, marks=pytest.mark.seldom_on_neo4j)
        for case in CASES
    ],
)
def test_two_runners_of_one_group_leave_a_graph_consistent_with_its_records(stores, case):
    for seed in range(6 if "Sqlite" in type(stores).__name__ else 1):
        case(stores, seed)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_runners_of_one_group_with_many_seeds(stores, case):
    for seed in range(100, 200 if "Sqlite" in type(stores).__name__ else 115):
        case(stores, seed)


# ---------------------------------------------------------------------- dependencies of a commit


def resting(change: RowChanges, on: int) -> RowChanges:
    return replace(change, rests_on=on)


def test_a_commit_based_on_an_outdated_record_is_refused(store, group):
    append(store, *(draft(text, group=group) for text in ("Al says one", "Bo says two", "Cy says three")))
    first, mine = (
        statement_commit(1, "Al", "one", 10, group=group),
        statement_commit(2, "Bo", "two", 30, group=group),
    )
    theirs = statement_commit(2, "Bo", "another", 20, group=group)
    with store.writing():
        store.apply([resting(first, 0), resting(theirs, 10)])
        for stale in (
            resting(mine, 10),
            resting(mine, 0),
            resting(statement_commit(3, "Cy", "x", 40, group=group), 10),
        ):
            with pytest.raises(Outrun, match="has changed since"):
                store.apply([stale])
        store.apply([resting(first, 0), resting(theirs, 10)])  # sent again: the answer was lost
        store.apply([resting(statement_commit(3, "Cy", "three", 40, group=group), 20)])
    assert store.heads([group])[group].last_recorded == 40


# ------------------------------------------------------------------- the map of groups to shards


@pytest.mark.neo4j
@pytest.mark.parametrize("stores", [pytest.param("neo4j", marks=pytest.mark.neo4j)], indirect=True)
def test_another_number_of_shards_is_refused_and_a_local_run_needs_all_shards(stores, group):
    item, other_memory, local = stores.open(), stores.open(), stores.open()
    append(item, draft("Al says one", group=group))
    own_shard = slot_of(group) % 3
    with item.writing(shard=own_shard, shards=3) as epoch:
        with pytest.raises(StoreError, match=r"divided among 3 shards.*this deployment has 2"):
            other_memory.writing(shard=0, shards=2).__enter__()
        with pytest.raises(Locked, match="is ingesting"):
            local.writing().__enter__()
        next_shard = (own_shard + 1) % 3
        with (
            other_memory.writing(shard=next_shard, shards=3),
            pytest.raises(StaleWriter, match="which this run does not hold"),
        ):
            other_memory.apply([statement_commit(1, "Al", "one", 10, group=group)])
        item.apply([statement_commit(1, "Al", "one", 10, group=group)])
    with local.writing() as newer:
        assert newer > epoch
        with pytest.raises(Locked, match="is ingesting"):
            item.writing(shard=0, shards=3).__enter__()
        with pytest.raises(Locked, match="is ingesting"):
            other_memory.writing(shard=0, shards=2).__enter__()
    with (
        other_memory.writing(shard=0, shards=2),
        pytest.raises(StaleWriter),
    ):  # no shard was held: divided again
        item.writing(epoch=epoch, shard=own_shard, shards=3).__enter__()
    with item.writing(shard=0, shards=1):
        pass
