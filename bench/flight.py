"""`python -m bench flight`: one decider with thousands of slow calls in flight, and live episodes beside.

The calls sleep in this process, so that thousands of them need no engine. A backfill fills all seats. Then
live episodes of other groups arrive. In the long run, calls end
at the same rate for each number of seats.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, quantiles
from tempfile import TemporaryDirectory

import kgray
from bench.tables import Column, aligned
from kgray.domain import times
from kgray.domain.records import Draft, Extraction
from kgray.ingest.calls import Parts, tell_lag
from kgray.ingest.runner import Runner, WindowedRun
from kgray.memory import Memory
from kgray.ports import ExtractionRequest, Extractor
from kgray.storage.ledger import accept

_AT_ONCE = 500  # drafts of one accepting transaction
_LIVE_EVERY_S = 0.1
_NEVER_S = 1e9  # no call is late here


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightFigures:
    """A decider with all seats in use.

    wake_ms, wake_p99_ms   processor time of a step of the runner's loop: its mean, its 99th percentile
    cpu_ms                 processor time of this process for an episode
    lag_p99_ms             delay of the event loop
    live_p50_s, live_most_s   from the append of a live episode until its call begins
    """

    seats: int
    groups: int
    call_s: float
    episodes_per_s: float
    wakes_per_s: float
    wake_ms: float
    wake_p99_ms: float
    cpu_ms: float
    lag_p99_ms: float
    live: int
    live_p50_s: float
    live_most_s: float


@dataclass(slots=True)
class _SlowModel:
    """Reads with another model, after a sleep; notes the start of each group's first call."""

    inner: Extractor
    mean_s: float
    running: int = 0
    began: dict[str, float] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311 - a simulation

    @property
    def identity(self) -> str:
        return self.inner.identity

    async def extract(self, request: ExtractionRequest) -> Extraction:
        self.began.setdefault(request.episode.group, time.monotonic())
        self.running += 1
        try:
            await asyncio.sleep(self.chance.uniform(0.0, 2 * self.mean_s))
        finally:
            self.running -= 1
        return await self.inner.extract(request)


def run(
    seats: int, groups: int, rate: float, seconds: float, progress: Callable[[str], None]
) -> FlightFigures:
    """Fill the seats with a backfill of `groups` groups; measure; then let live episodes arrive."""
    mean_s = seats / rate
    count = round(2 * seats + 2 * rate * (seconds + 60))  # seats and window stay full
    with TemporaryDirectory() as folder, kgray.open(Path(folder) / "s", create=True) as memory:
        drafts = [_draft(f"g{number % groups:06}", number) for number in range(count)]
        for start in range(0, count, _AT_ONCE):
            accept(memory.store, drafts[start : start + _AT_ONCE], now=times.now(), bulk=True)
        parts = memory.asynchronous.parts
        model = _SlowModel(parts.extractor, mean_s)
        parts = replace(parts, extractor=model, streams=seats, window=2 * seats, late_s=_NEVER_S)
        with memory.store.writing():
            return asyncio.run(_measured(memory, parts, model, seconds, progress))


async def _measured(
    memory: Memory,
    parts: Parts,
    model: _SlowModel,
    seconds: float,
    progress: Callable[[str], None],
) -> FlightFigures:
    lags, ended, is_over = list[float](), list[float](), False
    runner = Runner(parts)
    with _steps_of_loop() as steps:
        probing = asyncio.create_task(tell_lag(lags.append))
        serving = asyncio.create_task(
            runner.serve(stop=lambda: is_over, on_step=lambda *_: ended.append(time.monotonic()))
        )
        try:
            while model.running < parts.streams:
                await asyncio.sleep(1.0)
                if serving.done():
                    serving.result()
            in_use = len({*getattr(runner.current, "_windows", {})})
            progress(
                f"{model.running} calls of {in_use} groups are in flight; {len(ended)} episodes have ended"
            )
            for samples in (steps, lags, ended):
                samples.clear()
            began, cpu = time.monotonic(), time.process_time()
            await asyncio.sleep(seconds)
            took, spent, ended_count, wakes = (
                time.monotonic() - began,
                time.process_time() - cpu,
                len(ended),
                [*steps],
            )
            lag = _p99(lags)
            waits = await _live_waits(memory, model, round(seconds / _LIVE_EVERY_S))
        finally:
            is_over = True
            probing.cancel()
            serving.cancel()
            await asyncio.gather(probing, serving, return_exceptions=True)
    return FlightFigures(
        seats=parts.streams, groups=in_use, call_s=model.mean_s, episodes_per_s=ended_count / took,
        wakes_per_s=len(wakes) / took, wake_ms=1000 * mean(wakes), wake_p99_ms=1000 * _p99(wakes),
        cpu_ms=1000 * spent / max(1, ended_count), lag_p99_ms=1000 * lag, live=len(waits),
        live_p50_s=quantiles(waits, n=2)[0], live_most_s=max(waits),
    )  # fmt: skip


async def _live_waits(memory: Memory, model: _SlowModel, count: int) -> list[float]:
    """Append live episodes, one for a new group each; return the seconds until their calls begin."""
    appended: dict[str, float] = {}
    for number in range(count):
        draft = _draft(f"live{number:05}", number)
        appended[draft.group] = time.monotonic()
        accept(memory.store, [draft], now=times.now())
        await asyncio.sleep(_LIVE_EVERY_S)
    while not appended.keys() <= model.began.keys():  # noqa: ASYNC110 - the calls set no event
        await asyncio.sleep(_LIVE_EVERY_S)
    return [model.began[group] - instant for group, instant in appended.items()]


@contextmanager
def _steps_of_loop() -> Iterator[list[float]]:
    """Yield a list that gets the processor time between two waits of a run's loop."""
    steps, since, wait = list[float](), [time.thread_time()], WindowedRun._wait  # noqa: SLF001 - nowhere else

    async def counted(run: WindowedRun, timeout_s: float | None) -> None:
        steps.append(time.thread_time() - since[0])
        await wait(run, timeout_s)
        since[0] = time.thread_time()

    WindowedRun._wait = counted  # type: ignore[method-assign, assignment]  # noqa: SLF001
    try:
        yield steps
    finally:
        WindowedRun._wait = wait  # type: ignore[method-assign]  # noqa: SLF001


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def _draft(group: str, number: int) -> Draft:
    text = f"Alice {group} works at Firm {number}."
    return Draft(
        group=group, source="s", kind="text", text=text, reference_time=number, client_id=str(number)
    )


_COLUMNS: list[Column] = [
    ("seats", "seats", ",d"),
    ("groups", "groups", ",d"),
    ("call_s", "call s", ".1f"),
    ("episodes_per_s", "ep/s", ".1f"),
    ("wakes_per_s", "wakes/s", ".1f"),
    ("wake_ms", "CPU ms a wake", ".2f"),
    ("wake_p99_ms", "p99", ".2f"),
    ("cpu_ms", "CPU ms/ep", ".2f"),
    ("lag_p99_ms", "loop p99 ms", ".0f"),
    ("live_p50_s", "live waits p50 s", ".2f"),
    ("live_most_s", "most", ".2f"),
]


def table(figures: list[FlightFigures]) -> str:
    """Return the figures for people."""
    return "\n".join(aligned(_COLUMNS, figures))
