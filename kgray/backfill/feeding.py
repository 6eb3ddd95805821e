"""Rows to the log, in the backfill lane: a batch at a time, while fewer than a bound wait there."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing

from kgray.backfill.manifest import Manifest, RunFolder
from kgray.backfill.reading import Reader, Row, Stop
from kgray.backfill.spending import Budget
from kgray.errors import NoSpace, Unavailable
from kgray.intake import Refusal
from kgray.memory.accepting import Submission
from kgray.memory.ingesting import Queued
from kgray.ports import Store

WAITING = 10_000  # episodes in the log that nobody has read: enough for any window, little to lose sight of
BATCH = 250  # rows of an accepting transaction, so that a run beside it is not held up
_PAUSE_S = 0.05
_SAVE_S, _SAVE_SHARE = 1.0, 20  # the least between two manifests; and as many times as long as one takes


class Feeder:
    """Feeds a run's rows to the store, and keeps its manifest."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        folder: RunFolder,
        *,
        budget: Budget,
        limit: int | None,
        stop: Stop,
        steps: Callable[[], Mapping[str, int]],
    ) -> None:
        """Feed into a store.

        limit   rows to take, duplicates counted, refused ones not; None = all
        steps   what this attempt has committed and failed so far, for the manifest
        """
        self._store, self._manifest, self._folder = store, manifest, folder
        self._budget, self._limit, self._stop, self._steps = budget, limit, stop, steps
        self._before = dict(manifest.sums)
        self._intake = Submission(
            store, replace=manifest.options["replace"], bulk=True, on_answer=self._answered
        )
        self._held: deque[Row] = deque()
        self._batch = 0  # rows of the next transaction; 0 = there may be no room for any
        self._next_save = 0.0
        self.accepted = self.duplicate = self.refused = 0
        self.untimed = self.retracted = 0
        self.ended = False
        self.limited = False  # the limit came before the last row
        self.reason = ""  # why feeding stopped by itself

    @property
    def queued(self) -> Mapping[str, Queued]:
        """What was accepted, and what to wait for."""
        return self._intake.queued

    async def feed(self, reader: Reader) -> None:
        """Take rows until there are no more, a bound is met or `stop()` is true; then `ended` is true."""
        try:
            async with aclosing(reader.rows()) as rows:
                await self._feed(rows)
            self._intake.finish(complete=reader.complete)
        except (NoSpace, Unavailable) as error:
            self.reason = str(error)
        finally:
            report = self._intake.counts
            self.untimed, self.retracted = report["untimed"], report["retracted"]
            self.ended = True

    async def _feed(self, rows: AsyncIterator[Row]) -> None:
        async for row in rows:
            if row.item is None:
                self._flush()
                row.file.complete = True
                continue
            if self._is_enough():
                self.limited = True
                return
            if not self._batch:
                await self._await_room()
            if self._stop():
                return
            self._held.append(row)
            self._intake.take(row.item)
            if self._intake.held >= self._batch:
                self._flush()
        self._flush()

    def _is_enough(self) -> bool:
        if self._limit is None or self.accepted + self.duplicate + self._intake.held < self._limit:
            return False
        self._flush()  # some of it may be refused
        return self.accepted + self.duplicate >= self._limit

    async def _await_room(self) -> None:
        """Return when episodes may be appended; how many of them is the next batch."""
        while not self._stop():
            waiting = self._store.pending_count()
            room = self._budget.room(WAITING, waiting)
            # Single rows as they find room would cost a transaction each.
            if room >= (1 if self._budget.bounded else BATCH):
                self._batch = min(BATCH, room)
                return
            self.save_now_and_then()
            await asyncio.sleep(_PAUSE_S)

    def _flush(self) -> None:
        self._intake.flush()
        self._batch = 0
        self.save_now_and_then()

    def _answered(self, answer: Refusal | str) -> None:
        """Count what became of the oldest row that is held."""
        row = self._held.popleft()
        if isinstance(answer, Refusal):
            self.refused += 1
            self._folder.refuse(answer, row.file.path, row.number)
            row.file.count("refused")
        else:
            self.accepted += answer == "accepted"
            self.duplicate += answer == "duplicate"
            row.file.count(answer)
        if self._manifest.options["order"] != "file":
            self._manifest.ordered = row.number + 1

    def save(self) -> None:
        """Write down how far the run has come."""
        steps = {"accepted": self.accepted, **self._steps()}
        self._manifest.sums = {name: self._before[name] + steps[name] for name in self._before}
        self._folder.save(self._manifest)

    def save_now_and_then(self) -> None:
        """Save where the last time is a while ago."""
        began = time.monotonic()
        if began >= self._next_save:
            self.save()
            ended = time.monotonic()
            self._next_save = ended + max(_SAVE_S, _SAVE_SHARE * (ended - began))
