"""What the server counts, for Prometheus. No label holds a group, a key or a text."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from kgray import __version__
from kgray.errors import Cost

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        """Count from 0, in a registry of its own."""
        self.registry = made = CollectorRegistry()
        counter, gauge = partial(Counter, registry=made), partial(Gauge, registry=made)
        histogram = partial(Histogram, registry=made, buckets=_SECONDS)
        labels = ["route", "method", "status"]
        self.requests = counter("kgray_http_requests", "Requests by route.", labels)
        self.seconds = histogram("kgray_http_request_seconds", "Until the answer began.", ["route"])
        self.accept_seconds = histogram("kgray_accept_seconds", "Of an appending transaction.")
        self.batch_rows = histogram("kgray_accept_batch_rows", "Rows of one.", buckets=_ROWS)
        self.episodes = counter("kgray_episodes", "Episodes by what became of them.", ["state"])
        self.stages = histogram("kgray_stage_seconds", "Of ingestion's stages.", ["stage"])
        self.pending = gauge("kgray_pending_episodes", "What is not ended yet.")
        self.oldest = gauge("kgray_oldest_pending_seconds", "Since when the oldest of it waits.")
        self.calls = counter("kgray_model_calls", "Calls of models that ingest.", ["task", "outcome"])
        self.tokens = counter("kgray_model_tokens", "Tokens of these.", ["kind"])
        self.searches = histogram("kgray_search_seconds", "Of searches and contexts, by scopes.", ["scope"])
        self.views = counter("kgray_views_derived", "Derivations of what was known at a moment.")
        self.streams = gauge("kgray_sse_clients", "Open streams of events.")
        self.webhooks = counter("kgray_webhook_deliveries", "Posts.", ["outcome"])
        self.mcp_calls = counter("kgray_mcp_calls", "Calls of tools.", ["tool", "outcome"])
        Info("kgray_build", "The version.", registry=made).info({"version": __version__})

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. route: its template, of which there are few."""
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def stage(self, stage: str, seconds: float, _episode: object) -> None:
        """Count a stage of ingestion; "taken" is none, it begins an episode."""
        if stage != "taken":
            self.stages.labels(stage).observe(seconds)

    def called(self, task: str, outcome: str, cost: Cost) -> None:
        """Count a call of a model, with its tokens."""
        self.calls.labels(task, outcome).inc()
        self.tokens.labels("prompt").inc(cost.prompt_tokens)
        self.tokens.labels("completion").inc(cost.completion_tokens)
