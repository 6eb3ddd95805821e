"""The queue in front of an encoder: token rows of many calls share forward passes of a few fixed shapes.

A pass has one length, and always the same number of rows for it, because on several threads, and on a GPU,
the last digits of a row's result depend on the shape of its pass. Missing rows are replaced by padding, which
wastes time only while the device is busy: then the queue is long, and passes are full.

A row's length bucket follows from the row alone. The order of passes: those with rows of queries; a bucket
whose oldest row has waited for long; the fullest bucket.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = list[int]
# 8, 16, 24, 32, 40, ... 64, 80, ...: four steps from each power of two to the next. A pass has a multiple of
# 16 tokens, because otherwise a kernel computes its last rows with other code, and the result of a text
# depends on its row.
_LENGTHS = [8, 16, 24, *((4 + step) * 2**power for power in range(3, 12) for step in range(4))]
_LONGEST_WAIT_S = 1.0  # for a pass to become full while others are


def bucket_of(ids: Ids) -> int:
    """Return the length of the pass of a row.

    It is longer than the row, so that each pass has a mask: without one another kernel may run.
    """
    length: int = _LENGTHS[bisect_right(_LENGTHS, len(ids))]
    return length


def rows_of(length: int, tokens: int) -> int:
    """Return the number of rows of a pass: even, where its length is no multiple of 16."""
    return max(1, tokens // length // 2 * 2 if length % 16 else tokens // length)


@dataclass(slots=True, eq=False)
class _Job:
    """The rows of one call; its future gets their answers, in their order."""

    answers: list[Any]
    missing: int
    future: Future[list[Any]] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class Row:
    """One row of tokens in the queue."""

    ids: Ids
    since: float  # time.monotonic() of its arrival
    place: int  # among the rows of its call
    job: _Job

    def settle(self, answer: object) -> None:
        """Keep the answer; the last row of a call ends it."""
        self.job.answers[self.place] = answer
        self.job.missing -= 1
        if not self.job.missing:
            with suppress(InvalidStateError):  # nobody waits any longer
                self.job.future.set_result(self.job.answers)

    def fail(self, error: Exception) -> None:
        """End the call with an error."""
        with suppress(InvalidStateError):
            self.job.future.set_exception(error)


@dataclass(slots=True)
class _Bucket:
    """The waiting rows of one length."""

    size: int  # rows of a pass
    queries: deque[Row] = field(default_factory=deque)
    others: deque[Row] = field(default_factory=deque)

    def drop_cancelled(self) -> None:
        """Drop the first rows while nobody waits for them."""
        for rows in (self.queries, self.others):
            while rows and rows[0].job.future.done():
                rows.popleft()

    def __len__(self) -> int:
        return len(self.queries) + len(self.others)


class PassQueue:
    """Rows that wait for the device; used from several threads."""

    def __init__(self, tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        """tokens: of a pass, at most; a longer row has a pass of its own."""
        self._tokens, self._clock = tokens, clock
        self._buckets: dict[int, _Bucket] = {}
        self._lock = threading.Lock()
        # Rows and passes so far; tokens of rows; tokens of passes, padding included.
        self.counts = dict.fromkeys(("rows", "passes", "tokens", "slots"), 0)

    def put(self, inputs: Sequence[Ids], *, is_query: bool) -> Future[list[Any]]:
        """Add the rows of a call; return the future of their answers."""
        job, instant = _Job([None] * len(inputs), len(inputs)), self._clock()
        if not inputs:
            job.future.set_result([])
        with self._lock:
            for place, ids in enumerate(inputs):
                length = bucket_of(ids)
                if (bucket := self._buckets.get(length)) is None:
                    bucket = self._buckets[length] = _Bucket(rows_of(length, self._tokens))
                (bucket.queries if is_query else bucket.others).append(Row(ids, instant, place, job))
        return job.future

    def take(self) -> tuple[int, list[Row]] | None:
        """Return the length and the rows of the next pass; None: no row waits."""
        with self._lock:
            for bucket in self._buckets.values():
                bucket.drop_cancelled()
            waiting = {length: bucket for length, bucket in self._buckets.items() if len(bucket)}
            if not waiting:
                return None
            length = self._next(waiting)
            bucket, rows = waiting[length], list[Row]()
            for source in (bucket.queries, bucket.others):
                while source and len(rows) < bucket.size:
                    row = source.popleft()
                    if not row.job.future.done():
                        rows.append(row)
            self.counts["rows"] += len(rows)
            self.counts["passes"] += 1
            self.counts["tokens"] += sum(len(row.ids) for row in rows)
            self.counts["slots"] += bucket.size * length
        return length, rows

    def _next(self, waiting: dict[int, _Bucket]) -> int:
        """Return the length of the bucket that goes next."""
        asked = {length: bucket.queries[0].since for length, bucket in waiting.items() if bucket.queries}
        if asked:
            return min(asked, key=lambda length: asked[length])
        oldest = min(waiting, key=lambda length: waiting[length].others[0].since)
        if self._clock() - waiting[oldest].others[0].since > _LONGEST_WAIT_S:
            return oldest
        return max(waiting, key=lambda length: min(1.0, len(waiting[length]) / waiting[length].size))


Collect = Callable[[], Sequence[Any]]  # waits for a pass; returns an answer for each of its rows
Forward = Callable[[NDArray[np.int64], NDArray[np.int64]], Collect]  # starts a pass of ids and their mask


class PassLoop:
    """Carries out passes in one thread while rows wait."""

    def __init__(
        self, forward: Forward, thread: ThreadPoolExecutor, *, tokens: int, pad: int, ahead: int = 0
    ) -> None:
        """pad: the id that fills a row.

        ahead: passes that stay uncollected while the next starts; 0: each is collected before the next starts
        """
        self.forward, self._thread, self.tokens, self._pad = forward, thread, tokens, pad
        self._ahead, self._queue = ahead, PassQueue(tokens)
        self._lock, self._is_running = threading.Lock(), False
        self.counts = self._queue.counts

    async def ask(self, inputs: Sequence[Ids], *, is_query: bool) -> list[Any]:
        """Return an answer for each input, in their order. Raises what a pass raises."""
        future = self._queue.put(inputs, is_query=is_query)
        with self._lock:
            if not self._is_running:
                self._is_running = True
                self._thread.submit(self._run)
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        started: deque[tuple[list[Row], Collect]] = deque()
        while True:
            with self._lock:
                if (batch := self._queue.take()) is None and not started:
                    self._is_running = False
                    return
            if batch is not None and batch[1]:
                length, rows = batch
                try:
                    started.append((rows, self.forward(*self._filled(length, rows))))
                except Exception as error:  # noqa: BLE001 - such as a GPU without memory: it ends these calls
                    _fail(rows, error)
            while len(started) > (self._ahead if batch is not None else 0):
                rows, collect = started.popleft()
                try:
                    for row, answer in zip(rows, collect(), strict=False):
                        row.settle(answer)
                except Exception as error:  # noqa: BLE001 - as above
                    _fail(rows, error)

    def _filled(self, length: int, rows: list[Row]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids and the mask of a pass."""
        size = rows_of(length, self.tokens)
        ids = np.full((size, length), self._pad)
        mask = np.zeros((size, length), dtype=np.int64)
        mask[:, 0] = 1  # a padding row needs one visible token
        for at, row in enumerate(rows):
            count = len(row.ids)
            ids[at, :count], mask[at, :count] = row.ids, 1
        return ids, mask


def _fail(rows: list[Row], error: Exception) -> None:
    for row in rows:
        row.fail(error)
