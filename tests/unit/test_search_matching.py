"""How a question is read before it is matched with facts."""

from __future__ import annotations

from kgray.language.words import MAX_QUERY_WORDS, stem, term
from kgray.search.matching import read_state_question


def test_only_the_first_words_of_a_long_query_are_matched() -> None:
    """Matching takes words x names for each fact: 80,000 repeated words took half an hour."""
    question = read_state_question("alice works " * 80_000, [("e1", [term(stem("alice"))])])

    assert len(question.words) == MAX_QUERY_WORDS
    assert len(question.names) + len(question.weights) <= MAX_QUERY_WORDS
    assert question.roles.keys() == question.weights.keys()
