"""Reading: search and the context block, after Zep (arXiv 2501.13956, section 3); read `searcher` first."""

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
