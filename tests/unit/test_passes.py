"""The queue of forward passes: their shapes and their order, with a pass that only records its rows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kgray.models.passes import PassLoop, PassQueue, bucket_of, rows_of

PAD = 0


def row(length: int, word: int = 7) -> list[int]:
    return [word] * length


def lengths(queue: PassQueue) -> list[tuple[int, int]]:
    """Return the passes of a queue until it is empty: length, and number of rows."""
    passes = []
    while (batch := queue.take()) is not None:
        passes.append((batch[0], len(batch[1])))
    return passes


@pytest.mark.parametrize(("length", "bucket"), [(1, 8), (7, 8), (8, 16), (40, 48), (63, 64), (64, 80)])
def test_a_row_is_padded_to_the_next_length_bucket(length, bucket):
    assert bucket_of(row(length)) == bucket


@pytest.mark.parametrize("tokens", [256, 4096])
def test_every_pass_has_a_multiple_of_16_tokens(tokens):
    for length in (8, 16, 24, 40, 48, 56, 80, 96, 112, 4096, 8192):
        assert rows_of(length, tokens) * length % 16 == 0


def test_rows_of_many_calls_share_full_passes():
    queue = PassQueue(256)
    for _ in range(40):  # 80 rows of 16 tokens, two a call
        queue.put([row(12), row(13)], is_query=False)
    assert lengths(queue) == [(16, 16)] * 5
    assert queue.counts == {"rows": 80, "passes": 5, "tokens": 80 * 12.5, "slots": 5 * 256}


def test_a_query_goes_first_and_ingestion_fills_its_pass():
    queue = PassQueue(256)
    queue.put([row(100)] * 5 + [row(12)] * 4, is_query=False)
    queue.put([row(12)], is_query=True)
    length, rows = queue.take()
    assert (length, len(rows)) == (16, 5)
    assert rows[0].ids == row(12)
    assert lengths(queue) == [(112, 2), (112, 2), (112, 1)]


def test_full_passes_go_first_until_a_row_has_waited_too_long():
    clock = [0.0]
    queue = PassQueue(256, lambda: clock[0])
    queue.put([row(200)], is_query=False)
    clock[0] = 0.5
    queue.put([row(12)] * 32, is_query=False)
    queue.put([row(30)], is_query=False)
    assert queue.take()[0] == 224  # a single row fills it
    assert queue.take()[0] == 16
    clock[0] = 1.6
    queue.put([row(12)] * 16, is_query=False)
    assert queue.take()[0] == 16  # the oldest one, by its place in the bucket
    assert lengths(queue) == [(32, 1), (16, 16)]


def test_rows_of_a_cancelled_call_are_dropped():
    queue = PassQueue(256)
    queue.put([row(12)] * 20, is_query=False).cancel()
    queue.put([row(12)] * 2, is_query=False)
    assert lengths(queue) == [(16, 2)]


class Device:
    """Answers a row with its number of tokens; holds passes back until released."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.firsts: list[int] = []
        self.free = threading.Event()
        self.free.set()

    def __call__(self, ids: Any, mask: Any) -> Callable[[], Sequence[Any]]:
        self.free.wait(10)
        self.shapes.append(ids.shape)
        self.firsts.append(int(ids[0, 1]))
        if (ids == 666).any():
            raise MemoryError("no room")
        return lambda: mask.sum(axis=1)


@pytest.fixture
def loop():
    with ThreadPoolExecutor(1) as thread:
        yield lambda device, passes_ahead=0: PassLoop(device, thread, tokens=256, pad=PAD, ahead=passes_ahead)


@pytest.mark.parametrize("passes_ahead", [0, 1])
async def test_concurrent_calls_get_their_answers_in_order(loop, passes_ahead):
    device = Device()
    passes = loop(device, passes_ahead)
    calls = [[row(length) for length in range(2, 60, step)] for step in range(1, 9)]
    answers = await asyncio.gather(*(passes.ask(call, is_query=False) for call in calls))
    assert [list(map(int, answer)) for answer in answers] == [[len(ids) for ids in call] for call in calls]
    assert {rows * length <= 256 for rows, length in device.shapes} == {True}
    assert await passes.ask([], is_query=False) == []


async def test_a_query_does_not_wait_for_the_calls_before_it(loop):
    device = Device()
    passes = loop(device)
    device.free.clear()
    bulk = [asyncio.create_task(passes.ask([row(100, 1)] * 20, is_query=False)) for _ in range(5)]
    await asyncio.sleep(0.05)
    query = asyncio.create_task(passes.ask([row(12, 2)], is_query=True))
    await asyncio.sleep(0.05)
    device.free.set()
    await asyncio.gather(query, *bulk)
    assert device.firsts.index(2) <= 1  # behind the pass that had begun
    assert device.firsts.count(1) == 50


async def test_a_failed_pass_fails_only_its_calls(loop):
    passes = loop(Device())
    good, bad = await asyncio.gather(
        passes.ask([row(12)], is_query=False),
        passes.ask([row(100, 666)], is_query=False),
        return_exceptions=True,
    )
    assert np.array_equal(good, [12])
    assert isinstance(bad, MemoryError)
    assert np.array_equal(await passes.ask([row(9)], is_query=False), [9])
