"""`python -m bench soak`: in a long backfill through Ray memory grows by no more than the state held.

The rules model reads in the workers' own processes, so that nothing waits for a server. Two phases: few
groups whose state may grow, and many groups under a small bound.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine import deployed, environ_of, one_ray, opened, settings_of
from bench.processes import require_psutil, rss_mb
from bench.targets import Actors, Driver
from kgray.errors import KgrayError
from tests.world.files import input_row
from tests.world.growing import growing

ROLES = ("driver", "sequencer", "writer")
_MB = 1 << 20
_EVERY_S = 2.0
_AT_MOST_PER_S = 250  # episodes that are generated for each second: more than two cores carry
_BLOCK = 100  # episodes of one group in a row, then the next group's
# The tolerance of a slope above the state's slope, for noise of the allocator and the page cache; and the
# relative error of the state's size, which is a count times a mean.
NOISE_MB_PER_MIN = 2.0
STATE_ERROR = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakPhase:
    """The backfilled data. state_mb: the bound of the sequencer's states (runtime.state_mb)."""

    name: str
    groups: int
    state_mb: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """A sample. mb: resident memory by role, without pages shared with other processes."""

    at_s: float
    committed: int
    held_mb: float
    mb: dict[str, float]


@dataclass(slots=True)
class SoakResult:
    """The result of a phase; slopes in MB a minute, least squares over the last two thirds."""

    phase: SoakPhase
    samples: list[MemorySample] = field(default_factory=list)
    committed: int = 0
    per_s: float = 0.0
    slopes: dict[str, float] = field(default_factory=dict)
    held_slope: float = 0.0
    held_most_mb: float = 0.0
    faults: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; samples as [seconds, committed, held, driver, sequencer, writer]."""
        rows = [
            [round(s.at_s, 1), s.committed, round(s.held_mb, 2), *(round(s.mb[r], 1) for r in ROLES)]
            for s in self.samples
        ]
        return {
            "phase": self.phase.name,
            "groups": self.phase.groups,
            "state_mb": self.phase.state_mb,
            "seconds": self.phase.seconds,
            "committed": self.committed,
            "episodes_per_s": self.per_s,
            "slopes_mb_per_min": self.slopes,
            "held_slope_mb_per_min": self.held_slope,
            "held_most_mb": self.held_most_mb,
            "faults": self.faults,
            "samples": rows,
        }


def both_phases(minutes: float) -> list[SoakPhase]:
    """Return the two phases, each of half the time."""
    return [
        SoakPhase(name="growing", groups=4, state_mb=1024, seconds=30 * minutes),
        SoakPhase(name="bounded", groups=40, state_mb=16, seconds=30 * minutes),
    ]


def run(phases: Sequence[SoakPhase], progress: Callable[[str], None] = lambda _: None) -> list[SoakResult]:
    """Carry out the phases, each on a separate store."""
    require_psutil()
    results = []
    with tempfile.TemporaryDirectory(prefix="kgray-bench-") as folder, one_ray() as address:
        for number, phase in enumerate(phases):
            place = Path(folder) / str(number)
            place.mkdir()
            results.append(_soak(phase, place, address, progress))
    return results


def _soak(phase: SoakPhase, folder: Path, address: str, progress: Callable[[str], None]) -> SoakResult:
    episodes, data = folder / "episodes.jsonl", folder / "data"
    _write(episodes, phase)
    settings_table = {"runtime_backend": "ray", "runtime_state_mb": phase.state_mb}
    settings = settings_of(settings_table)
    opened(settings, data).close()  # the store is made before actors open it
    deployment = deployed(settings, data)
    driver = Driver([episodes], data, environ_of({**settings_table, "runtime_address": address}))
    soaked = SoakResult(phase)
    try:
        driver.start()
        _sample(soaked, Actors(deployment), driver, progress)
    finally:
        driver.stop()
        deployment.stop(5.0)
    _judge(soaked)
    return soaked


def _write(path: Path, phase: SoakPhase) -> None:
    """Write more episodes than can be read in the time; each group has its own world."""
    count = int(phase.seconds * _AT_MOST_PER_S)
    worlds = [growing(f"soak-{group}", seed=group + 1) for group in range(phase.groups)]
    with path.open("w", encoding="utf-8") as lines:
        for number in range(count):
            draft = next(worlds[number // _BLOCK % phase.groups]).draft
            lines.write(json.dumps(input_row(draft)) + "\n")


def _sample(soaked: SoakResult, actors: Actors, driver: Driver, progress: Callable[[str], None]) -> None:
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < soaked.phase.seconds:
        if (code := driver.ended()) is not None:
            raise KgrayError(f"the backfill ended with {code} after {elapsed:.0f} s: {driver.last_lines()}")
        sample = _look(elapsed, actors, driver)
        if sample is not None and sample.committed:
            soaked.samples.append(sample)
            if len(soaked.samples) % 15 == 1:
                memory = ", ".join(f"{role} {mb:.0f}" for role, mb in sample.mb.items())
                progress(
                    f"{soaked.phase.name} {elapsed:6.0f} s  {sample.committed} committed  "
                    f"state {sample.held_mb:.1f} MB  resident: {memory} MB"
                )
        time.sleep(_EVERY_S)


def _look(elapsed: float, actors: Actors, driver: Driver) -> MemorySample | None:
    stats = {name: actors.stats(f"{name}-0") for name in ("sequencer", "writer")}
    pids = {name: row["pid"] for name, row in stats.items() if row is not None} | {"driver": driver.pid}
    mb = {role: size for role in ROLES if (size := rss_mb(pids.get(role, 0))) is not None}
    sequencer = stats["sequencer"]
    if sequencer is None or len(mb) < len(ROLES):
        return None
    totals = sequencer["totals"]
    held_mb = sequencer["held_bytes"] / _MB
    return MemorySample(
        at_s=elapsed, committed=totals["committed"] + totals["failed"], held_mb=held_mb, mb=mb
    )


def _judge(soaked: SoakResult) -> None:
    """Compute slopes, and compare them with the limits."""
    late_samples = soaked.samples[len(soaked.samples) // 3 :]
    if len(late_samples) < 5:
        raise KgrayError(
            f"{soaked.phase.name}: {len(soaked.samples)} looks are too few; give it more minutes"
        )
    at = [sample.at_s / 60 for sample in late_samples]
    soaked.held_slope = _slope(at, [sample.held_mb for sample in late_samples])
    soaked.held_most_mb = round(max(sample.held_mb for sample in soaked.samples), 2)
    soaked.slopes = {role: _slope(at, [sample.mb[role] for sample in late_samples]) for role in ROLES}
    first, last = soaked.samples[0], soaked.samples[-1]
    soaked.committed = last.committed
    soaked.per_s = round((last.committed - first.committed) / (last.at_s - first.at_s), 1)
    for role, slope in soaked.slopes.items():
        held_slope = max(0.0, soaked.held_slope) if role == "sequencer" else 0.0
        allowed = NOISE_MB_PER_MIN + (1 + STATE_ERROR) * held_slope
        if slope > allowed:
            soaked.faults.append(f"{role} grows by {slope:.2f} MB/min; {allowed:.2f} are explained")
    # At least one state stays in memory, of any size; here all have equal sizes.
    largest = soaked.held_most_mb / soaked.phase.groups
    if soaked.held_most_mb > soaked.phase.state_mb + largest:
        bound = soaked.phase.state_mb
        soaked.faults.append(f"the states took {soaked.held_most_mb:.1f} MB; their bound is {bound} MB")


def _slope(at: Sequence[float], values: Sequence[float]) -> float:
    return round(float(np.polyfit(np.asarray(at), np.asarray(values), 1)[0]), 3)


def table(results: Sequence[SoakResult]) -> str:
    """Return the figures for people."""
    lines = [
        f"{'phase':<8} {'groups':>6} {'bound':>6} {'episodes':>8} {'ep/s':>6} {'state':>7} {'state+':>7} "
        + " ".join(f"{role + '+':>10}" for role in ROLES)
        + "  (MB; + = MB a minute)"
    ]
    for result in results:
        lines.append(
            f"{result.phase.name:<8} {result.phase.groups:>6} {result.phase.state_mb:>6} "
            f"{result.committed:>8} "
            f"{result.per_s:>6.1f} {result.held_most_mb:>7.2f} {result.held_slope:>7.2f} "
            + " ".join(f"{result.slopes[role]:>10.2f}" for role in ROLES)
        )
        lines += [f"FAULT: {result.phase.name}: {fault}" for fault in result.faults]
    if not any(result.faults for result in results):
        lines.append(f"no growth beyond the state, by more than {NOISE_MB_PER_MIN:g} MB/min; the bound holds")
    return "\n".join(lines)
