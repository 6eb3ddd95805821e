"""Reading: search and the context block, after Zep (arXiv 2501.13956, section 3); read `searcher` first."""

from __future__ import annotations

from kgray.models.prompting.tokens import count_tokens
from kgray.search.context import Context, context
from kgray.search.loading import spans_of
from kgray.search.query import Filters, Query
from kgray.search.recipes import RECIPES, SCOPES, Method, Recipe, Reranker, Template, Weights
from kgray.search.searcher import Ranking, Searcher

__all__ = [
    "RECIPES", "SCOPES", "Context", "Filters", "Method", "Query", "Ranking", "Recipe", "Reranker", "Searcher",
    "Template", "Weights", "context", "count_tokens", "spans_of",
]  # fmt: skip
