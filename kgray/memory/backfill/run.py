"""One attempt of a run: it appends rows to the log and carries out pending entries until both are done."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from kgray.domain import times
from kgray.domain.json_form import as_json
from kgray.domain.records import Draft
from kgray.errors import Cost, KgrayError, NoSpace, Unavailable
from kgray.ingest.local import last_sequences
from kgray.io.intake.drafts import Defaults, Refusal
from kgray.io.intake.files import read_file
from kgray.memory import AsyncMemory, Report
from kgray.memory.answers import failure_of
from kgray.memory.backfill.inputs import InputFile, check_sources
from kgray.memory.backfill.manifest import Manifest, RunFolder, RunState, next_attempt
from kgray.memory.backfill.rows import BackfillRows, Order, PlacedRow
from kgray.memory.correcting import REPORT
from kgray.memory.ingesting import Submission, foreseen
from kgray.models.prompting.estimate import WorkEstimate
from kgray.ports import Store
from kgray.ports.ingest import IngestOutcome, Stop, never
from kgray.storage.ledger import failures

# Pending episodes, or twice the engines' seats if these are more: it fills every window, and the log does
# not run far ahead.
WAITING = 10_000
BATCH = 250  # rows of an accepting transaction: small, so that concurrent commits wait only briefly
_SEATS_S = 5.0  # between two counts of the engines' seats
_PAUSE_S = 0.05  # between two checks for room in the log
_TICK_S = 0.25  # between two reports of progress
_SAVE_S, _SAVE_FACTOR = 1.0, 20  # minimum time between two manifests: 1 s, and 20 times a save's duration
_MAX_SHOWN = 10  # failures that are shown with their reason
LISTED = 1_000  # refusals in a report; refused.jsonl beside it has them all
_RATE_WINDOW_S = 30.0  # seconds of the window that a rate is measured over
_RATE_EPISODES = 8  # minimum of a rate: with fewer, estimates for a minute of work said hours
# The assumed cost of an episode until the first episode ends.
_FIRST_TOKENS = 1_000
_FIRST_CALLS = 3  # calls of a request whose replies are unusable (`structured.MAX_CALLS`)
_LOOK_S = 0.02  # minimum seconds between two counts ...
_COUNT_FACTOR = 10  # ... and a multiple of the last count's duration: counting reads the whole ledger


class Budget:
    """Bounds on an attempt's calls and tokens. Requests in flight finish, so it may exceed them slightly."""

    def __init__(self, store: Store, *, calls: int | None = None, tokens: int | None = None) -> None:
        self._store, self._calls, self._tokens = store, calls, tokens
        self.bounded = calls is not None or tokens is not None
        self._at_start = self._spending = [0] * 4  # the first count is the base of all later ones
        self._next_count = 0.0
        self.spent()
        self._at_start, self._spending = self._spending, self._at_start

    def spent(self) -> Cost:
        """Count and return the cost since the start."""
        began = time.monotonic()
        counts = self._store.counts().values()
        sums = [sum(getattr(group, name) for group in counts) for name in Cost._fields]
        sums.append(sum(group.committed + group.failed for group in counts))
        self._spending = [total - start for total, start in zip(sums, self._at_start, strict=True)]
        ended = time.monotonic()
        self._next_count = ended + max(_LOOK_S, _COUNT_FACTOR * (ended - began))
        return Cost(*self._spending[:3])

    def over(self) -> str:
        """Return the bound that was reached, as a sentence; "" = none. Cheap: it does not always recount."""
        calls, tokens, _ = self._recent() if self.bounded else (0, 0, 0)
        if self._calls is not None and calls >= self._calls:
            return f"--max-calls {self._calls} is spent: {calls} calls were made"
        if self._tokens is not None and tokens >= self._tokens:
            return f"--max-tokens {self._tokens} is spent: {tokens} tokens were used"
        return ""

    def in_flight(self) -> int:
        """Return the most episodes in flight within the bounds: at least 1, for only `over` ends a run."""
        return max(1, self._payable(sys.maxsize))

    def room(self, bound: int, waiting: int) -> int:
        """Return the number of episodes to append so that the budget covers all waiting ones, <= `bound`."""
        paid = self._payable(bound)
        # A stale count overestimates the room, so the ledger is recounted near the end of the budget.
        if waiting < paid < bound:
            self.spent()
            paid = self._payable(bound)
        return paid - waiting

    def _payable(self, bound: int) -> int:
        if not self.bounded:
            return bound
        calls, tokens, ended = self._recent()
        if self._calls is not None:
            remaining = self._calls - calls
            paid = remaining * ended // calls if ended and calls else remaining // _FIRST_CALLS
            bound = min(bound, max(paid, min(remaining, 1)))
        if self._tokens is not None:
            each = max(1, tokens // ended) if ended and tokens else _FIRST_TOKENS
            bound = min(bound, -(-(self._tokens - tokens) // each))
        return bound

    def _recent(self) -> tuple[int, int, int]:
        """Return calls, tokens and ended episodes, as of the last count."""
        if time.monotonic() >= self._next_count:
            self.spent()
        calls, prompt, completion, ended = self._spending
        return calls, prompt + completion, ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The input and the options of a run; None = no bound."""

    run: str
    inputs: Sequence[InputFile]
    defaults: Defaults
    replace: bool = False
    again: bool = False
    order: Order = "file"
    limit: int | None = None  # rows that this attempt takes, duplicates counted, refused ones not
    max_calls: int | None = None  # of the model, in this attempt
    max_tokens: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options that change how a row is read."""
        options = asdict(self.defaults) | {"at": times.show(self.defaults.at)}
        return options | {"replace": self.replace, "again": self.again, "order": self.order}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """The progress of an attempt."""

    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    ended: int = 0  # committed and failed: of `accepted`, and of the episodes pending at the start
    failed: int = 0
    rate: float = 0.0  # episodes ended a second, recently; 0 = too few to measure
    total: int | None = None  # estimate of all episodes of the attempt; None = not known yet
    sorting: int = 0  # rows read so far, while they are sorted and none is accepted yet

    @property
    def left_s(self) -> float | None:
        """The estimated seconds left; None if there is no basis for it."""
        return (self.total - self.ended) / self.rate if self.total is not None and self.rate else None


class RecentRate:
    """Episodes ended a second, over the last half a minute and at least _RATE_EPISODES episodes."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def at(self, instant: float, ended: int) -> float:
        """Record `ended` episodes at `instant` (seconds); return the rate, 0 while there are too few."""
        if ended == 0:  # models and actors are still starting
            self._samples.clear()
        self._samples.append((instant, ended))
        while (
            instant - self._samples[0][0] > _RATE_WINDOW_S and ended - self._samples[1][1] >= _RATE_EPISODES
        ):
            self._samples.popleft()
        start, first = self._samples[0]
        return (ended - first) / (instant - start) if ended - first >= _RATE_EPISODES else 0.0


OnProgress = Callable[[RunProgress], None]
Estimate = Callable[[Iterable[Draft]], WorkEstimate]


def forecast(store: Store, request: RunRequest, *, estimate: Estimate | None = None) -> Report:
    """Return the report that accepting all rows of a run's files would give; `more` has the `estimate`."""
    if request.replace:
        check_sources(request.inputs)
    counts, refusals = Counter[str](), list[Refusal]()
    files = (read_file(file.place, request.defaults, name=file.name) for file in request.inputs)

    def accepted() -> Iterator[Draft]:
        rows = chain.from_iterable(files)
        for row in foreseen(store, rows, replace=request.replace, again=request.again):
            if isinstance(row, Refusal):
                counts["refused"] += 1
                refusals.extend([row] if counts["refused"] <= LISTED else [])
            else:
                item, answer = row
                counts[answer.status] += 1
                if answer.status == "accepted":
                    yield item.draft

    drafts = accepted()
    plan = None if estimate is None else asdict(estimate(drafts))
    deque(drafts, maxlen=0)  # counts the rows if no estimate consumed them
    return Report(
        accepted=counts["accepted"], duplicate=counts["duplicate"], refusals=tuple(refusals),
        unlisted=counts["refused"] - len(refusals), more={"dry_run": True, "plan": plan},
    )  # fmt: skip


async def backfill(
    memory: AsyncMemory, data: Path, request: RunRequest, *, stop: Stop = never,
    watch: OnProgress | None = None,
) -> Report:  # fmt: skip
    """Carry out a run, or its remaining rows after earlier attempts; return this attempt's report.

    In it, `duplicate` also counts skipped rows, which an earlier attempt took; `refusals` are of the whole
    run, the first LISTED of them; `more` has "report". watch: gets the progress 4 times a second
    Raises InputError if another process carries out the same run; StoreError.
    """
    if request.replace:
        check_sources(request.inputs)
    folder = RunFolder(data, request.run)
    with folder.locked():
        manifest = next_attempt(request.run, request.inputs, request.options, folder.load())
        folder.keep_refused(manifest)
        report = await _RunAttempt(memory, folder, manifest, request, stop).run(watch)
        folder.write(REPORT, report.as_dict())
        return report


class _RunAttempt:
    """One attempt: a task that appends rows to the log, a task that reports progress, and the ingest."""

    def __init__(
        self, memory: AsyncMemory, folder: RunFolder, manifest: Manifest, request: RunRequest, stop: Stop
    ) -> None:
        self._memory, self._store = memory, memory.store
        self._folder, self._manifest = folder, manifest
        self._limit, self._stop_asked = request.limit, stop
        self._began = time.monotonic()
        self._skipped = manifest.total("accepted") + manifest.total("duplicate")
        self._first_sequences = last_sequences(self._store)
        # A group's page is empty if another process has just ended its last pending entry.
        pages = {group: self._store.pending_sequences(group, 0, 1) for group in self._first_sequences}
        self._was_pending = {
            g: range(page[0][0], self._first_sequences[g] + 1) for g, page in pages.items() if page
        }
        self._pending = self._store.pending_count()
        self._most_waiting, self._next_seats = WAITING, 0.0
        self._rows = {"accepted": 0, "duplicate": 0, "refused": 0}
        self._steps: Counter[str] = Counter()  # committed and failed, as far as this process sees it
        self._unanswered: deque[PlacedRow] = deque()  # taken, but not yet accepted or refused
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

    async def run(self, watch: OnProgress | None) -> Report:
        self._folder.save(self._manifest)
        feeding, ticking = asyncio.create_task(self._feed()), asyncio.create_task(self._tick(watch))
        try:
            outcome = await self._memory.runtime.carry_out(
                self._submission.queued,
                before=self._first_sequences,
                more=lambda: not self._fed,
                stop=self._stop,
                room=self._budget.in_flight,
                on_step=lambda _group, _sequence, state: self._steps.update((state,)),
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
        return self._report(outcome)

    def _stop(self) -> bool:
        return self._halted or self._stop_asked() or bool(self._budget.over())

    async def _feed(self) -> None:
        try:
            async with aclosing(self._reader.rows()) as rows:
                await self._take(rows)
            self._submission.finish(complete=self._reader.complete)
        except (NoSpace, Unavailable) as error:
            self._reason = str(error)
        except BaseException:  # raised at once, not after all pending entries
            self._halted = True
            raise
        finally:
            self._fed = True

    async def _take(self, rows: AsyncIterator[PlacedRow]) -> None:
        async for row in rows:
            if row.item is None:
                self._flush()
                row.file.complete = True
                continue
            if self._limit is not None and self._rows_taken + self._submission.waiting >= self._limit:
                self._flush()  # some of these rows may be refused
                if self._rows_taken >= self._limit:
                    self._limited = True
                    return
            if not self._batch:
                await self._await_room()
            if self._stop():
                return
            self._unanswered.append(row)
            self._submission.take(row.item)
            if self._submission.waiting >= self._batch:
                self._flush()
        self._flush()

    @property
    def _rows_taken(self) -> int:
        return self._rows["accepted"] + self._rows["duplicate"]

    async def _await_room(self) -> None:
        while not self._stop():
            if (instant := time.monotonic()) >= self._next_seats:  # pools of engines grow and shrink
                self._next_seats = instant + _SEATS_S
                seats = await asyncio.to_thread(self._memory.runtime.seats)
                self._most_waiting = max(WAITING, 2 * seats)
            room = self._budget.room(self._most_waiting, self._store.pending_count())
            # Waiting for a full batch saves a transaction for each row.
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
        """Count the outcome of the oldest row in `_unanswered`."""
        row = self._unanswered.popleft()
        if isinstance(answer, Refusal):
            self._folder.refuse(answer, row.file.path, row.number)
            answer = "refused"
        row.file.rows += 1
        setattr(row.file, answer, getattr(row.file, answer) + 1)
        self._rows[answer] += 1
        if self._manifest.by_time:
            self._manifest.ordered = row.number + 1

    def _save_now_and_then(self) -> None:
        began = time.monotonic()
        if began >= self._next_save:
            self._folder.save(self._manifest)
            ended = time.monotonic()
            self._next_save = ended + max(_SAVE_S, _SAVE_FACTOR * (ended - began))

    def _end(self, state: RunState, reason: str) -> None:
        self._manifest.state, self._manifest.reason = state, reason
        self._folder.save(self._manifest)

    async def _tick(self, watch: OnProgress | None) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._save_now_and_then()
            if watch is not None:
                with suppress(Unavailable):  # an outage of the store: the run itself waits it out
                    watch(self._progress())

    def _progress(self) -> RunProgress:
        waiting = self._store.pending_count()
        own_steps = self._steps["committed"] + self._steps["failed"]
        # `own_steps` lacks another process's steps; the log's length shows them.
        ended = max(own_steps, self._pending + self._rows["accepted"] - waiting)
        unread = 0 if self._fed else self._reader.remaining()
        return RunProgress(
            **self._rows,
            ended=ended,
            failed=self._steps["failed"],
            rate=self._rate.at(time.monotonic(), ended),
            total=None if unread is None else ended + waiting + unread,
            sorting=self._reader.sorting,
        )

    def _report(self, outcome: IngestOutcome) -> Report:
        stopped = outcome.stopped or not (self._reader.complete or self._limited)
        reason = (outcome.reason or self._reason or self._budget.over()) if stopped else ""
        self._end("stopped" if stopped else "limited" if self._limited else "done", reason)
        manifest, totals, ended = self._manifest, outcome.totals, outcome.committed + outcome.failed
        claim, commit = totals.first_claim, totals.last_commit
        rate = None if claim is None or commit is None or commit <= claim else ended / (commit - claim)
        # If another process did the work, this process knows its result, and not its duration.
        elsewhere = claim is None and bool(ended)
        seconds = {stage: round(spent, 3) for stage, spent in totals.seconds.items()}
        failed = self._failures() if outcome.failed else []
        details = {
            **{name: getattr(manifest, name) for name in ("run", "attempt", "state", "reason")},
            "files": len(manifest.files),
            "rows": manifest.total("rows"),
            "skipped": self._skipped,
            "failures": {"classes": Counter(row["class"] for row in failed), "first": failed[:_MAX_SHOWN]},
            "reasons": self._folder.reasons(),
            **self._budget.spent()._asdict(),
            **{name: getattr(totals, name) for name in ("requests", "stalls", "wasted", "wasted_tokens")},
            "seconds": None if elsewhere else seconds,
            "elapsed_s": round(time.monotonic() - self._began, 3),
            "episodes_per_s": None if rate is None else round(rate, 2),
        }
        counts = outcome.told() | self._submission.counts | {"stopped": stopped, "reason": reason}
        counts |= {"accepted": self._rows["accepted"], "duplicate": self._rows["duplicate"] + self._skipped}
        refusals = self._folder.refusals(LISTED)
        unlisted = manifest.total("refused") - len(refusals)
        counts |= {"left_out": totals.left_out, "refusals": refusals, "unlisted": unlisted}
        return Report(**counts, more={"report": details})

    def _failures(self) -> list[dict[str, Any]]:
        """Return the failures among this backfill's entries and the entries that were pending before it."""
        result, queued = list[dict[str, Any]](), self._submission.queued
        for group in sorted(self._first_sequences.keys() | queued.keys()):
            appended = queued[group].sequences if group in queued else ()
            for row in failures(self._store, group):
                episode = row.episode
                if episode.sequence in appended or episode.sequence in self._was_pending.get(group, ()):
                    failure = as_json(failure_of(episode.group, episode, row.failure))
                    del failure["reply"]
                    result.append(failure)
        return result
