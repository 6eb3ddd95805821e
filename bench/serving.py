"""Appends, searches and health checks against `kgray serve` on loopback, which is then killed."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.loopback import Client, Seen
from bench.processes import ChildProcess, cpu_s, free_port
from bench.tables import aligned
from kgray.errors import KgrayError

_GROUP = "/v1/groups/bench"
_STATUS = f"{_GROUP}/status"
_HEALTH_S = 0.05  # between two health checks
_IDLE_S = 5.0  # searches of an idle server
_QUESTION = {"query": "Where does Person 7 work?", "limit": 10}
_FIRST = 200  # episodes that are there to be searched


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What clients saw. Times in milliseconds; lost: answered with 202, and not there after the kill."""

    ingests: bool
    clients: int
    seconds: float
    statuses: dict[str, int]
    appends_per_s: float
    append_p50: float
    append_p99: float
    health_p99: float
    search_idle_p95: float | None
    search_p95: float | None
    server_cpu_ms_per_append: float
    lost: int
    load: float  # of the machine, at the end, over a minute


def run(
    *, clients: int, seconds: float, ingests: bool, searchers: int, progress: Callable[[str], None]
) -> Served:
    """Measure a server of a new folder, kill it while clients append, and look for what it had answered."""
    with tempfile.TemporaryDirectory(prefix="kgray-serving-") as folder:
        port = free_port()
        words = [
            "serve",
            "--port",
            str(port),
            "--data",
            folder,
            "--max-pending",
            "100000000",
            "--max-age",
            "86400",
        ]
        server = ChildProcess("kgray", words, log=Path(folder) / "log")
        later = ChildProcess("kgray", [*words, "--accept-only"], log=Path(folder) / "log")
        try:
            server.start()
            asyncio.run(_up(port))
            idle = asyncio.run(_prepared(port, searchers)) if searchers else None
            if not ingests:
                server.stop()
                server = later
                server.start()
                asyncio.run(_up(port))
            progress(f"{clients} clients append for {seconds:.0f} s")
            told = asyncio.run(_loaded(port, server, clients, seconds, searchers))
            later.start()
            asyncio.run(_up(port))
            there = _ids(port)
        finally:
            server.kill()
            later.kill()
    return _figures(told, there, idle, ingests=ingests, clients=clients, seconds=seconds)


def _figures(
    told: tuple[Seen, Seen, Seen, set[str], float],
    there: set[str],
    idle: Seen | None,
    *,
    ingests: bool,
    clients: int,
    seconds: float,
) -> Served:
    """Return the figures. there: what the log holds after the kill; idle: searches before the load."""
    appended, searched, health, ids, cpu = told
    return Served(
        ingests=ingests,
        clients=clients,
        seconds=seconds,
        statuses=dict(appended.statuses),
        appends_per_s=round(len(ids) / seconds, 1),
        append_p50=appended.at(0.5),
        append_p99=appended.at(0.99),
        health_p99=health.at(0.99),
        search_idle_p95=None if idle is None else idle.at(0.95),
        search_p95=None if idle is None else searched.at(0.95),
        server_cpu_ms_per_append=round(cpu * 1000 / max(1, len(ids)), 2),
        lost=len(ids - there),
        load=round(os.getloadavg()[0], 1),
    )


_COLUMNS = (
    ("ingests", "ingests", ""),
    ("appends_per_s", "appends/s", ".0f"),
    ("append_p50", "p50 ms", ".0f"),
    ("append_p99", "p99", ".0f"),
    ("health_p99", "healthz p99", ".0f"),
    ("search_idle_p95", "search p95, idle", ".0f"),
    ("search_p95", "loaded", ".0f"),
    ("server_cpu_ms_per_append", "CPU ms an append", ".2f"),
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
    while json.loads(await asyncio.to_thread(_get, port, _STATUS))["groups"]["bench"]["accepted"]:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    await _until(time.monotonic() + _IDLE_S, [_asks(port, seen) for _ in range(searchers)])
    return seen


async def _loaded(
    port: int, server: ChildProcess, clients: int, seconds: float, searchers: int
) -> tuple[Seen, Seen, Seen, set[str], float]:
    """Append, search and check the health for so long; kill the server while they go on."""
    appended, searched, health, ids = Seen(), Seen(), Seen(), set[str]()
    before = cpu_s(server.pid)

    def appends(number: int) -> Callable[[], Awaitable[Any]]:
        client, count = Client(port, appended), iter(range(1 << 30))

        async def append() -> None:
            id_ = f"c{number}-{next(count)}"
            if (
                await client.ask("POST", f"{_GROUP}/episodes", {"text": "I met Bob in Lyon.", "id": id_})
                == "202"
            ):
                ids.add(id_)

        return append

    async def check(client: Client = Client(port, health)) -> None:  # noqa: B008 - made once
        await client.ask("GET", "/healthz")
        await asyncio.sleep(_HEALTH_S)

    until = time.monotonic() + seconds
    work = [*(appends(n) for n in range(clients)), *(_asks(port, searched) for _ in range(searchers)), check]
    going = asyncio.create_task(_until(until + 60, work))
    await asyncio.sleep(seconds)
    cpu, told = cpu_s(server.pid) - before, set(ids)
    await asyncio.to_thread(server.kill)
    await going
    return appended, searched, health, told, cpu


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


def _ids(port: int) -> set[str]:
    """Return the client's ids of all episodes in the log."""
    found: set[str] = set()
    after: int | None = 0
    while after is not None:
        page = json.loads(_get(port, f"{_GROUP}/episodes?limit=1000&after={after}"))
        found |= {row["client_id"] for row in page["episodes"]}
        after = page["next"]
    return found
