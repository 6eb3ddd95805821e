"""The model ports over a pool of workers, which look like local models. This module does not use Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kgray.errors import Cost, Unavailable
from kgray.ports import (
    AnswerRequest,
    Embedder,
    Embedding,
    Matrix,
    Reranker,
    SparseEmbedder,
    Summarizer,
    SummaryRequest,
)
from kgray.ports.ingest import embedded, query_embedding
from kgray.runtime.pools import FIRST_DELAY_S, ActorEnded, Lost, Pool, PoolCall, Unfit


class RerankRequest(NamedTuple):
    """Asks a reranker for the scores of texts."""

    query: str
    texts: Sequence[str]


class QueryText(NamedTuple):
    """Asks an embedder for the vector of a query, before the texts of ingestion."""

    text: str


async def answered(model: Any, request: Any) -> Any:  # noqa: ANN401 - as the ports have them
    """Return the result of an embedder, a reranker or a summariser for a request."""
    if isinstance(request, SummaryRequest):
        return await model.write(request)
    if isinstance(request, RerankRequest):
        return await model.score(*request)
    if isinstance(request, QueryText):
        return together([await query_embedding(model, request.text)])
    return together(await embedded(model, request))


def together(embeddings: Sequence[Embedding]) -> tuple[Matrix, list[bytes] | None]:
    """Pack embeddings for sending: (n, d) vectors, and the tokens' weights if the embedder has any."""
    vectors = np.stack([embedding.vector for embedding in embeddings])
    weights = [embedding.weights for embedding in embeddings if embedding.weights is not None]
    return vectors, weights or None


class Carrier(Protocol):
    """Carries out chunks of calls: a pool of workers, or tasks."""

    def call(self, request: object) -> PoolCall:
        """Return a call for a request. Sends nothing."""

    def send(self, calls: Sequence[PoolCall]) -> None:
        """Send a chunk."""

    def abandon(self, call: PoolCall) -> None:
        """Drop a call."""


@dataclass(slots=True, eq=False)
class Chunker:
    """Gathers calls made in the same moments into chunks of at most `size`."""

    pool: Carrier
    size: int
    linger_s: float  # the wait of a chunk's first request for more requests
    _waiting: list[PoolCall] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None

    async def ask(self, request: object) -> Any:  # noqa: ANN401 - the port's value
        """Return a worker's result for a request, or raise its error."""
        call = self.pool.call(request)
        self._waiting.append(call)
        if len(self._waiting) >= self.size:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.linger_s, self._flush)
        try:
            return await call.answer
        except asyncio.CancelledError:
            with suppress(ValueError):
                self._waiting.remove(call)
            self.pool.abandon(call)
            raise

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._waiting = self._waiting, []
        if calls:
            self.pool.send(calls)


@dataclass(slots=True, eq=False)
class OnWorkers:
    """Sends requests to the workers that exist at that time; without any, to the model of this process."""

    find: Callable[[], Pool | None]  # blocks, and is called in another thread
    local: Any  # a model's port

    async def ask(self, request: object) -> Any:  # noqa: ANN401 - the port's value
        """Return a model's result for a request, or raise its error."""
        first_lost: float | None = None  # the time when it first met ended workers
        while (pool := await asyncio.to_thread(self.find)) is not None:
            try:
                return await Chunker(pool, size=1, linger_s=0.0).ask(request)
            except ActorEnded as error:
                instant = time.monotonic()
                first_lost = instant if first_lost is None else first_lost
                if instant - first_lost >= pool.patience_s:
                    raise Unavailable(f"no worker answers: {error}", waited=True) from None
                await asyncio.sleep(FIRST_DELAY_S)
            finally:
                await pool.close()
        return await answered(self.local, request)


class Calls(Protocol):
    """The receiver of requests."""

    async def ask(self, request: object) -> Any:  # noqa: ANN401 - the port's value
        """Return a worker's result for a request, or raise its error."""


class PooledSummarizer:
    """`ports.Summarizer` over a pool."""

    def __init__(self, calls: Calls, local: Summarizer) -> None:
        self.write, self.identity, self.head = calls.ask, local.identity, local.head


class PooledAnswerer:
    """`ports.Answerer` on a live worker; pieces of an answer come as its engine writes them."""

    def __init__(self, find: Callable[[], Sequence[Any]], head: Callable[[str], str]) -> None:
        """find: returns the workers (`actors.RemoteWorker`) in the order to try them; blocks."""
        self._find, self.head = find, head

    async def answer(self, request: AnswerRequest, on_text: Callable[[str], None]) -> Cost:
        """Ask the first worker that has its model. It does not repeat the request after a partial answer."""
        why = "none is up"
        for worker in await asyncio.to_thread(self._find):
            has_begun = False
            try:
                await worker.health()
                async for part in worker.answer(request):
                    if isinstance(part, Exception):
                        raise part
                    if isinstance(part, Cost):
                        return part
                    has_begun = True
                    on_text(part)
            except (Lost, Unfit) as error:
                if has_begun:
                    raise Unavailable(
                        f"{worker.name} broke off its answer in the middle: ask again"
                    ) from None
                why = str(error)
        raise Unavailable(f"no worker of `kgray up` answers ({why}): `kgray status` shows them")


class PooledEmbedder:
    """`ports.Embedder` over a pool; `ports.SparseEmbedder` if the local embedder is."""

    def __init__(self, calls: Calls, local: Embedder) -> None:
        self._calls, self.identity, self.dimensions = calls, local.identity, local.dimensions
        if isinstance(local, SparseEmbedder):
            self.embed_both = self._both

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimensions); one request for the whole list."""
        vectors, _ = await self._both(texts)
        return vectors

    async def embed_query(self, text: str) -> Embedding:
        """Return the embedding of a query; workers take it before the texts of ingestion."""
        vectors, weights = await self._calls.ask(QueryText(text))
        return Embedding(np.array(vectors[0], dtype=np.float32), weights[0] if weights else None)

    async def _both(self, texts: Sequence[str]) -> tuple[Matrix, Any]:
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32), []
        vectors, weights = await self._calls.ask(tuple(texts))
        # A copy: rows that stay in memory must not pin Ray's shared memory, which is read-only.
        return np.array(vectors, dtype=np.float32), weights


class PooledReranker:
    """`ports.Reranker` over a pool."""

    def __init__(self, calls: Calls, local: Reranker) -> None:
        self._calls, self.identity = calls, local.identity

    async def score(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (len(texts),); one request for the whole list. Raises as the port does."""
        if not texts:
            return np.zeros(0, dtype=np.float32)
        return np.array(await self._calls.ask(RerankRequest(query, tuple(texts))), dtype=np.float32)
