"""MCP by the SDK's own client: over stdio, over HTTP in both protocols, and with keys."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("mcp", reason="needs the extra `mcp`")

import httpx2
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

import kgray
from kgray.storage import ledger
from tests.doors.chat_server import ChatServer, Say
from tests.doors.served import serving

TOOLS = [
    "add_memory",
    "forget",
    "get_context",
    "get_history",
    "get_sources",
    "memory_status",
    "search_memory",
]


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path / "data") as server:
        yield server


def stdio(folder, *options):
    command = [
        "-c",
        "from kgray.cli import main; main()",
        "mcp",
        "--group",
        "team",
        "--data",
        str(folder),
        *options,
    ]
    return Client(
        stdio_client(StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ)))
    )


async def call_tool(client, name, **arguments):
    answer = await client.call_tool(name, arguments)
    assert not answer.is_error, answer.content
    return answer.structured_content


async def use(client):
    """Use every tool."""
    listed = (await client.list_tools()).tools
    assert sorted(tool.name for tool in listed) == TOOLS
    hints = {tool.name: tool.annotations for tool in listed}
    assert {name for name, hint in hints.items() if hint.read_only_hint} == {*TOOLS} - {
        "add_memory",
        "forget",
    }
    assert hints["forget"].destructive_hint
    row = {"text": "I work at Acme.", "speaker": "Alice", "id": "a1", "at": "2026-01-01", "wait_s": 30}
    assert (await call_tool(client, "add_memory", **row))["state"] == "committed"
    assert (await call_tool(client, "add_memory", **row))["state"] == "committed"  # the same id: no change
    result = (await call_tool(client, "search_memory", query="Where does Alice work?", kinds='["fact"]'))[
        "lines"
    ]
    assert [(item["text"], item["since"]) for item in result] == [("Alice works at Acme", "2026-01-01")]
    assert (await call_tool(client, "search_memory", query="Alice", as_of="2025-01-01", kinds=["fact"]))[
        "lines"
    ] == []
    assert "Acme" in (await call_tool(client, "get_context", query="Alice", tokens=200))["text"]
    assert (await call_tool(client, "get_history", entity="alice"))["lines"][0]["id"] == result[0]["id"]
    sources = await call_tool(client, "get_sources", id=result[0]["id"])
    assert [(source["id"], source["text"]) for source in sources["messages"]] == [("a1", "I work at Acme.")]
    status = await call_tool(client, "memory_status", ids="a1", since="2026-01-01")
    assert (status["states"], [item["kind"] for item in status["changed"]]) == (
        {"a1": "committed"},
        ["opened"],
    )
    dry = await call_tool(client, "forget", ids=["a1", "zz"], dry_run=True)
    assert (dry["messages"], dry["absent"]) == (1, ["zz"])
    assert (await call_tool(client, "search_memory", query="Alice", kinds=["fact"]))["lines"]
    removed = await call_tool(client, "forget", ids=["a1"], mode="remove")
    assert removed["messages"] == 1
    assert (await call_tool(client, "search_memory", query="Alice"))["lines"] == []


async def refused(client, name, **arguments):
    answer = await client.call_tool(name, arguments)
    assert answer.is_error
    return answer.content[0].text


async def test_over_stdio(tmp_path):
    async with stdio(tmp_path / "data") as client:
        await use(client)
        await asyncio.gather(*(call_tool(client, "search_memory", query="Alice") for _ in range(20)))
    async with stdio(tmp_path / "data", "--read-only") as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {*TOOLS} - {
            "add_memory",
            "forget",
        }


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_over_http(served, mode):
    async with Client(f"{served.url}/mcp/team", mode=mode) as client:
        await use(client)


async def test_errors_name_the_next_step(served):
    async with Client(f"{served.url}/mcp/team") as client:
        assert "search_memory" in await refused(client, "get_history", entity="Nobody")
        assert "Correct the argument" in await refused(client, "search_memory", query="x", as_of="soon")
        await call_tool(client, "add_memory", text="one", id="x")
        assert "taken by other content" in await refused(client, "add_memory", text="two", id="x")
        await refused(client, "get_context")


async def test_memory_status_reports_a_held_correction(served, tmp_path):
    async with kgray.open_async(tmp_path / "data", create=False) as memory:
        await memory.add("I work at Acme.", group="team", speaker="Alice")
        ledger.hold(memory.store, "team", 0, kgray.Unavailable("the disk gave way"), None)
    async with Client(f"{served.url}/mcp/team") as client:
        assert (await call_tool(client, "memory_status"))["failures"] == ["a correction: the disk gave way"]


async def test_the_tools_cost_few_tokens(served):
    """About four characters a token: names, descriptions and arguments, which clients send to their model."""
    async with Client(f"{served.url}/mcp/team") as client:
        tools = (await client.list_tools()).tools
    descriptions = [{"name": t.name, "description": t.description, "input": t.input_schema} for t in tools]
    assert len(json.dumps(descriptions)) < 4 * 1500


@asynccontextmanager
async def holding(served, key, path="/mcp/team"):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(f"{served.url}{path}", http_client=http)) as client,
    ):
        yield client


async def test_a_key_selects_the_group_and_the_tools(served):
    reader, adder = served.key("team", "read"), served.key("team", "read,add")
    async with holding(served, reader, "/mcp") as client:  # a key with one group need not name it
        assert {tool.name for tool in (await client.list_tools()).tools} == {*TOOLS} - {
            "add_memory",
            "forget",
        }
        assert "Unknown tool" in await refused(client, "add_memory", text="x")
    async with holding(served, adder) as client:
        assert (await call_tool(client, "add_memory", text="I work at Acme.", speaker="Alice", wait_s=30))[
            "id"
        ]
    async with httpx2.AsyncClient(base_url=served.url) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        for key, path, status in ((None, "team", 401), (reader, "other", 403), (reader, "a b", 422)):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            assert (await http.post(f"/mcp/{path}", json=body, headers=headers)).status_code == status
        headers = {"host": "evil.example", "authorization": f"Bearer {reader}"}
        assert (await http.post("/mcp/team", json=body, headers=headers)).status_code == 421


@pytest.mark.slow
@pytest.mark.neo4j
async def test_over_stdio_on_a_neo4j_store(tmp_path, own_neo4j, monkeypatch):
    store = {"BACKEND": "neo4j", "URI": own_neo4j.uri, "USER": own_neo4j.user, "PASSWORD": own_neo4j.password}
    for name, value in store.items():
        monkeypatch.setenv(f"KGRAY_STORE_{name}", value)
    monkeypatch.setenv("KGRAY_EMBEDDER_DIMENSIONS", "64")
    async with stdio(tmp_path / "data") as client:
        await use(client)


@pytest.mark.neo4j
@pytest.mark.slow
async def test_over_http_on_a_neo4j_store(tmp_path, own_neo4j):
    """The same tools, keys and client with the graph on a server."""
    store = {"store_backend": "neo4j", "store_uri": own_neo4j.uri, "store_user": own_neo4j.user}
    settings = {**store, "store_password": own_neo4j.password, "embedder_dimensions": 64}
    with serving(tmp_path / "data", settings=settings) as server:
        async with Client(f"{server.url}/mcp/team") as client:
            await use(client)
        key = server.key("team", "read,add,correct")
        async with kgray.connect_async(server.url, key) as memory:
            rows = [{"text": f"I work at Firm {n}.", "speaker": "Bob", "at": f"2026-0{n}-01"} for n in (1, 2)]
            assert (await memory.add_many(rows, group="team")).committed == 2
            hits = await memory.search("Bob", group="team", any_time=True, scopes=["fact"])
            assert {hit.object for hit in hits} == {"Firm 1", "Firm 2"}
            assert (await memory.neighbourhood("Bob", group="team")).total["facts"] == 2
            with pytest.raises(kgray.Denied):
                await memory.search("Bob", group="other")
            merged = await memory.merge("Firm 1", "Firm 2", group="team")
            assert (await memory.operation(merged.sequence, group="team")).state == "done"


async def test_a_configured_model_answers_through_a_tool(tmp_path):
    model = ChatServer(lambda _: Say(pieces=["At Acme [1]."]))
    async with kgray.open_async(tmp_path / "data", create=True) as memory:
        await memory.add("I work at Acme.", group="team", speaker="Alice", id="a1", at="2026-01-01")
    settings = {"model_backend": "openai", "model_base_url": model.url, "model_name": "m"}
    with serving(tmp_path / "data", settings=settings) as server:
        async with Client(f"{server.url}/mcp/team") as client:
            listed = sorted(tool.name for tool in (await client.list_tools()).tools)
            result = await call_tool(client, "ask_memory", question="Where does Alice work?")
            wrong = await client.call_tool("ask_memory", {"question": "Who?", "suggest": 21})
    model.close()
    assert listed == sorted([*TOOLS, "ask_memory"])
    assert (result["answer"], result["found"]) == ("At Acme [1].", True)
    assert [(item["number"], item["text"]) for item in result["sources"]] == [(1, "Alice works at Acme")]
    assert wrong.is_error
    assert "suggest is 21: use 0 to 20. Correct the argument" in str(wrong.content)
