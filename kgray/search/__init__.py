"""Reading: search and the context block. Zep, arXiv 2501.13956, section 3."""

from __future__ import annotations

from kgray.search.context import Context, context
from kgray.search.plan import Filters, Query
from kgray.search.recipes import RECIPES, Recipe
from kgray.search.searcher import search
from kgray.search.tokens import count_tokens

__all__ = ["RECIPES", "Context", "Filters", "Query", "Recipe", "context", "count_tokens", "search"]
