"""Embedding the text of a query, which does not wait for the texts of ingestion."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from kgray.ports import Embedder, Embedding, embedded


@runtime_checkable
class QueryEmbedder(Protocol):
    """An embedder that takes the text of a query before the texts of other calls."""

    async def embed_query(self, text: str) -> Embedding:
        """Return what `embedded` returns for one text."""


async def query_embedding(embedder: Embedder, text: str) -> Embedding:
    """Return what an embedder says of the text of a query, as soon as it can."""
    if isinstance(embedder, QueryEmbedder):
        return await embedder.embed_query(text)
    (embedding,) = await embedded(embedder, [text])
    return embedding
