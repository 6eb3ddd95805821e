"""`python -m bench nodes`: how often a deployment on several simulated nodes calls Ray's head.

Each node has an engine, a stand-in for vLLM whose calls sleep, so that the registry leases its seats. Ray's
head counts its calls by name. A backfill fills all seats; then live episodes of other groups arrive.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.empty_stores import empty_store
from bench.engine import deployed, opened, settings_of
from kgray.domain import times
from kgray.domain.records import Draft
from kgray.errors import KgrayError
from kgray.settings.engine import EngineLimits
from kgray.storage.ledger import accept, pending_groups

if TYPE_CHECKING:
    from kgray.memory import AsyncMemory
    from kgray.runtime.deploy import Deployment

_STAND_IN = Path(__file__).parents[1] / "tests" / "stand_in"
_PRINTED_S = 5  # the head writes its counts into its log after this time, again and again
_COUNT = re.compile(r"(\w+?)(?:Gcs)?Service\.grpc_server\.(\w+) - (\d+) total")
_SETTLED_S = 20.0
_LIMIT_S = 240.0
_LOOK_S = 0.25
_AT_ONCE = 500  # drafts of one accepting transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """The figures of a deployment.

    idle, busy      calls to Ray's head in a second, by name, the most frequent first
    in_flight       calls of the engines when live episodes began to arrive
    leased          seats in the leases of the registry at the end
    live_p50_s      from the append of a live episode until it is durable, less the time of its call
    """

    nodes: int
    actors: int
    seats: int
    idle: dict[str, float]
    busy: dict[str, float]
    in_flight: int
    leased: int
    call_s: float
    live: int
    live_p50_s: float
    live_most_s: float


def run(
    nodes: int, shards: int, seats: int, call_s: float, seconds: float, progress: Callable[[str], None]
) -> NodeFigures:
    """Count the calls of an idle deployment, then of one whose seats are full; then append live episodes."""
    os.environ.update(RAY_event_stats_print_interval_ms=str(1000 * _PRINTED_S))
    from bench.simulated import SimulatedCluster
    from kgray.runtime import session

    with tempfile.TemporaryDirectory(prefix="kgray-bench-") as name, ExitStack() as ends:
        folder = Path(name)
        place = ends.enter_context(empty_store("sqlite", folder / "store"))
        cluster = SimulatedCluster(nodes, workers=nodes, room=1, shards=shards)
        ends.callback(cluster.close)
        path = os.pathsep.join([str(_STAND_IN), str(Path(__file__).parents[1])])
        environ = {"PYTHONPATH": path, "KGRAY_TEST_ENGINE_STEP_S": str(call_s / 2)}  # a call has two steps
        profile = replace(
            cluster.profile,
            extraction=replace(cluster.profile.extraction, env=environ),
            tasks=replace(cluster.profile.tasks, at_once=1),
            engine=EngineLimits(max_num_seqs=seats // nodes),
        )
        table = {**place.settings, "model_backend": "vllm", "model_name": "m"}
        settings = settings_of({**table, "runtime_backend": "ray", "runtime_address": cluster.address})
        memory = opened(settings_of(place.settings), place.data)  # accepts only
        ends.callback(memory.close)
        ends.callback(session.join(cluster.address).close)
        deployment = deployed(settings, place.data, profile, tell=progress)
        ends.callback(deployment.stop, 0.0)
        head = _HeadCalls(cluster.logs)
        time.sleep(_SETTLED_S)
        idle = head.a_second(seconds)
        progress("the deployment was idle; a backfill fills its seats")
        in_flight = _fill(memory, deployment, seats, progress)
        busy = head.a_second(seconds)
        waits = _live(memory, 20, call_s)
        row = deployment.status()["seats-0"]
        return NodeFigures(
            nodes=nodes, actors=len(deployment.actors), seats=row["seats"], idle=idle, busy=busy,
            in_flight=in_flight, leased=sum(row["leased"].values()), call_s=call_s, live=len(waits),
            live_p50_s=median(waits), live_most_s=max(waits),
        )  # fmt: skip


class _HeadCalls:
    """Reads the counts of calls in the log of Ray's head."""

    def __init__(self, logs: Path) -> None:
        self._log = logs / "gcs_server.out"

    def a_second(self, seconds: float) -> dict[str, float]:
        """Return the calls of each name in a second, over the next `seconds`."""
        earlier, began = self._next()
        time.sleep(seconds)
        later, ended = self._next()
        rates = {name: (count - earlier.get(name, 0)) / (ended - began) for name, count in later.items()}
        ordered = sorted(rates.items(), key=lambda rate: -rate[1])
        return {"all": round(sum(rates.values()), 2)} | {n: round(r, 2) for n, r in ordered if r >= 0.01}

    def _next(self) -> tuple[dict[str, int], float]:
        """Wait until the head has written its counts; return them, and the time."""
        size = self._log.stat().st_size
        while self._log.stat().st_size == size:
            time.sleep(_LOOK_S)
        written_at = time.monotonic()
        time.sleep(_LOOK_S)  # it writes a table for each of its threads
        rows = _COUNT.findall(self._log.read_text(errors="replace"))  # the last row of each name counts
        return {f"{service}.{name}": int(count) for service, name, count in rows}, written_at


