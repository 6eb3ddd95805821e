"""Entries in flight: the stages of an episode, and the state that the windows of a run share.

    stage       begins when                                    work                        worker
    accepted    the window takes the episode from the log      waits for its turn          the window
    reading     its extraction begins                          `extract_episode`           steps and a model
    asking      its extraction is complete, questions open     `resolve_node`              steps and a model
    ready       no question is open on the tried state         waits for earlier episodes  the window
    committed   the change is in the group's state, posted     becomes durable             the writer
    failed      its own content is at fault (R24)              becomes durable             the writer

A ready episode may have to ask again, if an earlier commit differs from its expected change. An episode is
only committed when it is ready on the true state. Accepted entries are durable in the log, and only there.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol
from weakref import WeakSet

from kgray.domain.records import Episode, Operation
from kgray.errors import is_groups_own
from kgray.ingest.calls import EpisodeReading, OnStage, Parts, off_the_loop
from kgray.ingest.committer import Committer
from kgray.ingest.state import Decision, ReadEpisode
from kgray.ports import Answer, Embedding, Question, Store
from kgray.ports.ingest import Gate, Stop, Totals

Stage = Literal["accepted", "reading", "asking", "ready", "committed", "failed"]
STAGES_AFTER: dict[Stage, frozenset[Stage]] = {
    "accepted": frozenset({"reading"}),
    "reading": frozenset({"asking", "failed"}),
    "asking": frozenset({"asking", "ready", "failed"}),
    "ready": frozenset({"asking", "ready", "committed"}),
    "committed": frozenset(),
    "failed": frozenset(),
}

RequestQuestions = tuple[Question, ...]  # of one request
GivenAnswers = tuple[Answer, ...]
AnswersTask = asyncio.Task[GivenAnswers]


@dataclass(slots=True, eq=False)
class InFlight:
    """One entry in flight; number: the count of entries taken before it, over all groups."""

    entry: Episode | Operation
    number: int
    read: asyncio.Future[ReadEpisode] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    # The start of its first call of the extractor, on the monotonic clock.
    sent: asyncio.Future[float] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    context: Sequence[Episode] | None = None  # the previous episodes; None: not read yet
    reading: EpisodeReading | None = None  # of an episode whose extraction has begun
    preparing: asyncio.Task[None] | None = None  # extracts the episode and decides it ahead
    stage: Stage = "accepted"  # of an episode; a correction has no stages
    tried: bool = False  # decided ahead at least once, or excluded from that
    waits_until: float = 0.0  # end of its wait for others: before its first try, then before it asks
    due: bool = False  # must be decided ahead: it was not tried, or rows that its last try read have changed
    vectors: dict[str, Embedding] = field(default_factory=dict)
    calls: dict[RequestQuestions, AnswersTask] = field(default_factory=dict)  # the calls of requests
    used: set[RequestQuestions] = field(default_factory=set)  # the requests that the commit used
    spent: dict[RequestQuestions, int] = field(default_factory=dict)  # tokens
    deciding_s: float = 0.0  # of all tries

    def enter(self, stage: Stage) -> None:
        """Enter the next stage. Raises RuntimeError if it cannot follow the current stage."""
        if stage not in STAGES_AFTER[self.stage]:
            raise RuntimeError(
                f"sequence {self.entry.sequence} of group {self.entry.group!r} is {self.stage}: "
                f"it cannot become {stage}"
            )
        self.stage = stage

    @property
    def is_decided(self) -> bool:
        """Return whether the episode is committed or failed."""
        return not STAGES_AFTER[self.stage]

    def begin_reading(self) -> EpisodeReading | None:
        """Enter `reading`, unless an earlier call has; return the reading that has begun, if any."""
        if self.stage == "accepted":
            self.enter("reading")
        return self.reading

    def finish_reading(self, read: ReadEpisode) -> None:
        """Enter `asking`, with the extraction."""
        self.enter("asking")
        self.read.set_result(read)

    def enter_after_decision(self, decision: Decision) -> None:
        """Enter `ready` after a decision without open questions, else `asking`."""
        self.enter("asking" if decision.change is None or decision.questions else "ready")


# A model that answers sooner, as the rules do, is asked at the commit: to decide ahead costs 3 more tries an
# episode, each of about a millisecond. Limits for the fastest and for the median of the latest extractions,
# in seconds; a busy loop lengthens the median. A question is slow from the second limit on.
AT_ONCE_S = 0.01, 0.05

# A turn of the event loop with more processor time than this means that commits wait for the loop: a try
# takes 1 to 3 ms. Deciding ahead then waits _PAUSE times as long as the turn took, so it gets a tenth of a
# busy loop and all of an idle one. Processor time, because other processes make any turn long.
_BUSY_S, _PAUSE = 0.003, 9

_LARGE_COUNT = 4096  # entries: a count of more takes milliseconds


class BacklogEnd:
    """Notes the start of the end of the backlog: from there the longest texts go first.

    number  the number of entries that were taken before the end; None: the end is not in sight
    """

    def __init__(self, shard: int | None) -> None:
        self.number: int | None = None
        self._shard = shard
        self._count_at = 0  # number of entries taken when the backlog is counted again

    async def look(self, store: Store, taken: int, in_memory: int, nearly_done: int) -> None:
        """Count the pending entries, if the answer may have changed since the last count.

        taken        entries taken so far; in_memory: those that are not durable yet
        nearly_done  the end is in sight when no more entries than this are left to take

        A count takes time in proportion to the entries in memory. So the next one comes when enough entries
        were taken that the end may be in sight, or may have moved away.
        """
        if taken < self._count_at:
            return
        most = in_memory + 2 * nearly_done
        ask = partial(store.pending_count, shard=self._shard, most=most)
        spare = await off_the_loop(store, ask, is_large=most > _LARGE_COUNT) - in_memory - nearly_done
        if spare > 0:
            self.number = None
        elif self.number is None:
            self.number = taken
        self._count_at = taken + (spare if spare > 0 else nearly_done)


class AheadDecider(Protocol):
    """A window, as the state that the windows share knows it."""

    def go_ahead(self) -> None:
        """Start to decide due entries ahead."""


class RunContext:
    """The calls, counts and tasks of one run.

    watch   takes the seconds of each stage
    on_end  is called with group, sequence and outcome of an entry once it is durable
    """

    def __init__(
        self,
        parts: Parts,
        committer: Committer,
        totals: Totals,
        *,
        stop: Stop,
        watch: OnStage,
        on_end: Callable[[str, int, str], None],
    ) -> None:
        self.parts, self.committer, self.totals = parts, committer, totals
        self.stop, self.watch, self.on_end = stop, watch, on_end
        self.gate = Gate(parts.streams)
        self.extraction_seconds: deque[float] = deque(maxlen=32)  # seconds of the latest extractions
        self.question_seconds: deque[float] = deque(maxlen=32)  # and of the latest questions
        # Counted by the windows: a sum over thousands of groups at each step would take the loop's time.
        self.in_flight = 0  # entries in the windows
        self.posted = 0  # entries that wait for the writer: they are in memory too
        # Windows with more entries than may be decided ahead: they go on when the streams become more.
        self.cut_short: WeakSet[AheadDecider] = WeakSet()
        self._ahead_turn = asyncio.Lock()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # a task's failure

    @property
    def usual_s(self) -> float:
        """The usual time of an extraction in seconds; 0 before the first."""
        return statistics.median(self.extraction_seconds) if self.extraction_seconds else 0.0

    @property
    def ahead_pays(self) -> bool:
        """Return whether it pays to decide ahead.

        It does before the first extraction, and if more than a quarter of the latest questions were slow,
        even if all extractions came from a cache; otherwise only if the extractions were slow.
        """
        slow = sum(seconds >= AT_ONCE_S[1] for seconds in self.question_seconds)
        if not self.extraction_seconds or 4 * slow > len(self.question_seconds):
            return True
        return min(self.extraction_seconds) >= AT_ONCE_S[0] or self.usual_s >= AT_ONCE_S[1]

    async def idle_turn(self) -> None:
        """Return when one try ahead of time may run: one in each turn of the loop, fewer if it is busy."""
        async with self._ahead_turn:
            started, started_cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(0)
            if time.thread_time() - started_cpu > _BUSY_S:
                await asyncio.sleep(_PAUSE * (time.monotonic() - started))

    def widen(self, parts: Parts) -> None:
        """Go on with another number of streams."""
        self.parts, self.gate.width = parts, parts.streams
        self.gate.let_in()
        for window in list(self.cut_short):
            window.go_ahead()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task whose failure ends the run."""
        task = asyncio.create_task(work)
        self.tasks.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            self.tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            # The commit of a window raises an error of its group again, and the run puts the group on hold.
            if error is not None and not is_groups_own(error) and not self.broken.done():
                self.broken.set_exception(error)

        task.add_done_callback(ended)
        return task
