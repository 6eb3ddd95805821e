"""Hostile input through the whole engine: nothing half-written, nothing across groups (promises 2 and 5)."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from kgray.errors import InputError
from kgray.io.intake.drafts import Defaults
from kgray.io.intake.files import Submitted, read_file
from kgray.memory import opening
from tests.unit.test_intake import hostile_line

NASTY = [
    '"',
    "''; DROP TABLE facts; --",
    'alice" OR "bob',
    "NEAR(alice bob)",
    "alice* AND (bob",
    "text:alice",
    "^alice -bob +c",
    "\u202ealice\u202c",
    "日本語の質問",
    "מי עובד ב Acme",
    "🙂🙃",
    "alice\x01works",
    "%_[a-z]",
    "a" * 1_000_000,
    "alice works " * 80_000,
    "{}",
    "\\",
    "\ud800",
]


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_hostile_lines_leave_a_consistent_graph_and_isolated_groups(tmp_path: Path, count: int) -> None:
    """Each line is a draft or a refusal; a draft commits or fails; the index equals the records."""
    rng = random.Random(4)
    file = tmp_path / "lines.jsonl"
    file.write_bytes(b"\n".join(hostile_line(rng) for _ in range(count)))
    items = list(read_file(file, Defaults(group="one", at=0)))
    accepted = [item for item in items if isinstance(item, Submitted)]
    assert len(accepted) > count // 20

    async def scene() -> None:
        async with opening.open_async(tmp_path / "data", create=True) as memory:
            await memory.add("Alice Nguyen works at Acme", group="two", at=0)
            report = await memory.add_many(items[::8])
            counts = (await memory.status()).groups
            assert sum(c.accepted + c.extracted + c.failed for c in counts.values()) == 0
            assert report.accepted == report.committed
            for group in counts:
                assert await memory.admin.verify(group) == []
            for query in NASTY:
                for group in ("one", "two"):
                    hits = await memory.search(query, group=group, limit=50)
                    assert {hit.group for hit in hits} <= {group}
                    assert all("Nguyen" not in hit.text for hit in hits if group == "one")
                    block = await memory.context(query, group=group, tokens=200)
                    assert block.tokens <= 200

    asyncio.run(scene())


@pytest.mark.parametrize("group", ["", " ", "a b", "a/b", "x" * 129, "ä", "a\0b", "'; --", "..\\", "*"])
def test_every_method_refuses_an_invalid_group_name(tmp_path: Path, group: str) -> None:
    """Section 1: a group is `[A-Za-z0-9_.-]{1,128}`; nothing is written for another."""
    with opening.open(tmp_path, create=True) as memory:
        for verb, words in {
            "add": ("Alice works at Acme",),
            "search": ("Alice",),
            "context": ("Alice",),
            "history": ("Alice",),
            "show": ("x",),
            "dump": (),
            "merge": ("a", "b"),
            "undo": (1,),
        }.items():
            with pytest.raises(InputError):
                getattr(memory, verb)(*words, group=group)
        assert json.dumps(memory.groups()) == "[]"
