"""`kgray bench ingest`: how full a runtime keeps a model server, and what that costs here.

The ceiling is that of one call an episode with every stream busy: streams x episodes / the seconds
that their extractions alone take. Times run from the first claim to the last commit.
"""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kgray.bench.places import Place
from kgray.bench.processes import CpuByRole, below, require_psutil
from kgray.bench.runs import Run, Way, carry_out, digest, opened, settings_of
from kgray.bench.serving import Server, flags_of
from kgray.bench.world import Oracle, Plan, World
from kgray.bench.world.latency import Latency
from kgray.errors import InputError
from kgray.ingest.parts import Totals
from kgray.kinds import EXTRACTIONS_AT
from kgray.ledger import dumped_episodes
from kgray.memory import Memory
from kgray.ports import Store
from kgray.rows import extraction
from kgray.settings import Settings

_EARLY = slice(100, 200)  # the steps around the 100th episode, for what an episode costs as a group grows
_LATE = 100


@dataclass(slots=True)
class Throughput:
    """One run; shares are of 1, an episode's figures are means."""

    seed: int
    episodes: int
    groups: int
    runtime: str
    window: int
    chunk: int
    streams: int
    wall_s: float = 0.0
    episodes_per_s: float = 0.0
    ceiling_per_s: float = 0.0
    share: float = 0.0
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
    stages: dict[str, float] = field(default_factory=dict)  # seconds, summed over what ran side by side
    digest: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return asdict(self)


def run(
    plan: Plan,
    *,
    window: int,
    latency: Latency,
    runtime: str = "local",
    chunk: int = 8,
    profile: Path | None = None,
) -> Throughput:
    """Ingest a world through a model server of its own process and the `openai` backend.

    For `ray` a Ray must be up (`equality.one_ray`); profile: of its actors, None = the laptop's.
    """
    if not plan.episodes:
        raise InputError("--episodes 0: there is nothing to ingest")
    require_psutil()
    oracle = Oracle(World(plan=plan))
    way = Way(runtime="ray" if runtime == "ray" else "local", window=window, chunk=chunk)
    result = Throughput(
        seed=plan.seed,
        episodes=plan.episodes,
        groups=plan.groups,
        runtime=way.runtime,
        window=window,
        chunk=chunk,
        streams=latency.streams,
    )
    flags = (
        *("--streams", str(latency.streams), "--first-token-s", str(latency.first_token_s)),
        *("--tokens-per-s", str(latency.tokens_per_s)),
    )
    drafts = [episode.draft for episode in oracle.world]
    with (
        tempfile.TemporaryDirectory(prefix="kgray-bench-") as folder,
        Server([*flags_of(oracle), *flags]) as server,
    ):
        more = {"model_max_concurrency": latency.streams, "runtime_profile": profile}
        place = Place(Path(folder), {"store_backend": "sqlite"})
        settings = settings_of(way, place, server.base_url, more)
        memory = opened(settings, place.data)
        try:
            with _processes(settings, place.data, server.pid) as (roles, totals):
                _ingest(way, memory, drafts, result, CpuByRole(roles), totals)
            _count(memory.store, server.stats(), latency, result)
        finally:
            memory.close()
    return result


Roles = Mapping[str, list[int]]
Told = Callable[[Run], Totals]


@contextmanager
def _processes(settings: Settings, data: Path, server: int) -> Iterator[tuple[Roles, Told]]:
    """Yield who works by role, and how the run went by those who did the work."""
    here = {"model server": [server], "driver": [os.getpid()]}
    if settings.runtime.backend == "local":
        yield here, lambda ran: ran.totals
        return
    from kgray.runtime.deploy import ensure
    from kgray.runtime.profile import load
    from kgray.runtime.terms import terms_of

    chosen = settings.runtime.profile
    deployment = ensure(
        terms_of(settings, data, load(chosen).values()), detached=False, chosen=chosen is not None
    )
    try:
        told = deployment.status()
        roles: dict[str, list[int]] = {}
        for name, row in told.items():
            roles.setdefault(_ROLES[name.rpartition("-")[0]], []).append(row["pid"])
        # What is left of this process's children is Ray itself: its stores, schedulers and agents.
        yield (
            {**here, **roles, "ray": sorted(below(os.getpid()))},
            lambda _: Totals(**deployment.status()["sequencer-0"]["totals"]),
        )
    finally:
        deployment.stop(0)


