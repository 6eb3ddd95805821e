"""The model ports over a pool of workers: a caller cannot tell them from local models.

Each also has the local model, built in this process only for its identity, dimensions and keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kgray.ports import Embedder, ExtractionRequest, Extractor, Judge, Judged, Matrix, QuestionRequest
from kgray.records import Extraction
from kgray.runtime.pools import Chunker


class PooledExtractor:
    """`ports.Extractor` over a pool."""

    def __init__(self, calls: Chunker, local: Extractor) -> None:
        self._calls, self._local = calls, local

    @property
    def identity(self) -> str:
        """Model, parameters and version."""
        return self._local.identity

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return all that the episode says. Raises as the port does."""
        found: Extraction = await self._calls.ask(request)
        return found


class PooledJudge:
    """`ports.Judge` over a pool."""

    def __init__(self, calls: Chunker, local: Judge) -> None:
        self._calls, self._local = calls, local
        self.identity = local.identity

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key, computed here: it costs no call."""
        return self._local.key(request)

    async def judge(self, request: QuestionRequest) -> Judged:
        """Return one validated answer a question. Raises as the port does."""
        found: Judged = await self._calls.ask(request)
        return found


class PooledEmbedder:
    """`ports.Embedder` over a pool."""

    def __init__(self, calls: Chunker, local: Embedder) -> None:
        self._calls = calls
        self.identity, self.dimensions = local.identity, local.dimensions

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimensions); one request for the whole list."""
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        found: Any = await self._calls.ask(tuple(texts))
        # A copy: rows that stay in memory must not pin Ray's shared memory, which is read-only.
        return np.array(found, dtype=np.float32)
