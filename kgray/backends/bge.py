"""BGE-M3 and bge-reranker-v2-m3, loaded by FlagEmbedding, on one device of this process; the extra `embed`.

Both are XLM-RoBERTa: <s> text </s>, and <s> query </s></s> text </s>. The forward passes are made here:
FlagEmbedding's own cut long texts in silence, run a single batch twice, and give a text other numbers beside
other neighbours. Here each pass has one of a few shapes: a row's length is that of the bucket that its own
tokens need, and a bucket always has the same number of rows. So a text has the same vector in any order and
company, on one machine; cards of other kinds differ in the last digits.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgray.errors import InputError, SettingsError
from kgray.ports import Matrix
from kgray.rows import weight_bytes

HOW_TO_GET_IT = "run `pip install 'kgray[embed]'`"
PACKAGE = "FlagEmbedding"
EMBEDDER = "BAAI/bge-m3"
RERANKER = "BAAI/bge-reranker-v2-m3"
WIDTH = 1024  # of BGE-M3; a folder's config says its own
RERANKED = 1024  # tokens of a pair, at most: the length that the reranker was trained with
# 8, 16, 24, 32, 40, ... 64, 80, ...: steps of a quarter. A pass has a multiple of 16 tokens: where it has
# not, its last rows run through other code, and a text's last digits depend on its place.
_LENGTHS = [8, 16, 24, *((4 + step) * 2**power for power in range(3, 12) for step in range(4))]
# Tokens of one pass. On a processor few: a question alone costs a whole pass. Not measured on a card.
_TOKENS = {"cpu": 256, "cuda": 4096}
Ids = list[int]
Rows = NDArray[np.float32]


def require_package(section: str) -> None:
    """Raise SettingsError where FlagEmbedding is not installed. section: of the settings that need it."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise SettingsError(
            f'{section}.backend = "bge" needs {PACKAGE}, which is not installed: {HOW_TO_GET_IT}.'
        )


class BgeEmbedder:
    """`ports.Embedder`; a text beyond the model's length has the mean of its pieces, by their tokens.

    `ports.SparseEmbedder` where that is asked for: of a token's weights, over all pieces, the largest.
    """

    def __init__(self, name: str = EMBEDDER, *, dimensions: int | None = None, sparse: bool = False) -> None:
        """Load nothing yet. name: a folder, with / or . at its beginning, or a name on the hub."""
        self.dimensions = _width(name) or dimensions or WIDTH
        # What is stored differs, so a folder that was made with the one refuses the other.
        self.identity = f"bge:{_shown(name)}{'+sparse' * sparse}"
        self._sparse = sparse
        if sparse:
            self.embed_both = self._both
        self._model = _Encoder("embedder", name, "BGEM3FlagModel")
        self.start = self._model.start

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return rows as the port has it. Raises SettingsError: not to be loaded, or of another width."""
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
        """Load nothing yet. name: as that of the embedder."""
        self.identity = f"bge:{_shown(name)}"
        self._model = _Encoder("reranker", name, "FlagReranker")
        self.start = self._model.start

    async def score(self, query: str, texts: Sequence[str]) -> Rows:
        """Return scores. Raises InputError for a query of half the model's length, SettingsError."""
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
        if config.is_file():
            return int(json.loads(config.read_text(encoding="utf-8"))["hidden_size"])
    except (OSError, ValueError, KeyError) as error:
        raise SettingsError(f"{config} is not the config of a model: {error}.") from None
    return None


def _shown(name: str) -> str:
    """Return a model's name; of a path, its last part: the identity is the same wherever the folder lies.

    Whether the folder exists does not count: processes without the weights know the model by the same name.
    """
    return Path(name).name if _is_path(name) else name


def _is_path(name: str) -> bool:
    return name.startswith(("/", "."))


