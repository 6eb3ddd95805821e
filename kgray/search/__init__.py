"""Reading: search and the context block, after Zep (arXiv 2501.13956, section 3).

candidates  the query with its recipe and filters, and the rows that BM25, cosine and graph steps find
searcher    a search from its query to its hits; fusion and rerankers
question    what a query says: content words, phrases, codes, speakers and dates
context     what a search found as text for a prompt, and its token counter
"""

from __future__ import annotations

from kgray.search.candidates import RECIPES, SCOPES, Filters, Method, Query, Recipe, Reranker
from kgray.search.context import Context, context, count_tokens
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
