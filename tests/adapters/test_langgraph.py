"""LangGraph itself, without a model: graphs that use the memory as their store, and its tools."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph", reason="not installed: langgraph; run by `make test-adapters`")

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.store.base import GetOp, InvalidNamespaceError, PutOp, SearchOp

import kgray
from kgray.adapters.langgraph import KgrayStore
from kgray.adapters.turns import Turns

ALICE, BOB = ("memories", "alice"), ("memories", "bob")


class State(TypedDict):
    """A conversation."""

    messages: Annotated[list[AnyMessage], add_messages]
    user: str


def test_a_later_run_finds_the_items_of_its_user_only(memory):
    def listen(state: State, runtime: Runtime) -> dict[str, Any]:
        message = state["messages"][-1]
        row = {"text": str(message.content), "speaker": state["user"].title()}
        runtime.store.put(("memories", state["user"]), str(message.id), row)
        return {}

    async def answer(state: State, runtime: Runtime) -> dict[str, Any]:
        items = await runtime.store.asearch(("memories", state["user"]), query="Where does Alice work?")
        return {"messages": [AIMessage("; ".join(sorted({item.value["text"] for item in items})))]}

    built = StateGraph(State).add_node("listen", listen).add_node("answer", answer)
    built.add_edge(START, "listen").add_edge("listen", "answer").add_edge("answer", END)
    graph = built.compile(store=KgrayStore(memory, parts=2))

    def say(user: str, text: str) -> str:
        state = {"messages": [HumanMessage(text, id=f"m-{abs(hash(text))}")], "user": user}
        return str(asyncio.run(graph.ainvoke(state))["messages"][-1].content)

    assert say("alice", "I work at Acme.") == "I work at Acme."
    assert "Acme" in say("alice", "What do you know?")
    assert "Acme" not in say("bob", "What do you know?")


def test_items_are_read_listed_replaced_and_deleted(memory, texts_of):
    store = KgrayStore(memory, parts=2)
    message, record = {"text": "I live in Berlin.", "speaker": "Alice"}, {"theme": "dark", "size": 12.5}
    odd = {"text": " spaced ", "speaker": "Alice"}
    assert store.get(ALICE, "home") is None
    store.put(ALICE, "home", message)
    store.put(ALICE, "odd/key", odd)
    store.put((*ALICE, "settings", "old: a/b"), "ui", record)
    assert store.get(ALICE, "home").value == message
    assert store.get(ALICE, "odd/key").value == odd
    assert store.get((*ALICE, "settings", "old: a/b"), "ui").value == record
    assert store.get(BOB, "home") is None
    listed = store.search(ALICE)
    assert [(item.namespace, item.key) for item in listed] == [
        (ALICE, "home"), (ALICE, "odd/key"), ((*ALICE, "settings", "old: a/b"), "ui"),
    ]  # fmt: skip
    assert [item.key for item in store.search((*ALICE, "settings"))] == ["ui"]
    assert [item.key for item in store.search(ALICE, limit=1, offset=1)] == ["odd/key"]
    assert [item.key for item in store.search(ALICE, filter={"size": {"$gt": 12}})] == ["ui"]
    assert store.search(ALICE, filter={"theme": "light"}) == []
    assert store.search((*ALICE, "set")) == []
    for city in ("Paris", "Rome", "Berlin"):  # also back to the first text
        store.put(ALICE, "home", {"text": f"I live in {city}.", "speaker": "Alice"})
        assert store.get(ALICE, "home").value["text"] == f"I live in {city}."
        assert texts_of("memories.alice") == {f"Alice lives in {city}"}
    store.delete(ALICE, "home")
    assert store.get(ALICE, "home") is None
    assert texts_of("memories.alice") == set()
    store.delete(ALICE, "home")  # no change


async def test_a_batch_reads_the_state_before_its_puts(memory):
    store = KgrayStore(memory, parts=2)
    ops = [
        PutOp(ALICE, "job", {"text": "I work at Beta Labs.", "speaker": "Alice"}),
        PutOp(ALICE, "job", {"text": "I work at Acme.", "speaker": "Alice"}),
        PutOp(BOB, "job", {"text": "I work at Cern.", "speaker": "Bob"}),
        GetOp(ALICE, "job"),
    ]
    assert await store.abatch(ops) == [None] * 4
    got, matches = await store.abatch([GetOp(ALICE, "job"), SearchOp(ALICE, query="Who works at Acme?")])
    assert got.value["text"] == "I work at Acme."
    assert {item.value["text"] for item in matches} == {"I work at Acme."}
    assert {item.namespace for item in matches} == {ALICE}
    assert matches[0].score > 0
    added = [{"text": "I moved to Acme.", "speaker": "Cid"}]
    turns = Turns(memory, "memories.alice", strict=True, patience_s=600)
    await turns.keep(added)  # not by a put, and without an id: it is no item
    assert [item.key for item in await store.asearch(ALICE, query="Who works at Acme?")] == ["job"]
    assert [item.key for item in await store.asearch(ALICE)] == ["job"]


async def test_concurrent_puts_are_all_stored(memory):
    store = KgrayStore(memory, parts=2)
    rows = {f"k{number}": {"text": f"I work at Firm {number}.", "speaker": "Alice"} for number in range(8)}
    await asyncio.gather(*(store.aput(ALICE, key, row) for key, row in rows.items()))
    assert {item.key: item.value for item in await store.asearch(ALICE)} == rows
    got = await asyncio.gather(*(store.aget(ALICE, key) for key in rows))
    assert [item.value for item in got] == [*rows.values()]


def test_the_namespaces_of_one_group_are_listed(memory):
    store = KgrayStore(memory, parts=2)
    places = [ALICE, (*ALICE, "work"), (*ALICE, "work", "2026"), (*ALICE, "home", "2026"), BOB]
    for place in places:
        store.put(place, "key", {"text": "I work at Acme."})
    store.delete((*ALICE, "home", "2026"), "key")
    assert store.list_namespaces(prefix=ALICE) == places[:3]
    assert store.list_namespaces(prefix=BOB) == [BOB]
    assert store.list_namespaces(prefix=(*ALICE, "*"), suffix=("2026",)) == [places[2]]
    assert store.list_namespaces(prefix=ALICE, max_depth=3) == places[:2]
    assert store.list_namespaces(prefix=ALICE, limit=1, offset=1) == [places[1]]
    assert store.list_namespaces(prefix=("memories", "nobody")) == []


def test_unsupported_operations_are_reported(memory):
    store = KgrayStore(memory, parts=2)
    with pytest.raises(InvalidNamespaceError, match="first 2 parts"):
        store.put(("memories",), "key", {"text": "x"})
    with pytest.raises(kgray.InputError, match="not a name"):
        store.put(("memories", "no name"), "key", {"text": "x"})
    for prefix in (None, ("memories",), ("memories", "*")):
        with pytest.raises(InvalidNamespaceError, match="first 2 parts"):
            store.list_namespaces(prefix=prefix)
    with pytest.raises(NotImplementedError):
        store.put(ALICE, "key", {"text": "x"}, ttl=5)


def test_a_tool_node_calls_the_tools(memory):
    calls = [
        {"name": "remember", "args": {"text": "I work at Acme.", "speaker": "Alice"}, "id": "1"},
        {"name": "recall", "args": {"query": "Where does Alice work?"}, "id": "2"},
    ]
    built = StateGraph(State).add_node("tools", ToolNode(Turns(memory, "team").tools()))
    graph = built.add_edge(START, "tools").compile()

    def call(tool_call: dict[str, Any]) -> str:
        state = {"messages": [AIMessage("", tool_calls=[tool_call])], "user": ""}
        return str(asyncio.run(graph.ainvoke(state))["messages"][-1].content)

    assert call(calls[0]) == "Kept."
    assert "Alice works at Acme" in call(calls[1])
