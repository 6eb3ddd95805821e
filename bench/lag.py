"""`python -m bench lag`: by how much the loop comes late while a large group is loaded, and removed from."""

from __future__ import annotations

import asyncio
import re
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kgray
from bench.empty_stores import EmptyStore, StoreKind, empty_store
from bench.engine import one_ray
from bench.growth import GrowingStore
from kgray.domain import times
from kgray.domain.records import Draft, Operation
from kgray.errors import KgrayError
from kgray.ingest.calls import tell_lag
from kgray.ingest.runner import Runner
from kgray.ingest.state import GroupState
from kgray.memory import Memory
from kgray.storage.ledger import accept, request
from tests.world.growing import FACTS_AN_EPISODE, growing

LARGE = "large"
_SMALL = 40  # groups beside it
_TURN_S = 0.0002  # between two requested turns
_METRIC = re.compile(r'^ray_kgray_loop_lag_seconds_bucket{.*?le="([^"]+)".*} (\S+)$', re.MULTILINE)
_REPORTED_S = 15.0  # Ray's processes tell their metrics every 10 s


@dataclass(frozen=True, slots=True, kw_only=True)
class LagFigures:
    """Seconds. load_s: of the large group alone; run_s: until the load, a removal and the others' work ended.

    lock_p99_s, lock_most_s   of processor time that the load alone takes between two turns of another thread
    first_s, removed_s   when the large group's first episode was committed, and its removal carried out
    others               episodes of other groups that were committed before the removal had ended
    """

    store: str
    facts: int
    load_s: float
    load_cpu_s: float
    lock_p99_s: float
    lock_most_s: float
    run_s: float
    first_s: float
    removed_s: float
    others: int
    looks: int
    lag_p50_s: float
    lag_p99_s: float
    lag_most_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RayLagFigures:
    """The same of the sequencer of a deployment, as its metric tells it: a histogram.

    first_s, removed_s, run_s count from the start of the deployment; lags are upper bounds of buckets
    """

    store: str
    facts: int
    run_s: float
    first_s: float
    removed_s: float
    others: int
    looks: int
    lag_p50_within_s: float
    lag_p99_within_s: float
    lag_most_within_s: float


Ended = list[tuple[float, str, str]]  # moment, group, outcome


def run(kind: StoreKind, facts: int, episodes: int, progress: Callable[[str], None]) -> LagFigures:
    """Grow a group; then let a runner load it and remove an episode of it beside `episodes` of others."""
    with _grown(kind, facts, progress) as (place, memory, counted):
        store, embedder = memory.store, memory.asynchronous.parts.embedder
        with store.writing():
            began, cpu = time.perf_counter(), time.process_time()
            holds = _lock_holds(lambda: GroupState.load(store, LARGE, embedder.dimensions))
            load_s, load_cpu_s = time.perf_counter() - began, time.process_time() - cpu
        _ask(memory, episodes)
        ended: Ended = []
        lags: list[float] = []

        async def watched() -> None:
            probing = asyncio.create_task(tell_lag(lags.append))
            runner = Runner(memory.asynchronous.parts)
            await runner.run(
                on_step=lambda group, _, outcome: ended.append((time.monotonic(), group, outcome))
            )
            probing.cancel()

        with store.writing():
            started = time.monotonic()
            asyncio.run(watched())
        return LagFigures(
            store=place.kind, facts=counted, load_s=load_s, load_cpu_s=load_cpu_s, lock_p99_s=_p99(holds),
            lock_most_s=max(holds), **_times(ended, started), looks=len(lags),
            lag_p50_s=statistics.median(lags), lag_p99_s=_p99(lags), lag_most_s=max(lags),
        )  # fmt: skip


