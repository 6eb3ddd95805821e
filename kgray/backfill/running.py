"""One attempt of a run: rows go into the log while what is pending is carried out, until both are done."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgray import times
from kgray.backfill.feeding import Feeder
from kgray.backfill.inputs import Input, check_sources
from kgray.backfill.manifest import Manifest, RunFolder, State
from kgray.backfill.reading import Order, Reader, Stop
from kgray.backfill.reports import SHOWN, Failures, Standing, Summary
from kgray.backfill.spending import Budget
from kgray.errors import KgrayError, Unavailable
from kgray.intake import Defaults
from kgray.ledger import failures
from kgray.memory import Memory, Report
from kgray.memory.ingesting import IngestOutcome, last_sequences, never
from kgray.memory.run_files import SORTED

Watch = Callable[[Standing], None]
_TICK_S = 0.25
_LATELY_S = 30.0  # what a rate is measured over


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run is asked to do; None = no bound.

    limit               rows that this attempt takes, duplicates counted, refused ones not
    max_calls, tokens   of the model, in this attempt
    """

    run: str
    inputs: Sequence[Input]
    defaults: Defaults
    replace: bool = False
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
            "order": self.order,
        }


def unwatched(standing: Standing) -> None:
    """Take no notice."""


async def backfill(
    memory: Memory, data: Path, asked: Asked, *, stop: Stop = never, watch: Watch = unwatched
) -> Summary:
    """Carry out a run, or what earlier attempts left of it; data: the folder that keeps its manifest.

    watch: told a few times a second where it stands.
    Raises InputError where another process carries the same run out, and what else is wrong (StoreError).
    """
    if asked.replace:
        check_sources(asked.inputs)
    folder = RunFolder(data, asked.run)
    with folder.locked():
        if asked.order == "file":  # an earlier attempt may have had another
            shutil.rmtree(folder.path / SORTED, ignore_errors=True)
        manifest = Manifest.begun(asked.run, asked.inputs, asked.options, folder.load())
        folder.open_refused(manifest)
        summary = await _Attempt(memory, folder, manifest, asked, stop).run(watch)
        folder.save_report(summary.as_dict())
        return summary


class _Attempt:
    """One attempt."""

    def __init__(
        self, memory: Memory, folder: RunFolder, manifest: Manifest, asked: Asked, stop: Stop
    ) -> None:
        self._memory, self._store = memory, memory.store
        self._folder, self._manifest, self._asked_to_stop = folder, manifest, stop
        self._began = time.monotonic()
        self._skipped = manifest.total("accepted") + manifest.total("duplicate")
        self._before = last_sequences(self._store)
        # Another process may have ended what was there a moment ago.
        pages = {group: self._store.pending_sequences(group, 0, 1) for group in self._before}
        self._firsts = {group: page[0][0] for group, page in pages.items() if page}
        self._pending = self._store.pending_count()
        self._steps = {"committed": 0, "failed": 0}
        self._lately: deque[tuple[float, int]] = deque()
        self._halted = False
        self._budget = Budget(self._store, calls=asked.max_calls, tokens=asked.max_tokens)
        self._reader = Reader(manifest, asked.defaults, folder.path, self._stop)
        self._feeder = Feeder(
            self._store,
            manifest,
            folder,
            budget=self._budget,
            limit=asked.limit,
            stop=self._stop,
            steps=lambda: self._steps,
        )

    async def run(self, watch: Watch) -> Summary:
        feeder = self._feeder
        feeder.save()
        feeding = asyncio.create_task(feeder.feed(self._reader))
        feeding.add_done_callback(self._fed)
        ticking = asyncio.create_task(self._tick(watch))
        try:
            done = await self._memory.runtime.carry_out(
                feeder.queued,
                before=self._before,
                more=lambda: not feeder.ended,
                stop=self._stop,
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
        return self._summary(done)

    def _fed(self, feeding: asyncio.Task[None]) -> None:
        """End the run where feeding has failed: what is wrong is said now, not after all that is pending."""
        self._halted |= feeding.cancelled() or feeding.exception() is not None

    def _stop(self) -> bool:
        return self._halted or self._asked_to_stop() or bool(self._budget.over())

    def _step(self, _group: str, _sequence: int, outcome: str) -> None:
        if outcome in self._steps:
            self._steps[outcome] += 1

    def _end(self, state: State, reason: str) -> None:
        self._manifest.state, self._manifest.reason = state, reason
        self._feeder.save()

    # ------------------------------------------------------------------------ where it stands

    async def _tick(self, watch: Watch) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._feeder.save_now_and_then()
            with suppress(Unavailable):  # an outage of the store: it is the run's to wait out
                watch(self._standing())

    def _standing(self) -> Standing:
        feeder = self._feeder
        waiting = self._store.pending_count()
        seen = sum(self._steps.values())
        ended = max(seen, self._pending + feeder.accepted - waiting)  # another process's steps are not seen
        left = 0 if feeder.ended else self._reader.left()
        return Standing(
            accepted=feeder.accepted,
            duplicate=feeder.duplicate,
            refused=feeder.refused,
            ended=ended,
            failed=self._steps["failed"],
            rate=self._rate(ended),
            total=None if left is None else ended + waiting + left,
            sorting=self._reader.sorting,
        )

    def _rate(self, ended: int) -> float:
        now = time.monotonic()
        self._lately.append((now, ended))
        while len(self._lately) > 1 and now - self._lately[0][0] > _LATELY_S:
            self._lately.popleft()
        since, first = self._lately[0]
        return (ended - first) / (now - since) if now > since else 0.0

    # ---------------------------------------------------------------------------- the answer

    def _summary(self, done: IngestOutcome) -> Summary:
        feeder, manifest = self._feeder, self._manifest
        whole = self._reader.complete or feeder.limited
        stopped = done.stopped or not whole
        reason = (done.reason or feeder.reason or self._budget.over()) if stopped else ""
        state: State = "stopped" if stopped else "limited" if feeder.limited else "done"
        self._steps = {"committed": done.committed, "failed": done.failed}
        self._end(state, reason)
        report = Report(
            accepted=feeder.accepted,
            duplicate=feeder.duplicate + self._skipped,
            committed=done.committed,
            failed=done.failed,
            retracted=feeder.retracted,
            untimed=feeder.untimed,
            stopped=stopped,
            reason=reason,
            refusals=tuple(self._folder.refusals(SHOWN)),
        )
        return Summary(
            run=manifest.run,
            attempt=manifest.attempt,
            state=state,
            report=report,
            refused=manifest.total("refused"),
            files=len(manifest.files),
            rows=manifest.total("rows"),
            skipped=self._skipped,
            failures=self._failures() if done.failed else Failures(),
            spent=self._budget.spent(),
            totals=done.totals,
            elapsed_s=time.monotonic() - self._began,
            sums=manifest.sums,
        )

    def _failures(self) -> Failures:
        """Return what failed of what was pending before and of what was accepted."""
        found = Failures()
        queued = self._feeder.queued
        for group in sorted(self._before.keys() | queued.keys()):
            for row in failures(self._store, group):
                sequence, queue = row.episode.sequence, queued.get(group)
                if self._was_pending(group, sequence) or (queue is not None and sequence in queue.sequences):
                    found.add(row)
        return found

    def _was_pending(self, group: str, sequence: int) -> bool:
        return group in self._firsts and self._firsts[group] <= sequence <= self._before[group]
