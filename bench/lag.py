"""`python -m bench lag`: by how much the loop comes late while a large group is loaded, and removed from."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kgray
from bench.empty_stores import StoreKind, empty_store
from bench.growth import GrowingStore
from bench.world.growing import FACTS_AN_EPISODE, growing
from kgray import times
from kgray.ingest.runner import Runner
from kgray.ingest.state import GroupState
from kgray.ingest.threads import tell_lag
from kgray.ledger import accept, request
from kgray.records import Draft, Operation

LARGE = "large"
_SMALL = 40  # groups beside it
_TURN_S = 0.0002  # between two turns that are asked for


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


def run(kind: StoreKind, facts: int, episodes: int, progress: Callable[[str], None]) -> LagFigures:
    """Grow a group; then let a runner load it and remove an episode of it beside `episodes` of others."""
    with TemporaryDirectory() as folder, empty_store(kind, Path(folder) / "s") as place:
        memory = kgray.open(place.data, **dict[str, Any](place.settings))
        store, embedder = memory.store, memory.parts.embedder
        with store.writing():
            grown = GrowingStore(store, embedder)
            grown.grow(growing(LARGE), round(facts / FACTS_AN_EPISODE), gather=grown.together)
        counted = store.counts(LARGE)[LARGE].facts
        progress(f"a group of {counted:,} facts")
        began, cpu = time.perf_counter(), time.process_time()
        holds = _lock_holds(lambda: GroupState.load(store, LARGE, embedder.dimensions))
        load_s, load_cpu_s = time.perf_counter() - began, time.process_time() - cpu
        first = next(iter(growing(LARGE))).draft.client_id or ""
        request(store, Operation(group=LARGE, kind="remove", episodes=(first,)))
        others = [_said(f"g{n % _SMALL}", n) for n in range(episodes)]
        accept(store, [_said(LARGE, 0), *others], now=times.now())
        ended: list[tuple[float, str, str]] = []
        lags: list[float] = []

        async def watched() -> None:
            probing = asyncio.create_task(tell_lag(lags.append))
            runner = Runner(memory.parts)
            await runner.run(on_step=lambda group, _, what: ended.append((time.monotonic(), group, what)))
            probing.cancel()

        with store.writing():
            since = time.monotonic()
            asyncio.run(watched())
        memory.close()
        at = {what: when - since for when, group, what in ended if group == LARGE}
        before = sum(group != LARGE and when - since < at["done"] for when, group, _ in ended)
        return LagFigures(
            store=kind, facts=counted, load_s=load_s, load_cpu_s=load_cpu_s, lock_p99_s=_p99(holds),
            lock_most_s=max(holds), run_s=ended[-1][0] - since,
            first_s=at["committed"], removed_s=at["done"], others=before, looks=len(lags),
            lag_p50_s=statistics.median(lags), lag_p99_s=_p99(lags), lag_most_s=max(lags),
        )  # fmt: skip


def _p99(found: list[float]) -> float:
    return statistics.quantiles(found, n=100, method="inclusive")[98]


def _lock_holds(call: Callable[[], object]) -> list[float]:
    """Return the seconds of processor time that a call takes between two turns of this thread.

    So long it keeps the interpreter's lock, whatever else runs on the machine.
    """
    found, working = [0.0, 0.0], threading.Thread(target=call)
    working.start()
    clock = time.pthread_getcpuclockid(working.ident or 0)
    with suppress(OSError):  # it has ended
        while working.is_alive():
            before = time.clock_gettime(clock)
            time.sleep(_TURN_S)
            found.append(time.clock_gettime(clock) - before)
    working.join()
    return found


def _said(group: str, number: int) -> Draft:
    text = f"Alice {number} works at Firm {number}."
    return Draft(
        group=group, source="s", kind="text", text=text, reference_time=number, client_id=f"later {number}"
    )


def table(found: LagFigures) -> str:
    """Return the figures for people."""
    return "\n".join(f"{name:12} {value}" for name, value in asdict(found).items())
