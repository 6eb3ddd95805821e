"""Reading: search and the context block, after Zep (arXiv 2501.13956, section 3).

query       what is asked: recipe, weights, filters; what its text says: words, phrases, speakers, dates
index       a group's words and vectors in memory
texts       what is known of entities and communities, a scope of their own; excerpts: stored text made safe
ranking     the first stage: the score of every row by every signal
candidates  the rows that the view shows, filters pass and graph steps reach
searcher    a search from its query to its hits: fusion, one list over all scopes
rerank      fusion by rank, and the rerankers
context     what a search found as text for a prompt; answering: a model's answer from it
"""

from __future__ import annotations

from kgray.prompting.tokens import count_tokens
from kgray.search.context import Context, context
from kgray.search.query import RECIPES, SCOPES, Filters, Method, Query, Recipe, Reranker, Weights
from kgray.search.searcher import Ranking, Searcher, spans_of

__all__ = [
    "RECIPES",
    "SCOPES",
    "Context",
    "Filters",
    "Method",
    "Query",
    "Ranking",
    "Recipe",
    "Reranker",
    "Searcher",
    "Weights",
    "context",
    "count_tokens",
    "spans_of",
]
