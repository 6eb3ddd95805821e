"""The settings of a paper: hits, recipe and template of the reader's context, by the data set."""

from __future__ import annotations

import pytest

from kgray.errors import InputError
from kgray.evals.answers import context_of
from kgray.evals.retrieval import RECALL, Conversation, Dataset, Message, Question
from kgray.search import RECIPES


def dataset(kind):
    """Return a data set of one question of a type."""
    question = Question(id="q", text="Who?", type=kind, answer="Ben")
    talk = Conversation(name="t", messages=(Message(id="m", text="Hi"),), questions=(question,))
    return Dataset(conversations=(talk,))


NOTHING = {"paper": None, "tokens": None, "recipe": None, "limit": None, "template": None}


@pytest.mark.parametrize(("kind", "hits"), [(RECALL, 10), ("multi-session", 20)])
def test_the_zep_settings_use_the_numbers_of_facts_and_entities_of_the_paper(kind, hits):
    options = context_of(dataset(kind), **NOTHING | {"paper": "zep"})
    assert (options["template"], options["limit"], options["tokens"]) == ("paper", 2 * hits, 8000)
    assert dict(options["recipe"].places) == {"fact": hits, "entity": hits}
    assert (options["recipe"].fusion, options["recipe"].scopes) == ("rrf", ("fact", "entity"))


def test_explicit_settings_win_over_the_paper():
    options = context_of(
        dataset(RECALL), **NOTHING | {"paper": "zep", "limit": 5, "recipe": "naive", "tokens": 99}
    )
    assert (dict(options["recipe"].places), options["limit"], options["tokens"]) == ({"episode": 5}, 5, 99)


def test_without_a_paper_the_default_search_is_measured():
    assert context_of(dataset(RECALL), **NOTHING) == {"tokens": 1500, "recipe": RECIPES["hybrid"]}


def test_an_unknown_recipe_is_named_with_a_list_of_the_recipes():
    with pytest.raises(InputError, match="recipe 'zep' is unknown: use hybrid, mix, naive"):
        context_of(dataset(RECALL), **NOTHING | {"recipe": "zep"})
