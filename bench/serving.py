"""Appends, searches and health checks against `kgray serve` on loopback, which is then killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.empty_stores import EmptyStore, StoreKind, empty_store
from bench.engine import environ_of
from bench.loopback import Client, Responses
from bench.loopback import run as run_clients
from bench.processes import ChildProcess, cpu_s, free_port
from bench.tables import aligned
from kgray.errors import KgrayError

_GROUP = "/v1/groups/bench"
_STATUS = f"{_GROUP}/status"
_HEALTH_S = 0.05  # between two health checks
_IDLE_S = 5.0  # searches of an idle server
_QUESTION = {"query": "Where does Person 7 work?", "limit": 10}
_BACKLOG = 2_000  # episodes that may wait to be ingested
_BATCH = 200  # episodes of a batch before the load
_BATCHES = 12  # at most; a fresh Neo4j server compiles its queries during the first batches
_STEADY = 1.1  # a batch that is less than this times as fast as the fastest earlier batch ends the warm-up
_METRIC = re.compile(r"^kgray_(oldest_pending_seconds|pending_episodes) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The clients' figures. Times in milliseconds; idle: before the load. Clients search if it ingests.

    committed_per_s   episodes committed during the load; None without ingestion
    first_per_s, warm_per_s   the same for the first and the fastest of the batches of 200 episodes that are
                ingested before the load, one after the other, until their rate no longer grows
    oldest_s, pending   of the pending episodes during the load: the highest age and number
    lost        answered with 202, and not there after the kill; where it ingests: not committed in the end
    load        of the machine, at the end, over a minute
    """

    ingests: bool
    runtime: str
    store: str
    clients: int
    seconds: float
    statuses: dict[str, int]
    appends_per_s: float
    append_p50: float
    append_p99: float
    health_idle_p99: float
    health_p99: float
    search_idle_p95: float | None
    search_p95: float | None
    server_cpu_ms_per_append: float
    client_cpu_ms_per_append: float
    committed_per_s: float | None
    first_per_s: float
    warm_per_s: float
    oldest_s: float
    pending: int
    lost: int
    load: float


@dataclass(frozen=True, slots=True)
class _LoadResult:
    """The result of the load: ids answered with 202, processor seconds of server and clients."""

    appended: Responses
    searched: Responses
    health: Responses
    ids: set[str]
    server_s: float
    client_s: float
    committed: int
    waiting: list[tuple[float, float]]  # age of the oldest pending episode, number of pending episodes


def run(
    *, clients: int, seconds: float, ingests: bool, searchers: int, progress: Callable[[str], None],
    store: StoreKind = "sqlite", ray: bool = False,
) -> Served:  # fmt: skip
    """Measure a server of a new store, kill it while clients append, and look for the accepted episodes.

    ray: a deployment of `kgray up` ingests
    """
    with (
        tempfile.TemporaryDirectory(prefix="kgray-serving-") as name,
        empty_store(store, Path(name) / "store") as place,
        _runtime(place, ray=ray) as environ,
    ):
        folder, port = str(place.data), free_port()
        # Appends are faster than ingestion: 503 is then a correct answer.
        max_pending = _BACKLOG if ingests else 100_000_000
        options = f"--port {port} --max-age 86400 --max-pending {max_pending}"
        words = ["serve", "--data", folder, *options.split()]
        log = Path(name) / "log"
        ingesting = ChildProcess("kgray", words, environ=environ, log=log)
        accepting = ChildProcess("kgray", [*words, "--accept-only"], environ=environ, log=log)
        server = ingesting if ingests else accepting
        try:
            ingesting.start()
            run_clients(_up(port))
            searchers = searchers if ingests else 0  # the phase without ingestion shows the cost of an append
            rates = run_clients(_warmed_up(port))
            idle = run_clients(_searched(port, searchers))
            calm = _checked(port, _IDLE_S)
            if not ingests:
                ingesting.stop()
                accepting.start()
                run_clients(_up(port))
            progress(f"{clients} clients append for {seconds:.0f} s")
            load = run_clients(_loaded(port, server, clients, seconds, searchers))
            server.start()
            run_clients(_up(port))
            if ingests:
                progress("what was accepted is ingested")
                _wait_for_all(port)
            committed_ids = _ids(port, committed=ingests)
        finally:
            ingesting.kill()
            accepting.kill()
    setup: dict[str, Any] = {"ingests": ingests, "clients": clients, "seconds": seconds, "store": store}
    setup |= {"runtime": "ray" if ray else "local", "first_per_s": rates[0], "warm_per_s": max(rates)}
    measured = _measured(load, calm, idle if searchers else None, len(load.ids - committed_ids), setup)
    progress(table([measured]))
    return measured


