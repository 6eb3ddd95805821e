"""A memory in a folder and behind a server, on both stores: an adapter behaves the same on each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import kgray
from kgray.memory import AsyncMemory


@pytest.fixture(params=["a folder", "a server", "a folder, Neo4j", "a server, Neo4j"])
def memory(request, tmp_path) -> Iterator[Any]:
    settings: dict[str, Any] = {}
    if "Neo4j" in request.param:
        neo4j = request.getfixturevalue("own_neo4j")
        settings = {"store_backend": "neo4j", "store_uri": neo4j.uri, "store_user": neo4j.user}
        settings |= {"store_password": neo4j.password, "embedder_dimensions": 64}
    if "server" not in request.param:
        opened: AsyncMemory = kgray.open_async(tmp_path / "data", create=True, settings=settings)
        yield opened
        opened.close()
        return
    pytest.importorskip("fastapi", reason="needs the extra `serve`")
    from tests.doors.served import serving

    with serving(tmp_path / "data", settings=settings) as served:
        yield kgray.connect(served.url, served.key("*", "read,add,correct,remove"))


@pytest.fixture
def texts_of(memory):
    """Return a function: a group -> the texts of its current facts."""

    def facts(group: str) -> set[str]:
        around = asyncio.run(memory.neighbourhood(group=group))
        return {fact.text for fact in around.facts if fact.invalid_at is None}

    return facts
