"""Every recipe, method and reranker by every door: equal options return equal hits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import closing
from itertools import product
from typing import Any, NamedTuple

import httpx2
import pytest
from mcp.client import Client

import kgray
from kgray.cli import reading
from kgray.errors import KgrayError
from kgray.search import RECIPES, SCOPES, Filters
from kgray.search.recipes import METHODS, RERANKERS, TEMPLATES
from tests.doors.chat_server import ChatRequest, ChatServer, Say, at
from tests.doors.served import Served, serving
from tests.doors.shell import Shell

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("mcp", reason="needs the extra `mcp`")

QUESTION = "Where does Alice Nguyen work?"
MESSAGES = [
    ("Alice Nguyen", "2026-03-01", "I work at Acme."),
    ("Alice Nguyen", "2026-05-01", "I work at Beta Labs now."),
    ("Bob Stone", "2026-05-02", "Alice Nguyen knows Bob Stone."),
    ("Bob Stone", "2026-05-03", "I live in Oslo, and I work at Beta Labs."),
    ("Carla Diaz", "2026-05-04", "Bob Stone knows Carla Diaz."),
    ("Carla Diaz", "2026-05-05", "I work at Acme and I live in Madrid."),
    ("Carla Diaz", "2026-05-06", "Acme is based in Bergen."),
    ("Bob Stone", "2026-05-07", "Alice Nguyen works on Tuesdays from home, somebody told me."),
]
ROWS = [
    {"text": text, "speaker": speaker, "at": day, "id": f"m{n}", "source": "chat" if n % 2 else "mail"}
    for n, (speaker, day, text) in enumerate(MESSAGES, 1)
]
NEEDS = {"recent": 2, "centre": "Alice Nguyen"}  # some recipes need these; the others accept them
RECIPE_CASES: dict[str, dict[str, Any]] = {name: {"recipe": name, **NEEDS} for name in RECIPES}
OPTION_CASES: dict[str, dict[str, Any]] = {
    "centre": {"recipe": "neighbours", "centre": "Bob Stone", "depth": 1},
    "seeds": {"recipe": "neighbours", "seeds": ["Carla Diaz", "m4"]},
    "recent": {"recipe": "neighbours", "recent": 3},
    "depth": {"methods": ["cosine", "bfs"], "depth": 3, "limit": 30},
    "lambda 0": {"reranker": "mmr", "mmr_lambda": 0.0},
    "lambda 1": {"reranker": "mmr", "mmr_lambda": 1.0},
    "limit": {"limit": 2},
    "as_of": {"as_of": "2026-04-01"},
    "known_at": {"known_at": "2020-01-01"},
    "any_time": {"any_time": True, "scopes": ["fact"]},
    "said": {"said_after": "2026-05-02", "said_before": "2026-05-06", "scopes": ["episode"]},
    "relations": {"relations": ["works at"], "scopes": ["fact"]},
    "labels": {"labels": ["Person"], "scopes": ["entity"]},
    "sources": {"sources": ["mail"], "scopes": ["fact", "episode"]},
    "speakers": {"speakers": ["bob stone"], "scopes": ["fact", "episode"]},
}
# Every scope by every method and reranker, with two values of lambda for mmr. No embedder here weighs tokens.
TABLE_CASES: dict[str, dict[str, Any]] = {
    f"{scope} {method} {reranker} {value}": {
        "query": "Alice Nguyen at Beta Labs", "scopes": [scope], "methods": [method], "reranker": reranker,
        "mmr_lambda": value, **NEEDS,
    }
    for scope, method, reranker in product(SCOPES, METHODS, RERANKERS)
    for value in ((0.2, 0.9) if reranker == "mmr" else (None,))
    if method != "sparse"
}  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any], str]] = {  # options -> words of the line
    "recipe": ({"recipe": "best"}, "graphrag_drift"),
    "depth": ({"depth": 9}, "4"),
    "lambda": ({"mmr_lambda": 2.0}, "1"),
    "recent": ({"recent": 99}, "64"),
    "no centre": ({"recipe": "nearby"}, "centre"),
    "no start": ({"recipe": "neighbours"}, "seeds"),
    "centre": ({"recipe": "nearby", "centre": "Zora"}, "Zora"),
    "seed": ({"recipe": "neighbours", "seeds": ["Zora"]}, "Zora"),
    "reranker": ({"reranker": "magic"}, "node_distance"),
    "method": ({"methods": ["magic"]}, "cosine"),
    "scope": ({"scopes": ["magic"]}, "community"),
    "sparse": ({"methods": ["sparse"]}, "bge"),
    "limit": ({"limit": 0}, "1"),
}
FLAGS = {
    "scopes": "--scope", "methods": "--method", "seeds": "--seed", "relations": "--relation",
    "labels": "--type", "sources": "--source", "speakers": "--speaker", "centre": "--center",
    "mmr_lambda": "--lambda", "any_time": "--any-time", "as_of": "--as-of", "known_at": "--known-at",
    "said_after": "--said-after", "said_before": "--said-before",
}  # fmt: skip
FILTERS = ("relations", "labels", "sources", "speakers")


def by_letters(request: ChatRequest) -> Say:
    """Score texts as a cross-encoder would, by a rule that no other method follows."""
    scores = [sum(map(ord, text)) % 997 / 1000 for text in request.body["documents"]]
    rows = [{"index": place, "relevance_score": score} for place, score in enumerate(scores)]
    return Say(raw=json.dumps({"results": rows}).encode())


class Refusal(Exception):
    """A door refused a search; the text is its line."""


HitIds = list[str]  # ids of the hits in order; of a message the client's, as in MCP
Door = Callable[[Mapping[str, Any]], Awaitable[HitIds]]


def ids(hits: list[dict[str, Any]]) -> HitIds:
    return [hit.get("client_id") or hit["id"] for hit in hits]


def arguments_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as arguments of `AsyncMemory.search`."""
    filters = Filters(**{name: tuple(options[name]) for name in FILTERS if name in options})
    search_options = {name: value for name, value in options.items() if name not in FILTERS}
    return {"query": QUESTION, "group": "team", "filters": filters, **search_options}


