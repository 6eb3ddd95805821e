"""Telemetry of the actors: JSON lines, and metrics for Prometheus (`ray.util.metrics`).

No line holds a text of an episode, and no metric is tagged by group. An episode's lines have one trace id,
which every process can compute. A process exports only metrics that it has measured.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from kgray.domain import times
from kgray.domain.records import Spent
from kgray.errors import KgrayError
from kgray.ports.ingest import Totals
from kgray.runtime.pools import Outcome

LOGGER = logging.getLogger("kgray.runtime")
_encoded = json.JSONEncoder(ensure_ascii=False).encode
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
    "kgray_rows_written": (Counter, "Rows that the writer puts, changes and drops.", ("kind",)),
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
    "kgray_seats": (Gauge, "Seats of engines that the shard has leased.", ("shard",)),
    "kgray_quarantined": (Gauge, "1 while a worker gets no work because its start failed.", ("worker",)),
    "kgray_engine": (Gauge, "An engine's tokens and calls.", ("worker", "of")),
}


_REPEAT_S = 1.0
_gauges: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}  # (name, tags) -> the last value


def _line(created: float, level: str, message: str, role: str, **fields: Any) -> str:  # noqa: ANN401 - JSON
    at = times.show(round(created * 1_000_000))
    return _encoded({"at": at, "level": level, "message": message, "role": role, **fields})


class _JsonLines(logging.Formatter):
    """One JSON object a record: time, level, message, role, and the epoch if it is set."""

    role = ""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"epoch": epoch} if (epoch := getattr(record, "epoch", None)) is not None else {}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return _line(record.created, record.levelname, record.getMessage(), self.role, **fields)


_LINES = _JsonLines()


def start(role: str) -> None:
    """Send this process's lines to its standard error, which Ray keeps in a file of the session."""
    _LINES.role = role
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LINES)
    LOGGER.handlers[:] = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)


def trace_of(group: str, sequence: int) -> str:
    """Return the trace id of an episode: 32 hex characters."""
    return hashlib.sha256(f"kgray trace\x1f{group}\x1f{sequence}".encode()).hexdigest()[:32]


def stage(
    name: str, group: str, sequence: int, *, seconds: float | None = None, outcome: Outcome = None
) -> None:
    """Log that an episode has passed a stage. One write a line: `logging` takes twice as long."""
    details: dict[str, Any] = {} if seconds is None else {"seconds": round(seconds, 4)}
    if isinstance(outcome, Exception):
        details["error"] = type(outcome).__name__
    episode = {"stage": name, "group": group, "sequence": sequence, "trace": trace_of(group, sequence)}
    with suppress(OSError, ValueError):  # a full disk under the logs stops no work
        sys.stderr.write(_line(time.time(), "INFO", name, _LINES.role, **episode, **details) + "\n")


@cache
def _metric(name: str) -> Any:  # noqa: ANN401 - one of Ray's three kinds
    kind, description, tags = _METRICS[name]
    options = {"boundaries": _BOUNDARIES.get(name, _SECONDS)} if kind is Histogram else {}
    return kind(name, description=description, tag_keys=tags, **options)


def measure(name: str, value: float, **tags: object) -> None:
    """Add a value to a histogram or a counter, or set a gauge."""
    kind, metric = _METRICS[name][0], _metric(name)
    labels = {tag: str(label) for tag, label in tags.items()}
    if kind is Gauge:
        _gauges[name, tuple(labels.items())] = value
        _repeater()
        metric.set(value, labels)
    elif kind is Histogram:
        metric.observe(value, labels)
    elif value > 0:
        metric.inc(value, labels)


def forget(name: str, **tags: object) -> None:
    """Export a gauge no longer."""
    _gauges.pop((name, tuple((tag, str(label)) for tag, label in tags.items())), None)


@cache
def _repeater() -> threading.Thread:
    """Start the thread that sets this process's gauges again and again.

    Ray's agent exports a gauge once for each time that it is set (Ray 2.60): without this thread, Prometheus
    would read an epoch, which seldom changes, once or never.
    """
    thread = threading.Thread(target=_repeat, name="kgray-gauges", daemon=True)
    thread.start()
    return thread


def _repeat() -> None:
    while True:
        time.sleep(_REPEAT_S)
        for (name, labels), value in list(_gauges.items()):
            _metric(name).set(value, dict(labels))


def count_call(stage: str, seconds: float, outcome: Outcome) -> None:
    """Count a call of a model, with its tokens."""
    measure("kgray_stage_seconds", seconds, stage=stage)
    ended = type(outcome).__name__ if isinstance(outcome, Exception) else "ok"
    measure("kgray_model_calls", 1, stage=stage, outcome=ended)
    cost = outcome[1] if isinstance(outcome, tuple) else None  # of a summary
    if isinstance(outcome, Spent | KgrayError):
        cost = outcome.spent if isinstance(outcome, KgrayError) else outcome.cost
    if cost is not None:
        measure("kgray_model_tokens", cost.prompt_tokens, kind="prompt")
        measure("kgray_model_tokens", cost.completion_tokens, kind="completion")


def export(totals: Totals, exported: dict[tuple[str, str], float]) -> None:
    """Add a sequencer's totals to the counters. exported: the totals of the last call; it is updated."""
    totals_now = {("kgray_episodes", state): getattr(totals, state) for state in ("committed", "failed")}
    totals_now |= {("kgray_stalls", ""): totals.stalls, ("kgray_wasted_tokens", ""): totals.wasted_tokens}
    totals_now |= {("kgray_stage_busy_seconds", stage): took for stage, took in totals.seconds.items()}
    for (name, label), total in totals_now.items():
        tags = dict.fromkeys(_METRICS[name][2], label)
        measure(name, total - exported.get((name, label), 0), **tags)
    exported.update(totals_now)
