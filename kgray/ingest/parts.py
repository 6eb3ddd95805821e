"""What a run works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kgray.ingest.case import Rules
from kgray.ontology import Ontology
from kgray.ports import Embedder, Extractor, Judge, Store, Writer
from kgray.records import Episode
from kgray.settings import PipelineSettings

OnStage = Callable[[str, float, Episode | None], None]  # stage, seconds, episode (None: of several)


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
