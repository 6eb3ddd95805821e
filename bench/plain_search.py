"""Searches for comparison with kgray: BM25, cosine, and both with the structure of a conversation.

BM25 (Robertson and Zaragoza 2009): k1 1.2, b 0.75, idf log(1 + (N - n + 0.5) / (n + 0.5)); English stems, no
stop list. No sessions, no neighbours, no speakers unless the text names them.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache

import numpy as np
from snowballstemmer import stemmer

from kgray.domain.times import from_datetime
from kgray.evals.retrieval import Message
from kgray.language.words import languages
from kgray.ports import Matrix, Vector
from kgray.search.query import Question, Speakers
from kgray.search.query import read_question as read

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

    def __init__(self, texts: Sequence[str], stops: Collection[str] = ()) -> None:
        """Index the texts; stops: words of questions that are left out."""
        self._stops = stops
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
        plain_query = " ".join(word for word in _WORD.findall(query.casefold()) if word not in self._stops)
        for word in stems(plain_query):
            postings = self._postings.get(word, ())
            rarity = math.log(1 + (self._count - len(postings) + 0.5) / (len(postings) + 0.5))
            for place, weight in postings:
                scores[place] += rarity * weight
        return scores


def nearest(query: Vector, vectors: Matrix, limit: int) -> list[int]:
    """Return the places of the vectors with the largest cosine, best first; all are unit vectors."""
    order = np.argsort(-(vectors @ query), kind="stable")
    return [int(place) for place in order[:limit]]


class Together:
    """Halves of word and vector scores, times factors for speakers and dates, with neighbours and sessions.

    It ranks messages by plain signals with round weights: the baseline for a more complex search. It shares
    with kgray the parsing of a question (names, dates) and the stop list.
    """

    SPEAKER, DATES, SESSION = 1.3, 1.5, 0.3
    NEIGHBOURS = ((1, 0.35), (2, 0.15))

    def __init__(self, messages: Sequence[Message], vectors: Matrix) -> None:
        """vectors: of the messages' texts."""
        stops = languages()["en"].stops
        self._vectors = vectors
        self._speakers = [message.speaker or "" for message in messages]
        self._known_speakers = Speakers(set(self._speakers))
        self._times = [from_datetime(datetime.fromisoformat(message.at or "")) for message in messages]
        sessions: dict[tuple[str, str], list[int]] = defaultdict(list)
        for place, message in enumerate(messages):
            sessions[message.source, message.session].append(place)
        self._sessions = [*sessions.values()]
        self._bm25 = PlainBM25([message.text for message in messages], stops)
        texts = [" ".join(messages[place].text for place in places) for places in self._sessions]
        self._of_sessions = PlainBM25(texts, stops)

    def read(self, text: str) -> Question:
        """Return the parts of a question; `topic` is the text of its vector."""
        return read(text, speakers=self._known_speakers, clock=max(self._times))

    def ranked(self, question: Question, vector: Vector) -> list[int]:
        """Return the places of all messages, best first."""
        words, cosines = np.zeros(len(self._times)), self._vectors @ vector
        for place, score in self._bm25.scores(question.text).items():
            words[place] = score
        near = (cosines - cosines.min()) / max(1e-9, float(np.ptp(cosines)))
        base = 0.5 * words / max(1e-9, words.max()) + 0.5 * near
        for place, (speaker, at) in enumerate(zip(self._speakers, self._times, strict=True)):
            base[place] *= self.SPEAKER if speaker in question.speakers else 1.0
            base[place] *= self.DATES if any(start <= at < end for start, end in question.spans) else 1.0
        score, of_sessions = base.copy(), self._of_sessions.scores(question.text)
        best = max(of_sessions.values(), default=1.0)
        for number, places in enumerate(self._sessions):
            for steps, weight in self.NEIGHBOURS:
                score[places[steps:]] += weight * base[places[:-steps]]
                score[places[:-steps]] += weight * base[places[steps:]]
            score[places] += self.SESSION * of_sessions.get(number, 0.0) / best
        return [int(place) for place in np.argsort(-score, kind="stable")]