def through_ray(kind: StoreKind, facts: int, episodes: int, progress: Callable[[str], None]) -> RayLagFigures:
    """Do the same through the actors of a Ray on this machine, which count how late their loop comes."""
    with _grown(kind, facts, progress) as (place, memory, counted), one_ray():
        _ask(memory, episodes)
        ended: Ended = []
        started = time.monotonic()
        with kgray.open(
            place.data, create=True, settings={"runtime_backend": "ray", **dict[str, Any](place.settings)}
        ) as deployed:
            result = asyncio.run(
                deployed.asynchronous.runtime.carry_out(
                    None, on_step=lambda group, _, outcome: ended.append((time.monotonic(), group, outcome))
                )
            )
            if result.stopped:
                raise KgrayError(f"the run stopped: {result.reason or 'nobody asked it to'}")
            progress("all is ingested; Ray's metrics follow")
            time.sleep(_REPORTED_S)
            counts = _buckets()
        looks = max(counts.values())
        return RayLagFigures(
            store=place.kind, facts=counted, **_times(ended, started), looks=round(looks),
            lag_p50_within_s=_bound_of_share(counts, 0.5), lag_p99_within_s=_bound_of_share(counts, 0.99),
            lag_most_within_s=_bound_of_share(counts, 1.0),
        )  # fmt: skip


@contextmanager
def _grown(
    kind: StoreKind, facts: int, progress: Callable[[str], None]
) -> Iterator[tuple[EmptyStore, Memory, int]]:
    """Yield a store with a large group, open, and how many facts that has."""
    with (
        TemporaryDirectory() as folder,
        empty_store(kind, Path(folder) / "s") as place,
        kgray.open(place.data, create=True, settings=place.settings) as memory,
    ):
        with memory.store.writing():
            grown = GrowingStore(memory.store, memory.asynchronous.parts.embedder)
            grown.grow(growing(LARGE), round(facts / FACTS_AN_EPISODE), gather=grown.together)
        counted = memory.store.counts(LARGE)[LARGE].facts
        progress(f"a group of {counted:,} facts")
        yield place, memory, counted


def _ask(memory: Memory, episodes: int) -> None:
    """Append an episode of the large group, the removal of its first, and episodes of the others."""
    first = next(iter(growing(LARGE))).draft.client_id or ""
    request(memory.store, Operation(group=LARGE, kind="remove", episodes=(first,)))
    other_drafts = [_draft(f"g{n % _SMALL}", n) for n in range(episodes)]
    accept(memory.store, [_draft(LARGE, 0), *other_drafts], now=times.now())


def _times(ended: Ended, started: float) -> dict[str, Any]:
    """Return run_s, first_s, removed_s and others."""
    at = {outcome: moment - started for moment, group, outcome in ended if group == LARGE}
    count_before = sum(group != LARGE and moment - started < at["done"] for moment, group, _ in ended)
    return {
        "run_s": ended[-1][0] - started,
        "first_s": at["committed"],
        "removed_s": at["done"],
        "others": count_before,
    }


def _buckets() -> Mapping[float, float]:
    """Return how many lags were within each bound, of all nodes of the Ray that this process has joined."""
    import ray

    counts: dict[float, float] = {}
    nodes: Any = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's
    for node in nodes:
        address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(address, timeout=_REPORTED_S) as answer:
            for bound, count in _METRIC.findall(answer.read().decode()):
                counts[float(bound)] = counts.get(float(bound), 0.0) + float(count)
    if not counts:
        raise KgrayError("Ray tells no lag of the loop: its metrics are off, or came late")
    return counts


def _bound_of_share(counts: Mapping[float, float], share: float) -> float:
    """Return the least bound that holds for this share of all lags."""
    required = share * max(counts.values())
    return min(bound for bound, count in counts.items() if count >= required)


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def _lock_holds(call: Callable[[], object]) -> list[float]:
    """Return the seconds of processor time that a call takes between two turns of this thread.

    This is how long it keeps the interpreter's lock, independent of the machine's load.
    """
    holds, working = [0.0, 0.0], threading.Thread(target=call)
    working.start()
    clock = time.pthread_getcpuclockid(working.ident or 0)
    with suppress(OSError):  # it has ended
        while working.is_alive():
            start = time.clock_gettime(clock)
            time.sleep(_TURN_S)
            holds.append(time.clock_gettime(clock) - start)
    working.join()
    return holds


def _draft(group: str, number: int) -> Draft:
    text = f"Alice {number} works at Firm {number}."
    return Draft(
        group=group, source="s", kind="text", text=text, reference_time=number, client_id=f"later {number}"
    )


def table(figures: LagFigures | RayLagFigures) -> str:
    """Return the figures for people."""
    return "\n".join(f"{name:12} {value}" for name, value in asdict(figures).items())
