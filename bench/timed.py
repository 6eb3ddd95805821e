"""Models whose CPU time is measured separately from the engine's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kgray.domain.records import Extraction
from kgray.ports import Embedder, ExtractionRequest, Extractor, Judge, Judged, Matrix, QuestionRequest


class ModelClock:
    """CPU seconds of this process: of models, and of the engine by step."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.models_s = 0.0
        self.steps: list[float] = []

    @contextmanager
    def model(self) -> Iterator[None]:
        """Count the time inside the block as a model's."""
        start = time.process_time()
        try:
            yield
        finally:
            self.models_s += time.process_time() - start

    def engine_s(self) -> float:
        """Return the engine's seconds so far."""
        return time.process_time() - self.models_s

    def step(self, *_: object) -> None:
        """Note the engine's seconds so far, after an episode."""
        self.steps.append(self.engine_s())


class TimedModels:
    """Extractor, judge and embedder with a shared clock. In this process they run one at a time."""

    def __init__(self, extractor: Extractor, judge: Judge, embedder: Embedder, clock: ModelClock) -> None:
        """Wrap all three models."""
        self._extractor, self._judge, self._embedder, self._clock = extractor, judge, embedder, clock
        self.identity = extractor.identity
        self.dimensions = embedder.dimensions

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Ask the extractor."""
        with self._clock.model():
            return await self._extractor.extract(request)

    def key(self, request: QuestionRequest) -> str:
        """Return the judge's key (R21)."""
        return self._judge.key(request)

    async def judge(self, request: QuestionRequest) -> Judged:
        """Ask the judge."""
        with self._clock.model():
            return await self._judge.judge(request)

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Ask the embedder."""
        with self._clock.model():
            return await self._embedder.embed(texts)