class _Encoder:
    """One model in one thread: loading, tokens, and forward passes of fixed shapes."""

    def __init__(self, section: str, name: str, cls: str) -> None:
        """Load nothing yet. cls: of FlagEmbedding."""
        self._section, self._name, self._class = section, name, cls
        self._lane = ThreadPoolExecutor(1, thread_name_prefix=f"bge-{section}")
        self._forward: Callable[..., list[Any]] | None = None

    async def start(self) -> None:
        """Load the model, unless it is; else the first call does. Raises SettingsError."""
        await self.run(lambda: None)

    async def run(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the work returns
        """Return what work gives in the model's own thread, loaded first."""

        def loaded() -> Any:  # noqa: ANN401 - as above
            if self._forward is None:
                self._begin()
            return work()

        return await asyncio.get_running_loop().run_in_executor(self._lane, loaded)

    def _begin(self) -> None:
        if _is_path(self._name) and not Path(self._name).is_dir():
            raise SettingsError(
                f"{self._section}.name = {self._name!r}: no such folder on this machine: mount it, or ask a "
                "process on a node of the Ray whose workers have the model."
            )
        require_package(self._section)
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        import torch
        from transformers.utils import logging

        logging.disable_progress_bar()
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        half = self._device == "cuda"
        how = {"use_fp16": half, "devices": "cuda:0" if half else "cpu"}
        try:
            wrapper = getattr(importlib.import_module(PACKAGE), self._class)(self._name, **how)
        except (OSError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())[:300]
            raise SettingsError(f"{self._section}.name = {self._name!r} cannot be loaded: {said}") from None
        self._tokenizer, model = wrapper.tokenizer, wrapper.model
        self.special = frozenset(self._tokenizer.all_special_ids)
        model = (model.half() if half else model.float()).to(how["devices"]).eval()
        config = getattr(model, "model", model).config
        # XLM-R counts its places from 2: of 8,194 places 8,192 are for tokens.
        self.length = min(int(self._tokenizer.model_max_length), config.max_position_embeddings - 2)

        def forward(*arrays: NDArray[np.int64]) -> list[Any]:
            """Return vectors and weights of tokens of the embedder; or the logits of the reranker."""
            with torch.inference_mode():
                ids, mask = (torch.from_numpy(rows).to(how["devices"]) for rows in arrays)
                answers: tuple[Any, ...]
                if hasattr(model, "sparse_linear"):
                    asked = {"input_ids": ids, "attention_mask": mask}
                    found = model(asked, return_dense=True, return_sparse=True)
                    answers = found["dense_vecs"], found["sparse_vecs"][:, :, 0]
                else:
                    answers = (model(input_ids=ids, attention_mask=mask).logits[:, 0],)
                return [*zip(*(one.float().cpu().numpy() for one in answers), strict=True)]

        self._forward = forward

    def tokens(self, texts: list[str]) -> list[Ids]:
        """Return the ids of each text, of any length, without special ones."""
        clean = [text.encode("utf-8", "replace").decode() for text in texts]
        found: list[Ids] = self._tokenizer(clean, add_special_tokens=False, verbose=False)["input_ids"]
        return found

    def framed(self, first: Ids, second: Ids | None = None) -> Ids:
        """Return one text, or a pair, with the special ids."""
        begin, end = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        return [begin, *first, end] if second is None else [begin, *first, end, end, *second, end]

    def rows(self, inputs: list[Ids]) -> list[tuple[Rows, ...]]:
        """Return for each input, in their order, its vector and its tokens' weights; or its logit alone."""
        assert self._forward is not None  # noqa: S101 - `run` has loaded it
        pad = self._tokenizer.pad_token_id
        found: list[Any] = [None] * len(inputs)
        for length, places in _batches(inputs, _TOKENS[self._device]):
            size = _rows(length, _TOKENS[self._device])
            ids = np.full((size, length), pad)
            mask = np.zeros((size, length), dtype=np.int64)
            mask[:, 0] = 1  # rows that only fill
            for row, place in enumerate(places):
                count = len(inputs[place])
                ids[row, :count], mask[row, :count] = inputs[place], 1
            for place, answer in zip(places, self._forward(ids, mask), strict=False):
                found[place] = answer
        return found


def _batches(inputs: Sequence[Ids], tokens: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (bucket length, indexes of at most tokens // length inputs), the shortest first."""
    waiting: dict[int, list[int]] = {}
    for place in sorted(range(len(inputs)), key=lambda place: len(inputs[place])):
        # Longer than the row, so that each pass has a mask: without one another kernel may run.
        length = _LENGTHS[bisect_right(_LENGTHS, len(inputs[place]))]
        waiting.setdefault(length, []).append(place)
    for length, places in waiting.items():
        size = _rows(length, tokens)
        yield from ((length, places[at : at + size]) for at in range(0, len(places), size))


def _rows(length: int, tokens: int) -> int:
    """Return how many rows a pass of a bucket has: even, where its length is no multiple of 16."""
    return max(1, tokens // length // 2 * 2 if length % 16 else tokens // length)
