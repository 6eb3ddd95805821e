"""BGE-M3 and bge-reranker-v2-m3, loaded by FlagEmbedding, on one device of this process; the extra `embed`.

Both are XLM-RoBERTa models; they read <s> text </s>, and <s> query </s></s> text </s>. This module makes the
forward passes itself, because the passes of FlagEmbedding cut long texts silently, run a single batch twice,
and give a text a vector that depends on the other texts of its batch. With `kgray.models.passes`, a text has
the same vector in any order and batch on one machine; other kinds of cards differ in the last digits.

Concurrent calls share passes, and queries go first. A thread tokenizes texts, and another runs the passes.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgray.errors import InputError, SettingsError
from kgray.models.passes import Collect, Ids, PassLoop
from kgray.ports import Embedding, Matrix
from kgray.schema.rows import weight_bytes
from kgray.settings import Device, Precision

HOW_TO_GET_IT = "run `pip install 'kgray[embed]'`"
PACKAGE = "FlagEmbedding"
EMBEDDER = "BAAI/bge-m3"
RERANKER = "BAAI/bge-reranker-v2-m3"
WIDTH = 1024  # of BGE-M3; the config of a model in a folder has its own width
RERANKED = 1024  # maximum tokens of a pair: the length in the training of the reranker
# Tokens of a pass; few on a processor, because a single question costs a whole pass. Not measured on a card.
TOKENS: dict[Device, int] = {"cpu": 256, "cuda": 4096}
_TYPES: dict[Precision, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # of torch
_PORTION = 256  # texts that are tokenized at a time: a query waits for no more than these
Rows = NDArray[np.float32]
_T = TypeVar("_T")


def require_package(section: str) -> None:
    """Raise SettingsError if FlagEmbedding is not installed. section: of the settings that need it."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise SettingsError(
            f'{section}.backend = "bge" needs {PACKAGE}, which is not installed: {HOW_TO_GET_IT}.'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The device of a model, and the precision of its numbers.

    device      None: the card, or the processor if there is no card
    precision   None: fp16 on a card, fp32 on a processor
    promised    the setting that promises a card, such as "embedding.gpus = 0.1"; "" if there is none
    """

    device: Device | None = None
    precision: Precision | None = None
    promised: str = ""

    @property
    def identity(self) -> str:
        """The part of the identity of vectors for the explicit settings; "" if none is set."""
        return "".join(f"+{part}" for part in (self.device, self.precision) if part)

    def resolve(self, has_card: bool, section: str) -> tuple[Device, Precision]:
        """Return the device and the precision. Raises SettingsError for a missing card."""
        wish = f'{section}.device = "cuda"' if self.device == "cuda" else self.promised
        if wish and self.device != "cpu" and not has_card:
            raise SettingsError(
                f"{wish} promises a card, and torch sees none in this process (CUDA_VISIBLE_DEVICES = "
                f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')!r}): repair the node's driver or torch's build "
                f"for CUDA, or set it to {'cpu' if self.device else '0'}."
            )
        device: Device = self.device or ("cuda" if has_card else "cpu")
        return device, self.precision or ("fp16" if device == "cuda" else "fp32")


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
        self._model = _Encoder("embedder", name, "BGEM3FlagModel", placement)
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
        self._model = _Encoder("reranker", name, "FlagReranker", placement or Placement())
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
    return Path(name).name if _is_path(name) else name


def _is_path(name: str) -> bool:
    return name.startswith(("/", "."))


class _Encoder:
    """A model on a device, with a thread for texts and tokens, and a thread for forward passes."""

    def __init__(self, section: str, name: str, cls: str, placement: Placement) -> None:
        """Load nothing yet. cls: the name of a class of FlagEmbedding."""
        self._section, self._name, self._class, self._placement = section, name, cls, placement
        self._texts = ThreadPoolExecutor(1, thread_name_prefix=f"bge-{section}-texts")
        self._lane = ThreadPoolExecutor(1, thread_name_prefix=f"bge-{section}")
        self._passes: PassLoop | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The counts of its passes; none before it is loaded."""
        return {} if self._passes is None else self._passes.counts

    async def start(self) -> None:
        """Load the model if it is not loaded; the first call does so too. Raises SettingsError."""
        if self._passes is None:
            await asyncio.get_running_loop().run_in_executor(self._lane, self._load)

    async def in_text_thread(self, work: Callable[[], _T]) -> _T:
        """Run `work` in the thread for texts; return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._texts, work)

    async def tokens(self, texts: Sequence[str]) -> list[Ids]:
        """Load the model; return the token ids of each text, uncut and without special tokens."""
        await self.start()
        ids: list[Ids] = []
        for at in range(0, len(texts), _PORTION):
            portion = [text.encode("utf-8", "replace").decode() for text in texts[at : at + _PORTION]]
            ids += await self.in_text_thread(partial(self._ids, portion))
        return ids

    def _ids(self, texts: list[str]) -> list[Ids]:
        ids: list[Ids] = self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def framed(self, first: Ids, second: Ids | None = None) -> Ids:
        """Return the ids of a text, or of a pair of texts, with the special tokens."""
        begin, end = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        return [begin, *first, end] if second is None else [begin, *first, end, end, *second, end]

    async def rows(self, inputs: list[Ids], *, is_query: bool) -> list[tuple[Rows, ...]]:
        """Return for each input its vector and the weights of its tokens; from a reranker its logit."""
        assert self._passes is not None  # noqa: S101 - `tokens` has loaded it
        return await self._passes.ask(inputs, is_query=is_query)

    def _load(self) -> None:
        if self._passes is not None:  # another call has loaded it
            return
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
        device, precision = self._placement.resolve(torch.cuda.is_available(), self._section)
        place = "cuda:0" if device == "cuda" else "cpu"
        how = {"use_fp16": precision == "fp16", "devices": place}
        try:
            wrapper = getattr(importlib.import_module(PACKAGE), self._class)(self._name, **how)
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise SettingsError(f"{self._section}.name = {self._name!r} cannot be loaded: {reason}") from None
        self._tokenizer, model = wrapper.tokenizer, wrapper.model
        self.special = frozenset(self._tokenizer.all_special_ids)
        model = model.to(device=place, dtype=getattr(torch, _TYPES[precision])).eval()
        config = getattr(model, "model", model).config
        # XLM-R numbers positions from 2: of 8,194 positions, 8,192 are for tokens.
        self.length = min(int(self._tokenizer.model_max_length), config.max_position_embeddings - 2)
        on_card = device == "cuda"
        self._passes = PassLoop(
            partial(_forward, model, place if on_card else ""),
            self._lane,
            tokens=TOKENS[device],
            pad=self._tokenizer.pad_token_id,
            ahead=int(on_card),
        )


def _forward(model: Any, card: str, *arrays: NDArray[np.int64]) -> Collect:  # noqa: ANN401 - a module of torch
    """Start a pass of ids and mask; return a function that waits for its results.

    card: its name in torch; "" = the processor, on which the pass ends before this returns
    """
    import torch

    with torch.inference_mode():
        inputs = [torch.from_numpy(rows) for rows in arrays]
        if card:  # the card copies them from pinned memory, and this thread continues
            inputs = [rows.pin_memory().to(card, non_blocking=True) for rows in inputs]
        ids, mask = inputs
        if hasattr(model, "sparse_linear"):
            inputs_by_name = {"input_ids": ids, "attention_mask": mask}
            both = model(inputs_by_name, return_dense=True, return_sparse=True)
            answers = [both["dense_vecs"].float(), both["sparse_vecs"][:, :, 0].float()]
        else:
            answers = [model(input_ids=ids, attention_mask=mask).logits[:, 0].float()]
        end = None
        if card:  # the copies precede the next pass in the card's queue
            pinned = [torch.empty(answer.shape, pin_memory=True) for answer in answers]
            answers = [
                copy.copy_(answer, non_blocking=True) for copy, answer in zip(pinned, answers, strict=True)
            ]
            end = torch.cuda.Event()
            end.record()

    def collect() -> Sequence[Any]:
        if end is not None:
            end.synchronize()
        return [*zip(*(answer.numpy() for answer in answers), strict=True)]

    return collect
