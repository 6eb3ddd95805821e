"""`python -m bench ingest`: the load of a model server by a runtime, and its cost here.

The ceiling is that of one call an episode with every stream busy: streams x episodes / the seconds
that their extractions alone take. Times run from the first claim to the last commit.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

from bench.empty_stores import EmptyStore
from bench.engine import Way, WayRun, carry_out, deployed, environ_of, given_of, opened, settings_of
from bench.processes import CpuByRole, ServerProcess, descendants, flags_of, options_of, require_psutil
from bench.reading import extraction_tokens, model_use
from bench.tables import Column, aligned
from kgray.errors import InputError
from kgray.memory import AsyncMemory
from kgray.ports.ingest import Totals, sum_of
from kgray.settings import Settings
from tests.world import Latency, Oracle, World, WorldPlan

_EARLY = slice(100, 200)  # the steps around the 100th episode, for the cost of an episode as a group grows
_LATE = 100
_ROLES = {"sequencer": "sequencer", "writer": "writer", "models": "workers", "embedder": "embedder"}


@dataclass(slots=True)
class Throughput:
    """One run; shares are of 1, an episode's figures are means."""

    seed: int
    episodes: int
    groups: int
    runtime: str
    window: int
    chunk: int | None
    streams: int
    wall_s: float = 0.0
    episodes_per_s: float = 0.0
    ceiling_per_s: float | None = None  # None: answers take no time
    share: float | None = None
    calls: float = 0.0
    prompt_tokens: float = 0.0
    prefix_share: float = 0.0
    requests: int = 0
    stalls: int = 0
    wasted: int = 0
    waste_share: float = 0.0  # of the model's tokens: of answers that were not used
    cpu_s: float = 0.0  # of all but the model server, an episode
    cpu_early_s: float = 0.0  # an episode, around the 100th; and of the last 100
    cpu_late_s: float = 0.0
    memory_mb: float = 0.0  # growth of the peak over the run
    failed: int = 0
    cpu_by_role: dict[str, float] = field(default_factory=dict)  # seconds of the whole run
    stages: dict[str, float] = field(default_factory=dict)  # seconds, summed over concurrent calls
    digest: str = ""
    refreshes: int = 0  # of groups with changes during the run
    calls_by_task: dict[str, float] = field(
        default_factory=dict
    )  # an episode, answers that were not used too
    questions: dict[str, float] = field(
        default_factory=dict
    )  # an episode, by kind: a call has one or several


def cold(plan: WorldPlan) -> WorldPlan:
    """Return the plan of 32 groups of 50 episodes and 20 entities: each group has hardly begun."""
    return replace(plan, groups=32, episodes=1_600, entities=640)


def run(
    plan: WorldPlan, setup: Way, *, latency: Latency, profile: Path | None = None, refreshing: bool = False
) -> Throughput:
    """Ingest a world through a model server in a separate process and the `openai` backend.

    For `ray` a Ray must be up (`engine.one_ray`); profile: of its actors, None = the laptop's.
    refreshing: another process refreshes the communities of all groups during the run, 2 s apart
    """
    if not plan.episodes:
        raise InputError("--episodes 0: there is nothing to ingest")
    require_psutil()
    oracle = Oracle(World(plan=plan))
    result = Throughput(
        **{name: getattr(plan, name) for name in ("seed", "episodes", "groups")},
        **{name: getattr(setup, name) for name in ("runtime", "window", "chunk")},
        streams=latency.streams,
    )
    drafts = [episode.draft for episode in oracle.world]
    with (
        tempfile.TemporaryDirectory(prefix="kgray-bench-") as folder,
        ServerProcess([*flags_of(oracle), *options_of(asdict(latency))]) as server,
    ):
        place = EmptyStore(Path(folder))
        streams = latency.streams
        settings_table = given_of(
            setup, place, server.base_url, model_max_concurrency=streams, runtime_profile=profile
        )
        settings = settings_of(settings_table)
        memory = opened(settings, place.data)
        try:
            with _processes(settings, place.data, server.pid) as (roles, totals_of):
                steps = [time.process_time()]
                peak, cpu = _peak_mb(), CpuByRole(roles)
                with _refreshes(settings_table, place.data) if refreshing else nullcontext(result) as counted:
                    ran = carry_out(
                        setup, memory, drafts, on_step=lambda *_: steps.append(time.process_time())
                    )
                result.refreshes = counted.refreshes
                result.cpu_by_role = cpu.spent()
                result.memory_mb = _peak_mb() - peak
                _note_run(result, ran, totals_of(ran), steps)
            _note_models(result, memory, server.stats(), latency)
        finally:
            memory.close()
    return result


_REFRESHER = """
import sys, time, threading, kgray
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
done = 0
with kgray.open(sys.argv[1], create=True) as memory:
    while not stop.wait(2.0):
        done += sum(one.news for one in memory.communities.refresh().groups.values())
print(done)
"""


@dataclass(slots=True)
class _Refreshes:
    refreshes: int = 0  # of groups that had news


