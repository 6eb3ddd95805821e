"""Vectors from a server with `/v1/embeddings`, scores from a server with a rerank interface.

The interface of reranking is Cohere's, which vLLM and others have too, or TEI's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgray.backends.openai_api.client import Client, Rejected
from kgray.errors import Garbled, InvalidAnswer, Refused, SettingsError
from kgray.ports import Matrix

_TRIES = 3  # of a request whose answer has no vectors
BATCH = 64  # texts in a request: small servers accept no more, and the limiter keeps several in flight
RERANKED = 32  # the same for a reranker: TEI's default limit
# Characters of a text in a piece, about 500 tokens of English: within the length of every model.
PIECE = 2000
_KEYS = ("documents", "texts")  # the names of the texts with Cohere and vLLM, and with TEI


class OpenAIEmbedder:
    """Unit vectors; a text that occurs several times in a call is sent once."""

    def __init__(self, client: Client, *, dimensions: int) -> None:
        """dimensions: the vectors' width, checked against each answer; 0 = the first answer's width."""
        self._client = client
        self.dimensions = dimensions
        self.identity = f"openai:{client.endpoint.name}"

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return unit rows. Raises Refused, Garbled, SettingsError for another width, Unavailable."""
        distinct = list(dict.fromkeys(texts))
        batches = [distinct[at : at + BATCH] for at in range(0, len(distinct), BATCH)]
        parts = await asyncio.gather(*(self._batch(batch) for batch in batches))
        rows = np.concatenate([np.zeros((0, self.dimensions), dtype=np.float32), *parts])
        places = {text: place for place, text in enumerate(distinct)}
        return rows[[places[text] for text in texts]]

    async def _batch(self, texts: list[str]) -> Matrix:
        for _ in range(_TRIES):
            try:
                # Servers refuse an empty text; a blank has a vector, which the port requires.
                body = await self._client.embeddings([text or " " for text in texts])
            except Rejected as rejection:
                raise Refused(f"the embedder's server refused a text ({rejection})") from None
            if (rows := self._units(body["data"])) is not None:
                return rows
        raise Garbled(
            f"{self._client.server} sent vectors that are none, {_TRIES} times: look at its log; if it is "
            "one text alone, remove the episode that `kgray failures` names"
        )

    def _units(self, data: list[Any]) -> Matrix | None:
        """Return the rows in the order of their indexes, at unit length; None if they are no vectors."""
        try:
            vectors = {row.get("index", place): row["embedding"] for place, row in enumerate(data)}
            rows = np.array([vectors[place] for place in range(len(data))], dtype=np.float64)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
        if rows.ndim != 2 or not rows.size or not np.isfinite(rows).all():
            return None
        self.dimensions = self.dimensions or rows.shape[1]
        if rows.shape[1] != self.dimensions:
            raise SettingsError(
                f"embedder.name = {self._client.endpoint.name!r} gives {rows.shape[1]} numbers a text, but "
                f"embedder.dimensions = {self.dimensions}: set embedder.dimensions = {rows.shape[1]}."
            )
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows[lengths[:, 0] == 0, 0] = 1.0  # the port promises unit length
        units: Matrix = (rows / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
        return units


class HttpReranker:
    """`ports.Reranker` behind HTTP; a text longer than `PIECE` has the score of its best piece."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._called = 0  # index in _KEYS of the name that the server accepts
        self.identity = f"http:{client.endpoint.name}"

    async def score(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return scores. Raises Refused, InvalidAnswer, SettingsError if they are not in [0, 1]."""
        pieces = [
            (place, text[at : at + PIECE] or " ")
            for place, text in enumerate(texts)
            for at in range(0, max(1, len(text)), PIECE)
        ]
        batches = [pieces[at : at + RERANKED] for at in range(0, len(pieces), RERANKED)]
        rows = await asyncio.gather(*(self._batch(query, [text for _, text in batch]) for batch in batches))
        scores = np.zeros(len(texts), dtype=np.float32)
        for batch, row in zip(batches, rows, strict=True):
            np.maximum.at(scores, [place for place, _ in batch], row)
        return scores

    async def _batch(self, query: str, texts: list[str]) -> NDArray[np.float32]:
        called = self._called
        try:
            body = await self._client.rerank(query, texts, called=_KEYS[called])
        except Rejected as first:
            try:
                body = await self._client.rerank(query, texts, called=_KEYS[1 - called])
            except Rejected:  # so the key is not the cause
                raise Refused(f"the reranker's server refused a text ({first})") from None
            self._called = 1 - called
        rows: list[Any] = body["results"]
        scores = np.full(len(rows), np.nan, dtype=np.float32)
        for row in rows:
            fields = row if isinstance(row, dict) else {}
            index, score = fields.get("index"), fields.get("relevance_score", fields.get("score"))
            if type(index) is int and 0 <= index < len(rows) and isinstance(score, int | float):
                scores[index] = score
        if np.isnan(scores).any():
            raise InvalidAnswer("the reranker's server sent rows without index or score")
        beyond = scores[(scores < 0) | (scores > 1)]
        if beyond.size:
            raise SettingsError(
                f"The reranker's server sent the score {beyond[0]:g}: kgray needs scores in [0, 1]. "
                "Set the server to normalise them (a sigmoid), or use another one."
            )
        return scores
