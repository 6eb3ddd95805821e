"""What a run works with, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kgray.ingest.case import Rules
from kgray.ontology import Ontology
from kgray.ports import Embedder, Extractor, Judge, Store, Writer
from kgray.records import Episode
from kgray.settings import PipelineSettings

Stop = Callable[[], bool]
OnStep = Callable[[str, int, str], None]  # group, sequence, committed | failed | done | refused
OnStage = Callable[[str, float, Episode | None], None]  # stage, seconds, the episode where it is one's

STAGES = ("extract", "judge", "embed", "decide", "write")


def unwatched(stage: str, seconds: float, episode: Episode | None) -> None:
    """Do nothing: nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run works with.

    window   episodes in flight (runtime.window); streams: model calls in flight
    tokens_in_flight   about how many tokens the calls in flight may hold together; None = no bound
    patience_s   how long an outage is waited out before the run stops with exit 75 (R24)
    writer   who writes; None = the store itself, which the run then holds (`Store.writing`)
    watch    told of each stage's seconds, from the taking of an episode out of the log on
    """

    store: Store
    extractor: Extractor
    judge: Judge
    embedder: Embedder
    ontology: Ontology
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    state_bytes: int = 1 << 30
    patience_s: float = 600.0
    window: int = 128
    streams: int = 32
    tokens_in_flight: int | None = None
    writer: Writer | None = None
    watch: OnStage = unwatched

    @property
    def rules(self) -> Rules:
        """What deciding goes by."""
        return Rules(ontology=self.ontology, judge=self.judge.identity, judging=self.pipeline.judging)


@dataclass(slots=True)
class Totals:
    """What a run ended, and how well it was ahead.

    stalls    requests first asked when their episode was next to commit
    wasted    requests answered ahead of time and not used at the commit; wasted_tokens: what they cost
    seconds   by stage, summed over what ran side by side
    first_claim, last_commit   `time.monotonic()` of the first episode taken and of the last one durable
    """

    committed: int = 0
    failed: int = 0
    operations: int = 0
    requests: int = 0
    stalls: int = 0
    wasted: int = 0
    wasted_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    first_claim: float | None = None
    last_commit: float | None = None

    def count(self, outcome: str) -> None:
        """Count one ended entry."""
        self.committed += outcome == "committed"
        self.failed += outcome == "failed"
        self.operations += outcome in {"done", "refused"}
