"""`python -m bench groups`: the costs of many groups on either store: a poll, the counts, loads, memory."""

from __future__ import annotations

import asyncio
import os
import time
import timeit
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import kgray
from bench.empty_stores import StoreKind, empty_store
from bench.processes import rss_mb
from kgray.domain import times
from kgray.domain.records import Draft, Extraction
from kgray.ingest.calls import Parts
from kgray.ingest.committer import Committer
from kgray.ingest.runner import Runner
from kgray.ingest.state import BYTES_A_NAME, BYTES_A_STATEMENT
from kgray.ports import ExtractionRequest, Extractor
from kgray.storage.ledger import accept, failures, pending_groups

_AT_ONCE = 500  # drafts of one accepting transaction
_SETTLED_S = 6.0  # a poll of Neo4j returns again the entries of the 5 s before the newest append


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """Seconds of each call, the median of nine; loads an episode where a tenth of the states fits.

    tenths   of the ingestion: episodes a second, ms of processor time an episode, and memory at the end (MB)
    """

    store: str
    groups: int
    look_s: float
    everything_s: float
    withdrawing_s: float
    counts_s: float
    failures_s: float
    episodes: int
    pace_beside_failing: float  # of healthy groups, next to a failing group: a share of their pace alone
    loads_an_episode: float
    episodes_per_s: float
    memory_mb: float
    tenths: list[tuple[float, float, float]]


def run(kind: StoreKind, groups: int, deep: int, each: int, progress: Callable[[str], None]) -> GroupFigures:
    """Accept an episode in each group and measure; then ingest `each` in each of `deep` others."""
    with TemporaryDirectory() as folder, empty_store(kind, Path(folder) / "s") as place:
        memory = kgray.open(place.data, create=True, settings=place.settings)
        store, names = memory.store, [f"g{n:06}" for n in range(groups)]
        first_drafts = [_draft(name, 0) for name in names]
        for start in range(0, groups, _AT_ONCE):
            accept(store, first_drafts[start : start + _AT_ONCE], now=times.now())
        progress(f"{groups} groups have one episode each")
        time.sleep(_SETTLED_S)
        accept(store, [_draft(names[0], 1)], now=times.now())
        _, mark = store.newly_pending(0)
        accept(store, [_draft(names[1], 1)], now=times.now())
        calls: dict[str, Callable[[], object]] = {
            "look_s": lambda: store.newly_pending(mark),
            "everything_s": lambda: pending_groups(store),
            "withdrawing_s": store.withdrawing,
            "counts_s": store.counts,
            "failures_s": lambda: failures(store),
        }
        took = {name: _median_s(call) for name, call in calls.items()}
        group_names = [f"d{n:06}" for n in range(deep)]
        drafts = [_draft(name, n) for n in range(each) for name in group_names]
        for start in range(0, len(drafts), _AT_ONCE):
            accept(store, drafts[start : start + _AT_ONCE], now=times.now(), bulk=True)
        progress(f"{deep} groups have {each} episodes each")
        pace = _pace_beside_failing(memory.asynchronous.parts)
        progress("40 groups were ingested alone, and 40 beside one that always fails")
        fits = deep // 10 * each * (BYTES_A_STATEMENT + 2 * BYTES_A_NAME)
        runner = Runner(replace(memory.asynchronous.parts, state_bytes=fits))
        loads = _counted_loads(runner.committer)
        tenths = _Tenths(len(drafts), progress)
        began = time.monotonic()
        with store.writing():
            asyncio.run(runner.run(groups=set(group_names), on_step=tenths.count))
        seconds = time.monotonic() - began
        figures = GroupFigures(
            store=kind, groups=groups, episodes=len(drafts), pace_beside_failing=pace,
            loads_an_episode=len(loads) / len(drafts), episodes_per_s=runner.totals.committed / seconds,
            memory_mb=rss_mb(os.getpid()) or 0.0, tenths=tenths.rows, **took,
        )  # fmt: skip
        memory.close()
        return figures


class _Tenths:
    """Measures each tenth of an ingestion, when its last episode is durable."""

    def __init__(self, episodes: int, progress: Callable[[str], None]) -> None:
        self.rows: list[tuple[float, float, float]] = []
        self._size, self._ended, self._progress = max(1, episodes // 10), 0, progress
        self._at, self._cpu = time.monotonic(), time.process_time()

    def count(self, group: str, sequence: int, outcome: str) -> None:  # noqa: ARG002 - `OnStep`
        """Count an episode that has ended."""
        self._ended += 1
        if self._ended % self._size:
            return
        instant, cpu = time.monotonic(), time.process_time()
        rate, cpu_ms = self._size / (instant - self._at), 1000 * (cpu - self._cpu) / self._size
        self.rows.append((round(rate, 1), round(cpu_ms, 2), round(rss_mb(os.getpid()) or 0.0, 1)))
        self._at, self._cpu = instant, cpu
        self._progress(
            f"{self._ended} ended: {rate:.1f} a second, {cpu_ms:.2f} ms of CPU, {self.rows[-1][2]} MB"
        )


def _draft(group: str, number: int) -> Draft:
    text, id_ = f"Alice {group} works at Firm {number}.", str(number)
    return Draft(group=group, source="s", kind="text", text=text, reference_time=number, client_id=id_)


class _Failing:
    """A reader with a defect, which every episode of one group meets."""

    def __init__(self, inner: Extractor) -> None:
        self._inner, self.identity = inner, inner.identity

    async def extract(self, request: ExtractionRequest) -> Extraction:
        if request.episode.group.endswith("failing"):
            raise RuntimeError("a defect")
        return await self._inner.extract(request)


def _pace_beside_failing(parts: Parts) -> float:
    """Return the pace of 40 groups next to a failing group, as a share of the pace of 40 groups alone.

    The run's processor time, so that other work on the machine does not count. The first pair is not
    counted: a driver, and a server's plans, are new to it. Five pairs follow, each begun by the other kind.
    """
    took: dict[bool, float] = {True: 0.0, False: 0.0}
    for turn in range(6):
        for failing in (turn % 2 == 0, turn % 2 == 1):
            names = [f"{'ab'[failing]}{turn}-{n}" for n in range(40)]
            names += [f"{turn}-failing"] * failing
            drafts = [_draft(name, number) for number in range(10) for name in names]
            accept(parts.store, drafts, now=times.now())
            runner = Runner(replace(parts, extractor=_Failing(parts.extractor)))
            began = time.process_time()
            with parts.store.writing():
                asyncio.run(runner.run(groups=set(names)))
            took[failing] += (time.process_time() - began) * (turn > 0)
    return took[False] / took[True]


def _median_s(call: Callable[[], object]) -> float:
    return median(timeit.repeat(call, number=1, repeat=9))


def _counted_loads(committer: Committer) -> list[str]:
    """Return a list that grows with each group whose state is read from the store."""
    loads: list[str] = []
    load = committer._load  # noqa: SLF001 - a load is seen nowhere else

    async def counted(group: str) -> None:
        loads.append(group)
        await load(group)

    committer._load = counted  # type: ignore[method-assign]  # noqa: SLF001
    return loads


def table(figures: GroupFigures) -> str:
    """Return the figures for people."""
    return "\n".join(f"{name:18} {value}" for name, value in asdict(figures).items())
