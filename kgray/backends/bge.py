"""BGE-M3 and bge-reranker-v2-m3, loaded by FlagEmbedding, on one device of this process; the extra `embed`.

Both are XLM-RoBERTa: <s> text </s>, and <s> query </s></s> text </s>. The forward passes are made here:
FlagEmbedding's own cut long texts in silence, run a single batch twice, and give a text other numbers beside
other neighbours. Here `passes` gives each text the same shape of pass, so it has the same vector in any order
and company, on one machine; cards of other kinds differ in the last digits.

Calls that run at the same time share passes, and queries go first. Texts are turned into tokens in one
thread, and passes run in another.
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

from kgray.backends.passes import Collect, Ids, PassLoop
from kgray.errors import InputError, SettingsError
from kgray.ports import Embedding, Matrix
from kgray.rows import weight_bytes
from kgray.settings import Device, Precision

HOW_TO_GET_IT = "run `pip install 'kgray[embed]'`"
PACKAGE = "FlagEmbedding"
EMBEDDER = "BAAI/bge-m3"
RERANKER = "BAAI/bge-reranker-v2-m3"
WIDTH = 1024  # of BGE-M3; a folder's config says its own
RERANKED = 1024  # tokens of a pair, at most: the length that the reranker was trained with
# Tokens of one pass. On a processor few: a question alone costs a whole pass. Not measured on a card.
TOKENS: dict[Device, int] = {"cpu": 256, "cuda": 4096}
_TYPES: dict[Precision, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # of torch
_PORTION = 256  # texts that the thread of tokens takes at a time, so that a query need not wait for more
Rows = NDArray[np.float32]
_T = TypeVar("_T")


def require_package(section: str) -> None:
    """Raise SettingsError where FlagEmbedding is not installed. section: of the settings that need it."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise SettingsError(
            f'{section}.backend = "bge" needs {PACKAGE}, which is not installed: {HOW_TO_GET_IT}.'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The device of a model, and the precision of its numbers; None: the card if there is one, in fp16.

    promised    the setting that promises a card, such as "embedding.gpus = 0.1"; "" = none does
    """

    device: Device | None = None
    precision: Precision | None = None
    promised: str = ""

    @property
    def identity(self) -> str:
        """The part of the identity of vectors that they depend on: what is set, in a fixed order."""
        return "".join(f"+{part}" for part in (self.device, self.precision) if part)

    def resolve(self, has_card: bool, section: str) -> tuple[Device, Precision]:
        """Return the device and the precision. Raises SettingsError for a card that is missing."""
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
    """`ports.Embedder`; a text beyond the model's length has the mean of its pieces, by their tokens.

    `ports.SparseEmbedder` where that is asked for: of a token's weights, over all pieces, the largest.
    """

    merges_calls = True  # a caller need not gather texts

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
        # What is stored differs, so a folder that was made with the one refuses the other.
        self.identity = f"bge:{_shown(name)}{placement.identity}{'+sparse' * sparse}"
        self._sparse = sparse
        if sparse:
            self.embed_both = self._both
        self._model = _Encoder("embedder", name, "BGEM3FlagModel", placement)
        self.start = self._model.start

    @property
    def counts(self) -> dict[str, int]:
        """Rows, passes, tokens, and slots: tokens of passes, the filled ones included."""
        return self._model.counts

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return rows as the port has it. Raises SettingsError: not to be loaded, or of another width."""
        return (await self._both(texts))[0]

    async def embed_query(self, text: str) -> Embedding:
        """Return what `embedded` returns for one text, which goes before other calls."""
        vectors, weights = await self._both([text], is_query=True)
        return Embedding(vectors[0], weights[0] if weights else None)

    async def _both(self, texts: Sequence[str], *, is_query: bool = False) -> tuple[Matrix, list[bytes]]:
        """Return vectors and weights (see `embed`), of one pass."""
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        if not places:
            return np.zeros((0, self.dimensions), dtype=np.float32), []
        model = self._model
        cut = [_pieces(ids, model.length - 2) for ids in await model.tokens([*places])]
        rows = await model.rows([model.framed(piece) for of in cut for piece in of], is_query=is_query)
        vectors, weights = await model.beside(lambda: self._joined(cut, rows))
        at = [places[text] for text in texts]
        return vectors[at], [weights[place] for place in at if weights]

    def _joined(self, cut: list[list[Ids]], rows: list[tuple[Rows, ...]]) -> tuple[Matrix, list[bytes]]:
        """Return the vector, and the weights of tokens, of texts that were cut into pieces."""
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
            weighed[place].append(weights[1 : 1 + len(piece)])  # behind <s>
        units: Matrix = (sums / np.linalg.norm(sums, axis=1, keepdims=True)).astype(np.float32)
        return units, [*map(self._weights, cut, weighed)] if self._sparse else []

    def _weights(self, pieces: list[Ids], weighed: list[Rows]) -> bytes:
        tokens, weights = np.concatenate(pieces).astype(np.uint32), np.concatenate(weighed)
        plain = ~np.isin(tokens, [*self._model.special])
        return weight_bytes(tokens[plain], weights[plain])


