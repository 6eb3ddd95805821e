"""The first stage: how much each row of a group says about a question, by words, vectors, time and company.

All of it is arithmetic on the arrays of one group's index: one pass over them, no read. Words are weighed by
BM25 (Robertson and Zaragoza 2009) and divided by what a text of average length that has every word of the
question once would score: so 1 means "says all of it", in a message as in a fact or a name. Cosines are
measured against the group's own, because how near unrelated texts lie depends on the embedder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kgray.graph import PROFILE, Community
from kgray.ports import Embedding, GraphView, SearchScope, Store
from kgray.reads import OPERATIONS_SINCE
from kgray.rows import as_weights
from kgray.search.index import Floats, GroupIndex, Ints, Messages, Postings, Vectors, Words
from kgray.search.loading import EvidencePlaces, Exact, run_at, texts_of
from kgray.search.matching import StateQuestion, Vocabulary, read_state_question
from kgray.search.query import FoundRow, Query, Question
from kgray.search.recipes import Recipe, Weights
from kgray.times import Instant
from kgray.words import packed, plain_words, stem, term, words

K1, B = 1.2, 0.75  # of BM25: the usual values
# Of a question's cosines with a group's texts, in standard deviations above their middle: of 500 messages
# that are not about it the nearest is at 3, one that says what is asked in other words at 4 to 8.
NOISE, CERTAIN = 3.0, 8.0
RANDOM = 1.2  # times 1/sqrt(d), the spread of random directions: that of texts with two embedders
UNRELATED = 0.4  # no unrelated texts are nearer: the middle of a group that is all about the question
# A word with a capital, within a text: as "Who is Alice's boss?" has it.
_CALLED = re.compile(r"(?<=[\w,;] )[A-Z][\w]+")
_MOST_CALLED = 64  # surfaces with the word of a call
_TINY, _FEW, _SAMPLE = 8, 32, 8192
# Of a question's own weight (its weights with themselves), what texts share with it that have nothing to do
# with it: function words. In the example of BGE-M3's own page 0 and 0.04; those that answer it 0.9 and 0.99.
SHARED = 0.1
ABOUT = 0.3  # of what is left: "What is it?" shares less with another "What is", and is not about it
_LONG = 4.0  # times the mean: a longer message says no more of what is asked
OVER_FETCH = 3  # times as many candidates are taken as are wanted, because views and filters drop some
CODE = 1.5  # a word with digits weighs so many times its idf

_FACTORS = frozenset({"speaker", "dates", "phrase", "linked", "length"})
_NO_SIGNAL: Mapping[str, Floats] = {}
Records = Callable[[Ints], list[Any]]
_Asked = dict[int, float]  # terms of a question, with their weights in one group


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Of one scope: the score of each row, and what made it up, by signal."""

    score: Floats
    records: Records  # which record each row is
    signals: Mapping[str, Floats] = field(default_factory=dict)
    floor: float = 0.0

    def best(self, depth: int, least: float = 0.0) -> Ints:
        """Return the `depth` rows of the highest scores above the floor, best first; ties by row.

        least: and of this score at least
        """
        rows = np.flatnonzero((self.score > self.floor) & (self.score >= least))
        if len(rows) > depth:
            cut = np.partition(self.score[rows], len(rows) - depth)[len(rows) - depth]
            rows = rows[self.score[rows] >= cut]
        return rows[np.lexsort((rows, -self.score[rows]))][:depth]

    def beside(self, other: Scores) -> Scores:
        """Return the scores of these rows and, behind them, of others with the same signals."""
        count = len(self.score)

        def records(rows: Ints) -> list[Any]:
            here = rows < count
            first, then = iter(self.records(rows[here])), iter(other.records(rows[~here] - count))
            return [next(first if row < count else then) for row in rows.tolist()]

        above = np.where(other.score > other.floor, other.score, np.float32(0))
        signals = {name: np.concatenate((of, other.signals[name])) for name, of in self.signals.items()}
        joined = np.concatenate((self.score, above))
        return Scores(score=joined, records=records, signals=signals, floor=self.floor)

    def of(self, rows: Ints) -> list[dict[str, float]]:
        """Return of each row the signals that are not neutral."""
        found: list[dict[str, float]] = [{} for _ in rows]
        for name, values in self.signals.items():
            neutral = 1.0 if name in _FACTORS else 0.0
            for signals, value in zip(found, values[rows].astype(np.float64).round(4).tolist(), strict=True):
                if value != neutral:
                    signals[name] = value
        return found

    def rank(self, signal: str, row: int) -> int | None:
        """Return the rank, from 1, of a row among all by one signal; None where it has nothing of it."""
        values = self.signals.get(signal)
        if values is None or not values[row]:
            return None
        return 1 + int(np.count_nonzero(values > values[row]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row with its score, the signals that made it up, and its place in the first stage."""

    row: FoundRow
    score: float
    signals: Mapping[str, float] = field(default_factory=dict)
    place: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """One search: its query, and what it reads from."""

    store: Store
    view: GraphView
    query: Query
    ways: Recipe
    question: Question
    moment: Instant | None  # when facts must hold; None = any time
    ranked: Mapping[SearchScope, Scores]  # the first stage of each scope
    state_question: StateQuestion  # the question as facts are matched with it
    vocabulary: Vocabulary
    near: Callable[[str], float]  # statement -> how far its vector stands out, 0 to 1
    told: Summaries | None  # the texts of communities and entities that are searched
    statements: Vectors  # of the group's statements
    evidence: EvidencePlaces
    newest: Sequence[int]  # sequences of the newest episodes, the newest first (`Recipe.recent`)

    def keep(self, rows: Sequence[FoundRow]) -> list[FoundRow]:
        """Return the rows of one scope that pass the query's filters, in their order."""
        return self.query.filters.keep(rows, self.store, self.view)


class Profiled(str):
    """The id of an entity that was found by what a model wrote of it."""

    __slots__ = ()


class Texts:
    """The words and vectors of texts, in memory."""

    def __init__(self, dimensions: int, found: Sequence[Community]) -> None:
        self.words, self.vectors = Words(), Vectors(dimensions)
        self.ids = [Profiled(one.id) if one.level == PROFILE else one.id for one in found]
        self.words.add([packed(one.text) for one in found])
        numbers: dict[object, int] = {id_: number for number, id_ in enumerate(self.ids)}
        near = {one.id: one.vector for one in found if one.vector}  # an earlier version gave profiles none
        self.vectors.add([*near], [*near.values()], numbers, [(0, 0)] * len(near), signs=False)

    def records(self, rows: Ints) -> list[Any]:
        """Return the ids of rows."""
        return [self.ids[row] for row in rows.tolist()]


class Summaries:
    """The texts of one run: of communities, and what a model wrote of entities."""

    def __init__(self, store: Store, group: str, known_at: Instant | None, dimensions: int) -> None:
        """Read the run that was known then; to be called at one moment."""
        self.run, self.recorded_at = run_at(store, group, known_at) or (0, 0)  # it may be gone by now
        self._read_at = store.heads([group])[group].last_recorded
        communities, profiles = texts_of(store, group, self.run)
        self.communities = Texts(dimensions, communities)
        self.profiles = Texts(dimensions, [*profiles.values()])

    def stand(self, store: Store, group: str, known: tuple[int, Instant]) -> bool:
        """Whether they are the texts of this run still; a group begun anew counts from 1 again.

        No episode takes a text away: what does (R25) is an operation, recorded after they were read.
        """
        done = store.rows(OPERATIONS_SINCE, group, [self._read_at + 1])  # carried out, or begun
        return (self.run, self.recorded_at) == known and not any(done)


def farthest(near: Floats) -> float:
    """Return the least of cosines that count from the middle, at most 0.

    But not less than one and a half times what all but 2 % reach: one stray message must not set the scale on
    which the others are compared. Of a normal distribution that is three deviations away.
    """
    if not len(near):
        return 0.0
    place = len(near) // 50
    return min(0.0, max(float(near.min()), 1.5 * float(np.partition(near, place)[place])))


class FirstStage:
    """The scores of one question on one group's index."""

    def __init__(
        self, index: GroupIndex, question: Question, weights: Weights, topic: Embedding | None
    ) -> None:
        """topic: what the embedder says of the question's; None where it is not asked."""
        self._index, self._question, self._weights, self._topic = index, question, weights, topic
        self._having: dict[tuple[int, int], Postings] = {}
        self._of_statement: Floats = np.zeros(0, np.float32)

    def messages(self, exact: Exact) -> Scores:
        """Return the scores of the committed episodes. exact: see `Vectors.cosines`."""
        held, weights, question = self._index.messages, self._weights, self._question
        asked = self._asked()
        own = self._by_words(held.words, asked)
        near = self._by_vectors(held.vectors, len(held.numbers), exact)
        sparse = self._by_tokens(held.vectors, len(held.numbers))
        level, clear = self._together(own, near, sparse)
        if question.of_somebody:  # who is named is somebody: what they said is about the question
            level = max(level, weights.floor)
        _, base = self._together(own, near, sparse, nothing=farthest(near))
        numbers = [held.speakers.numbers[name] for name in question.speakers]
        times = [(held.times >= start) & (held.times < end) for start, end in question.spans]
        factors, meant = self._factors(
            len(own),
            speaker=(weights.speaker, np.flatnonzero(np.isin(held.speakers.of, numbers)) if numbers else ()),
            dates=(weights.dates, np.flatnonzero(np.logical_or.reduce(times)) if times else ()),
            phrase=(weights.phrase, self._quoted(held.words)),
        )
        base *= meant
        clear *= meant
        company = meant * self._from_neighbours(held, base)
        session = meant * np.float32(weights.session) * self._by_session(held, asked)
        beside = {"neighbours": company, "session": session}
        signals = {"words": own, "vectors": near, **sparse, **factors, **beside}
        # What speaks of the question, or stands beside what does, is found. How far the others lie from it
        # orders what is found: what is named and what stands beside weighs more for it.
        told = clear + meant * self._from_neighbours(held, clear)
        found = told > weights.tail * told.max(initial=0.0)
        # The factor by its words, 1 at the mean: "nice one!" tells less than most.
        mean = max(1.0, float(held.words.lengths.mean())) if len(own) else 1.0
        share = np.minimum(held.words.lengths.astype(np.float32) / np.float32(mean), np.float32(_LONG))
        length = np.power((1 + share) / 2, weights.length, dtype=np.float32)
        score = np.where(found, (base + company + session) * length, 0.0)
        return self._scores(held.records, level, score, {**signals, "length": length})

    def _together(
        self, own: Floats, near: Floats, sparse: Mapping[str, Floats] = _NO_SIGNAL, *, nothing: float = 0.0
    ) -> tuple[float, Floats]:
        """Return how well the best row fits, 0 to 1, and the weighted sum of these as shares of their best.

        sparse: the signal of that name, if there is one; nothing: of `near`, what counts as no nearness
        """
        weights = self._weights
        level, total = 0.0, np.zeros_like(own)
        tokens = ((one, weights.sparse, ABOUT) for one in sparse.values())
        for found, weight, least in ((own, weights.words, 0.0), *tokens):
            best = float(found.max(initial=0.0))
            if best and weight:
                level = max(level, min(1.0, (best - least) / (1 - least)))
                total += np.float32(weight / best) * found
        nearest = float(near.max(initial=0.0))
        if nearest > 0 and weights.vectors:
            level = max(level, min(1.0, (nearest - NOISE) / (CERTAIN - NOISE)))
            share = np.float32(weights.vectors / (nearest - nothing))
            total += share * np.maximum(near - np.float32(nothing), 0.0)
        if sparse:  # the three together weigh what two do: scopes without weights of tokens stay comparable
            total /= np.float32(max(1.0, weights.words + weights.vectors + weights.sparse))
        return level, total

    def _scores(
        self, records: Records, level: float, shares: Floats, signals: Mapping[str, Floats]
    ) -> Scores:
        """Return the scores: the level of the best row times each row's share; none below the floors."""
        score = np.float32(level) * shares
        low = max(0.0, self._weights.tail) * float(score.max(initial=0.0))
        floor = low if level >= self._weights.floor else np.inf
        return Scores(score=score, records=records, signals=signals, floor=floor)

    def pieces(self, exact: Exact) -> Scores:
        """Return the scores of the pieces of evidence."""
        held = self._index.pieces
        # As of messages: who is named is a factor (`linked`), so that a fact competes by what else is asked.
        own = self._by_words(held.words, self._asked())
        of_statement = self._of_statement = self._by_vectors(held.vectors, len(held.numbers), exact)
        near = of_statement[held.statements.of] if len(of_statement) else np.zeros_like(own)
        tokens = self._by_tokens(held.vectors, len(of_statement))
        sparse = {name: of[held.statements.of] for name, of in tokens.items()}
        level, total = self._together(own, near, sparse)
        factors, meant = self._factors(len(own), phrase=(self._weights.phrase, self._quoted(held.words)))
        total *= meant
        return self._scores(held.records, level, total, {"words": own, "vectors": near, **sparse, **factors})

    def summaries(self, held: Texts) -> Scores:
        """Return the scores of summaries; they count less than other rows: a summary has many words."""
        own = self._by_words(held.words, self._asked(names=True))
        near = self._by_vectors(held.vectors, len(held.ids), lambda _: ())
        level, total = self._together(own, near)
        total *= np.float32(self._weights.communities)
        return self._scores(held.records, level, total, {"words": own, "vectors": near})

    def names(self, exact: Exact) -> Scores:
        """Return the scores of the entities' names.

        A name scores by the share of the question that it is; its vector counts the less, the more words the
        question has, because what else it says is not in a name.
        """
        held, weights = self._index.names, self._weights
        asked = self._asked(names=True)
        own = np.minimum(self._by_words(held.words, asked, flat=True), 1.0)
        near = self._by_vectors(held.vectors, len(held.numbers), exact)
        share = np.float32(weights.vectors / max(1, len(asked)))
        score = np.float32(weights.words) * own + share * np.clip((near - NOISE) / (CERTAIN - NOISE), 0, 1)
        signals = {"words": own, "vectors": near}
        return Scores(score=score, records=held.records, signals=signals, floor=weights.floor)

    def near(self) -> Callable[[str], float]:
        """Return a function that says how far a statement's vector stands out, 0 to 1; after `pieces`."""
        values, numbers = self._of_statement, self._index.pieces.numbers

        def nearness(statement: str) -> float:
            number = numbers.get(statement)
            if number is None or number >= len(values):
                return 0.0
            return min(1.0, max(0.0, (float(values[number]) - NOISE) / (CERTAIN - NOISE)))

        return nearness

    def state_question(self) -> StateQuestion:
        """Return the question with the names of entities that stand in it, whole."""
        held = self._index.names
        matched = np.zeros(len(held.words.lengths), np.int32)
        for wanted in {term(word) for word in words(self._question.text)}:
            rows, often = self._postings(held.words, wanted)
            matched[rows] += often
        whole = np.flatnonzero((matched >= held.words.lengths) & (held.words.lengths > 0))
        names = (held.words.terms(row) for row in whole.tolist())
        surfaces = [*zip(held.records(whole), names, strict=True), *self._called()]
        return read_state_question(self._question.text, surfaces, self._idf)

    def _called(self) -> Iterator[tuple[str, list[int]]]:
        """Yield entities that the question calls by the first word of their name: a speaker, or only one."""
        held = self._index.names
        for speaker in self._question.speakers:
            name = [term(word) for word in words(speaker)]
            rows = self._postings(held.words, name[0])[0] if name else ()
            same = [row for row in rows if held.words.terms(row) == name]
            yield from ((entity, name[:1]) for entity in held.records(np.array(same, np.int64)))
        for word in dict.fromkeys(_CALLED.findall(self._question.text)):
            first = term(stem(plain_words(word)[0])) if plain_words(word) else 0
            rows = self._postings(held.words, first)[0]
            begun = [row for row in rows[:_MOST_CALLED] if held.words.terms(row)[0] == first]
            called = {*held.records(np.array(begun, np.int64))}
            if len(rows) <= _MOST_CALLED and len(called) == 1:
                yield called.pop(), [first]

    def _idf(self, wanted: int) -> float:
        """Return how much a term says among the group's messages and pieces of evidence."""
        parts = (self._index.messages.words, self._index.pieces.words)
        rows = sum(len(part.lengths) for part in parts)
        having = sum(len(self._postings(part, wanted)[0]) for part in parts)
        return math.log(1 + (rows - having + 0.5) / (having + 0.5))

    def _asked(self, *, names: bool = False) -> _Asked:
        """Return the question's words, weighed among the group's messages and pieces of evidence together.

        names: of speakers, too; else they are left out, unless nothing else is asked
        """
        naming = {word for speaker in self._question.speakers for word in words(speaker) if not names}
        asked = [word for word in self._question.words if word not in naming] or self._question.words
        codes = {term(word) for word in self._question.codes}
        return {wanted: self._idf(wanted) * (CODE if wanted in codes else 1.0) for wanted in map(term, asked)}

    def _postings(self, held: Words, asked: int) -> Postings:
        """Return `Words.having` of a term, looked up once."""
        key = (id(held), asked)
        if (known := self._having.get(key)) is None:
            known = self._having[key] = held.having(asked)
        return known

    def _by_words(self, held: Words, asked: _Asked, *, flat: bool = False) -> Floats:
        """Return BM25 of each row, 1 for all words in an average length; flat: length does not matter."""
        found = np.zeros(len(held.lengths), np.float32)
        if not len(found) or not asked or not self._weights.words:
            return found
        mean = max(1.0, float(held.lengths.mean()))
        for wanted, idf in asked.items():
            rows, often = self._postings(held, wanted)
            length = 1.0 if flat else 1 - B + B * held.lengths[rows] / mean
            found[rows] += idf * often * (K1 + 1) / (often + K1 * length)
        return found / np.float32(sum(asked.values()) or 1.0)

    def _quoted(self, held: Words) -> list[int]:
        """Return the rows that have a phrase that the question quotes."""
        phrases = ([term(word) for word in phrase] for phrase in self._question.phrases)
        return [row for phrase in phrases for row in held.having_phrase(phrase)]

    def _by_session(self, held: Messages, asked: _Asked) -> Floats:
        """Return for each message its session's BM25 among the sessions, as a share of the best one's."""
        sessions = held.sessions
        found = np.zeros(sessions.total, np.float32)
        lengths = sessions.lengths
        mean = max(1.0, float(lengths.mean())) if sessions.total else 1.0
        for wanted in asked:
            rows, often = self._postings(held.words, wanted)
            counts = np.bincount(sessions.of_row[rows], often, sessions.total)
            having = int(np.count_nonzero(counts))
            idf = np.log(1 + (sessions.total - having + 0.5) / (having + 0.5))
            often_in = counts * (K1 + 1) / (counts + K1 * (1 - B + B * lengths / mean))
            found += (idf * often_in).astype(np.float32)
        best = float(found.max()) if len(found) else 0.0
        return (found / best if best else found)[sessions.of_row]

    def _by_vectors(self, held: Vectors, owners: int, exact: Exact) -> Floats:
        """Return for each owner how far its vector stands out from the group's, in standard deviations.

        Of the ordinary vectors: by their median and the median distance from it, so that a few that are about
        the question do not hide themselves; and no less than that of random directions, for small groups.
        """
        found = np.zeros(owners, np.float32)
        if self._topic is None or not held.rows or not self._weights.vectors:
            return found
        cosines = held.cosines(self._topic.vector, exact)
        some = cosines[:: 1 + len(cosines) // _SAMPLE]
        median = float(np.median(some))
        spread = max(
            1.4826 * float(np.median(np.abs(some - median))), RANDOM / len(self._topic.vector) ** 0.5
        )
        # Few texts may all be about the question: they say little of what is not.
        middle = min(float(np.quantile(some, 0.25)) if len(some) < _FEW else median, UNRELATED)
        middle *= len(some) / (len(some) + _TINY)
        found[held.owners] = (cosines - middle) / spread
        return found

    def _by_tokens(self, held: Vectors, owners: int) -> dict[str, Floats]:
        """Return for each owner what it shares of the question's weight of tokens, above what all share.

        1 = all of it: each token weighs there what it weighs in the question. {} where no token is weighed.
        """
        if self._topic is None or self._topic.weights is None or not self._weights.sparse:
            return {}
        tokens, weights = as_weights(self._topic.weights)
        shared = np.zeros(len(held.owners), np.float32)
        for token, weight in zip(tokens.tolist(), weights, strict=True):
            rows, much = held.tokens.having(token)
            shared[rows] += weight * much.astype(np.float32)
        found = np.zeros(owners, np.float32)
        shared /= np.float32(weights @ weights or 1)
        found[held.owners] = np.maximum(shared - np.float32(SHARED), 0) / np.float32(1 - SHARED)
        return {"sparse": found}

    @staticmethod
    def _factors(count: int, **meant: tuple[float, Sequence[int] | Ints]) -> tuple[dict[str, Floats], Floats]:
        """Return the factor of each row by each signal that any row has, and their product.

        meant: (factor, rows that have it)
        """
        found = {}
        for name, (factor, rows) in meant.items():
            if len(rows):
                found[name] = np.ones(count, np.float32)
                found[name][rows] = factor
        return found, math.prod(found.values(), start=np.ones(1, np.float32))

    def _from_neighbours(self, held: Messages, base: Floats) -> Floats:
        """Return what each message gets of those before and after it in its session."""
        sessions = held.sessions
        ordered, of = base[sessions.order], sessions.ordered
        credit = np.zeros_like(ordered)
        for steps, (before, after) in enumerate(self._weights.neighbours, 1):
            same = (of[steps:] == of[:-steps]).astype(np.float32)
            credit[steps:] += np.float32(before) * same * ordered[:-steps]
            credit[:-steps] += np.float32(after) * same * ordered[steps:]
        found = np.empty_like(credit)
        found[sessions.order] = credit
        return found
