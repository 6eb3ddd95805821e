"""Invalid queries are refused with one line and the field."""

from __future__ import annotations

import pytest

from kgray.errors import InputError
from kgray.search import RECIPES, Filters, Query, Recipe


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        pytest.param({"text": ""}, "query", id="empty"),
        pytest.param({"text": " \n\t\u3000"}, "query", id="only-spaces"),
        pytest.param({"group": ""}, "group", id="no-group"),
        pytest.param({"group": "a/b"}, "group", id="sign-in-group"),
        pytest.param({"group": "a\n"}, "group", id="newline-after-group"),
        pytest.param({"group": "x" * 129}, "group", id="long-group"),
        pytest.param({"limit": 0}, "limit", id="limit-0"),
        pytest.param({"limit": 1001}, "limit", id="limit-1001"),
        pytest.param({"limit": True}, "limit", id="limit-true"),
        pytest.param({"scopes": ("facts",)}, "scope", id="unknown-scope"),
        pytest.param({"recipe": "best"}, "recipe", id="unknown-recipe"),
        pytest.param({"methods": ("bm26",)}, "methods", id="unknown-method"),
        pytest.param({"reranker": "magic"}, "reranker", id="unknown-reranker"),
        pytest.param({"reranker": "node_distance"}, "centre", id="distance-from-nothing"),
        pytest.param({"recipe": "nearby"}, "centre", id="nearby-nothing"),
        pytest.param({"recipe": "neighbours"}, "centre", id="steps-from-nowhere"),
        pytest.param({"as_of": 5, "any_time": True}, "as_of", id="a-moment-and-any"),
        pytest.param({"seeds": ("s",) * 65}, "seeds", id="too-many-seeds"),
        pytest.param({"depth": 0}, "depth", id="no-step"),
        pytest.param({"depth": 5}, "depth", id="too-deep"),
        pytest.param({"recent": 65}, "recent", id="too-many-recent"),
        pytest.param({"mmr_lambda": 1.1}, "mmr_lambda", id="lambda-above-1"),
    ],
)
def test_an_invalid_query_is_refused_with_its_field(changes, field):
    with pytest.raises(InputError) as caught:
        Query(**{"text": "who?", "group": "demo", **changes})
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_community_summaries_are_searched_only_at_the_present():
    def scopes(**changes):
        return Query(text="?", group="g", **changes).effective_recipe.scopes

    assert "community" in scopes()
    assert "community" in scopes(reranker="mmr")
    assert "community" in scopes(recipe="combined_hybrid_search_rrf")
    assert "community" not in scopes(as_of=5)
    assert scopes(scopes=("community",), as_of=5) == ("community",)
    assert scopes(scopes=("community",), recipe="paper") == ("community",)


def test_rrf_can_be_set_for_every_recipe():
    recipe = Query(text="?", group="g", reranker="rrf").effective_recipe
    assert (recipe.fusion, recipe.reranker) == ("rrf", "none")


def test_an_empty_range_is_refused():
    with pytest.raises(InputError) as caught:
        Filters(valid_at=(5, 5))
    assert caught.value.field == "valid_at"


def test_methods_and_reranker_of_a_recipe_can_be_overridden():
    assert Query(text="?", group="g").effective_recipe == RECIPES["hybrid"]
    changed = Query(text="?", group="g", recipe="lexical", reranker="mmr")
    assert changed.effective_recipe == Recipe(methods=("bm25",), reranker="mmr", note=RECIPES["lexical"].note)


def test_recipes_cannot_be_changed():
    """One caller's limits or methods never reach another's search."""
    with pytest.raises(TypeError):
        RECIPES["hybrid"] = RECIPES["lexical"]
