"""The public API as a user's type checkers see it: `make lint` runs mypy and basedpyright on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

import kgray
from kgray.communities.reading import ShownCommunity
from kgray.communities.refresh import RefreshReport
from kgray.domain.graph import Community
from kgray.memory import results
from kgray.memory.answers import Shown
from kgray.search.answering import Answered


def use_a_memory_that_blocks(memory: kgray.Memory) -> None:
    """Call methods of each part; the types of their results are asserted."""
    assert_type(memory.add("Alice works at Acme", group="team", speaker="Alice"), kgray.Report)
    assert_type(memory.add_many([{"text": "Hello"}], group="team"), kgray.Report)
    assert_type(memory.search("Where does Alice work?", group="team", limit=3), list[kgray.Hit])
    assert_type(memory.context("Alice", group="team", tokens=200, as_of="2026-01-01"), kgray.Context)
    assert_type(memory.ask("Alice", group="team", mode="global", level=1), Answered)
    assert_type(memory.history("Alice", group="team"), kgray.History)
    assert_type(memory.entities("ali", group="team"), list[kgray.EntityCount])
    assert_type(memory.communities.list(group="team"), Sequence[Community])
    assert_type(memory.communities.refresh(["team"], cold=True), RefreshReport)
    assert_type(memory.communities.refresh().groups["team"].written, int)
    assert_type(memory.admin.verify("team"), list[str])
    assert_type([size.facts for size in memory.groups()], list[int])
    assert_type([fact.object for fact in memory.history("Alice", group="team").facts], list[str | None])
    read_and_correct(memory)
    for hit in memory.search("Acme", group="team"):
        assert_type(hit.text, str)
    memory.serch("Alice", group="team")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    memory.search("Alice", group="team", limt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    memory.context("Alice", group="team", asof="2026")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def read_and_correct(memory: kgray.Memory) -> None:
    """Call the methods whose results are classes of `kgray.memory.results`."""
    assert_type(memory.show("Alice", group="team"), Shown)
    assert_type(memory.episode("a1", group="team"), results.LoggedEpisode)
    assert_type(memory.log(group="team"), results.LogPage)
    assert_type(memory.changes(group="team"), results.Changes)
    assert_type(memory.diff(group="team"), results.Diff)
    assert_type(memory.neighbourhood("Alice", group="team"), results.Neighbourhood)
    assert_type(memory.overview(group="team"), results.Overview)
    assert_type(memory.provenance("9f3e42d1", group="team"), results.Provenance)
    assert_type(memory.complete("ali", group="team"), list[results.NameMatch])
    assert_type(memory.duplicates(group="team"), list[results.LikelyPair])
    assert_type(memory.status(group="team"), results.Status)
    assert_type([row.committed for row in memory.status().groups.values()], list[int])
    assert_type(memory.status().model.calls, int)
    assert_type(memory.failures(group="team"), list[results.EpisodeFailure])
    assert_type(memory.merge("Bob", "Bob Hill", group="team"), results.Correction)
    assert_type(memory.operation(7, group="team"), results.Operation)
    assert_type(memory.remove(group="team", episodes=["a1"]), results.WithdrawalCounts)
    assert_type(memory.communities.get("6550e080", group="team"), ShownCommunity)
    assert_type(memory.admin.vectors(), results.StoredVectors)
    assert_type(memory.admin.access.add(["team"], ["read"]), results.NewKey)
    memory.remove(group="team", episode=["a1"])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def use_a_memory_to_await(memory: kgray.AsyncMemory) -> None:
    """Await the same methods."""
    assert_type(await memory.search("Where does Alice work?", group="team"), list[kgray.Hit])
    assert_type(await memory.context("Alice", group="team", recipe="local"), kgray.Context)
    assert_type(await memory.communities.list(group="team"), Sequence[Community])
    assert_type(await memory.communities.refresh(due=True), RefreshReport)
    assert_type(await memory.status(), results.Status)
    assert_type(await memory.admin.verify("team"), list[str])
    assert_type(await memory.groups(), list[kgray.GroupSize])
    assert_type(await memory.retract(group="team", source="chat"), results.WithdrawalCounts)
    assert_type(await memory.neighbourhood(group="team"), results.Neighbourhood)


async def open_each_shape() -> None:
    """Open a folder and a server's memory in both shapes."""
    with kgray.open("data", create=True, settings={"model.backend": "rules"}) as memory:
        assert_type(memory, kgray.Memory)
    with kgray.connect("http://localhost:8321") as remote:
        assert_type(remote, kgray.Memory)
    async with kgray.open_async("data") as awaited:
        assert_type(awaited, kgray.AsyncMemory)
    async with kgray.connect_async("http://localhost:8321", "key") as served:
        assert_type(served, kgray.AsyncMemory)
