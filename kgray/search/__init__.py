"""Reading: search and the context block, after Zep (arXiv 2501.13956, section 3).

plan        the query with its recipe and filters
candidates  the rows that BM25, cosine and graph steps find
rank        the order of these rows: fusion and rerankers
searcher    a search from its query to its hits
context     what a search found as text for a prompt
tokens      the token counter of that text
"""

from __future__ import annotations

from kgray.search.context import Context, context
from kgray.search.plan import RECIPES, SCOPES, Filters, Method, Query, Recipe, Reranker
from kgray.search.searcher import search
from kgray.search.tokens import count_tokens

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
]
