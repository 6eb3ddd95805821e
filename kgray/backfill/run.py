"""One attempt of a run: rows go into the log while what is pending is carried out, until both are done."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgray import times
from kgray.backfill.budget import Budget
from kgray.backfill.inputs import InputFile, check_sources
from kgray.backfill.manifest import Manifest, RunFolder, RunState, next_attempt
from kgray.backfill.report import SHOWN, RecentRate, RunProgress, RunReport, failures_of
from kgray.backfill.rows import BackfillRows, Order, PlacedRow
from kgray.errors import KgrayError, NoSpace, Unavailable
from kgray.intake.drafts import Defaults, Refusal
from kgray.ledger import FailedEpisode, failures
from kgray.memory import Memory, Report
from kgray.memory.ingesting import Submission, last_sequences
from kgray.memory.run_files import REPORT, SORTED
from kgray.ports.ingest import IngestOutcome, Stop, never

WAITING = 10_000  # pending episodes at most: enough to fill any window, and the log does not run far ahead
BATCH = 250  # rows of an accepting transaction: small, so that commits of the run beside it do not wait
_PAUSE_S = 0.05  # between two looks for room in the log
_TICK_S = 0.25  # between two reports of progress
_SAVE_S, _SAVE_SHARE = 1.0, 20  # least time between two manifests: 1 s, and 20 times as long as one takes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a run is to do; None = no bound.

    limit                   rows that this attempt takes, duplicates counted, refused ones not
    max_calls, max_tokens   of the model, in this attempt
    """

    run: str
    inputs: Sequence[InputFile]
    defaults: Defaults
    replace: bool = False
    again: bool = False
    order: Order = "file"
    limit: int | None = None
    max_calls: int | None = None
    max_tokens: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What changes how a row is read."""
        at = self.defaults.at
        return {
            "group": self.defaults.group,
            "source": self.defaults.source,
            "kind": self.defaults.kind,
            "at": None if at is None else times.show(at),
            "replace": self.replace,
            "again": self.again,
            "order": self.order,
        }


OnProgress = Callable[[RunProgress], None]


async def backfill(
    memory: Memory, data: Path, request: RunRequest, *, stop: Stop = never, watch: OnProgress | None = None
) -> RunReport:
    """Carry out a run, or what earlier attempts left of it; return this attempt's report.

    data: the data folder, which holds the manifest; stop: polled; watch: gets the progress 4 times a second
    Raises InputError where another process carries out the same run, StoreError where the store or the
    run's folder fails.
    """
    if request.replace:
        check_sources(request.inputs)
    folder = RunFolder(data, request.run)
    with folder.locked():
        if request.order == "file":  # an earlier attempt may have had another order
            shutil.rmtree(folder.path / SORTED, ignore_errors=True)
        manifest = next_attempt(request.run, request.inputs, request.options, folder.load())
        folder.open_refused(manifest)
        report = await _RunAttempt(memory, folder, manifest, request, stop).run(watch)
        folder.replace(REPORT, report.as_dict())
        return report


class _RunAttempt:
    """One attempt: a task that appends rows to the log, one that reports progress, and the ingest itself."""

    def __init__(
        self, memory: Memory, folder: RunFolder, manifest: Manifest, request: RunRequest, stop: Stop
    ) -> None:
        self._memory, self._store = memory, memory.store
        self._folder, self._manifest = folder, manifest
        self._limit, self._stop_asked = request.limit, stop
        self._began = time.monotonic()
        self._skipped = manifest.total("accepted") + manifest.total("duplicate")
        self._sums = dict(manifest.sums)  # of the attempts before this one
        self._before = last_sequences(self._store)
        # Another process may have ended what was there a moment ago.
        pages = {group: self._store.pending_sequences(group, 0, 1) for group in self._before}
        self._was_pending = {g: range(page[0][0], self._before[g] + 1) for g, page in pages.items() if page}
        self._pending = self._store.pending_count()
        self._rows: Counter[str] = Counter()  # accepted, duplicate, refused
        self._steps: Counter[str] = Counter()  # committed and failed, as far as this process sees it
        self._held: deque[PlacedRow] = deque()  # taken, but not yet accepted or refused
        self._batch = 0  # rows of the next transaction; 0 = there may be no room for any
        self._fed = False  # feeding has ended
        self._limited = False  # the limit was reached before the last row
        self._reason = ""  # why feeding stopped by itself
        self._halted = False
        self._next_save = 0.0
        self._rate = RecentRate()
        self._budget = Budget(self._store, calls=request.max_calls, tokens=request.max_tokens)
        self._reader = BackfillRows(manifest, request.defaults, folder.path, self._stop)
        self._submission = Submission(
            self._store, replace=request.replace, again=request.again, bulk=True, on_answer=self._answered
        )

    async def run(self, watch: OnProgress | None) -> RunReport:
        self._save()
        feeding = asyncio.create_task(self._feed())
        feeding.add_done_callback(self._feeding_ended)
        ticking = asyncio.create_task(self._tick(watch))
        try:
            done = await self._memory.runtime.carry_out(
                self._submission.queued,
                before=self._before,
                more=lambda: not self._fed,
                stop=self._stop,
                room=self._budget.in_flight,
                on_step=self._step,
                on_wait=self._memory.on_wait,
            )
            self._halted = True  # an outage may have ended it before the last row
            await feeding
        except KgrayError as error:
            self._end("stopped", str(error))
            raise
        finally:
            self._halted = True
            ticking.cancel()
            feeding.cancel()
            await asyncio.gather(feeding, ticking, return_exceptions=True)
        return self._report(done)

    def _stop(self) -> bool:
        return self._halted or self._stop_asked() or bool(self._budget.over())

    def _step(self, _group: str, _sequence: int, outcome: str) -> None:
        self._steps[outcome] += 1

    # ------------------------------------------------------------------------------- feeding

    async def _feed(self) -> None:
        """Take rows until there are no more, a bound is met or `_stop()` is true."""
        try:
            async with aclosing(self._reader.rows()) as rows:
                await self._take(rows)
            self._submission.finish(complete=self._reader.complete)
        except (NoSpace, Unavailable) as error:
            self._reason = str(error)
        finally:
            self._fed = True

    def _feeding_ended(self, feeding: asyncio.Task[None]) -> None:
        """Stop the run if feeding has failed: its error is reported now, not after all that is pending."""
        self._halted |= feeding.cancelled() or feeding.exception() is not None

    async def _take(self, rows: AsyncIterator[PlacedRow]) -> None:
        async for row in rows:
            if row.item is None:
                self._flush()
                row.file.complete = True
                continue
            if self._is_enough():
                self._limited = True
                return
            if not self._batch:
                await self._await_room()
            if self._stop():
                return
            self._held.append(row)
            self._submission.take(row.item)
            if self._submission.held >= self._batch:
                self._flush()
        self._flush()

    def _is_enough(self) -> bool:
        if self._limit is None or self._taken() + self._submission.held < self._limit:
            return False
        self._flush()  # some of it may be refused
        return self._taken() >= self._limit

    def _taken(self) -> int:
        return self._rows["accepted"] + self._rows["duplicate"]

    async def _await_room(self) -> None:
        """Wait until there is room for more episodes; sets `_batch` to how many."""
        while not self._stop():
            room = self._budget.room(WAITING, self._store.pending_count())
            # Single rows as they find room would cost a transaction each.
            if room >= (1 if self._budget.bounded else BATCH):
                self._batch = min(BATCH, room)
                return
            self._save_now_and_then()
            await asyncio.sleep(_PAUSE_S)

    def _flush(self) -> None:
        self._submission.flush()
        self._batch = 0
        self._save_now_and_then()

    def _answered(self, answer: Refusal | str) -> None:
        """Count the outcome of the oldest row in `_held`."""
        row = self._held.popleft()
        if isinstance(answer, Refusal):
            self._folder.refuse(answer, row.file.path, row.number)
            answer = "refused"
        row.file.count(answer)
        self._rows[answer] += 1
        if self._manifest.by_time:
            self._manifest.ordered = row.number + 1

    # -------------------------------------------------------------------------- the manifest

    def _save(self) -> None:
        steps = {"accepted": self._rows["accepted"], **self._steps}
        self._manifest.sums = {name: number + steps.get(name, 0) for name, number in self._sums.items()}
        self._folder.save(self._manifest)

    def _save_now_and_then(self) -> None:
        began = time.monotonic()
        if began >= self._next_save:
            self._save()
            ended = time.monotonic()
            self._next_save = ended + max(_SAVE_S, _SAVE_SHARE * (ended - began))

    def _end(self, state: RunState, reason: str) -> None:
        self._manifest.state, self._manifest.reason = state, reason
        self._save()

    # ------------------------------------------------------------------------- the progress

    async def _tick(self, watch: OnProgress | None) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._save_now_and_then()
            if watch is not None:
                with suppress(Unavailable):  # an outage of the store: the run itself waits it out
                    watch(self._progress())

    def _progress(self) -> RunProgress:
        waiting = self._store.pending_count()
        seen = self._steps["committed"] + self._steps["failed"]
        # Another process's steps are not seen.
        ended = max(seen, self._pending + self._rows["accepted"] - waiting)
        left = 0 if self._fed else self._reader.left()
        return RunProgress(
            accepted=self._rows["accepted"],
            duplicate=self._rows["duplicate"],
            refused=self._rows["refused"],
            ended=ended,
            failed=self._steps["failed"],
            rate=self._rate.at(time.monotonic(), ended),
            total=None if left is None else ended + waiting + left,
            sorting=self._reader.sorting,
        )

    # --------------------------------------------------------------------------- the report

    def _report(self, done: IngestOutcome) -> RunReport:
        stopped = done.stopped or not (self._reader.complete or self._limited)
        reason = (done.reason or self._reason or self._budget.over()) if stopped else ""
        self._steps = Counter(committed=done.committed, failed=done.failed)
        self._end("stopped" if stopped else "limited" if self._limited else "done", reason)
        told = done.told() | self._submission.counts | {"stopped": stopped, "reason": reason}
        told |= {"accepted": self._rows["accepted"], "duplicate": self._rows["duplicate"] + self._skipped}
        left_out, refusals = done.totals.left_out, self._folder.refusals(SHOWN)
        report = Report(**told, left_out=left_out, refusals=refusals)
        return RunReport(
            manifest=self._manifest,
            report=report,
            skipped=self._skipped,
            failures=failures_of(self._failures() if done.failed else ()),
            reasons=self._folder.reasons(),
            spent=self._budget.spent(),
            totals=done.totals,
            elapsed_s=time.monotonic() - self._began,
        )

    def _failures(self) -> Iterator[FailedEpisode]:
        """Yield failed episodes: those pending before and those accepted by this attempt."""
        queued = self._submission.queued
        for group in sorted(self._before.keys() | queued.keys()):
            own = queued[group].sequences if group in queued else ()
            for row in failures(self._store, group):
                if row.episode.sequence in own or row.episode.sequence in self._was_pending.get(group, ()):
                    yield row
