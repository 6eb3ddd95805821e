"""What the server counts, for Prometheus. No label holds a group, a key or a text."""

from __future__ import annotations

from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from kgray import __version__

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        """Count from 0, in a registry of its own."""
        self.registry = made = CollectorRegistry()
        labels = ["route", "method", "status"]
        self.requests = Counter("kgray_http_requests", "Requests by route.", labels, registry=made)
        self.seconds = Histogram(
            "kgray_http_request_seconds",
            "Time until the answer began.",
            ["route"],
            registry=made,
            buckets=_SECONDS,
        )
        self.accept_seconds = Histogram(
            "kgray_accept_seconds", "Time of an appending transaction.", registry=made, buckets=_SECONDS
        )
        self.batch_rows = Histogram(
            "kgray_accept_batch_rows",
            "Rows of one.",
            registry=made,
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
        )
        self.episodes = Counter(
            "kgray_episodes", "Episodes by what became of them.", ["state"], registry=made
        )
        self.stages = Histogram(
            "kgray_stage_seconds", "Time of ingestion's stages.", ["stage"], registry=made, buckets=_SECONDS
        )
        self.pending = Gauge("kgray_pending_episodes", "What is not ended yet.", registry=made)
        self.oldest = Gauge(
            "kgray_oldest_pending_seconds", "Since when the oldest of it waits.", registry=made
        )
        self.streams = Gauge("kgray_sse_clients", "Open streams of events.", registry=made)
        self.webhooks = Counter("kgray_webhook_deliveries", "Posts.", ["outcome"], registry=made)
        self.mcp_calls = Counter("kgray_mcp_calls", "Calls of tools.", ["tool", "outcome"], registry=made)
        Info("kgray_build", "The version.", registry=made).info({"version": __version__})
        self._of = lru_cache(maxsize=1024)(self._labelled)

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. route: its template, of which there are few."""
        requests, histogram = self._of(route, method, status)
        requests.inc()
        histogram.observe(seconds)

    def stage(self, stage: str, seconds: float, _episode: object) -> None:
        """Count a stage of ingestion; "taken" is none, it begins an episode."""
        if stage != "taken":
            self.stages.labels(stage).observe(seconds)

    def _labelled(self, route: str, method: str, status: int) -> tuple[Counter, Histogram]:
        return self.requests.labels(route, method, str(status)), self.seconds.labels(route)
