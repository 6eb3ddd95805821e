"""Embeddings without a model: words and their character n-grams, hashed to directions.

Each feature has a direction of +1 and -1 read off shake_128; a text is the weighted sum of its
features' directions, scaled to unit length. Sums are integers and the scaling is one division in
float64, so equal texts give equal bytes on every machine. The vectors are dense: their sign bits
mean something (SimHash), which a sparse feature hash would not give.

It sees spelling, not meaning: "bought" and "purchased" are strangers. Demo quality, said so.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kgray.ports import Matrix, Vector

# Only so much of a text counts, so that a text of a megabyte costs what 32 kB do: 3,000 words are
# beyond what one vector can tell apart anyway.
MAX_CHARACTERS = 32_768
MAX_WORD = 64  # a longer run of letters is read as several words
CACHE_BYTES = 16 * 2**20  # 8,000 words of 1024 dimensions: a chat's vocabulary

STOP_WEIGHT, WORD_WEIGHT, NGRAM_WEIGHT = 1, 8, 2
NGRAM_SIZES = (3, 4, 5)
# How much a word counts that stands so often, times 4: about 4 + 2 log2(n), as integers.
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
_MIN_STEM = 3
_BLOCK = 256  # words summed at a time: bounds the memory of a long text

Row = NDArray[np.int16]  # (d,), one word's features summed
Sums = NDArray[np.int32]  # (d,)


class HashingEmbedder:
    """Texts to unit vectors, offline and deterministic.

    Of a text the first MAX_CHARACTERS count. A text without words gives one fixed unit vector.
    """

    def __init__(self, dimensions: int = 1024) -> None:
        """`dimensions`: the width, from 8 up. Raises ValueError below."""
        if dimensions < 8:
            raise ValueError(f"{dimensions} dimensions are too few for a hashing embedder: at least 8")
        self.dimensions = dimensions
        self.identity = f"hashing-1/{dimensions}"
        self._rows: OrderedDict[str, Row] = OrderedDict()  # word -> row, least recently used first
        self._room = max(1, CACHE_BYTES // (2 * dimensions))
        self._wordless = _unit(self._directions([""], (1,)).astype(np.int32))

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """Return (len(texts), dimensions); (0, dimensions) for no text."""
        out = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(out, texts, strict=True):
            row[:] = self._embed_one(text)
        return out

    def _embed_one(self, text: str) -> Vector:
        counts = Counter(words(text))
        sums = np.zeros(self.dimensions, dtype=np.int32)
        distinct = list(counts)
        for at in range(0, len(distinct), _BLOCK):
            block = distinct[at : at + _BLOCK]
            rows = np.stack([self._row(word) for word in block])
            often = COUNTS[np.minimum([counts[word] for word in block], len(COUNTS) - 1)]
            # einsum over integers: exact, and without a product matrix in memory.
            sums += np.einsum("i,ij->j", often, rows, dtype=np.int32)
        return _unit(sums) if sums.any() else self._wordless

    def _row(self, word: str) -> Row:
        row = self._rows.get(word)
        if row is not None:
            self._rows.move_to_end(word)
            return row
        names, weights = features(word)
        row = self._rows[word] = self._directions(names, weights)
        if len(self._rows) > self._room:
            self._rows.popitem(last=False)
        return row

    def _directions(self, names: Sequence[str], weights: Sequence[int]) -> Row:
        """Return the weighted sum of the features' directions, (d,)."""
        width = -(-self.dimensions // 8)
        encoded = (name.encode("utf-8", "surrogatepass") for name in names)
        digests = b"".join(hashlib.shake_128(name).digest(width) for name in encoded)
        bits = np.unpackbits(np.frombuffer(digests, dtype=np.uint8).reshape(len(names), width), axis=1)
        weighed = np.array(weights, dtype=np.int16)
        ones = np.einsum("i,ij->j", weighed, bits[:, : self.dimensions], dtype=np.int16)
        row: Row = 2 * ones - weighed.sum(dtype=np.int16)  # a set bit is +1, another -1
        return row


def words(text: str) -> Iterator[str]:
    """Yield the words of a text as they are compared: compatibility forms and case folded."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text[:MAX_CHARACTERS]).casefold())
    return (match.group() for match in _WORD.finditer(folded[:MAX_CHARACTERS]))


def features(word: str) -> tuple[list[str], list[int]]:
    """Return the features of one word and their weights: its stem, and n-grams with its borders."""
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
        if word.endswith(suffix) and len(stem) >= _MIN_STEM and not word.endswith("ss"):
            doubled = suffix in {"ing", "ed"} and stem[-1] == stem[-2] and stem[-1] not in "lsz"
            return stem[:-1] if doubled else stem + instead
    return word


def _unit(sums: Sums) -> Vector:
    """Return the sums at unit length: exact up to one square root and one division, the same everywhere."""
    length = np.sqrt(np.float64(np.dot(sums.astype(np.int64), sums.astype(np.int64))))
    unit: Vector = (sums.astype(np.float64) / length).astype(np.float32)
    return unit
