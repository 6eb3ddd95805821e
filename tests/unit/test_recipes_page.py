"""docs/searching.md shows the table of recipes."""

from __future__ import annotations

from pathlib import Path

from kgray.search.recipes import RECIPES

PAGE = Path(__file__).parents[2] / "docs" / "searching.md"


def test_the_page_lists_every_recipe_with_its_source_scopes_methods_and_order():
    rows = [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `") and line.count("|") == 7
    ]
    cells = {row.split("|")[1].strip(" `"): [cell.strip() for cell in row.split("|")[2:7]] for row in rows}
    for name, recipe in RECIPES.items():
        scopes = "all" if len(recipe.scopes) == 4 else ", ".join(recipe.scopes)
        scopes += f" (from {', '.join(recipe.start)})" if recipe.start else ""
        order = recipe.reranker if recipe.reranker not in ("none", "rrf") else "weighted score"
        order = "rrf" if recipe.fusion == "rrf" and order == "weighted score" else order
        assert cells[name] == [recipe.source, scopes, ", ".join(recipe.methods), order, recipe.note], name
