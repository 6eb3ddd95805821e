"""What a run works with, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kgray.ingest.values import Rules
from kgray.ontology import Ontology
from kgray.ports import Embedder, Extractor, Judge, Store

Stop = Callable[[], bool]
OnStep = Callable[[str, int, str], None]  # group, sequence, committed | failed | done | refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The settings under [pipeline] (cli.md)."""

    extraction: str = "combined"
    resolution: str = "batched"
    judging: str = "relation"
    reflect_rounds: int = 0
    previous_episodes: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run works with.

    window   episodes in flight (runtime.window); streams: model calls in flight
    patience_s   how long an outage is waited out before the run stops with exit 75 (R24)
    """

    store: Store
    extractor: Extractor
    judge: Judge
    embedder: Embedder
    ontology: Ontology
    pipeline: Pipeline = Pipeline()
    state_bytes: int = 1 << 30
    patience_s: float = 600.0
    window: int = 128
    streams: int = 32

    @property
    def rules(self) -> Rules:
        """What deciding goes by."""
        return Rules(ontology=self.ontology, judge=self.judge.identity, judging=self.pipeline.judging)


@dataclass(slots=True)
class Totals:
    """What a run ended, and how well it was ahead.

    stalls   requests first asked when their episode was next to commit
    wasted   requests answered ahead of time and not used at the commit
    """

    committed: int = 0
    failed: int = 0
    operations: int = 0
    requests: int = 0
    stalls: int = 0
    wasted: int = 0

    def count(self, outcome: str) -> None:
        """Count one ended entry."""
        self.committed += outcome == "committed"
        self.failed += outcome == "failed"
        self.operations += outcome in {"done", "refused"}
