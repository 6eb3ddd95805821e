"""Properties of all adapters: a failing or slow memory does not stop an agent, and it is reported."""

from __future__ import annotations

import asyncio
import threading

import pytest

import kgray
from kgray.adapters.turns import Turns


@pytest.fixture
def memory(tmp_path):
    opened = kgray.open_async(tmp_path / "data", create=True)
    yield opened
    opened.close()


async def test_stored_turns_are_recalled_as_of_any_time(memory):
    turns = Turns(memory, "team", strict=True, patience_s=120)
    rows = [{"text": f"I work at {firm}.", "speaker": "Alice", "at": at}
            for firm, at in (("Acme", "2026-01-01"), ("Beta Labs", "2026-03-01"))]  # fmt: skip
    await turns.keep(rows)
    assert "Beta Labs" in await turns.recall("Where does Alice work?")
    earlier_recall = await turns.recall("Where does Alice work?", as_of="2026-02-01", scopes=["fact"])
    assert "Acme" in earlier_recall
    assert "Beta Labs" not in earlier_recall
    assert await turns.recall(" ") == ""
    assert await Turns(memory, "other").recall("Alice") == ""


async def test_a_memory_in_a_with_block_is_accepted(tmp_path):
    with kgray.open(tmp_path / "data", create=True) as memory:
        remember, recall = Turns(memory, "team", patience_s=120).tools()
        assert await remember("I work at Acme.", speaker="Alice") == "Kept."
        assert "Alice works at Acme" in await recall("Where does Alice work?")
        assert await recall("Where does Alice work?", as_of="2020-01-01") != ""


async def test_a_memory_out_of_reach_is_logged_and_does_not_stop_the_agent(caplog):
    nowhere = kgray.connect("http://127.0.0.1:9")
    turns = Turns(nowhere, "team")
    assert await turns.recall("Alice") == ""
    await turns.keep([{"text": "I work at Acme."}])
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "127.0.0.1:9" in caplog.text
    assert "Acme" not in caplog.text
    remember, _ = turns.tools()
    assert (await remember("I work at Acme.")).startswith("The memory failed: ")
    with pytest.raises(kgray.Unavailable):
        await Turns(nowhere, "team", strict=True).recall("Alice")


async def test_a_refused_message_is_reported(memory):
    with pytest.raises(kgray.InputError, match="not kept"):
        await Turns(memory, "team", strict=True).keep([{"text": ""}])


async def test_a_slow_write_continues_after_its_turn(memory, monkeypatch):
    release, went = threading.Event(), memory.add_many

    async def slow(*args, **options):
        release.wait()
        return await went(*args, **options)

    monkeypatch.setattr(memory, "add_many", slow)
    turns = Turns(memory, "team", patience_s=0.01)
    remember, _ = turns.tools()
    assert "it goes on" in await remember("I work at Acme.", speaker="Alice")
    (work,) = turns._working
    release.set()
    await asyncio.wait_for(work, 600)
    assert "Alice works at Acme" in await Turns(memory, "team", patience_s=120).recall(
        "Where does Alice work?"
    )
