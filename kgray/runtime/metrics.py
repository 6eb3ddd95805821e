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
_BOUNDARIES = {
    "kgray_loop_lag_seconds": [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0],
    "kgray_batch_size": [float(2**power) for power in range(11)],
}
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
    "kgray_community_texts": (Counter, "Texts of scheduled refreshes, by what became of them.", ("how",)),
    "kgray_engine": (Gauge, "An engine's tokens and calls.", ("worker", "of")),
}


@cache
def _metric(name: str) -> Any:  # noqa: ANN401 - one of Ray's three kinds
    kind, description, tags = _METRICS[name]
    more = {"boundaries": _BOUNDARIES.get(name, _SECONDS)} if kind is Histogram else {}
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


def count_texts(how: str, count: int) -> None:
    """Count texts of communities that were kept, written (by a model) or offline (without one)."""
    if count:
        _metric("kgray_community_texts").inc(count, {"how": how})


def export(totals: Totals, before: dict[tuple[str, str, str], float]) -> None:
    """Add a sequencer's totals to the counters. before: what they were at the last call; replaced."""
    now = {
        ("kgray_episodes", "state", "committed"): totals.committed,
        ("kgray_episodes", "state", "failed"): totals.failed,
        ("kgray_stalls", "", ""): totals.stalls,
        ("kgray_wasted_tokens", "", ""): totals.wasted_tokens,
    } | {("kgray_stage_busy_seconds", "stage", stage): took for stage, took in totals.seconds.items()}
    for key, total in now.items():
        if (new := total - before.get(key, 0)) > 0:
            _metric(key[0]).inc(new, {key[1]: key[2]} if key[1] else {})
    before.update(now)
