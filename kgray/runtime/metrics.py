"""What Ray exports for Prometheus: made inside actors, when they start. Never tagged by group."""

from __future__ import annotations

from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from kgray.ingest.parts import Totals
from kgray.ports import Judged
from kgray.records import Extraction
from kgray.runtime.outcomes import Fault, Outcome

_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
_SIZES = [float(2**power) for power in range(11)]


class WorkerMetrics:
    """Of a worker: seconds and outcomes of calls, tokens, sizes of chunks and batches."""

    def __init__(self) -> None:
        """Make the metrics."""
        self._seconds = _seconds()
        self._calls = Counter(
            "kgray_model_calls", description="Calls of a model.", tag_keys=("stage", "outcome")
        )
        self._tokens = Counter("kgray_model_tokens", description="Tokens of model calls.", tag_keys=("kind",))
        self._sizes = Histogram(
            "kgray_batch_size",
            description="Requests of a chunk, texts of a batch.",
            boundaries=_SIZES,
            tag_keys=("of",),
        )

    def chunk(self, size: int) -> None:
        """Note a chunk of requests."""
        self._sizes.observe(size, {"of": "chunk"})

    def batch(self, size: int, seconds: float) -> None:
        """Note a batch of texts."""
        self._sizes.observe(size, {"of": "embed"})
        self._seconds.observe(seconds, {"stage": "embed"})

    def call(self, stage: str, seconds: float, outcome: Outcome) -> None:
        """Note a call of a model."""
        self._seconds.observe(seconds, {"stage": stage})
        self._calls.inc(1, {"stage": stage, "outcome": outcome.kind if isinstance(outcome, Fault) else "ok"})
        if isinstance(outcome, Extraction | Judged):
            for kind, count in (("prompt", outcome.prompt_tokens), ("completion", outcome.completion_tokens)):
                if count:
                    self._tokens.inc(count, {"kind": kind})


class WriterMetrics:
    """Of a writer: its epoch, seconds and sizes of transactions."""

    def __init__(self) -> None:
        """Make the metrics."""
        self._seconds = Histogram(
            "kgray_commit_seconds", description="Seconds of a transaction.", boundaries=_SECONDS
        )
        self._sizes = Histogram(
            "kgray_batch_size",
            description="Requests of a chunk, texts of a batch.",
            boundaries=_SIZES,
            tag_keys=("of",),
        )
        self._epoch = Gauge("kgray_writer_epoch", description="The fencing epoch.", tag_keys=("shard",))

    def batch(self, size: int, seconds: float) -> None:
        """Note a transaction."""
        self._sizes.observe(size, {"of": "write"})
        self._seconds.observe(seconds)

    def epoch(self, shard: int, epoch: int) -> None:
        """Note who may write."""
        self._epoch.set(epoch, {"shard": str(shard)})


class SequencerMetrics:
    """Of a sequencer: what ended, what waits, how well it was ahead. Fed with totals, counts what is new."""

    def __init__(self, shard: int) -> None:
        """Make the metrics."""
        self._shard = {"shard": str(shard)}
        self._episodes = Counter(
            "kgray_episodes", description="Episodes by the state they ended in.", tag_keys=("state",)
        )
        self._lag = Gauge("kgray_log_lag", description="Entries that wait in the log.", tag_keys=("shard",))
        self._in_flight = Gauge("kgray_in_flight", description="Episodes in flight.", tag_keys=("shard",))
        self._stages = Counter(
            "kgray_stage_busy_seconds", description="Seconds by stage, summed.", tag_keys=("stage",)
        )
        self._stalls = Counter("kgray_stalls", description="Requests first asked at the head of a line.")
        self._wasted = Counter("kgray_wasted_tokens", description="Tokens of answers that were not used.")
        self._told: dict[str, float] = {}

    def tell(self, totals: Totals, *, lag: int, in_flight: int) -> None:
        """Export what is new since the last time."""
        self._lag.set(lag, self._shard)
        self._in_flight.set(in_flight, self._shard)
        for state in ("committed", "failed"):
            self._add(self._episodes, f"episodes {state}", getattr(totals, state), {"state": state})
        for stage, seconds in totals.seconds.items():
            self._add(self._stages, f"stage {stage}", seconds, {"stage": stage})
        self._add(self._stalls, "stalls", totals.stalls, {})
        self._add(self._wasted, "wasted", totals.wasted_tokens, {})

    def _add(self, counter: Any, name: str, now: float, tags: dict[str, str]) -> None:  # noqa: ANN401 - Counter
        new = now - self._told.get(name, 0)
        if new > 0:
            counter.inc(new, tags)
        self._told[name] = now


def _seconds() -> Any:  # noqa: ANN401 - Histogram
    return Histogram(
        "kgray_stage_seconds", description="Seconds of a call.", boundaries=_SECONDS, tag_keys=("stage",)
    )
