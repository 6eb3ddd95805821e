"""Decided and unwritten changes of a run: in order, batch by batch in lanes, reported when durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kgray.errors import StaleWriter, Unwritable
from kgray.ingest.outbox import BatchSize, Outbox
from kgray.ports import RowChanges
from kgray.schema.kinds import EPISODES

MAX_CHANGES = 32


class Slow:
    """A writer that notes its batches and takes its time."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.busy = False
        self.fails: Exception | None = None

    async def write(self, changes: Sequence[RowChanges]) -> None:
        assert not self.busy, "one batch at a time"
        self.busy = True
        await asyncio.sleep(0.001)
        self.busy = False
        if self.fails:
            raise self.fails
        self.batches.append([change.sequence for change in changes])


def commit(sequence: int, group: str = "g", **fields: Any) -> RowChanges:
    fields = {"recorded_at": sequence, **fields}
    return RowChanges(group=group, sequence=sequence, ledger=EPISODES, states=frozenset({0, 1}), **fields)


async def test_commits_posted_during_a_batch_go_with_the_next_batch_in_order():
    writer = Slow()
    outbox = Outbox(writer, most=MAX_CHANGES)
    durable: list[int] = []
    for sequence in range(3):
        outbox.post(commit(sequence), lambda s=sequence: durable.append(s))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for sequence in range(3, 3 + MAX_CHANGES + 2):
        outbox.post(commit(sequence), lambda s=sequence: durable.append(s))
    assert durable == []
    assert not outbox.idle
    await outbox.flush()
    assert [len(batch) for batch in writer.batches] == [3, MAX_CHANGES, 2]
    assert durable == [s for batch in writer.batches for s in batch] == list(range(5 + MAX_CHANGES))
    assert outbox.idle


async def test_a_failed_batch_is_reported_to_all_waiters_and_stops_the_outbox():
    writer = Slow()
    writer.fails = StaleWriter("an older epoch")
    outbox = Outbox(writer, most=MAX_CHANGES)
    durable: list[int] = []
    outbox.post(commit(1), lambda: durable.append(1))
    for _ in range(2):
        with pytest.raises(StaleWriter):
            await outbox.flush()
    assert (durable, outbox.idle) == ([], False)
    writer.fails = None
    outbox.post(commit(9))
    await asyncio.sleep(0.01)
    assert writer.batches == []
    outbox.drop()
    assert outbox.idle
    outbox.post(commit(2))
    await outbox.flush()
    assert writer.batches == [[2]]


async def test_answers_are_remembered_until_they_are_written():
    """R21: an equal question at the same time gets the first answer, before the journal has it."""
    outbox = Outbox(Slow(), most=MAX_CHANGES)
    outbox.remember("g", "k", ({"duplicate_of": 0},))
    outbox.remember("h", "k", ({"duplicate_of": 1},))
    assert outbox.answers.get(("g", "k")) == ({"duplicate_of": 0},)
    assert outbox.answers.get(("g", "other")) is None
    outbox.post(commit(1))
    assert outbox.answers.get(("g", "k")) == ({"duplicate_of": 0},)
    await outbox.flush()


async def test_an_erasure_drops_remembered_answers_of_its_group():
    """R25: removed answers are requested again, also from memory; another group keeps its answers."""
    outbox = Outbox(Slow(), most=MAX_CHANGES)
    outbox.remember("g", "k", ({"duplicate_of": 0},))
    outbox.remember("h", "k", ({"duplicate_of": 1},))
    outbox.post(commit(1, erases=True))
    assert outbox.answers.get(("g", "k")) is None
    assert outbox.answers.get(("h", "k")) == ({"duplicate_of": 1},)
    await outbox.flush()


async def test_flushing_an_empty_outbox_does_not_wait():
    outbox = Outbox(Slow(), most=MAX_CHANGES)
    await outbox.flush()
    assert outbox.idle


async def test_a_waiter_is_not_delayed_by_continuous_posts():
    """A group that is read from the store, and a correction, wait only for earlier changes."""
    outbox = Outbox(Slow(), most=MAX_CHANGES)
    posted = 0

    def post_again() -> None:
        nonlocal posted
        posted += 1
        if posted < 500:
            outbox.post(commit(posted, "busy"), post_again)

    post_again()
    outbox.post(commit(1))
    outbox.post(commit(1, "h", recorded_at=None))
    assert [g for g in ("g", "busy", "h") if outbox.has_unwritten(g)] == ["g", "busy"]
    await outbox.flush()

    assert [g for g in ("g", "busy") if outbox.has_unwritten(g)] == ["busy"]
    assert posted < 5
    outbox.drop()
    assert not outbox.has_unwritten("busy")


async def test_only_commits_of_a_refused_group_are_not_reported_durable() -> None:
    """Even if the group is resumed while batches of other groups are being written."""
    written: list[str] = []

    class Refuses(Slow):
        async def write(self, changes: Sequence[RowChanges]) -> None:
            await asyncio.sleep(0)
            if any(change.group == "bad" for change in changes):
                raise Unwritable("too large")
            written.extend(change.group for change in changes)
            outbox.faults.clear()

    outbox = Outbox(Refuses(), most=MAX_CHANGES)
    durable: list[str] = []
    for group in ("bad", "one", "bad", "two"):
        outbox.post(commit(len(durable), group), lambda g=group: durable.append(g))
    await outbox.flush()
    assert durable == written == ["one", "two"]


