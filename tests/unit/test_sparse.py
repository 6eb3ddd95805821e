"""The weights of tokens: their storage, and their scores for a question, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.ports import Embedding
from kgray.schema.rows import as_weights, weight_bytes
from kgray.search.index import Tokens
from kgray.search.query import Speakers
from kgray.search.query import read_question as read
from kgray.search.ranking import SHARED, FirstStage
from kgray.search.recipes import Weights
from tests.unit.test_search_rank import CLOCK, index_of

ALONE = Weights(words=0.0, vectors=0.0, sparse=1.0, neighbours=(), session=0.0, tail=0.0, floor=0.0)


def weighed(**weights: float) -> bytes:
    """Return the weights of tokens that are named by a letter."""
    return weight_bytes(np.array([*map(ord, weights)], np.uint32), np.array([*weights.values()], np.float32))


@given(st.lists(st.tuples(st.integers(0, 250_001), st.floats(0, 4, width=16)), max_size=40))
def test_the_largest_weight_of_each_token_is_stored_in_six_bytes(pairs):
    largest: dict[int, float] = {}
    for token, weight in pairs:
        largest[token] = max(weight, largest.get(token, 0.0))
    expectation = {token: weight for token, weight in sorted(largest.items()) if weight > 0}
    tokens, weights = ([*column] for column in zip(*pairs, strict=True)) if pairs else ([], [])

    stored = weight_bytes(np.array(tokens, np.uint32), np.array(weights, np.float32))

    assert len(stored) == 6 * len(expectation)
    result = as_weights(stored)
    assert dict(zip(*(column.tolist() for column in result), strict=True)) == expectation
    assert result[0].tolist() == [*expectation]


def test_weights_that_half_precision_rounds_to_zero_are_omitted():
    assert weighed(a=1e-9, b=0.5) == weighed(b=0.5)


def test_a_row_scores_its_share_of_the_question_weight_above_the_mean():
    """Weights a 0.5, b 0.25 weigh 0.3125 with themselves: written out for five messages."""
    index = index_of("one", "two", "three", "four", "five")
    rows = [weighed(a=0.5, b=0.25), weighed(a=0.25), weighed(b=0.0625, z=3.0), weighed(z=3.0), b""]
    vectors, numbers = index.messages.vectors, index.messages.numbers
    for n, row in enumerate(rows, 1):  # one by one, as commits bring them
        vectors.add(
            [n], [np.eye(4, dtype=np.float32)[0].tobytes()], numbers, [(n, 0)], signs=False, weights=[row]
        )
    topic = Embedding(np.eye(4, dtype=np.float32)[1], weighed(a=0.5, b=0.25))

    question = read("what?", speakers=Speakers(), clock=CLOCK)
    result = FirstStage(index, question, ALONE, topic).messages(lambda _: [])

    # 0.3125, 0.125 and 0.015625 of 0.3125; the last is below the common share
    expectation = [1.0, (0.4 - SHARED) / (1 - SHARED), 0.0, 0.0, 0.0]
    assert result.signals["sparse"].tolist() == pytest.approx(expectation)
    assert result.score.tolist() == pytest.approx(expectation)
    assert result.best(9).tolist() == [0, 1]
    both = Weights(words=0.5, vectors=0.0, sparse=1.0, neighbours=(), session=0.0, tail=0.0, floor=0.0)
    question = read("two", speakers=Speakers(), clock=CLOCK)
    result = FirstStage(index, question, both, topic).messages(lambda _: [])
    assert result.score.tolist() == pytest.approx([1 / 1.5, (0.5 + expectation[1]) / 1.5, 0, 0, 0])


def test_without_weights_there_is_no_sparse_signal():
    index = index_of("one", "two", vectors=np.eye(4)[:2])
    topic = Embedding(np.eye(4, dtype=np.float32)[1])
    result = FirstStage(index, read("one", speakers=Speakers(), clock=CLOCK), Weights(), topic).messages(
        lambda _: []
    )
    assert "sparse" not in result.signals


@given(
    st.lists(st.dictionaries(st.integers(0, 9), st.floats(0.125, 2, width=16), max_size=5), max_size=12),
    st.integers(1, 5),
)
def test_postings_added_in_steps_equal_postings_loaded_at_once(texts, step):
    rows_of_texts = [
        weight_bytes(
            np.array([*weights_of_text], np.uint32), np.array([*weights_of_text.values()], np.float32)
        )
        for weights_of_text in texts
    ]
    grown = Tokens()
    for first in range(0, len(rows_of_texts), step):
        grown.add(first, rows_of_texts[first : first + step])
    for token in range(10):
        rows, values = grown.having(token)
        assert [*zip(rows.tolist(), values.tolist(), strict=True)] == [
            (row, weights_of_text[token])
            for row, weights_of_text in enumerate(texts)
            if token in weights_of_text
        ]