def _fill(memory: AsyncMemory, deployment: Deployment, seats: int, progress: Callable[[str], None]) -> int:
    """Append a backfill, and wait until 90 % of the seats are in use; return the calls in flight."""
    # Calls of equal length would end together, and a seat would be free only then.
    drafts = [_draft(f"g{number:06}", number, " [[SPREAD]]") for number in range(4 * seats)]
    for start in range(0, len(drafts), _AT_ONCE):
        accept(memory.store, drafts[start : start + _AT_ONCE], now=times.now(), bulk=True)
    deadline, running = time.monotonic() + _LIMIT_S, 0
    while time.monotonic() < deadline:
        rows = deployment.status()
        by_engine = {name: row.get("running", 0) for name, row in rows.items() if name.startswith("models-")}
        running = sum(by_engine.values())
        progress(f"{running} of {seats} seats are in use, {by_engine}; leases: {rows['seats-0']['leased']}")
        if running >= 0.9 * seats:
            return running
        time.sleep(2.0)
    raise KgrayError(f"{running} of {seats} seats are in use after {_LIMIT_S:g} s")


def _live(memory: AsyncMemory, count: int, call_s: float) -> list[float]:
    """Append live episodes, each of another group; return the seconds that each waited besides its call."""
    appended: dict[str, float] = {}
    waits: list[float] = []
    due = time.monotonic()
    while appended or len(waits) < count:
        if len(appended) + len(waits) < count and time.monotonic() >= due:
            group, due = f"live{len(appended) + len(waits):04}", due + 1.0
            appended[group] = time.monotonic()
            accept(memory.store, [_draft(group, 0)], now=times.now())
        pending = pending_groups(memory.store)
        for group in appended.keys() - pending:
            waits.append(time.monotonic() - appended.pop(group) - call_s)
        time.sleep(_LOOK_S)
    return waits


def _draft(group: str, number: int, word: str = "") -> Draft:
    text = f"Alice {group} works at Firm {number}.{word}"
    return Draft(
        group=group, source="s", kind="text", text=text, reference_time=number, client_id=str(number)
    )


def table(figures: NodeFigures) -> str:
    """Return the figures for people."""
    lines = [
        f"{figures.nodes} nodes, {figures.actors} actors, {figures.seats} seats",
        f"{figures.in_flight} calls in flight, {figures.leased} seats leased, calls of {figures.call_s:g} s",
        f"{figures.live} live episodes wait {figures.live_p50_s:.2f} s besides their calls (p50)",
        f"longest such wait: {figures.live_most_s:.2f} s",
    ]
    for title, rates in (("idle", figures.idle), ("busy", figures.busy)):
        calls = ", ".join(f"{name} {rate:.2f}" for name, rate in rates.items())
        lines.append(f"{title}: calls to the head a second: {calls}")
    return "\n".join(lines)
