"""The embedder BGE-M3 and the reranker bge-reranker-v2-m3; the extra `embed`.

Both are XLM-RoBERTa models; they read <s> text </s>, and <s> query </s></s> text </s>. `kgray.models.encoder`
loads and runs them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kgray.errors import InputError, SettingsError
from kgray.models.encoder import Encoder, Placement, Rows, is_path
from kgray.models.passes import Ids
from kgray.ports import Embedding, Matrix
from kgray.schema.rows import weight_bytes

EMBEDDER = "BAAI/bge-m3"
RERANKER = "BAAI/bge-reranker-v2-m3"
WIDTH = 1024  # of BGE-M3; the config of a model in a folder has its own width
RERANKED = 1024  # maximum tokens of a pair: the length in the training of the reranker


class BgeEmbedder:
    """`ports.Embedder`, and with `sparse` also `ports.SparseEmbedder`.

    A text longer than the model's limit is cut into pieces: its vector is the mean of theirs, weighted by
    tokens, and the weight of a token is its largest in all pieces.
    """

    merges_calls = True  # it batches the texts of concurrent calls

    def __init__(
        self,
        name: str = EMBEDDER,
        *,
        dimensions: int | None = None,
        sparse: bool = False,
        placement: Placement | None = None,
    ) -> None:
        """Load nothing yet. name: a folder, with / or . at its beginning, or a name on the hub."""
        placement = placement or Placement()
        self.dimensions = _width(name) or dimensions or WIDTH
        # Sparse weights are stored too, so a data folder without them refuses this embedder, and vice versa.
        self.identity = f"bge:{_shown(name)}{placement.identity}{'+sparse' * sparse}"
        self._sparse = sparse
        if sparse:
            self.embed_both = self._both
        self._model = Encoder("embedder", name, "BGEM3FlagModel", placement)
        self.start = self._model.start

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of rows, passes, tokens, and slots (tokens of passes with their padding)."""
        return self._model.counts

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return a vector for each text. Raises SettingsError if the model cannot be loaded or used."""
        return (await self._both(texts))[0]

    async def embed_query(self, text: str) -> Embedding:
        """Return the embedding of a text, before the texts of other calls."""
        vectors, weights = await self._both([text], is_query=True)
        return Embedding(vectors[0], weights[0] if weights else None)

    async def _both(self, texts: Sequence[str], *, is_query: bool = False) -> tuple[Matrix, list[bytes]]:
        """Return the vectors of texts, and if sparse their weights, from the same passes."""
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        if not places:
            return np.zeros((0, self.dimensions), dtype=np.float32), []
        model = self._model
        cut = [_pieces(ids, model.length - 2) for ids in await model.tokens([*places])]
        rows = await model.rows(
            [model.framed(piece) for pieces in cut for piece in pieces], is_query=is_query
        )
        vectors, weights = await model.in_text_thread(lambda: self._joined(cut, rows))
        at = [places[text] for text in texts]
        return vectors[at], [weights[place] for place in at if weights]

    def _joined(self, cut: list[list[Ids]], rows: list[tuple[Rows, ...]]) -> tuple[Matrix, list[bytes]]:
        """Return vectors and weights of texts from those of their pieces (`cut`: pieces by text)."""
        places = [place for place, pieces in enumerate(cut) for _ in pieces]
        pieces = [piece for of_text in cut for piece in of_text]
        width = len(rows[0][0])
        if width != self.dimensions:
            raise SettingsError(
                f"embedder.name gives {width} numbers a text, but embedder.dimensions = "
                f"{self.dimensions}: set embedder.dimensions = {width}."
            )
        sums = np.zeros((len(cut), self.dimensions), dtype=np.float64)
        weighed: list[list[Rows]] = [[] for _ in cut]
        for place, piece, (vector, weights) in zip(places, pieces, rows, strict=True):
            sums[place] += vector * max(1, len(piece))
            weighed[place].append(weights[1 : 1 + len(piece)])  # after <s>
        units: Matrix = (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32)
        return units, [*map(self._weights, cut, weighed)] if self._sparse else []

    def _weights(self, pieces: list[Ids], weighed: list[Rows]) -> bytes:
        tokens, weights = np.concatenate(pieces).astype(np.uint32), np.concatenate(weighed)
        plain = ~np.isin(tokens, [*self._model.special])
        return weight_bytes(tokens[plain], weights[plain])


class BgeReranker:
    """`ports.Reranker`; a text beyond the model's length has the score of its best piece."""

    def __init__(self, name: str = RERANKER, *, placement: Placement | None = None) -> None:
        """Load nothing yet. name: as for BgeEmbedder."""
        self.identity = f"bge:{_shown(name)}"
        self._model = Encoder("reranker", name, "FlagReranker", placement or Placement())
        self.start = self._model.start

    @property
    def counts(self) -> dict[str, int]:
        """The same numbers as for BgeEmbedder."""
        return self._model.counts

    async def score(self, query: str, texts: Sequence[str]) -> Rows:
        """Return scores. Raises InputError for a query longer than half the limit, SettingsError."""
        if not texts:
            return np.zeros(0, dtype=np.float32)
        model = self._model
        question, *documents = await model.tokens([query, *texts])
        length = min(model.length, RERANKED)
        if len(question) > length // 2:
            raise InputError(
                f"the question has {len(question)} tokens, and the reranker reads {length // 2}: shorten it",
                field="query",
            )
        pieces = [
            (place, piece)
            for place, ids in enumerate(documents)
            for piece in _pieces(ids, length - 4 - len(question))
        ]
        rows = await model.rows([model.framed(question, piece) for _, piece in pieces], is_query=True)
        logits = np.array([logit for (logit,) in rows])
        best = np.full(len(texts), -np.inf, dtype=np.float64)
        np.maximum.at(best, [place for place, _ in pieces], logits)
        scores: Rows = (1 / (1 + np.exp(-best))).astype(np.float32)
        return scores


def _pieces(ids: Ids, room: int) -> list[Ids]:
    return [ids[at : at + room] for at in range(0, max(1, len(ids)), room)]


def _width(name: str) -> int | None:
    """Return the width in a folder's config; None for a model of the hub."""
    config = Path(name) / "config.json"
    try:
        if config.is_file():
            return int(json.loads(config.read_text(encoding="utf-8"))["hidden_size"])
    except (OSError, ValueError, KeyError) as error:
        raise SettingsError(f"{config} is not the config of a model: {error}.") from None
    return None


def _shown(name: str) -> str:
    """Return a model's name without its folder, so that the identity does not depend on the location.

    The folder need not exist: processes without the weights must get the same identity.
    """
    return Path(name).name if is_path(name) else name
