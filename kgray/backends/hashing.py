"""Embeddings without a model: words and their character n-grams, hashed to directions.

The hash (shake_128) of a feature gives its direction: +1 or -1 in each dimension. A text is the weighted sum
of its features' directions, as integers, scaled to unit length by one division in float64: equal texts give
equal bytes on every machine. Vectors are dense, so that their sign bits can be compared (SimHash).

It compares spelling, not meaning: "bought" and "purchased" have little in common. It is for demonstrations.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kgray.ports import Matrix, Vector

# The rest of a longer text is not read: a vector cannot distinguish more than these 3,000 words.
MAX_CHARACTERS = 32_768
MAX_WORD = 64  # a longer run of letters is read as several words
CACHE_BYTES = 16 * 2**20  # 8,000 words of 1024 dimensions: a chat's vocabulary

STOP_WEIGHT, WORD_WEIGHT, NGRAM_WEIGHT = 1, 8, 2
NGRAM_SIZES = (3, 4, 5)
# The weight of a word that occurs n times, about 4 + 2 log2(n), as integers.
COUNTS = np.array([0, 4, 6, 7, 8, 9, 9, 10, 10, 10, 11], dtype=np.int32)

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"  # written without spaces: read by pairs
_WORD = re.compile(rf"[{_CJK}]{{1,{MAX_WORD}}}|[^\W_{_CJK}]{{1,{MAX_WORD}}}")
_IS_CJK = re.compile(f"[{_CJK}]")
_STOP_WORDS = frozenset(
    """a about all also am an and any are as at be been but by can could d did do does for from had has
    have he her him his how i if in into is it its ll m me more my no not now of on or our out re s she so
    some t than that the their them then there these they this to too up us ve very was we were what when
    where which who will with would you your""".split()
)
_SUFFIXES = (("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", ""))
_BLOCK = 256  # words summed at a time: bounds the memory of a long text

_WordSum = NDArray[np.int16]  # (d,): the sum of the weighted directions of a word's features
_TextSum = NDArray[np.int32]  # (d,): the sum over a text's words


class HashingEmbedder:
    """Texts to unit vectors, offline and deterministic.

    Only the first MAX_CHARACTERS of a text count. A text without words has a fixed unit vector.
    """

    def __init__(self, dimensions: int = 1024) -> None:
        """`dimensions`: the width, from 8 up. Raises ValueError below."""
        if dimensions < 8:
            raise ValueError(f"{dimensions} dimensions are too few for a hashing embedder: at least 8")
        self.dimensions = dimensions
        self.identity = f"hashing-1/{dimensions}"
        cached = lru_cache(max(1, CACHE_BYTES // (2 * dimensions)))
        self._word_sum = cached(lambda word: self._directions(*features(word)))
        self._wordless = _unit(self._directions([""], (1,)).astype(np.int32))

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimensions); (0, dimensions) for no text."""
        out = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(out, texts, strict=True):
            counts = Counter(words(text))
            sums = np.zeros(self.dimensions, dtype=np.int32)
            distinct = list(counts)
            for at in range(0, len(distinct), _BLOCK):
                block = distinct[at : at + _BLOCK]
                rows = np.stack([self._word_sum(word) for word in block])
                often = COUNTS[np.minimum([counts[word] for word in block], len(COUNTS) - 1)]
                # einsum over integers: exact, and without a product matrix in memory.
                sums += np.einsum("i,ij->j", often, rows, dtype=np.int32)
            row[:] = _unit(sums) if sums.any() else self._wordless
        return out

    def _directions(self, names: Sequence[str], weights: Sequence[int]) -> _WordSum:
        """Return the weighted sum of the features' directions, (d,)."""
        width = -(-self.dimensions // 8)
        encoded = (name.encode("utf-8", "surrogatepass") for name in names)
        digests = b"".join(hashlib.shake_128(name).digest(width) for name in encoded)
        bits = np.unpackbits(np.frombuffer(digests, dtype=np.uint8).reshape(len(names), width), axis=1)
        weighed = np.array(weights, dtype=np.int16)
        set_bits = np.einsum("i,ij->j", weighed, bits[:, : self.dimensions], dtype=np.int16)
        total: _WordSum = 2 * set_bits - weighed.sum(dtype=np.int16)  # a set bit is +1, any other -1
        return total


def words(text: str) -> Iterator[str]:
    """Yield the words of a text, normalised for comparison: NFKC, case folded."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text[:MAX_CHARACTERS]).casefold())
    return (match.group() for match in _WORD.finditer(folded[:MAX_CHARACTERS]))


def features(word: str) -> tuple[list[str], list[int]]:
    """Return the features of a word and their weights: its stem, and n-grams with its borders."""
    if word in _STOP_WORDS:
        return [f"w:{word}"], [STOP_WEIGHT]
    if _IS_CJK.match(word):
        parts = [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        return [f"w:{part}" for part in parts], [WORD_WEIGHT] * len(parts)
    bordered = f"<{word}>"
    grams = [f"g:{bordered[i : i + size]}" for size in NGRAM_SIZES for i in range(len(bordered) - size + 1)]
    return [f"w:{_stem(word)}", *grams], [WORD_WEIGHT] + [NGRAM_WEIGHT] * len(grams)


def _stem(word: str) -> str:
    """Strip one English ending: "moves", "moved" and "moving" are "mov"."""
    for suffix, instead in _SUFFIXES:
        stem = word[: -len(suffix)]
        if word.endswith(suffix) and len(stem) >= 3 and not word.endswith("ss"):
            doubled = suffix in {"ing", "ed"} and stem[-1] == stem[-2] and stem[-1] not in "lsz"
            return stem[:-1] if doubled else stem + instead
    return word


def _unit(sums: _TextSum) -> Vector:
    """Return the sums at unit length; only one square root and one division are rounded."""
    length = np.sqrt(np.float64(np.dot(sums.astype(np.int64), sums.astype(np.int64))))
    unit: Vector = (sums.astype(np.float64) / length).astype(np.float32)
    return unit
