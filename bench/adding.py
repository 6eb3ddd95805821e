"""`python -m bench add`: the write rate of a store when a perfect model answers at once.

The model is in this process and takes no time, so that engine and store alone are measured. Times run from
the start of the run to its last commit. Each round uses new groups; the first round on a new server includes
its compiler's warm-up.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bench.empty_stores import EmptyStore, StoreKind, empty_store
from bench.engine import accept, opened, settings_of
from bench.processes import CpuByRole, require_psutil
from bench.tables import Column, aligned
from kgray.domain.records import Draft
from kgray.errors import KgrayError
from kgray.ingest.runner import Runner
from kgray.memory import AsyncMemory
from tests.world import Oracle, World, WorldPlan
from tests.world.models import WorldModel


@dataclass(slots=True)
class AddFigures:
    """One round on one store.

    engine_ms, server_ms   CPU milliseconds an episode, of this process and of the store's server
    rows                   nodes and relationships an episode; None for a store without a server
    """

    store: StoreKind | Literal["driver alone"]
    round: int
    episodes: int
    groups: int
    episodes_per_s: float = 0.0
    engine_ms: float = 0.0
    server_ms: float = 0.0
    rows: float | None = None
    rows_by_label: dict[str, float] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)  # seconds, summed over concurrent calls


def run(
    kinds: Sequence[StoreKind],
    plan: WorldPlan,
    *,
    rounds: int,
    bare: bool = False,
    progress: Callable[[str], None],
) -> list[AddFigures]:
    """Ingest a world into each store, `rounds` times; the seed of each round is one more.

    bare: after each round on Neo4j, its driver alone writes the round's rows into a second server.
    """
    require_psutil()
    figures = []
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="kgray-bench-") as folder, ExitStack() as stack:
            place = stack.enter_context(empty_store(kind, Path(folder) / "store"))
            memory = opened(settings_of(place.settings), place.data)
            stack.callback(memory.close)
            with memory.store.writing():
                pass  # the first writer makes the rows of the slots
            second = None
            if bare and place.server is not None:
                second = stack.enter_context(empty_store(kind, Path(folder) / "bare"))
                opened(settings_of(second.settings), second.data).close()  # makes the constraints
            for number in range(rounds):
                rows = [_round(memory, place, replace(plan, seed=plan.seed + number), number)]
                if second is not None:
                    rows.append(_bare_round(place, second, rows[0]))
                for row in rows:
                    progress(f"{row.store}: {row.episodes_per_s:.1f} episodes/s")
                figures += rows
    return figures


def _bare_round(place: EmptyStore, second: EmptyStore, measured: AddFigures) -> AddFigures:
    """Have the driver alone write the rows of a measured round into the second server."""
    from bench import bare_driver

    lanes = min(2, measured.groups)
    transactions = max(1, measured.episodes // lanes // 32)
    prefix = f"round-{measured.round - 1}-"
    rows = bare_driver.stored_rows(place, prefix, lanes=lanes, transactions=transactions)
    pids = [] if second.server is None else [second.server.pid]
    cpu = CpuByRole({"engine": [os.getpid()], "server": pids})
    seconds, spent = bare_driver.write(second, rows), cpu.spent()
    count = measured.episodes
    result = AddFigures("driver alone", measured.round, count, measured.groups, count / seconds)
    result.engine_ms = 1e3 * spent["engine"] / count
    result.server_ms = 1e3 * spent["server"] / count
    result.rows = rows.count / count
    return result


def _round(memory: AsyncMemory, place: EmptyStore, plan: WorldPlan, number: int) -> AddFigures:
    oracle = Oracle(World(plan=plan))
    model = WorldModel(oracle)
    drafts: list[Draft] = [
        replace(episode.draft, group=f"round-{number}-{episode.draft.group}") for episode in oracle.world
    ]
    figures = AddFigures(place.kind, number + 1, len(drafts), plan.groups)
    rows_before = _rows(place)
    accept(memory.store, drafts)
    runner = Runner(replace(memory.parts, extractor=model, judge=model))
    cpu = CpuByRole({"engine": [os.getpid()], "server": [] if place.server is None else [place.server.pid]})
    started = time.perf_counter()
    with memory.store.writing():
        totals = asyncio.run(runner.run())
    seconds, spent = time.perf_counter() - started, cpu.spent()
    if totals.committed != len(drafts):
        raise KgrayError(f"{totals.committed} of {len(drafts)} episodes were committed")
    figures.episodes_per_s = len(drafts) / seconds
    figures.engine_ms = 1e3 * spent["engine"] / len(drafts)
    figures.server_ms = 1e3 * spent["server"] / len(drafts)
    figures.stages = {stage: round(s, 3) for stage, s in totals.seconds.items()}
    if place.server is not None:
        grown = {label: count - rows_before.get(label, 0) for label, count in _rows(place).items()}
        figures.rows_by_label = {label: round(n / len(drafts), 3) for label, n in grown.items() if n}
        figures.rows = sum(figures.rows_by_label.values())
    return figures


def _rows(place: EmptyStore) -> dict[str, int]:
    """Return how many nodes and relationships there are, by labels or type; nothing without a server."""
    if place.server is None:
        return {}
    from kgray.storage.neo4j.connection import Connection

    settings = place.settings
    db = Connection(
        uri=settings["store_uri"], user=settings["store_user"], password=place.password, database=None
    )
    try:
        nodes = db.rows("MATCH (n) RETURN labels(n), count(*)")
        edges = db.rows("MATCH ()-[r]->() RETURN type(r), count(*)")
    finally:
        db.close()
    return {"+".join(sorted(labels)): count for labels, count in nodes} | dict(edges)


_COLUMNS: Sequence[Column] = (
    ("store", "store", "s"),
    ("groups", "groups", ",d"),
    ("round", "round", "d"),
    ("episodes", "episodes", ",d"),
    ("episodes_per_s", "ep/s", ".1f"),
    ("engine_ms", "engine CPU ms/ep", ".1f"),
    ("server_ms", "server CPU ms/ep", ".1f"),
    ("rows", "rows/ep", ".2f"),
)


def table(figures: Sequence[AddFigures]) -> str:
    """Return the figures for people."""
    return "\n".join(aligned(_COLUMNS, figures))
