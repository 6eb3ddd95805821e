"""Two searches that kgray is measured beside: BM25 and cosine over the messages of one conversation.

BM25 (Robertson and Zaragoza 2009): k1 1.2, b 0.75, idf log(1 + (N - n + 0.5) / (n + 0.5)); English stems, no
stop list. No sessions, no neighbours, no speakers unless they stand in the text.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache

import numpy as np
from snowballstemmer import stemmer

from kgray.ports import Matrix, Vector

_K1, _B = 1.2, 0.75
_WORD = re.compile(r"\w+")
_STEMMER = stemmer("english")


@cache
def _stem(word: str) -> str:
    stem: str = _STEMMER.stemWord(word)
    return stem


def stems(text: str) -> list[str]:
    """Return the English stems of a text's words."""
    return [_stem(word) for word in _WORD.findall(text.casefold())]


class PlainBM25:
    """BM25 over texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Index the texts."""
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        counted = [Counter(stems(text)) for text in texts]
        average = sum(bag.total() for bag in counted) / max(1, len(counted))
        for place, bag in enumerate(counted):
            longer = _K1 * (1 - _B + _B * bag.total() / average)
            for word, count in bag.items():
                self._postings[word].append((place, count * (_K1 + 1) / (count + longer)))
        self._count = len(texts)

    def best(self, query: str, limit: int) -> list[int]:
        """Return the places of the best texts that share a word with the query, best first; ties by place."""
        scores = self.scores(query)
        return sorted(scores, key=lambda place: (-scores[place], place))[:limit]

    def scores(self, query: str) -> dict[int, float]:
        """Return the scores of the texts that share a word with the query, by place."""
        scores: dict[int, float] = defaultdict(float)
        for word in stems(query):
            postings = self._postings.get(word, ())
            rarity = math.log(1 + (self._count - len(postings) + 0.5) / (len(postings) + 0.5))
            for place, weight in postings:
                scores[place] += rarity * weight
        return scores


def nearest(query: Vector, vectors: Matrix, limit: int) -> list[int]:
    """Return the places of the vectors with the largest cosine, best first; all are unit vectors."""
    order = np.argsort(-(vectors @ query), kind="stable")
    return [int(place) for place in order[:limit]]
