"""BGE-M3 and bge-reranker-v2-m3, loaded by FlagEmbedding, on one device of this process; the extra `embed`.

Both are XLM-RoBERTa: <s> text </s>, and <s> query </s></s> text </s>.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kgray.backends.encoder import Encoder, Ids, Rows
from kgray.errors import InputError, SettingsError
from kgray.ports import Matrix
from kgray.rows import weight_bytes

EMBEDDER = "BAAI/bge-m3"
RERANKER = "BAAI/bge-reranker-v2-m3"
WIDTH = 1024  # of BGE-M3; a folder's config says its own
RERANKED = 1024  # tokens of a pair, at most: the length that the reranker was trained with


class BgeEmbedder:
    """`ports.Embedder`; a text beyond the model's length has the mean of its pieces, by their tokens.

    `ports.SparseEmbedder` where that is asked for: of a token's weights, over all pieces, the largest.
    """

    def __init__(self, name: str = EMBEDDER, *, dimensions: int | None = None, sparse: bool = False) -> None:
        """Load nothing yet. name: a folder, or one on the hub. Raises SettingsError without FlagEmbedding."""
        self.dimensions = _width(name) or dimensions or WIDTH
        # What is stored differs, so a folder that was made with the one refuses the other.
        self.identity = f"bge:{_shown(name)}{'+sparse' * sparse}"
        self._sparse = sparse
        if sparse:
            self.embed_both = self._both
        self._model = Encoder("embedder", name, "BGEM3FlagModel")

    async def start(self) -> None:
        """Load the model; else the first call does. Raises SettingsError."""
        await self._model.start()

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimensions), rows of unit length; (0, dimensions) for no text.

        Raises SettingsError where the model cannot be loaded, or has another width.
        """
        return (await self._both(texts))[0]

    async def _both(self, texts: Sequence[str]) -> tuple[Matrix, list[bytes]]:
        """Return vectors and weights (see `embed`), of one pass."""
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        if not places:
            return np.zeros((0, self.dimensions), dtype=np.float32), []
        vectors, weights = await self._model.run(lambda: self._read([*places]))
        at = [places[text] for text in texts]
        return vectors[at], [weights[place] for place in at if weights]

    def _read(self, texts: list[str]) -> tuple[Matrix, list[bytes]]:
        cut = [_pieces(ids, self._model.length - 2) for ids in self._model.tokens(texts)]
        places = [place for place, pieces in enumerate(cut) for _ in pieces]
        pieces = [piece for of_text in cut for piece in of_text]
        rows = self._model.rows([self._model.framed(piece) for piece in pieces])
        found = np.stack([vector for vector, _ in rows])
        if found.shape[1] != self.dimensions:
            raise SettingsError(
                f"embedder.name gives {found.shape[1]} numbers a text, but embedder.dimensions = "
                f"{self.dimensions}: set embedder.dimensions = {found.shape[1]}."
            )
        sums = np.zeros((len(texts), self.dimensions), dtype=np.float64)
        weighed: list[list[Rows]] = [[] for _ in texts]
        for place, piece, (vector, weights) in zip(places, pieces, rows, strict=True):
            sums[place] += vector * max(1, len(piece))
            weighed[place].append(weights[1 : 1 + len(piece)])  # behind <s>
        units: Matrix = (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32)
        return units, [*map(self._weights, cut, weighed)] if self._sparse else []

    def _weights(self, pieces: list[Ids], weighed: list[Rows]) -> bytes:
        tokens, weights = np.concatenate(pieces).astype(np.uint32), np.concatenate(weighed)
        plain = ~np.isin(tokens, [*self._model.special])
        return weight_bytes(tokens[plain], weights[plain])


class BgeReranker:
    """`ports.Reranker`; a text beyond the model's length has the score of its best piece."""

    def __init__(self, name: str = RERANKER) -> None:
        """Load nothing yet. name: a folder, or one on the hub. Raises SettingsError without FlagEmbedding."""
        self.identity = f"bge:{_shown(name)}"
        self._model = Encoder("reranker", name, "FlagReranker")

    async def start(self) -> None:
        """Load the model; else the first call does. Raises SettingsError."""
        await self._model.start()

    async def score(self, query: str, texts: Sequence[str]) -> Rows:
        """Return (len(texts),) in [0, 1]; (0,) for no text.

        Raises InputError for a query of more than half the model's length, SettingsError where it cannot be
        loaded.
        """
        if not texts:
            return np.zeros(0, dtype=np.float32)
        scores: Rows = await self._model.run(lambda: self._scores(query, list(texts)))
        return scores

    def _scores(self, query: str, texts: list[str]) -> Rows:
        asked, *read = self._model.tokens([query, *texts])
        length = min(self._model.length, RERANKED)
        if len(asked) > length // 2:
            raise InputError(
                f"the question has {len(asked)} tokens, and the reranker reads {length // 2}: shorten it",
                field="query",
            )
        pieces = [
            (place, piece)
            for place, ids in enumerate(read)
            for piece in _pieces(ids, length - 4 - len(asked))
        ]
        rows = self._model.rows([self._model.framed(asked, piece) for _, piece in pieces])
        logits = np.array([logit for (logit,) in rows])
        best = np.full(len(texts), -np.inf, dtype=np.float64)
        np.maximum.at(best, [place for place, _ in pieces], logits)
        scores: Rows = (1 / (1 + np.exp(-best))).astype(np.float32)
        return scores


def _pieces(ids: Ids, room: int) -> list[Ids]:
    return [ids[at : at + room] for at in range(0, max(1, len(ids)), room)]


def _width(name: str) -> int | None:
    """Return the width that a folder's config names; None for a name on the hub."""
    config = Path(name) / "config.json"
    try:
        return (
            int(json.loads(config.read_text(encoding="utf-8"))["hidden_size"]) if config.is_file() else None
        )
    except (OSError, ValueError, KeyError) as error:
        raise SettingsError(f"{config} is not the config of a model: {error}.") from None


def _shown(name: str) -> str:
    """Return a model's name; of a folder, its last part: the identity is the same wherever it lies."""
    return Path(name).name if Path(name).is_dir() else name
