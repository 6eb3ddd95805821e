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
OnStep = Callable[[str, int, str], None]  # group, sequence, outcome: committed | failed | done | refused
OnStage = Callable[[str, float, Episode | None], None]  # stage, seconds, episode (None: of several)

STAGES = ("extract", "judge", "embed", "decide", "write")


def unwatched(stage: str, seconds: float, episode: Episode | None) -> None:
    """Do nothing: the default `watch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run works with.

    window             most episodes in flight (runtime.window); streams: most model calls in flight
    tokens_in_flight   about how many tokens the calls in flight may have in total; None = no limit
    patience_s         how long the run waits out an outage before it stops with exit 75 (R24)
    writer             who writes; None = the store itself, which the run then holds (`Store.writing`)
    watch              called with the seconds of each stage, from when an episode is taken from the log
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
        """The settings that deciding depends on."""
        return Rules(ontology=self.ontology, judge=self.judge.identity, judging=self.pipeline.judging)


@dataclass(slots=True)
class Totals:
    """What a run has done, and how much of it ahead of time.

    stalls    requests that were first asked by the commit of their episode, which waited for them
    wasted    requests answered ahead of time and not used at the commit; wasted_tokens: their cost
    seconds   by stage, summed over concurrent work
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
