"""The first stage: scores of a group's rows for a question, by words, vectors, time and neighbours.

It is one pass over the arrays of the group's index and reads nothing from the store. Words are weighed by
BM25 (Robertson and Zaragoza 2009), divided by the score of a text of average length that has every word of
the question once: 1 means "contains the whole question", for messages, facts and names alike. Cosines are
measured against the group's other cosines, because the cosine of unrelated texts depends on the embedder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kgray.domain.times import SECOND, Instant
from kgray.language.words import plain_words, stem, term, words
from kgray.ports import Embedding, GraphView, SearchScope, Store
from kgray.schema.rows import as_weights
from kgray.search.index import Floats, GroupIndex, Ints, Messages, Postings, Sessions, Vectors, Words
from kgray.search.loading import EvidencePlaces, Exact
from kgray.search.matching import StateQuestion, Vocabulary, read_state_question
from kgray.search.query import FoundRow, Query, Question, other_forms
from kgray.search.recipes import Recipe, Weights
from kgray.search.summaries import Summaries, Texts

K1, B = 1.2, 0.75  # BM25's usual values
# Cosines with the question, in standard deviations above the group's middle: the nearest of 500 unrelated
# messages is at 3, a paraphrase of the answer at 4 to 8.
NOISE, CERTAIN = 3.0, 8.0
RANDOM = 1.2  # times 1/sqrt(d), the spread of random directions: measured on texts with two embedders
UNRELATED = 0.4  # upper bound of the middle, for a group whose texts are all about the question
# A capitalised word within a text, as in "Who is Alice's boss?".
_CALLED = re.compile(r"(?<=[\w,;] )[A-Z][\w]+")
_MOST_CALLED = 64  # a first word that more names than this contain calls no entity
_TINY, _SMALL, _SAMPLE = 8, 32, 8192
# The share of a question's token weight that unrelated texts have through function words. In the example of
# BGE-M3's own page it is 0 and 0.04 for unrelated texts, 0.9 and 0.99 for answers.
SHARED = 0.1
UNRELATED_TOKENS = 0.3  # of the remaining share: the fit by token weights counts from here
# A message sent up to 4 days after the day may describe it; it gets this share of the `dates` boost.
SENT_WITHIN, SOON_AFTER = 4 * 86_400 * SECOND, 0.6
B_AROUND = 0.5  # BM25's B for a message with its neighbours, whose words count and whose lengths do not
_LONG = 4.0  # times the mean length: a longer message gets no further credit
OVER_FETCH = 3  # candidates per row of the limit, because views and filters drop some
CODE = 1.5  # factor on the idf of a code: a word with a digit or in capitals (`Question.codes`)

_FACTORS = frozenset({"speaker", "dates", "soon_after", "times", "phrase", "linked", "length"})
_NO_SIGNAL: Mapping[str, Floats] = {}
Records = Callable[[Ints], list[Any]]
_Terms = dict[int, float]  # the terms of a question, with their weights in one group


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of the rows of one scope, in total and by signal."""

    score: Floats
    records: Records  # maps rows to their records
    signals: Mapping[str, Floats] = field(default_factory=dict)
    floor: float = 0.0  # rows at or below it are no hits; infinite: the scope has none

    def best(self, depth: int, minimum: float = 0.0) -> Ints:
        """Return the `depth` best rows above the floor and at or above `minimum`, best first; ties by row."""
        rows = np.flatnonzero((self.score > self.floor) & (self.score >= minimum))
        if len(rows) > depth:
            cut = np.partition(self.score[rows], len(rows) - depth)[len(rows) - depth]
            rows = rows[self.score[rows] >= cut]
        return rows[np.lexsort((rows, -self.score[rows]))][:depth]

    def concatenated(self, extra: Scores) -> Scores:
        """Return the scores of these rows followed by rows of `extra`, which has the same signals."""
        count = len(self.score)

        def records(rows: Ints) -> list[Any]:
            is_first = rows < count
            first, second = iter(self.records(rows[is_first])), iter(extra.records(rows[~is_first] - count))
            return [next(first if row < count else second) for row in rows.tolist()]

        appended = np.where(extra.score > extra.floor, extra.score, np.float32(0))
        parts = ((name, values, extra.signals[name]) for name, values in self.signals.items())
        signals = {name: np.concatenate((first, second)) for name, first, second in parts}
        joined = np.concatenate((self.score, appended))
        return Scores(score=joined, records=records, signals=signals, floor=self.floor)

    def signals_of(self, rows: Ints) -> list[dict[str, float]]:
        """Return the signals of each row that are not neutral."""
        by_row: list[dict[str, float]] = [{} for _ in rows]
        for name, values in self.signals.items():
            neutral = 1.0 if name in _FACTORS else 0.0
            for signals, value in zip(by_row, values[rows].astype(np.float64).round(4).tolist(), strict=True):
                if value != neutral:
                    signals[name] = value
        return by_row

    def rank(self, signal: str, row: int) -> int | None:
        """Return the rank, from 1, of a row among all rows by one signal; None where its value is 0."""
        values = self.signals.get(signal)
        if values is None or not values[row]:
            return None
        return 1 + int(np.count_nonzero(values > values[row]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row with its score, its signals, and its row number in the first stage."""

    row: FoundRow
    score: float
    signals: Mapping[str, float] = field(default_factory=dict)
    row_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """One search: its query, and the data that it reads."""

    store: Store
    view: GraphView
    query: Query
    recipe: Recipe  # the query's, with the query's own settings
    question: Question
    moment: Instant | None  # facts must hold at this time; None = any time
    ranked: Mapping[SearchScope, Scores]  # the first stage of each scope
    state_question: StateQuestion  # the question as facts are matched with it
    vocabulary: Vocabulary
    near: Callable[[str], float]  # statement -> nearness of its vector to the question, 0 to 1
    summaries: Summaries | None  # the texts of communities and entities that are searched
    statements: Vectors  # of the group's statements
    evidence: EvidencePlaces
    newest: Sequence[int]  # sequences of the newest episodes, newest first (`Recipe.recent`)
    visible: dict[SearchScope, dict[tuple[Any, bool], list[FoundRow]]] = field(default_factory=dict)  # cache

    def keep(self, rows: Sequence[FoundRow]) -> list[FoundRow]:
        """Return the rows of one scope that pass the query's filters, in their order."""
        return self.query.filters.keep(rows, self.store, self.view)


def farthest(near: Floats) -> float:
    """Return the lower end of the scale of nearness (deviations from the middle), at most 0.

    It is the minimum, but no lower than 1.5 times the 2 % quantile, so that a single stray message does not
    set the scale for the others. In a normal distribution that is three deviations below the middle.
    """
    if not len(near):
        return 0.0
    place = len(near) // 50
    return min(0.0, max(float(near.min()), 1.5 * float(np.partition(near, place)[place])))


def _rows_within(times: Ints, spans: Sequence[tuple[Instant, Instant]], delay: int) -> Ints:
    """Return the rows whose times lie in a span, or up to `delay` after it."""
    inside = [(times >= start) & (times < end + delay) for start, end in spans]
    return np.flatnonzero(np.logical_or.reduce(inside)) if inside else np.zeros(0, np.int64)


def _merged(first: Postings, second: Postings) -> Postings:
    """Return the rows of both, in ascending order, with the sum of their amounts."""
    if not len(second[0]):
        return first
    rows, places = np.unique(np.concatenate((first[0], second[0])), return_inverse=True)
    return rows, np.bincount(places, np.concatenate((first[1], second[1]))).astype(first[1].dtype)


class FirstStage:
    """The scores of one question on one group's index."""

    def __init__(
        self, index: GroupIndex, question: Question, weights: Weights, topic: Embedding | None
    ) -> None:
        """topic: the embedding of the question's topic; None where no vectors are searched."""
        self._index, self._question, self._weights, self._topic = index, question, weights, topic
        self._having: dict[tuple[int, int], Postings] = {}
        self._same: dict[int, Floats] = {}  # distance -> 1 where a message and its neighbour share a session
        self._forms = {term(word): [*map(term, other_forms(word))] for word in question.words}
        self._of_statement: Floats = np.zeros(0, np.float32)

    def messages(self, exact: Exact) -> Scores:
        """Return the scores of the committed episodes; exact: see `Vectors.cosines`."""
        messages, weights, question = self._index.messages, self._weights, self._question
        terms = self._terms()
        lexical = self._by_words(messages.words, terms)
        near = self._by_vectors(messages.vectors, len(messages.numbers), exact)
        sparse = self._by_tokens(messages.vectors, len(messages.numbers))
        fit, match_score = self._weighted_sum(lexical, near, sparse)  # decides which messages match
        if question.names_person:  # messages of a named person are about the question
            fit = max(fit, weights.floor)
        zero = farthest(near)
        _, base = self._weighted_sum(lexical, near, sparse, zero=zero)  # orders the matches
        # The sum with the neighbours' words; and the sum without words, of which neighbours get a share.
        around = self._by_words_around(messages, terms)
        _, with_neighbours = self._weighted_sum(around, near, sparse, zero=zero)
        _, without_words = self._weighted_sum(np.zeros_like(lexical), near, sparse, zero=zero)
        speakers = [messages.speakers.numbers[name] for name in question.speakers]
        by_speaker = np.isin(messages.speakers.number_of, speakers)
        dated = _rows_within(messages.times, question.spans, 0)
        later = _rows_within(messages.times, question.spans, SENT_WITHIN)
        soon_after = np.setdiff1d(later, dated, assume_unique=True)
        by_time_words = [self._postings(messages.words, term(word))[0] for word in question.times]
        factors, factor = self._factors(
            len(lexical),
            speaker=(weights.speaker, np.flatnonzero(by_speaker)),
            dates=(weights.dates, dated),
            soon_after=(1 + SOON_AFTER * (weights.dates - 1), soon_after),
            times=(weights.times, np.concatenate(by_time_words) if by_time_words else ()),
            phrase=(weights.phrase, self._quoted(messages.words)),
        )
        # A word that neighbours repeat counts less than a new one; vectors of neighbours add their shares.
        shares = self._from_neighbours(messages, without_words * factor)
        from_neighbours = factor * (with_neighbours - base + shares)
        base *= factor
        match_score *= factor
        session = factor * np.float32(weights.session) * self._by_session(messages, terms)
        by_context = {"neighbours": from_neighbours, "session": session}
        signals = {"words": lexical, "vectors": near, **sparse, **factors, **by_context}
        # Keep messages that match the question, and their neighbours. They are ordered by `base`: it counts
        # nearness from the farthest message, which gives named speakers and neighbours a greater boost.
        match_with_neighbours = match_score + factor * self._from_neighbours(messages, match_score)
        is_match = match_with_neighbours > weights.tail * match_with_neighbours.max(initial=0.0)
        # The factor by length, 1 at the mean: a short message ("nice one!") has less content.
        mean = max(1.0, float(messages.words.lengths.mean())) if len(lexical) else 1.0
        share = np.minimum(messages.words.lengths.astype(np.float32) / np.float32(mean), np.float32(_LONG))
        length = np.power((1 + share) / 2, weights.length, dtype=np.float32)
        score = np.where(is_match, (base + from_neighbours + session) * length, 0.0)
        return self._scores(messages.records, fit, score, {**signals, "length": length})

    def _weighted_sum(
        self, lexical: Floats, near: Floats, sparse: Mapping[str, Floats] = _NO_SIGNAL, *, zero: float = 0.0
    ) -> tuple[float, Floats]:
        """Return the fit of the best row, 0 to 1, and the weighted sum of signals (shares of their best).

        sparse: the signal of that name, or {}; zero: the value of `near` that counts as no nearness
        """
        weights = self._weights
        fit, total = 0.0, np.zeros_like(lexical)
        tokens = ((token_values, weights.sparse, UNRELATED_TOKENS) for token_values in sparse.values())
        for values, weight, threshold in ((lexical, weights.words, 0.0), *tokens):
            best = float(values.max(initial=0.0))
            if best and weight:
                fit = max(fit, min(1.0, (best - threshold) / (1 - threshold)))
                total += np.float32(weight / best) * values
        nearest = float(near.max(initial=0.0))
        if nearest > 0 and weights.vectors:
            fit = max(fit, min(1.0, (nearest - NOISE) / (CERTAIN - NOISE)))
            share = np.float32(weights.vectors / (nearest - zero))
            total += share * np.maximum(near - np.float32(zero), 0.0)
        if sparse:  # three signals weigh as much as two, so that scopes without token weights compare
            total /= np.float32(max(1.0, weights.words + weights.vectors + weights.sparse))
        return fit, total

    def _scores(self, records: Records, fit: float, shares: Floats, signals: Mapping[str, Floats]) -> Scores:
        """Return fit (of the best row) x share for each row, and the floor of the scope."""
        score = np.float32(fit) * shares
        low = max(0.0, self._weights.tail) * float(score.max(initial=0.0))
        floor = low if fit >= self._weights.floor else np.inf
        return Scores(score=score, records=records, signals=signals, floor=floor)

    def pieces(self, exact: Exact) -> Scores:
        """Return the scores of the pieces of evidence."""
        pieces = self._index.pieces
        # Speaker names are left out, as in `messages`: they are a factor (`linked`) later.
        lexical = self._by_words(pieces.words, self._terms())
        of_statement = self._of_statement = self._by_vectors(pieces.vectors, len(pieces.numbers), exact)
        near = of_statement[pieces.statements.number_of] if len(of_statement) else np.zeros_like(lexical)
        tokens = self._by_tokens(pieces.vectors, len(of_statement))
        sparse = {name: values[pieces.statements.number_of] for name, values in tokens.items()}
        fit, total = self._weighted_sum(lexical, near, sparse)
        quoted = self._quoted(pieces.words)
        factors, factor = self._factors(len(lexical), phrase=(self._weights.phrase, quoted))
        total *= factor
        signals = {"words": lexical, "vectors": near, **sparse, **factors}
        return self._scores(pieces.records, fit, total, signals)

    def summaries(self, texts: Texts) -> Scores:
        """Return the scores of summaries, which count less than other rows: a summary has many words."""
        lexical = self._by_words(texts.words, self._terms(names=True))
        near = self._by_vectors(texts.vectors, len(texts.ids), lambda _: ())
        fit, total = self._weighted_sum(lexical, near)
        total *= np.float32(self._weights.communities)
        return self._scores(texts.records, fit, total, {"words": lexical, "vectors": near})

    def names(self, exact: Exact) -> Scores:
        """Return the scores of the entities' names.

        A name scores by its share of the question's words. Its vector counts less in a longer question,
        because a name says nothing about the other words.
        """
        names, weights = self._index.names, self._weights
        terms = self._terms(names=True)
        lexical = np.minimum(self._by_words(names.words, terms, flat=True), 1.0)
        near = self._by_vectors(names.vectors, len(names.numbers), exact)
        share = np.float32(weights.vectors / max(1, len(terms)))
        nearness = np.clip((near - NOISE) / (CERTAIN - NOISE), 0, 1)
        score = np.float32(weights.words) * lexical + share * nearness
        signals = {"words": lexical, "vectors": near}
        return Scores(score=score, records=names.records, signals=signals, floor=weights.floor)

    def near(self) -> Callable[[str], float]:
        """Return a function: statement -> nearness of its vector, 0 to 1. Call it after `pieces`."""
        values, numbers = self._of_statement, self._index.pieces.numbers

        def nearness(statement: str) -> float:
            number = numbers.get(statement)
            if number is None or number >= len(values):
                return 0.0
            return min(1.0, max(0.0, (float(values[number]) - NOISE) / (CERTAIN - NOISE)))

        return nearness

    def state_question(self) -> StateQuestion:
        """Return the question with the entities whose names it contains, or that it calls by a first name."""
        names = self._index.names
        matched = np.zeros(len(names.words.lengths), np.int32)
        for key in {term(word) for word in words(self._question.text)}:
            rows, counts = self._postings(names.words, key)
            matched[rows] += counts
        complete = np.flatnonzero((matched >= names.words.lengths) & (names.words.lengths > 0))
        terms_of_names = (names.words.terms(row) for row in complete.tolist())
        surfaces = [*zip(names.records(complete), terms_of_names, strict=True), *self._called()]
        return read_state_question(self._question.text, surfaces, self._idf)

    def _called(self) -> Iterator[tuple[str, list[int]]]:
        """Yield entities that the question calls by the first word of their name.

        The word must begin the name of a speaker, or the name of one entity only.
        """
        names = self._index.names
        for speaker in self._question.speakers:
            name = [term(word) for word in words(speaker)]
            rows = self._postings(names.words, name[0])[0] if name else ()
            equal = [row for row in rows if names.words.terms(row) == name]
            yield from ((entity, name[:1]) for entity in names.records(np.array(equal, np.int64)))
        for word in dict.fromkeys(_CALLED.findall(self._question.text)):
            first = term(stem(plain_words(word)[0])) if plain_words(word) else 0
            rows = self._postings(names.words, first)[0]
            begun = [row for row in rows[:_MOST_CALLED] if names.words.terms(row)[0] == first]
            called = {*names.records(np.array(begun, np.int64))}
            if len(rows) <= _MOST_CALLED and len(called) == 1:
                yield called.pop(), [first]

    def _idf(self, key: int) -> float:
        """Return a term's inverse document frequency over the group's messages and pieces of evidence."""
        parts = (self._index.messages.words, self._index.pieces.words)
        rows = sum(len(part.lengths) for part in parts)
        having = sum(len(self._postings(part, key)[0]) for part in parts)
        return math.log(1 + (rows - having + 0.5) / (having + 0.5))

    def _terms(self, *, names: bool = False) -> _Terms:
        """Return the question's terms with their weights.

        names: include names of speakers; else they are left out, unless the question has no other words
        """
        naming = {word for speaker in self._question.speakers for word in words(speaker) if not names}
        content = [word for word in self._question.words if word not in naming] or self._question.words
        codes = {term(word) for word in self._question.codes}
        return {key: self._idf(key) * (CODE if key in codes else 1.0) for key in map(term, content)}

    def _postings(self, index: Words, key: int) -> Postings:
        """Return the cached `Words.having` of a term; in texts, not in names, with its verb's other forms."""
        cache_key = (id(index), key)
        if (postings := self._having.get(cache_key)) is None:
            forms = () if index is self._index.names.words else self._forms.get(key, ())
            postings = index.having(key)
            for form in forms:
                postings = _merged(postings, index.having(form))
            self._having[cache_key] = postings
        return postings

    def _by_words(self, index: Words, terms: _Terms, *, flat: bool = False) -> Floats:
        """Return BM25 of each row, 1 for all words in a text of average length; flat: ignore length."""
        scores = np.zeros(len(index.lengths), np.float32)
        if not len(scores) or not terms or not self._weights.words:
            return scores
        mean = max(1.0, float(index.lengths.mean()))
        for key, idf in terms.items():
            rows, counts = self._postings(index, key)
            length = 1.0 if flat else 1 - B + B * index.lengths[rows] / mean
            scores[rows] += idf * counts * (K1 + 1) / (counts + K1 * length)
        return scores / np.float32(sum(terms.values()) or 1.0)

    def _by_words_around(self, messages: Messages, terms: _Terms) -> Floats:
        """Return BM25 of each message with the words of its neighbours, whose counts are weighted."""
        sessions = messages.sessions
        scores = np.zeros(len(sessions.order), np.float32)  # in the order of the sessions, as `counts`
        if not len(scores) or not self._weights.words:
            return scores
        lengths = messages.words.lengths[sessions.order].astype(np.float32)
        mean = max(1.0, float(lengths.mean()))
        bound = np.float32(K1 * (1 - B_AROUND)) + np.float32(K1 * B_AROUND / mean) * lengths
        counts = np.zeros_like(scores)  # of one term; only messages near the term are computed
        for key, idf in terms.items():
            rows, amounts = self._postings(messages.words, key)
            places = sessions.places[rows]
            counts[places] = amounts
            for step, weight in self._steps_around():
                near = places + step
                inside = (near >= 0) & (near < len(counts))
                inside[inside] = sessions.ordered[near[inside]] == sessions.ordered[places[inside]]
                counts[near[inside]] += np.float32(weight) * amounts[inside]
            touched = np.flatnonzero(counts)
            term_counts = counts[touched]
            scores[touched] += np.float32(idf * (K1 + 1)) * term_counts / (term_counts + bound[touched])
            counts[touched] = 0
        return scores[sessions.places]

    def _steps_around(self) -> list[tuple[int, float]]:
        """Return (distance, weight) for each neighbour that gets a share of a message's words."""
        weights = enumerate(self._weights.neighbours, 1)
        return [pair for step, (before, after) in weights for pair in ((step, before), (-step, after))]

    def _quoted(self, index: Words) -> list[int]:
        """Return the rows that contain a phrase that the question quotes."""
        phrases = ([term(word) for word in phrase] for phrase in self._question.phrases)
        return [row for phrase in phrases for row in index.having_phrase(phrase)]

    def _by_session(self, messages: Messages, terms: _Terms) -> Floats:
        """Return for each message its session's BM25 among the sessions, as a share of the best one's."""
        sessions = messages.sessions
        scores = np.zeros(sessions.total, np.float32)
        lengths = sessions.lengths
        mean = max(1.0, float(lengths.mean())) if sessions.total else 1.0
        for key in terms:
            rows, in_messages = self._postings(messages.words, key)
            counts = np.bincount(sessions.of_row[rows], in_messages, sessions.total)
            having = int(np.count_nonzero(counts))
            idf = np.log(1 + (sessions.total - having + 0.5) / (having + 0.5))
            saturated = counts * (K1 + 1) / (counts + K1 * (1 - B + B * lengths / mean))
            scores += (idf * saturated).astype(np.float32)
        best = float(scores.max()) if len(scores) else 0.0
        return (scores / best if best else scores)[sessions.of_row]

    def _by_vectors(self, vectors: Vectors, owners: int, exact: Exact) -> Floats:
        """Return the cosine of each owner's vector in standard deviations above the group's middle.

        Middle and deviation are the median and the median distance from it, so that a few near vectors do not
        distort them; the deviation is at least that of random directions, for small groups.
        """
        deviations = np.zeros(owners, np.float32)
        if self._topic is None or not vectors.rows or not self._weights.vectors:
            return deviations
        cosines = vectors.cosines(self._topic.vector, exact)
        sample = cosines[:: 1 + len(cosines) // _SAMPLE]
        median = float(np.median(sample))
        spread = max(
            1.4826 * float(np.median(np.abs(sample - median))), RANDOM / len(self._topic.vector) ** 0.5
        )
        # A few texts may all be about the question, so their median is a poor estimate of "unrelated".
        middle = min(float(np.quantile(sample, 0.25)) if len(sample) < _SMALL else median, UNRELATED)
        middle *= len(sample) / (len(sample) + _TINY)
        deviations[vectors.owners] = (cosines - middle) / spread
        return deviations

    def _by_tokens(self, vectors: Vectors, owners: int) -> dict[str, Floats]:
        """Return the share of the question's token weight that each owner has, above the usual share.

        1: each token has the weight that it has in the question. {}: the embedder gives no token weights.
        """
        if self._topic is None or self._topic.weights is None or not self._weights.sparse:
            return {}
        tokens, weights = as_weights(self._topic.weights)
        shared = np.zeros(len(vectors.owners), np.float32)
        for token, weight in zip(tokens.tolist(), weights, strict=True):
            rows, amounts = vectors.tokens.having(token)
            shared[rows] += weight * amounts.astype(np.float32)
        shares = np.zeros(owners, np.float32)
        shared /= np.float32(weights @ weights or 1)
        shares[vectors.owners] = np.maximum(shared - np.float32(SHARED), 0) / np.float32(1 - SHARED)
        return {"sparse": shares}

    @staticmethod
    def _factors(count: int, **rules: tuple[float, Sequence[int] | Ints]) -> tuple[dict[str, Floats], Floats]:
        """Return the factors of all rows by signal, without signals that no row has, and their product.

        rules: signal = (factor, the rows that get it)
        """
        factors = {}
        for name, (factor, rows) in rules.items():
            if len(rows):
                factors[name] = np.ones(count, np.float32)
                factors[name][rows] = factor
        return factors, math.prod(factors.values(), start=np.ones(1, np.float32))

    def _from_neighbours(self, messages: Messages, base: Floats) -> Floats:
        """Return the credit that each message gets from the messages around it in its session."""
        sessions = messages.sessions
        return self._credit(sessions, base[sessions.order])[sessions.places]

    def _credit(self, sessions: Sessions, ordered: Floats) -> Floats:
        """Return the sum of the neighbours' values by weight; both in the order of the sessions."""
        credit = np.zeros_like(ordered)
        for steps, (weight_before, weight_after) in enumerate(self._weights.neighbours, 1):
            if (is_same := self._same.get(steps)) is None:
                numbers = sessions.ordered
                is_same = self._same[steps] = (numbers[steps:] == numbers[:-steps]).astype(np.float32)
            credit[steps:] += np.float32(weight_before) * is_same * ordered[:-steps]
            credit[:-steps] += np.float32(weight_after) * is_same * ordered[steps:]
        return credit
