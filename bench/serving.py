"""Appends, searches and health checks against `kgray serve` on loopback, which is then killed."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.loopback import Client, Seen
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
_FIRST = 200  # episodes that are there to be searched


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What clients saw. Times in milliseconds; idle: before the load. Clients search where it ingests.

    lost        answered with 202, and not there after the kill; where it ingests: not committed in the end
    load        of the machine, at the end, over a minute
    """

    ingests: bool
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
    lost: int
    load: float


@dataclass(frozen=True, slots=True)
class _Told:
    """What the load has seen: ids that were answered with 202, processor seconds of server and clients."""

    appended: Seen
    searched: Seen
    health: Seen
    ids: set[str]
    server_s: float
    client_s: float


def run(
    *, clients: int, seconds: float, ingests: bool, searchers: int, progress: Callable[[str], None]
) -> Served:
    """Measure a server of a new folder, kill it while clients append, and look for what it had answered."""
    with tempfile.TemporaryDirectory(prefix="kgray-serving-") as folder:
        port = free_port()
        # Where it ingests, appends are faster than that: 503 is then a right answer.
        most = _BACKLOG if ingests else 100_000_000
        words = [
            "serve",
            "--port",
            str(port),
            "--data",
            folder,
            "--max-age",
            "86400",
            "--max-pending",
            str(most),
        ]
        ingesting = ChildProcess("kgray", words, log=Path(folder) / "log")
        accepting = ChildProcess("kgray", [*words, "--accept-only"], log=Path(folder) / "log")
        server = ingesting if ingests else accepting
        try:
            ingesting.start()
            run_clients(_up(port))
            searchers = searchers if ingests else 0  # accepting alone says what an append costs
            idle = run_clients(_prepared(port, searchers))
            calm = _checked(port, _IDLE_S)
            if not ingests:
                ingesting.stop()
                accepting.start()
                run_clients(_up(port))
            progress(f"{clients} clients append for {seconds:.0f} s")
            told = run_clients(_loaded(port, server, clients, seconds, searchers))
            server.start()
            run_clients(_up(port))
            if ingests:
                progress("what was accepted is ingested")
                _wait_for_all(port)
            there = _ids(port, committed=ingests)
        finally:
            ingesting.kill()
            accepting.kill()
    made = len(told.ids)
    measured = Served(
        ingests=ingests,
        clients=clients,
        seconds=seconds,
        statuses=dict(told.appended.statuses),
        appends_per_s=round(made / seconds, 1),
        append_p50=told.appended.at(0.5),
        append_p99=told.appended.at(0.99),
        health_idle_p99=calm.at(0.99),
        health_p99=told.health.at(0.99),
        search_idle_p95=idle.at(0.95) if searchers else None,
        search_p95=told.searched.at(0.95) if searchers else None,
        server_cpu_ms_per_append=round(told.server_s * 1000 / max(1, made), 2),
        client_cpu_ms_per_append=round(told.client_s * 1000 / max(1, made), 2),
        lost=len(told.ids - there),
        load=round(os.getloadavg()[0], 1),
    )
    progress(table([measured]))
    return measured


_COLUMNS = (
    ("ingests", "ingests", ""),
    ("appends_per_s", "appends/s", ".0f"),
    ("append_p50", "p50 ms", ".0f"),
    ("append_p99", "p99", ".0f"),
    ("health_idle_p99", "healthz p99, idle", ".0f"),
    ("health_p99", "loaded", ".0f"),
    ("search_idle_p95", "search p95, idle", ".0f"),
    ("search_p95", "loaded", ".0f"),
    ("server_cpu_ms_per_append", "CPU ms an append", ".2f"),
    ("client_cpu_ms_per_append", "of clients", ".2f"),
    ("lost", "lost", "d"),
    ("load", "load", ".1f"),
)


def table(results: list[Served]) -> str:
    """Return the figures for people."""
    return "\n".join(aligned(_COLUMNS, results))


async def _up(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            await Client(port, Seen()).ask("GET", "/healthz")
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.05)
        else:
            return
    raise KgrayError("the server did not start")


async def _prepared(port: int, searchers: int) -> Seen:
    """Have episodes ingested; return how searches of an idle server do."""
    rows = [{"text": f"I work at Firm {n % 17}.", "speaker": f"Person {n % 40}"} for n in range(_FIRST)]
    client, seen = Client(port, Seen()), Seen()
    await client.ask("POST", f"{_GROUP}/episodes", rows)
    await asyncio.to_thread(_wait_for_all, port)
    await _until(time.monotonic() + _IDLE_S, [_asks(port, seen) for _ in range(searchers)])
    return seen


def _wait_for_all(port: int) -> None:
    """Wait until nothing is pending."""
    while True:
        counts = json.loads(_get(port, _STATUS))["groups"]["bench"]
        if not counts["accepted"] + counts["extracted"]:
            return
        time.sleep(0.2)


async def _loaded(port: int, server: ChildProcess, clients: int, seconds: float, searchers: int) -> _Told:
    """Append, search and check the health for so long; kill the server while they go on."""
    appended, searched, ids = Seen(), Seen(), set[str]()
    before, own = cpu_s(server.pid), time.process_time()

    def appends(number: int) -> Callable[[], Awaitable[Any]]:
        client, count = Client(port, appended), iter(range(1 << 30))

        async def append() -> None:
            row = {"text": "I met Bob in Lyon.", "id": f"c{number}-{next(count)}"}
            if await client.ask("POST", f"{_GROUP}/episodes", row, obeys=True) == "202":
                ids.add(row["id"])

        return append

    work = [*(appends(n) for n in range(clients)), *(_asks(port, searched) for _ in range(searchers))]
    # In a process of its own: here a check would wait for the other clients, not for the server.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        checking = asyncio.get_running_loop().run_in_executor(pool, _checked, port, seconds)
        going = asyncio.create_task(_until(time.monotonic() + seconds + 60, work))
        await asyncio.sleep(seconds)
        server_s, client_s = cpu_s(server.pid) - before, time.process_time() - own
        told = set(ids)
        await asyncio.to_thread(server.kill)
        await going
        return _Told(appended, searched, await checking, told, server_s, client_s)


def _checked(port: int, seconds: float) -> Seen:
    """Return the times of health checks."""
    seen, until = Seen(), time.monotonic() + seconds
    with suppress(OSError, HTTPException):  # the server is killed
        while time.monotonic() < until:
            began = time.perf_counter()
            _get(port, "/healthz")
            seen.times.append(time.perf_counter() - began)
            time.sleep(_HEALTH_S)
    return seen


def _asks(port: int, seen: Seen) -> Callable[[], Awaitable[Any]]:
    client = Client(port, seen)
    return lambda: client.ask("POST", f"{_GROUP}/search", _QUESTION)


async def _until(ends: float, work: list[Callable[[], Awaitable[Any]]]) -> None:
    """Do each again and again until then, or until the server is gone."""

    async def again(one: Callable[[], Awaitable[Any]]) -> None:
        while time.monotonic() < ends:
            try:
                await one()
            except (OSError, asyncio.IncompleteReadError):
                return

    await asyncio.gather(*map(again, work))


def _get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def _ids(port: int, *, committed: bool) -> set[str]:
    """Return the client's ids of all episodes in the log, or of those that are committed."""
    found: set[str] = set()
    after: int | None = 0
    state = "&state=committed" if committed else ""
    while after is not None:
        page = json.loads(_get(port, f"{_GROUP}/episodes?limit=1000&after={after}{state}"))
        found |= {row["client_id"] for row in page["episodes"]}
        after = page["next"]
    return found
