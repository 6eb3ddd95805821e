"""A transformer model on one device of this process: loaded by FlagEmbedding, run in shared passes.

The passes of FlagEmbedding cut long texts silently, run a single batch twice, and give a text a vector that
depends on the other texts of its batch. With those of `kgray.models.passes`, a text has the same vector in
any order and batch on one machine; other kinds of cards differ in the last digits. Queries go first. A thread
tokenizes texts, and another runs the passes.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kgray.errors import SettingsError
from kgray.models.passes import Collect, Ids, PassLoop
from kgray.settings import Device, Precision

HOW_TO_GET_IT = "run `pip install 'kgray[embed]'`"
PACKAGE = "FlagEmbedding"
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


def is_path(name: str) -> bool:
    """Return whether the name of a model is a folder; else it is a name on the hub."""
    return name.startswith(("/", "."))


class Encoder:
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
        if is_path(self._name) and not Path(self._name).is_dir():
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