def _measured(
    load: _LoadResult, calm: Responses, idle: Responses | None, lost: int, setup: dict[str, Any]
) -> Served:
    """Return the figures in the units of `Served`. calm, idle: of the idle server. setup: of the run."""
    appended, divisor = len(load.ids), max(1, len(load.ids))
    return Served(
        **setup,
        statuses=dict(load.appended.statuses),
        appends_per_s=round(appended / setup["seconds"], 1),
        append_p50=load.appended.at(0.5),
        append_p99=load.appended.at(0.99),
        health_idle_p99=calm.at(0.99),
        health_p99=load.health.at(0.99),
        search_idle_p95=idle.at(0.95) if idle else None,
        search_p95=load.searched.at(0.95) if idle else None,
        server_cpu_ms_per_append=round(load.server_s * 1000 / divisor, 2),
        client_cpu_ms_per_append=round(load.client_s * 1000 / divisor, 2),
        committed_per_s=round(load.committed / setup["seconds"], 1) if setup["ingests"] else None,
        oldest_s=max(age for age, _ in load.waiting),
        pending=round(max(number for _, number in load.waiting)),
        lost=lost,
        load=round(os.getloadavg()[0], 1),
    )


_COLUMNS = (
    ("ingests", "ingests", ""),
    ("runtime", "runtime", "s"),
    ("store", "store", "s"),
    ("appends_per_s", "appends/s", ".0f"),
    ("append_p50", "p50 ms", ".0f"),
    ("append_p99", "p99", ".0f"),
    ("health_idle_p99", "healthz p99, idle", ".0f"),
    ("health_p99", "loaded", ".0f"),
    ("search_idle_p95", "search p95, idle", ".0f"),
    ("search_p95", "loaded", ".0f"),
    ("server_cpu_ms_per_append", "CPU ms an append", ".2f"),
    ("client_cpu_ms_per_append", "of clients", ".2f"),
    ("first_per_s", "first batch/s", ".0f"),
    ("warm_per_s", "fastest", ".0f"),
    ("committed_per_s", "loaded", ".0f"),
    ("oldest_s", "oldest s", ".0f"),
    ("pending", "pending", ",d"),
    ("lost", "lost", "d"),
    ("load", "load", ".1f"),
)


def table(results: list[Served]) -> str:
    """Return the figures for people."""
    return "\n".join(aligned(_COLUMNS, results))


@contextmanager
def _runtime(place: EmptyStore, *, ray: bool) -> Iterator[dict[str, str]]:
    """Yield the variables of the commands on a store; with Ray, a deployment runs during the block."""
    environ = environ_of({**place.settings, **({"runtime_backend": "ray"} if ray else {})})
    command = [sys.executable, "-m", "kgray"]
    if ray:
        subprocess.run([*command, "up", "--data", place.data], env=environ, check=True)  # noqa: S603 - our own
    try:
        yield environ
    finally:
        if ray:
            subprocess.run([*command, "down", "--data", place.data], env=environ, check=True)  # noqa: S603


async def _up(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            await Client(port, Responses()).ask("GET", "/healthz")
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.05)
        else:
            return
    raise KgrayError("the server did not start")


async def _warmed_up(port: int) -> list[float]:
    """Have batches ingested until their rate no longer grows; return the episodes per second of each."""
    client, rates = Client(port, Responses()), list[float]()
    while len(rates) < _BATCHES:
        rows = [
            {"id": f"{len(rates)}-{n}", "text": f"I work at Firm {n % 17}.", "speaker": f"Person {n % 40}"}
            for n in range(_BATCH)
        ]
        started = time.monotonic()
        await client.ask("POST", f"{_GROUP}/episodes", rows)
        await asyncio.to_thread(_wait_for_all, port)
        rates.append(round(_BATCH / (time.monotonic() - started), 1))
        if len(rates) > 1 and rates[-1] < _STEADY * max(rates[:-1]):
            break
    return rates