class Doors(NamedTuple):
    """A memory, a server of its folder, and the command line."""

    memory: kgray.AsyncMemory
    client: kgray.AsyncMemory  # of `kgray.connect_async`
    server: Served
    http: httpx2.Client
    shell: Shell

    async def python(self, options: Mapping[str, Any]) -> HitIds:
        return await self._called(self.memory, options)

    async def remote(self, options: Mapping[str, Any]) -> HitIds:
        return await self._called(self.client, options)

    async def _called(self, memory: kgray.AsyncMemory, options: Mapping[str, Any]) -> HitIds:
        try:
            hits = await memory.search(**arguments_of(options))
        except KgrayError as error:
            raise Refusal(str(error)) from None
        return [hit.client_id or hit.id for hit in hits]

    async def command(self, options: Mapping[str, Any]) -> HitIds:
        words = ["search", options.get("query", QUESTION), "--data", str(self.memory.store.folder)]
        words += ["--group", "team", "--json"]
        for name, value in options.items():
            if name == "query":
                continue
            flag = FLAGS.get(name, f"--{name}")
            for each in value if isinstance(value, list) else [value]:
                words += [flag] if each is True else [flag, str(each)] if each is not None else []
        answer = await asyncio.to_thread(self.shell, *words)
        if answer.code:
            assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
            raise Refusal(answer.err)
        return ids(answer.json["hits"])

    async def posted(self, options: Mapping[str, Any]) -> HitIds:
        body = {"query": QUESTION, **options}
        answer = await asyncio.to_thread(self.http.post, "/v1/groups/team/search", json=body)
        if answer.status_code != 200:
            assert answer.status_code in (400, 404, 422), answer.text
            assert answer.headers["content-type"] == "application/problem+json"
            raise Refusal(answer.text)
        return ids(answer.json()["hits"])

    def tool(self, client: Client) -> Door:
        async def call(options: Mapping[str, Any]) -> HitIds:
            direct = {"scopes": "kinds", **{name: name for name in ("query", "limit", "as_of", "known_at")}}
            arguments = {direct[name]: value for name, value in options.items() if name in direct}
            options_of_tool = {name: value for name, value in options.items() if name not in direct}
            arguments = {"query": QUESTION, "options": options_of_tool, **arguments}
            answer = await client.call_tool("search_memory", arguments)
            if answer.is_error:
                raise Refusal(answer.content[0].text)
            return [line["id"] for line in answer.structured_content["lines"]]

        return call


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    """Serve a memory of eight messages with communities; a rule over letters replaces a cross-encoder."""
    path, scorer = tmp_path_factory.mktemp("recipes"), ChatServer(by_letters)
    settings = {"reranker_backend": "http", "reranker_base_url": scorer.url, "reranker_name": "m"}
    with kgray.open(path, create=True) as memory:
        memory.add_many(ROWS, group="team")
        memory.communities.refresh(["team"])
    shell = Shell(path, {"KGRAY_MODEL_BACKEND": "rules", **at(scorer.url, "RERANKER")})
    with (
        closing(kgray.open_async(path, create=False, settings=settings)) as memory,
        serving(path, settings=settings) as server,
    ):
        yield Doors(memory, kgray.connect_async(server.url), server, server.client(), shell)
    scorer.close()


async def by_every_door(
    doors: Doors, cases: Mapping[str, Mapping[str, Any]], *, remote: bool = True
) -> dict[str, dict[str, Any]]:
    """Return case -> door -> ids of the hits, or the refusal. remote: with the Python client of a server."""

    async def answered(door: Door, options: Mapping[str, Any]) -> HitIds | Refusal:
        try:
            return await door(options)
        except Refusal as refusal:
            return refusal

    async with Client(f"{doors.server.url}/mcp/team") as client:
        doors_by_name: dict[str, Door] = {
            "python": doors.python, "command": doors.command, "http": doors.posted, "mcp": doors.tool(client)
        } | ({"remote": doors.remote} if remote else {})  # fmt: skip
        return {
            name: {door_name: await answered(door, options) for door_name, door in doors_by_name.items()}
            for name, options in cases.items()
        }


