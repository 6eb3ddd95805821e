"""`kgray bench ingest`: how full the windowed runner keeps a model server, and what that costs here.

The ceiling is that of one call an episode with every stream busy: streams x episodes / the seconds
that their extractions alone take. Times run from the first claim to the last commit.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kgray import times
from kgray.backends.hashing import HashingEmbedder
from kgray.bench.serving import over_http
from kgray.bench.world import Oracle, Plan, World
from kgray.bench.world.latency import Latency
from kgray.derivation import dump
from kgray.derivation.view import View
from kgray.errors import InputError
from kgray.ingest.parts import Parts, Pipeline
from kgray.ingest.runner import Runner
from kgray.ontology import shipped
from kgray.ports import ExtractionRequest, Extractor, Store
from kgray.records import Extraction
from kgray.stores.sqlite import open_sqlite

_BATCH = 256


@dataclass(slots=True)
class Throughput:
    """One run; shares are of 1, an episode's figures are means."""

    seed: int
    episodes: int
    groups: int
    window: int
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
    cpu_s: float = 0.0  # of this process, its HTTP client included, an episode
    cpu_early_s: float = 0.0  # an episode, around the 100th; and of the last 100
    cpu_late_s: float = 0.0
    memory_mb: float = 0.0  # growth of the peak over the run
    failed: int = 0
    hashes: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return asdict(self)


class _Counted:
    """An extractor that notes how long the server wrote at each answer."""

    def __init__(self, inner: Extractor, latency: Latency) -> None:
        self.identity = inner.identity
        self.seconds = 0.0
        self._inner, self._latency = inner, latency

    async def extract(self, request: ExtractionRequest) -> Extraction:
        extraction = await self._inner.extract(request)
        self.seconds += self._latency.seconds(extraction.completion_tokens)
        return extraction


def run(plan: Plan, *, window: int, latency: Latency, pipeline: Pipeline | None = None) -> Throughput:
    """Ingest a world through a model server of its own process and the `openai` backend."""
    if not plan.episodes:
        raise InputError("--episodes 0: there is nothing to ingest")
    chosen = pipeline or Pipeline()
    oracle = Oracle(World(plan=plan))
    result = Throughput(
        seed=plan.seed, episodes=plan.episodes, groups=plan.groups, window=window, streams=latency.streams
    )
    flags = (
        *("--streams", str(latency.streams), "--first-token-s", str(latency.first_token_s)),
        *("--tokens-per-s", str(latency.tokens_per_s)),
    )
    embedder = HashingEmbedder()
    with (
        tempfile.TemporaryDirectory(prefix="kgray-bench-") as folder,
        over_http(oracle, chosen, flags) as models,
    ):
        counted = _Counted(models.extractor, latency)
        store: Store = open_sqlite(Path(folder), embedder=embedder.identity, dimensions=embedder.dimensions)
        parts = Parts(
            store=store,
            extractor=counted,
            judge=models.judge,
            embedder=embedder,
            ontology=shipped(),
            pipeline=chosen,
            window=window,
            streams=latency.streams,
        )
        drafts = [episode.draft for episode in oracle.world]
        for at in range(0, len(drafts), _BATCH):
            store.accept(drafts[at : at + _BATCH], now=times.now())
        _ingest(parts, result)
        result.ceiling_per_s = latency.streams * result.episodes / max(counted.seconds, 1e-9)
        result.share = result.episodes_per_s / result.ceiling_per_s
        result.prefix_share = float(models.stats()["prefix_share"])
        _count(store, result)
        store.close()
    return result


def _ingest(parts: Parts, result: Throughput) -> None:
    steps = [time.process_time()]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall = time.perf_counter()
    with parts.store.writing():
        totals = asyncio.run(Runner(parts).run(on_step=lambda *_: steps.append(time.process_time())))
    result.wall_s = time.perf_counter() - wall
    result.episodes_per_s = result.episodes / result.wall_s
    result.memory_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    result.failed = totals.failed
    result.requests, result.stalls, result.wasted = totals.requests, totals.stalls, totals.wasted
    result.cpu_s = (steps[-1] - steps[0]) / result.episodes
    if len(steps) > 400:
        result.cpu_early_s = (steps[200] - steps[100]) / 100
        result.cpu_late_s = (steps[-1] - steps[-101]) / 100


def _count(store: Store, result: Throughput) -> None:
    for group, counts in store.counts().items():
        result.calls += counts.calls / result.episodes
        result.prompt_tokens += counts.prompt_tokens / result.episodes
        view = View(store.records(group), lambda _: [])
        result.hashes[group] = dump.digest(dump.rows(view, store.episode_rows(group)))


def table(results: Sequence[Throughput]) -> str:
    """Return the figures for people."""
    head = (
        f"{'seed':>4} {'groups':>6} {'window':>6} {'ep/s':>7} {'ceiling':>7} {'share':>6} {'calls':>6} "
        f"{'prompt':>6} {'fixed':>6} {'stalls':>6} {'wasted':>6} {'CPU s/ep':>9} {'early':>7} {'late':>7} "
        f"{'MB':>5}"
    )
    lines = [head]
    lines += [
        f"{r.seed:>4} {r.groups:>6} {r.window:>6} {r.episodes_per_s:>7.2f} {r.ceiling_per_s:>7.2f} "
        f"{r.share:>6.1%} {r.calls:>6.3f} {r.prompt_tokens:>6.0f} {r.prefix_share:>6.0%} {r.stalls:>6} "
        f"{r.wasted:>6} {r.cpu_s:>9.4f} {r.cpu_early_s:>7.4f} {r.cpu_late_s:>7.4f} {r.memory_mb:>5.0f}"
        for r in results
    ]
    return "\n".join(lines)