class BgeReranker:
    """`ports.Reranker`; a text beyond the model's length has the score of its best piece."""

    def __init__(self, name: str = RERANKER, *, placement: Placement | None = None) -> None:
        """Load nothing yet. name: as that of the embedder."""
        self.identity = f"bge:{_shown(name)}"
        self._model = _Encoder("reranker", name, "FlagReranker", placement or Placement())
        self.start = self._model.start

    @property
    def counts(self) -> dict[str, int]:
        """As those of the embedder."""
        return self._model.counts

    async def score(self, query: str, texts: Sequence[str]) -> Rows:
        """Return scores. Raises InputError for a query of half the model's length, SettingsError."""
        if not texts:
            return np.zeros(0, dtype=np.float32)
        model = self._model
        asked, *read = await model.tokens([query, *texts])
        length = min(model.length, RERANKED)
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
        rows = await model.rows([model.framed(asked, piece) for _, piece in pieces], is_query=True)
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
    """One model on one device: a thread of texts and tokens, beside the thread of forward passes."""

    def __init__(self, section: str, name: str, cls: str, placement: Placement) -> None:
        """Load nothing yet. cls: of FlagEmbedding."""
        self._section, self._name, self._class, self._placement = section, name, cls, placement
        self._texts = ThreadPoolExecutor(1, thread_name_prefix=f"bge-{section}-texts")
        self._lane = ThreadPoolExecutor(1, thread_name_prefix=f"bge-{section}")
        self._passes: PassLoop | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The counts of its passes; none before it is loaded."""
        return {} if self._passes is None else self._passes.counts

    async def start(self) -> None:
        """Load the model, unless it is; else the first call does. Raises SettingsError."""
        if self._passes is None:
            await asyncio.get_running_loop().run_in_executor(self._lane, self._begin)

    async def beside(self, work: Callable[[], _T]) -> _T:
        """Return what work gives in the thread of texts."""
        return await asyncio.get_running_loop().run_in_executor(self._texts, work)

    async def tokens(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each text, of any length, without special ones; the model is loaded first."""
        await self.start()
        found: list[Ids] = []
        for at in range(0, len(texts), _PORTION):
            portion = [text.encode("utf-8", "replace").decode() for text in texts[at : at + _PORTION]]
            found += await self.beside(partial(self._ids, portion))
        return found

    def _ids(self, texts: list[str]) -> list[Ids]:
        found: list[Ids] = self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return found

    def framed(self, first: Ids, second: Ids | None = None) -> Ids:
        """Return one text, or a pair, with the special ids."""
        begin, end = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        return [begin, *first, end] if second is None else [begin, *first, end, end, *second, end]

    async def rows(self, inputs: list[Ids], *, is_query: bool) -> list[tuple[Rows, ...]]:
        """Return for each input, in their order, its vector and its tokens' weights; or its logit alone."""
        assert self._passes is not None  # noqa: S101 - `tokens` has loaded it
        return await self._passes.ask(inputs, is_query=is_query)

    def _begin(self) -> None:
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
            said = " ".join(str(error).split())[:300]
            raise SettingsError(f"{self._section}.name = {self._name!r} cannot be loaded: {said}") from None
        self._tokenizer, model = wrapper.tokenizer, wrapper.model
        self.special = frozenset(self._tokenizer.all_special_ids)
        model = model.to(device=place, dtype=getattr(torch, _TYPES[precision])).eval()
        config = getattr(model, "model", model).config
        # XLM-R counts its places from 2: of 8,194 places 8,192 are for tokens.
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
    """Start a pass of ids and mask; what it returns waits for vectors and weights, or for logits.

    card: its name in torch; "" = the processor, where the pass has ended when this returns
    """
    import torch

    with torch.inference_mode():
        inputs = [torch.from_numpy(rows) for rows in arrays]
        if card:  # copied from pinned memory by the card itself, while this thread goes on
            inputs = [rows.pin_memory().to(card, non_blocking=True) for rows in inputs]
        ids, mask = inputs
        if hasattr(model, "sparse_linear"):
            asked = {"input_ids": ids, "attention_mask": mask}
            both = model(asked, return_dense=True, return_sparse=True)
            answers = [both["dense_vecs"].float(), both["sparse_vecs"][:, :, 0].float()]
        else:
            answers = [model(input_ids=ids, attention_mask=mask).logits[:, 0].float()]
        end = None
        if card:  # the copies stand in the card's queue before the next pass
            pinned = [torch.empty(answer.shape, pin_memory=True) for answer in answers]
            answers = [to.copy_(of, non_blocking=True) for to, of in zip(pinned, answers, strict=True)]
            end = torch.cuda.Event()
            end.record()

    def collect() -> Sequence[Any]:
        if end is not None:
            end.synchronize()
        return [*zip(*(answer.numpy() for answer in answers), strict=True)]

    return collect
