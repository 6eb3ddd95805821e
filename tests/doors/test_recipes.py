"""Every recipe, method and reranker by every door: Python, the command line, HTTP and MCP take the same."""

from __future__ import annotations

import pytest
from mcp.client import Client

import kgray
from kgray.cli import reading
from kgray.search import RECIPES, SCOPES
from kgray.search.recipes import METHODS, RERANKERS, TEMPLATES
from tests.doors.served import serving

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("mcp", reason="needs the extra `mcp`")

QUESTION = "Where does Alice Nguyen work?"
SAID = [
    {"text": "I work at Acme.", "speaker": "Alice Nguyen", "at": "2026-03-01", "id": "m1"},
    {"text": "I work at Beta Labs now.", "speaker": "Alice Nguyen", "at": "2026-05-01", "id": "m2"},
    {"text": "Alice Nguyen knows Bob Stone.", "speaker": "Bob Stone", "at": "2026-05-02", "id": "m3"},
]
# What a recipe needs besides its name; a cross-encoder is no part of these tests (test_reranking.py).
GIVEN = {"recent": 2, "centre": "Alice Nguyen"}
NAMES = [name for name, recipe in RECIPES.items() if recipe.reranker != "cross_encoder"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ingest three messages, and refresh the communities."""
    path = tmp_path_factory.mktemp("recipes")
    with kgray.open(path, create=True) as memory:
        memory.add_many(SAID, group="team")
        memory.communities.refresh(["team"])
    return path


@pytest.fixture(scope="module")
def memory(folder):
    with kgray.open(folder, create=True) as opened:
        yield opened


@pytest.mark.parametrize("recipe", NAMES)
def test_every_recipe_finds_its_scopes_in_python_and_builds_a_context(memory, recipe):
    hits = memory.search(QUESTION, group="team", recipe=recipe, **GIVEN)
    assert hits
    assert {hit.scope for hit in hits} <= set(RECIPES[recipe].scopes)
    built = memory.context(QUESTION, group="team", recipe=recipe, tokens=400, **GIVEN)
    assert 0 < built.tokens <= 400


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("reranker", ["rrf", "mmr", "episode_mentions", "node_distance"])
def test_every_reranker_orders_every_scope(memory, scope, reranker):
    given = {"group": "team", "scopes": [scope], "reranker": reranker, "centre": "Alice Nguyen"}
    hits = memory.search("Alice Nguyen works at Beta Labs", **given)
    assert {hit.scope for hit in hits} == {scope}
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    if reranker in ("episode_mentions", "node_distance"):
        assert scores[0] > 0


def test_the_command_line_knows_the_options_of_the_table():
    assert (reading._METHODS, reading._RERANKERS, reading._TEMPLATES) == (METHODS, RERANKERS, TEMPLATES)


def test_the_command_line_and_python_find_the_same(kgray, folder, memory):
    options = ("--recent", "2", "--center", "Alice Nguyen")
    for recipe in NAMES:
        ask = ("search", QUESTION, "--group", "team", "--recipe", recipe, *options, "--data", str(folder))
        result = kgray(*ask, "--json")
        assert result.code == 0, (recipe, result.err)
        expected = memory.search(QUESTION, group="team", recipe=recipe, **GIVEN)
        assert [hit["id"] for hit in result.json["hits"]] == [hit.id for hit in expected], recipe
    ask = ("context", QUESTION, "--group", "team", "--data", str(folder))
    shown = kgray(*ask, "--template", "paper", "--recipe", "edge_hybrid_search_rrf")
    assert shown.out.startswith("FACTS and ENTITIES represent relevant context")
    assert "Alice Nguyen works at Beta Labs (Date range: 2026-05-01 - present)" in shown.out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param(("--recipe", "best"), "graphrag_drift", id="recipe"),
        pytest.param(("--depth", "9"), "1 to 4", id="depth"),
        pytest.param(("--lambda", "2"), "0 to 1", id="lambda"),
        pytest.param(("--recent", "99"), "0 to 64", id="recent"),
        pytest.param(("--recipe", "nearby"), "centre", id="no-centre"),
        pytest.param(("--reranker", "magic"), "node_distance", id="reranker"),
    ],
)
def test_an_option_with_a_wrong_value_gets_one_line_with_the_allowed_ones(kgray, folder, options, told):
    answer = kgray("search", QUESTION, "--group", "team", *options, "--data", str(folder))
    assert answer.code == 2
    assert told in answer.err.strip().splitlines()[-1]


async def test_http_and_mcp_take_every_recipe(tmp_path):
    data = tmp_path / "data"
    async with kgray.open_async(data, create=True) as made:
        await made.add_many(SAID, group="team")
        await made.communities.refresh(["team"])
    with serving(data) as server:
        with server.client() as http:
            for recipe in NAMES:
                body = {"query": QUESTION, "recipe": recipe, **GIVEN, "depth": 2, "mmr_lambda": 0.7}
                answer = http.post("/v1/groups/team/search", json=body)
                assert answer.status_code == 200, (recipe, answer.text)
                assert answer.json()["hits"], recipe
            body = {"query": QUESTION, "template": "paper"}
            text = http.post("/v1/groups/team/context", json=body).json()["text"]
            assert text.startswith("FACTS and ENTITIES represent relevant context")
        async with Client(f"{server.url}/mcp/team") as client:
            for recipe in NAMES:
                asked = {"query": QUESTION, "options": {"recipe": recipe, **GIVEN}}
                answer = await client.call_tool("search_memory", asked)
                assert not answer.is_error, (recipe, answer.content)
                assert answer.structured_content["lines"], recipe
            wrong = {"query": QUESTION, "options": {"recipes": "mix"}}
            answer = await client.call_tool("get_context", wrong)
            assert answer.is_error
            assert "mmr_lambda" in answer.content[0].text
