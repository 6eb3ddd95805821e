"""A group that is exported and imported into an empty group has the same facts, entities and dates."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kgray
from kgray.domain.times import show
from kgray.errors import NotFound
from kgray.io.interchange.parquet import OWN_KINDS
from kgray.memory import AsyncMemory
from kgray.schema.kinds import EPISODES, KINDS
from tests.doors.test_import import facts_of
from tests.tries import tries

NAMES = ("Alice", "Bob", "Acme", "Beta Labs", "Berlin", "Zürich & Söhne", "李雷")
RELATIONS = ("KNOWS", "WORKS_AT", "LIVES_IN", "LIKES", "PART_OF")
FIRST = datetime(2024, 1, 1, tzinfo=UTC)


def day(number: int) -> str:
    return (FIRST + timedelta(days=number)).isoformat()


@st.composite
def triples(draw: st.DrawFn) -> dict[str, Any]:
    source, target = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=2, unique=True))
    start = draw(st.none() | st.integers(0, 300))
    length = draw(st.none() | st.integers(1, 200))
    row = {"source": source, "relation": draw(st.sampled_from(RELATIONS)), "target": target}
    row["valid_at"] = None if start is None else day(start)
    return row | ({} if length is None or start is None else {"invalid_at": day(start + length)})


@pytest.mark.parametrize("form", ["graphrag", "lightrag", "cogx"])
@given(episodes=st.lists(st.lists(triples(), min_size=1, max_size=4), min_size=1, max_size=4))
@settings(max_examples=tries(24))
async def test_facts_survive_a_round_trip(form: str, episodes: list[list[dict[str, Any]]]) -> None:
    with TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        async with kgray.open_async(folder / "data", create=True) as memory:
            rows = [
                {"id": str(n), "at": day(400 + n), "kind": "triples", "triples": items, "source": "s"}
                for n, items in enumerate(episodes)
            ]
            await memory.add_many(rows, group="g")
            await memory.export(folder / "out", to=form, group="g")
            await memory.import_from(folder / "out", form=form, group="h")
            # A span without a length cannot be stated as a triple (docs/interchange.md).
            expected = {fact for fact in await facts_of(memory, "g") if fact[3] is None or fact[3] != fact[4]}
            assert await facts_of(memory, "h") == expected


async def rows_of(memory: AsyncMemory, group: str) -> dict[str, list[Any]]:
    """Return all stored rows of a group by kind: record times, vectors and withdrawals included."""
    store = memory.store
    rows = {kind.name: list(store.rows(kind.all, group)) for kind in KINDS if kind not in OWN_KINDS}
    # `removals` counts changes that made a loaded index stale, and a new store has loaded none.
    return rows | {"head": [replace(store.heads([group])[group], removals=0)]}


def of_text(draw: st.DrawFn) -> dict[str, Any]:
    name, place = draw(st.sampled_from(("Alice", "Bob"))), draw(st.sampled_from(("Acme", "Beta Labs")))
    return {"speaker": name, "text": f"I work at {place}."}


@st.composite
def episodes_of_any_kind(draw: st.DrawFn) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for number in range(draw(st.integers(1, 4))):
        row = {"id": str(number), "at": day(400 + draw(st.integers(0, 9))), "source": "s"}
        if draw(st.booleans()):
            row |= of_text(draw)
        else:
            value = {"source": "Alice", "relation": "EARNS", "value": {"value": draw(st.integers(1, 9))}}
            items = draw(st.lists(triples() | st.just(value), min_size=1, max_size=4))
            row |= {"kind": "triples", "triples": items}
        rows.append(row)
    return rows


CHANGES = st.lists(st.sampled_from(("merge", "retract", "remove", "communities")), max_size=3, unique=True)


async def change(memory: AsyncMemory, name: str) -> None:
    """Change a group after its episodes were ingested."""
    names = sorted({hit[0] for hit in await facts_of(memory, "g")})
    if name == "merge" and len(names) > 1:
        await memory.merge(names[0], names[1], group="g")
    elif name == "communities":
        await memory.communities.refresh(["g"])
    elif name in ("retract", "remove"):
        verb = memory.retract if name == "retract" else memory.remove
        await verb(group="g", episodes=["0" if name == "retract" else "1"])


@given(episodes=episodes_of_any_kind(), changes=CHANGES)
@settings(max_examples=tries(24))
async def test_all_rows_survive_a_round_trip_of_parquet(
    episodes: list[dict[str, Any]], changes: list[str]
) -> None:
    with TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        async with (
            kgray.open_async(folder / "a", create=True) as memory,
            kgray.open_async(folder / "b", create=True) as imported,
        ):
            await memory.add_many(episodes, group="g")
            for action in changes:
                with suppress(NotFound):  # there is no such episode
                    await change(memory, action)
            await memory.export(folder / "out", to="parquet", group="g")
            report = await imported.import_from(folder / "out", form="parquet", group="g")

            rows_before, rows_after = await rows_of(memory, "g"), await rows_of(imported, "g")
            assert rows_after == rows_before
            assert report.taken == sum(len(rows) for kind, rows in rows_before.items() if kind != "head")
            for moment in {None, *(show(row.ended_at) for row in rows_before[EPISODES.name])}:
                assert await imported.dump(group="g", known_at=moment) == await memory.dump(
                    group="g", known_at=moment
                )
            hits = [await m.search("Where does Alice work?", group="g") for m in (memory, imported)]
            assert hits[0] == hits[1]