async def assert_equal_by_every_door(
    doors: Doors, cases: Mapping[str, Mapping[str, Any]], *, empty: Collection[str] = (), remote: bool = True
) -> dict[str, HitIds]:
    """Return case -> ids, after a check that all doors gave them. empty: the cases without hits."""
    results = await by_every_door(doors, cases, remote=remote)
    hits = {name: row["python"] for name, row in results.items()}
    different = {name: row for name, row in results.items() if row != dict.fromkeys(row, hits[name])}
    assert different == {}
    assert {name for name, hit_ids in hits.items() if not hit_ids} == {*empty}
    return hits


async def test_every_recipe_returns_the_same_hits_by_every_door(doors):
    hits = await assert_equal_by_every_door(doors, RECIPE_CASES, remote=False)
    assert hits["reranked"] != hits["hybrid"]


@pytest.mark.slow
async def test_every_recipe_returns_its_scopes_and_builds_a_context(doors):
    for name, options in RECIPE_CASES.items():
        hits = await doors.memory.search(QUESTION, group="team", **options)
        assert {hit.scope for hit in hits} <= {*RECIPES[name].scopes}
        built = await doors.memory.context(QUESTION, group="team", tokens=400, **options)
        assert 0 < built.tokens <= 400


async def test_every_option_returns_the_same_hits_by_every_door(doors):
    hits = await assert_equal_by_every_door(doors, OPTION_CASES, empty={"known_at"})
    assert len({*map(tuple, hits.values())}) == len(hits)  # every option has a different effect


@pytest.mark.slow
async def test_every_scope_method_and_reranker_returns_the_same_hits_by_every_door(doors):
    await assert_equal_by_every_door(doors, TABLE_CASES)
    for options in TABLE_CASES.values():
        hits = await doors.memory.search(**arguments_of(options))
        scores = [hit.score for hit in hits]
        assert {hit.scope for hit in hits} == {*options["scopes"]}
        assert scores == sorted(scores, reverse=True)


async def test_every_door_refuses_a_wrong_option_in_one_line_with_the_allowed_values(doors):
    cases = {name: options for name, (options, _) in REFUSED.items()}
    for name, row in (await by_every_door(doors, cases)).items():
        for door_name, refusal in row.items():
            assert isinstance(refusal, Refusal), (name, door_name, refusal)
            assert REFUSED[name][1] in str(refusal), (name, door_name, refusal)
            assert "\n" not in str(refusal).strip(), (name, door_name, refusal)


async def test_a_context_accepts_a_recipe_and_a_template_by_every_door(doors):
    options = {"template": "paper", "recipe": "paper"}
    built = await doors.memory.context(QUESTION, group="team", **options)
    assert built.text.startswith("FACTS and ENTITIES represent relevant context")
    assert "Alice Nguyen works at Beta Labs (Date range: 2026-05-01 - present)" in built.text
    (line,) = [line for line in built.text.splitlines() if line.startswith("- Alice Nguyen (")]
    assert "Alice Nguyen works at Beta Labs." in line  # her summary
    words = ("context", QUESTION, "--group", "team", "--data", str(doors.memory.store.folder), "--json")
    flags = ("--template", "paper", "--recipe", options["recipe"])
    answer = await asyncio.to_thread(doors.shell, *words, *flags)
    body = {"query": QUESTION, **options}
    posted = await asyncio.to_thread(doors.http.post, "/v1/groups/team/context", json=body)
    async with Client(f"{doors.server.url}/mcp/team") as client:
        arguments = {"query": QUESTION, "template": "paper", "options": {"recipe": options["recipe"]}}
        tool = (await client.call_tool("get_context", arguments)).structured_content
        wrong = await client.call_tool("get_context", {"query": QUESTION, "options": {"recipes": "mix"}})
    assert [answer.json["text"], posted.json()["text"], tool["text"]] == [built.text] * 3
    assert wrong.is_error
    assert "mmr_lambda" in wrong.content[0].text


def test_the_command_line_knows_the_options_of_the_table():
    assert (reading._METHODS, reading._RERANKERS, reading._TEMPLATES) == (METHODS, RERANKERS, TEMPLATES)


def test_the_client_refuses_options_that_it_cannot_send(doors):
    """A filter that the server does not know is refused, never omitted."""
    with kgray.connect(doors.server.url) as client:
        for options, word in (
            ({"filters": Filters(valid_at=("2026-01-01", None))}, "valid_at"),
            ({"recipe": RECIPES["mix"]}, "recipe"),
        ):
            with pytest.raises(kgray.InputError, match=word):
                client.search(QUESTION, group="team", **options)
