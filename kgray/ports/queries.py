"""Embedding the text of a query, which does not wait for the texts of ingestion."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from kgray.ports import Embedder, Embedding, embedded


@runtime_checkable
class QueryEmbedder(Protocol):
    """An embedder that takes the text of a query before the texts of other calls."""

    async def embed_query(self, text: str) -> Embedding:
        """Return the embedding of a text, as `embedded` does."""


async def query_embedding(embedder: Embedder, text: str) -> Embedding:
    """Return the embedding of a query's text; a QueryEmbedder makes it before the texts of other calls."""
    if isinstance(embedder, QueryEmbedder):
        return await embedder.embed_query(text)
    (embedding,) = await embedded(embedder, [text])
    return embedding
