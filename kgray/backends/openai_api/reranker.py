"""Scores from a server with the rerank interface of Cohere, which vLLM and others have too, or of TEI."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kgray.backends.openai_api.client import Client, Rejected
from kgray.errors import InvalidAnswer, Refused, SettingsError

BATCH = 32  # texts a request: TEI takes no more by default
# Characters of a text that are read at once, about 500 tokens of English: within the length of every model.
PIECE = 2000
_KEYS = ("documents", "texts")  # what Cohere and vLLM call the texts, and what TEI calls them


class HttpReranker:
    """`ports.Reranker` behind HTTP; a text longer than `PIECE` has the score of its best piece."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._called = 0  # which of _KEYS the server takes
        self.identity = f"http:{client.endpoint.name}"

    async def score(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (len(texts),) in [0, 1]; (0,) for no text.

        Raises Refused for texts that the server refuses, InvalidAnswer for a malformed answer, SettingsError
        for scores outside [0, 1], Unavailable.
        """
        pieces = [
            (place, text[at : at + PIECE] or " ")
            for place, text in enumerate(texts)
            for at in range(0, max(1, len(text)), PIECE)
        ]
        batches = [pieces[at : at + BATCH] for at in range(0, len(pieces), BATCH)]
        found = await asyncio.gather(*(self._batch(query, [text for _, text in batch]) for batch in batches))
        scores = np.zeros(len(texts), dtype=np.float32)
        for batch, row in zip(batches, found, strict=True):
            np.maximum.at(scores, [place for place, _ in batch], row)
        return scores

    async def _batch(self, query: str, texts: list[str]) -> NDArray[np.float32]:
        called = self._called
        try:
            body = await self._client.rerank(query, texts, called=_KEYS[called])
        except Rejected as first:
            try:
                body = await self._client.rerank(query, texts, called=_KEYS[1 - called])
            except Rejected:  # so the key is not to blame
                raise Refused(f"the reranker's server refused a text ({first})") from None
            self._called = 1 - called
        return _scores(body["results"])


def _scores(rows: list[object]) -> NDArray[np.float32]:
    scores = np.full(len(rows), np.nan, dtype=np.float32)
    for row in rows:
        index = row.get("index") if isinstance(row, dict) else None
        score = row.get("relevance_score", row.get("score")) if isinstance(row, dict) else None
        if type(index) is int and 0 <= index < len(rows) and isinstance(score, int | float):
            scores[index] = score
    if np.isnan(scores).any():
        raise InvalidAnswer("the reranker's server sent rows without index or score")
    if (scores < 0).any() or (scores > 1).any():
        raise SettingsError(
            f"The reranker's server sent the score {scores[(scores < 0) | (scores > 1)][0]:g}: kgray needs "
            "scores in [0, 1]. Set the server to normalise them (a sigmoid), or use another one."
        )
    return scores