@contextmanager
def _refreshes(settings_table: Mapping[str, Any], data: Path) -> Iterator[_Refreshes]:
    """Have a process refresh all groups during the run, with texts that need no model."""
    store = {
        name: value for name, value in settings_table.items() if name.startswith(("store_", "embedder_"))
    }
    counted = _Refreshes()
    command = [sys.executable, "-c", _REFRESHER, str(data)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environ_of(store), stdin=pipe, stdout=pipe, text=True)  # noqa: S603
    try:
        yield counted
    finally:
        counted.refreshes = int(process.communicate("")[0] or 0)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def _processes(
    settings: Settings, data: Path, server: int
) -> Iterator[tuple[Mapping[str, list[int]], Callable[[WayRun], Totals]]]:
    """Yield the processes by role, and a function that returns a run's totals from its workers."""
    local = {"model server": [server], "driver": [os.getpid()]}
    if settings.runtime.backend == "local":
        yield local, lambda ran: ran.totals
        return
    deployment = deployed(settings, data, detached=False)
    try:
        roles: dict[str, list[int]] = {}
        for name, row in deployment.status().items():
            roles.setdefault(_ROLES[name.rpartition("-")[0]], []).append(row["pid"])
        # The other children of this process are Ray itself: its stores, schedulers and agents.
        yield (
            {**local, **roles, "ray": sorted(descendants(os.getpid()))},
            lambda _: reduce(sum_of, [Totals(**row["totals"]) for row in asyncio.run(deployment.news({}))]),
        )
    finally:
        deployment.stop(0)


def _note_run(result: Throughput, ran: WayRun, totals: Totals, steps: Sequence[float]) -> None:
    result.wall_s = ran.wall_s
    if totals.first_claim is not None and totals.last_commit is not None:
        result.wall_s = totals.last_commit - totals.first_claim
    result.episodes_per_s = result.episodes / result.wall_s
    result.failed, result.digest = ran.failed, ran.digest
    result.requests, result.stalls, result.wasted = totals.requests, totals.stalls, totals.wasted
    result.waste_share = float(totals.wasted_tokens)  # a share once the server has told how many there were
    result.stages = {stage: round(seconds, 3) for stage, seconds in totals.seconds.items()}
    engine = sum(seconds for role, seconds in result.cpu_by_role.items() if role != "model server")
    result.cpu_s = engine / result.episodes
    if result.runtime == "local" and len(steps) > 2 * _EARLY.stop:
        result.cpu_s = (steps[-1] - steps[0]) / result.episodes
        result.cpu_early_s = (steps[_EARLY.stop] - steps[_EARLY.start]) / (_EARLY.stop - _EARLY.start)
        result.cpu_late_s = (steps[-1] - steps[-1 - _LATE]) / _LATE


def _note_models(
    result: Throughput, memory: AsyncMemory, served: Mapping[str, Any], latency: Latency
) -> None:
    used = model_use(memory.store)
    result.calls = used.calls / result.episodes
    result.prompt_tokens = used.prompt_tokens / result.episodes
    seconds = sum(map(latency.seconds, extraction_tokens(memory.store)))
    if seconds:
        result.ceiling_per_s = latency.streams * result.episodes / seconds
        result.share = result.episodes_per_s / result.ceiling_per_s
    result.prefix_share = float(served["prefix_share"])
    result.calls_by_task = _an_episode(served["by_task"], result.episodes)
    result.questions = _an_episode(served["questions"], result.episodes)
    result.waste_share /= max(1, served["prompt_tokens"] + served["completion_tokens"])


def _an_episode(counts: Mapping[str, int], episodes: int) -> dict[str, float]:
    """Return counts divided by the number of episodes, the largest first."""
    return {name: counts[name] / episodes for name in sorted(counts, key=lambda name: (-counts[name], name))}


_COLUMNS: Sequence[Column] = (
    ("seed", "seed", "d"),
    ("groups", "groups", "d"),
    ("runtime", "runtime", "s"),
    ("window", "window", "d"),
    ("streams", "streams", "d"),
    ("episodes_per_s", "ep/s", ".2f"),
    ("ceiling_per_s", "ceiling", ".2f"),
    ("share", "share", ".1%"),
    ("calls", "calls", ".3f"),
    ("prompt_tokens", "prompt", ".0f"),
    ("prefix_share", "fixed", ".0%"),
    ("stalls", "stalls", "d"),
    ("wasted", "wasted", "d"),
    ("waste_share", "waste", ".1%"),
    ("cpu_s", "CPU s/ep", ".4f"),
    ("cpu_early_s", "early", ".4f"),
    ("cpu_late_s", "late", ".4f"),
    ("memory_mb", "MB", ".0f"),
    ("refreshes", "refreshes", "d"),
)


def table(results: Sequence[Throughput]) -> str:
    """Return the figures for people."""
    lines = aligned(_COLUMNS, results)
    for r in results:
        spent = ", ".join(f"{role} {seconds:.1f}" for role, seconds in r.cpu_by_role.items())
        cores = sum(r.cpu_by_role.values()) / max(r.wall_s, 1e-9)
        lines.append(
            f"seed {r.seed}: CPU seconds by role: {spent} ({cores:.2f} cores busy over {r.wall_s:.1f} s)"
        )
        tasks, kinds = (
            ", ".join(f"{name} {share:.3f}" for name, share in counts.items())
            for counts in (r.calls_by_task, r.questions)
        )
        lines.append(
            f"seed {r.seed}: calls an episode by task: {tasks}; questions by kind: {kinds or 'none'}"
        )
    return "\n".join(lines)
