"""Prometheus metrics, exported by `ray.util.metrics`. Never tagged by group.

Each process makes a metric at its first use, so only what a process has measured is exported for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from kgray.errors import KgrayError
from kgray.ports import Judged
from kgray.ports.ingest import Totals
from kgray.records import Extraction
from kgray.runtime.outcomes import Outcome

_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
_LAGS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0]
_SIZES = [float(2**power) for power in range(11)]
# name -> (kind, description, tags)
_METRICS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "kgray_stage_seconds": (Histogram, "Seconds of a call.", ("stage",)),
    "kgray_commit_seconds": (Histogram, "Seconds of a transaction.", ()),
    "kgray_batch_size": (Histogram, "Requests of a chunk, texts or writes of a batch.", ("of",)),
    "kgray_model_calls": (Counter, "Calls of a model.", ("stage", "outcome")),
    "kgray_model_tokens": (Counter, "Tokens of model calls.", ("kind",)),
    "kgray_episodes": (Counter, "Episodes by the state they ended in.", ("state",)),
    "kgray_stage_busy_seconds": (Counter, "Seconds by stage, summed.", ("stage",)),
    "kgray_stalls": (Counter, "Requests first asked when their episode was next.", ()),
    "kgray_wasted_tokens": (Counter, "Tokens of answers that were not used.", ()),
    "kgray_log_lag": (Gauge, "Entries that wait in the log.", ("shard",)),
    "kgray_in_flight": (Gauge, "Episodes in flight.", ("shard",)),
    "kgray_writer_epoch": (Gauge, "The fencing epoch.", ("shard",)),
    "kgray_loop_lag_seconds": (Histogram, "Seconds by which the sequencer's loop comes late.", ()),
    "kgray_engine": (Gauge, "An engine's tokens and calls.", ("worker", "of")),
}


@cache
def _metric(name: str) -> Any:  # noqa: ANN401 - one of Ray's three kinds
    kind, description, tags = _METRICS[name]
    more = {}
    if kind is Histogram:
        boundaries = {"kgray_batch_size": _SIZES, "kgray_loop_lag_seconds": _LAGS}
        more["boundaries"] = boundaries.get(name, _SECONDS)
    return kind(name, description=description, tag_keys=tags, **more)


def observe(name: str, value: float, **tags: str) -> None:
    """Add a value to a histogram."""
    _metric(name).observe(value, tags)


def gauge(name: str, value: float, *, shard: int) -> None:
    """Set a gauge of a shard."""
    _metric(name).set(value, {"shard": str(shard)})


def engine(worker: str, counts: Mapping[str, float]) -> None:
    """Set the gauges of one engine."""
    for name, count in counts.items():
        _metric("kgray_engine").set(count, {"worker": worker, "of": name})


def count_call(stage: str, seconds: float, outcome: Outcome) -> None:
    """Count a call of a model, with its tokens."""
    observe("kgray_stage_seconds", seconds, stage=stage)
    ended = type(outcome).__name__ if isinstance(outcome, Exception) else "ok"
    _metric("kgray_model_calls").inc(1, {"stage": stage, "outcome": ended})
    cost = outcome[1] if isinstance(outcome, tuple) else None  # of a summary
    if isinstance(outcome, Extraction | Judged | KgrayError):
        cost = outcome.spent if isinstance(outcome, KgrayError) else outcome.cost
    if cost is not None:
        for kind, count in (("prompt", cost.prompt_tokens), ("completion", cost.completion_tokens)):
            if count:
                _metric("kgray_model_tokens").inc(count, {"kind": kind})


class TotalsExport:
    """Exports a sequencer's totals; of growing sums it exports the increment since the last export."""

    def __init__(self) -> None:
        self._exported: dict[tuple[str, ...], float] = {}

    def export(self, totals: Totals) -> None:
        """Export the totals' increments."""
        self._grow("kgray_episodes", totals.committed, state="committed")
        self._grow("kgray_episodes", totals.failed, state="failed")
        for stage, seconds in totals.seconds.items():
            self._grow("kgray_stage_busy_seconds", seconds, stage=stage)
        self._grow("kgray_stalls", totals.stalls)
        self._grow("kgray_wasted_tokens", totals.wasted_tokens)

    def _grow(self, name: str, total: float, **tags: str) -> None:
        key = (name, *tags.values())
        if (new := total - self._exported.get(key, 0)) > 0:
            _metric(name).inc(new, tags)
        self._exported[key] = total
