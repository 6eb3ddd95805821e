"""A group that is exported and imported into an empty group has the same facts, entities and dates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kgray
from tests.doors.test_import import facts_of

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
@settings(max_examples=7)
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