class Lanes:
    """A writer whose batches end when released; it records concurrent batches."""

    def __init__(self) -> None:
        self.going: dict[tuple[str, ...], asyncio.Future[None]] = {}

    async def write(self, changes: Sequence[RowChanges]) -> None:
        groups = tuple(sorted({change.group for change in changes}))
        assert not {*groups} & {group for item in self.going for group in item}, "of a group one at a time"
        self.going[groups] = asyncio.get_running_loop().create_future()
        try:
            await self.going[groups]
        finally:
            del self.going[groups]

    async def end(self, *groups: str, error: Exception | None = None) -> None:
        """Let a batch go, and wait until the outbox has seen it."""
        item = self.going[groups]
        item.set_exception(error) if error else item.set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_batches_of_different_groups_run_in_parallel_and_batches_of_one_group_in_order() -> None:
    writer, durable = Lanes(), list[str]()
    outbox = Outbox(writer, most=2, lanes=2)

    async def post(*names: str) -> None:
        for name in names:
            outbox.post(commit(int(name[1:]), name[0]), lambda n=name: durable.append(n))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    await post("a1")
    assert set(writer.going) == {("a",)}
    await post("a2", "b1")
    assert set(writer.going) == {("a",)}, "half a batch waits for more, or for a lane"
    await post("c1")
    assert set(writer.going) == {("a",), ("b", "c")}
    await post("d1", "e1", "c2")
    assert len(writer.going) == 2, "there are two lanes"
    flush = asyncio.ensure_future(outbox.flush())
    await writer.end("b", "c")
    assert (set(writer.going), durable) == ({("a",), ("c", "d", "e")}, ["b1", "c1"])
    await writer.end("c", "d", "e")
    assert set(writer.going) == {("a",)}
    await post("f1", "g1", "h1", "i1")
    assert set(writer.going) == {("a",), ("f", "g", "h", "i")}
    await writer.end("f", "g", "h", "i")
    assert not flush.done(), "a2 was posted before"
    await writer.end("a")
    assert set(writer.going) == {("a",)}
    await writer.end("a")
    assert flush.done()
    assert outbox.idle
    assert durable == ["b1", "c1", "d1", "e1", "c2", "f1", "g1", "h1", "i1", "a1", "a2"]
    assert not any(map(outbox.has_unwritten, "abcdef"))


async def test_a_failure_in_a_lane_is_reported_after_other_lanes_end() -> None:
    """Written changes are durable and reported; nothing is sent after the failure."""
    writer, durable = Lanes(), list[str]()
    outbox = Outbox(writer, most=1, lanes=2)
    for group in "ab":
        outbox.post(commit(1, group), lambda g=group: durable.append(g))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    outbox.post(commit(2, "a"))
    flush = asyncio.ensure_future(outbox.flush())
    await writer.end("a", error=StaleWriter("an older epoch"))
    assert set(writer.going) == {("b",)}
    assert not flush.done()
    await writer.end("b")
    with pytest.raises(StaleWriter):
        await flush
    assert (durable, writer.going, outbox.idle) == (["b"], {}, False)
    outbox.drop()
    assert outbox.idle


@pytest.mark.parametrize(
    ("once", "each", "lower", "upper"),
    [
        (0.1, 0.001, 256, 256),  # each transaction costs much: the more go together the better
        (0.0, 0.001, 32, 128),  # they cost nothing by themselves: nothing is gained
        (0.0, 0.5, 16, 16),  # every call takes too long
    ],
)
def test_the_batch_size_adapts_to_the_write_time(once: float, each: float, lower: int, upper: int) -> None:
    size = BatchSize(64)
    for _ in range(50):
        size.note(3, once + 3 * each)  # it was not full
        size.note(size.most, once + size.most * each)
    assert lower <= size.most <= upper


def test_a_batch_grows_again_when_the_server_is_faster() -> None:
    size = BatchSize(64)
    for _ in range(4):
        size.note(size.most, 3.0)
    assert size.most == 16
    for _ in range(50):
        size.note(size.most, 0.1 + size.most * 0.001)
    assert size.most >= 128


class Gathering:
    """An outbox whose writes wait for others while more are expected."""

    def __init__(self, gather_s: float) -> None:
        self.has_more = True
        self.writer = Slow()
        self.outbox = Outbox(self.writer, most=MAX_CHANGES, gather_s=gather_s, expects=lambda: self.has_more)

    async def post(self, *sequences: int) -> list[list[int]]:
        """Post changes, and return the batches that were written soon after."""
        for sequence in sequences:
            self.outbox.post(commit(sequence))
        await asyncio.sleep(0.02)
        return self.writer.batches


async def test_a_write_waits_for_others_while_more_are_expected_but_not_a_full_batch() -> None:
    gathering = Gathering(60.0)

    assert await gathering.post(1) == []
    assert await gathering.post(*range(2, MAX_CHANGES + 1)) == [list(range(1, MAX_CHANGES + 1))]


async def test_the_last_write_of_a_run_does_not_wait() -> None:
    """So a single message is durable at once."""
    gathering = Gathering(60.0)
    await gathering.post(1)
    gathering.has_more = False

    assert await gathering.post(2) == [[1, 2]]


async def test_waiting_for_a_write_sends_it_at_once() -> None:
    gathering = Gathering(60.0)
    await gathering.post(1)

    async with asyncio.timeout(5):
        await gathering.outbox.flush()
    assert gathering.writer.batches == [[1]]


async def test_a_write_waits_at_most_the_gathering_time_of_the_store() -> None:
    gathering, durable = Gathering(0.05), asyncio.Event()
    gathering.outbox.post(commit(1), durable.set)

    async with asyncio.timeout(5):
        await durable.wait()
    assert gathering.writer.batches == [[1]]
