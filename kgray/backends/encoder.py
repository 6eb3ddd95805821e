"""An XLM-RoBERTa model of FlagEmbedding's in one thread: its tokens, and forward passes of fixed shapes.

The forward passes are made here. FlagEmbedding's own cut long texts in silence, run a single batch twice,
and give a text other numbers beside other neighbours. Here each pass has one of a few shapes: a row's length
is that of the bucket that its own tokens need, and a bucket always has the same number of rows. So a text has
the same vector in any order and company, on one machine; cards of other kinds differ in the last digits.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgray.errors import SettingsError

HOW_TO_GET_IT = "run `pip install 'kgray[embed]'`"
PACKAGE = "FlagEmbedding"
# 8, 16, 24, 32, 40, ... 64, 80, ...: steps of a quarter. A pass has a multiple of 16 tokens: where it has
# not, its last rows run through other code, and a text's last digits depend on its place.
_LENGTHS = [8, 16, 24, *((4 + step) * 2**power for power in range(3, 12) for step in range(4))]
# Tokens of one pass. On a processor few: a question alone costs a whole pass. Not measured on a card.
_TOKENS = {"cpu": 256, "cuda": 4096}
Ids = list[int]
Rows = NDArray[np.float32]


class Encoder:
    """One model in one thread: loading, tokens, and forward passes of fixed shapes."""

    def __init__(self, section: str, name: str, cls: str) -> None:
        """Load nothing yet. cls: of FlagEmbedding. Raises SettingsError without it."""
        if importlib.util.find_spec(PACKAGE) is None:
            raise SettingsError(
                f'{section}.backend = "bge" needs {PACKAGE}, which is not installed: {HOW_TO_GET_IT}.'
            )
        self._section, self._name, self._class = section, name, cls
        self._lane = ThreadPoolExecutor(1, thread_name_prefix=f"bge-{section}")
        self._forward: Callable[..., list[Any]] | None = None

    async def start(self) -> None:
        """Load the model, unless it is. Raises SettingsError."""
        await self.run(lambda: None)

    async def run(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the work returns
        """Return what work gives in the model's own thread, loaded first."""

        def loaded() -> Any:  # noqa: ANN401 - as above
            if self._forward is None:
                self._begin()
            return work()

        return await asyncio.get_running_loop().run_in_executor(self._lane, loaded)

    def _begin(self) -> None:
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
            with torch.inference_mode():
                held = [torch.from_numpy(rows).to(how["devices"]) for rows in arrays]
                return [*zip(*(one.float().cpu().numpy() for one in _answers(model, *held)), strict=True)]

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


def _answers(model: Any, ids: Any, mask: Any) -> tuple[Any, ...]:  # noqa: ANN401 - tensors
    """Return vectors and weights of tokens of the embedder; or the logits of the reranker."""
    if not hasattr(model, "sparse_linear"):
        return (model(input_ids=ids, attention_mask=mask).logits[:, 0],)
    found = model({"input_ids": ids, "attention_mask": mask}, return_dense=True, return_sparse=True)
    return found["dense_vecs"], found["sparse_vecs"][:, :, 0]