_ROLES = {"sequencer": "sequencer", "writer": "writer", "models": "workers", "embedder": "embedder"}


def _ingest(
    way: Way, memory: Memory, drafts: Sequence[Any], result: Throughput, cpu: CpuByRole, told: Told
) -> None:
    steps = [time.process_time()]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ran = carry_out(way, memory, drafts, on_step=lambda *_: steps.append(time.process_time()), hashed=False)
    totals = told(ran)
    result.cpu_by_role = cpu.spent()
    result.wall_s = ran.wall_s
    if totals.first_claim is not None and totals.last_commit is not None:
        result.wall_s = totals.last_commit - totals.first_claim
    result.episodes_per_s = result.episodes / result.wall_s
    result.memory_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    result.failed, result.digest = ran.failed, asyncio.run(digest(memory))
    result.requests, result.stalls, result.wasted = totals.requests, totals.stalls, totals.wasted
    result.waste_share = float(totals.wasted_tokens)  # a share once the server has told how many there were
    result.stages = {stage: round(seconds, 3) for stage, seconds in totals.seconds.items()}
    engine = sum(seconds for role, seconds in result.cpu_by_role.items() if role != "model server")
    result.cpu_s = engine / result.episodes
    if way.runtime == "local" and len(steps) > 2 * _EARLY.stop:
        result.cpu_s = (steps[-1] - steps[0]) / result.episodes
        result.cpu_early_s = (steps[_EARLY.stop] - steps[_EARLY.start]) / (_EARLY.stop - _EARLY.start)
        result.cpu_late_s = (steps[-1] - steps[-1 - _LATE]) / _LATE


def _count(store: Store, served: Mapping[str, Any], latency: Latency, result: Throughput) -> None:
    seconds = 0.0
    for group, counts in store.counts().items():
        result.calls += counts.calls / result.episodes
        result.prompt_tokens += counts.prompt_tokens / result.episodes
        for episode in dumped_episodes(store, group):
            for row in store.rows(EXTRACTIONS_AT, group, [episode.sequence]):
                seconds += latency.seconds(extraction(row).completion_tokens)
    if seconds:
        result.ceiling_per_s = latency.streams * result.episodes / seconds
        result.share = result.episodes_per_s / result.ceiling_per_s
    result.prefix_share = float(served["prefix_share"])
    result.waste_share /= max(1, served["prompt_tokens"] + served["completion_tokens"])


def table(results: Sequence[Throughput]) -> str:
    """Return the figures for people."""
    head = (
        f"{'seed':>4} {'groups':>6} {'runtime':<7} {'window':>6} {'streams':>7} {'ep/s':>7} {'ceiling':>7} "
        f"{'share':>6} {'calls':>6} {'prompt':>6} {'fixed':>6} {'stalls':>6} {'wasted':>6} {'waste':>6} "
        f"{'CPU s/ep':>9} {'early':>7} {'late':>7} {'MB':>5}"
    )
    lines = [head]
    for r in results:
        ceiling = f"{r.ceiling_per_s:>7.2f} {r.share:>6.1%}" if r.ceiling_per_s else f"{'-':>7} {'-':>6}"
        lines.append(
            f"{r.seed:>4} {r.groups:>6} {r.runtime:<7} {r.window:>6} {r.streams:>7} {r.episodes_per_s:>7.2f} "
            f"{ceiling} {r.calls:>6.3f} {r.prompt_tokens:>6.0f} {r.prefix_share:>6.0%} {r.stalls:>6} "
            f"{r.wasted:>6} {r.waste_share:>6.1%} {r.cpu_s:>9.4f} {r.cpu_early_s:>7.4f} {r.cpu_late_s:>7.4f} "
            f"{r.memory_mb:>5.0f}"
        )
    for r in results:
        spent = ", ".join(f"{role} {seconds:.1f}" for role, seconds in r.cpu_by_role.items())
        cores = sum(r.cpu_by_role.values()) / max(r.wall_s, 1e-9)
        lines.append(
            f"seed {r.seed}: CPU seconds by role: {spent} ({cores:.2f} cores busy over {r.wall_s:.1f} s)"
        )
    return "\n".join(lines)