async def _searched(port: int, searchers: int) -> Responses:
    """Return the times of searches of the idle server, after one search that loads the group."""
    await Client(port, Responses()).ask("POST", f"{_GROUP}/search", _QUESTION)
    responses = Responses()
    await _run_until(time.monotonic() + _IDLE_S, [_asks(port, responses) for _ in range(searchers)])
    return responses


def _counts(port: int) -> dict[str, Any]:
    """Return the numbers of the group's episodes by state."""
    return dict(json.loads(_get(port, _STATUS))["groups"].get("bench", {}))


def _wait_for_all(port: int) -> None:
    """Wait until nothing is pending."""
    while True:
        counts = _counts(port)
        if not counts["accepted"] + counts["extracted"]:
            return
        time.sleep(0.2)


async def _loaded(
    port: int, server: ChildProcess, clients: int, seconds: float, searchers: int
) -> _LoadResult:
    """Append, search and check the health for a time; kill the server meanwhile."""
    appended, searched, ids = Responses(), Responses(), set[str]()
    server_cpu_before, own_cpu_before = cpu_s(server.pid), time.process_time()

    def appends(number: int) -> Callable[[], Awaitable[Any]]:
        client, count = Client(port, appended), iter(range(1 << 30))

        async def append() -> None:
            row = {"text": "I met Bob in Lyon.", "id": f"c{number}-{next(count)}"}
            if await client.ask("POST", f"{_GROUP}/episodes", row, obeys=True) == "202":
                ids.add(row["id"])

        return append

    work = [*(appends(n) for n in range(clients)), *(_asks(port, searched) for _ in range(searchers))]
    # In a separate process: here a check would wait for the other clients, not for the server.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        checking = asyncio.get_running_loop().run_in_executor(pool, _checked, port, seconds)
        committed_before = (await asyncio.to_thread(_counts, port)).get("committed", 0)
        going = asyncio.create_task(_run_until(time.monotonic() + seconds + 60, work))
        waiting = await asyncio.to_thread(_waiting, port, seconds)
        server_s, client_s = cpu_s(server.pid) - server_cpu_before, time.process_time() - own_cpu_before
        appended_ids = set(ids)
        committed = (await asyncio.to_thread(_counts, port)).get("committed", 0) - committed_before
        await asyncio.to_thread(server.kill)
        await going
        return _LoadResult(
            appended, searched, await checking, appended_ids, server_s, client_s, committed, waiting
        )


def _waiting(port: int, seconds: float) -> list[tuple[float, float]]:
    """Return the age of the oldest pending episode, and their number, every second."""
    rows, deadline = [(0.0, 0.0)], time.monotonic() + seconds
    while (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(1.0, left_s))
        metrics = dict(_METRIC.findall(_get(port, "/metrics")))
        rows.append((float(metrics["oldest_pending_seconds"]), float(metrics["pending_episodes"])))
    return rows


def _checked(port: int, seconds: float) -> Responses:
    """Return the times of health checks."""
    responses, deadline = Responses(), time.monotonic() + seconds
    with suppress(OSError, HTTPException):  # the server is killed
        while time.monotonic() < deadline:
            began = time.perf_counter()
            _get(port, "/healthz")
            responses.times.append(time.perf_counter() - began)
            time.sleep(_HEALTH_S)
    return responses


def _asks(port: int, responses: Responses) -> Callable[[], Awaitable[Any]]:
    client = Client(port, responses)
    return lambda: client.ask("POST", f"{_GROUP}/search", _QUESTION)


async def _run_until(ends: float, work: list[Callable[[], Awaitable[Any]]]) -> None:
    """Do each again and again until then, or until the server is gone."""

    async def repeat(request: Callable[[], Awaitable[Any]]) -> None:
        while time.monotonic() < ends:
            try:
                await request()
            except (OSError, asyncio.IncompleteReadError):
                return

    await asyncio.gather(*map(repeat, work))


def _get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def _ids(port: int, *, committed: bool) -> set[str]:
    """Return the client's ids of all episodes in the log, or of the committed episodes."""
    ids: set[str] = set()
    last: int | None = 0
    state = "&state=committed" if committed else ""
    while last is not None:
        page = json.loads(_get(port, f"{_GROUP}/episodes?limit=1000&after={last}{state}"))
        ids |= {row["client_id"] for row in page["episodes"]}
        last = page["next"]
    return ids
