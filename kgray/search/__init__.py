"""Reading: search and the context block, after Zep (arXiv 2501.13956, section 3).

candidates  the query with its recipe and filters, and the rows that BM25, cosine and graph steps find
searcher    a search from its query to its hits; fusion and rerankers
context     what a search found as text for a prompt
"""

from __future__ import annotations

from kgray.prompting.tokens import count_tokens
from kgray.search.candidates import RECIPES, SCOPES, Filters, Method, Query, Recipe, Reranker
from kgray.search.context import Context, context
from kgray.search.searcher import search, spans_of

__all__ = [
    "RECIPES",
    "SCOPES",
    "Context",
    "Filters",
    "Method",
    "Query",
    "Recipe",
    "Reranker",
    "context",
    "count_tokens",
    "search",
    "spans_of",
]
