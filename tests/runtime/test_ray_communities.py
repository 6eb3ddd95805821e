"""Communities found by tasks of a Ray, one a group: the same as those that are found here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import kgray
from kgray import kinds
from kgray.communities.found import clustered
from kgray.runtime import ingest

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
GROUPS = ("one", "two", "three")


def filled(folder: Path) -> None:
    with kgray.open(folder) as memory:
        for number, group in enumerate(GROUPS):
            for name in ("Ann", "Bob", "Cara", "Dan")[: 2 + number]:
                memory.add(f"I work at {group.title()} Labs.", group=group, speaker=name, at="2026-01-01")


def found(memory: Any) -> dict[str, list[Any]]:
    return {group: list(memory.store.rows(kinds.ALL["communities"], group)) for group in GROUPS}


def test_a_task_a_group_finds_what_is_found_here(tmp_path: Path, monkeypatch: Any, ray_session: Any) -> None:
    filled(tmp_path / "here")
    filled(tmp_path / "there")
    notes = tmp_path / "notes"
    notes.mkdir()

    def noting(*graph: Any) -> Any:
        (notes / f"{os.getpid()}-{len(graph[0].ends)}").touch()
        return clustered(*graph)

    monkeypatch.setattr(ingest, "clustered", noting)
    with kgray.open(tmp_path / "here") as memory:
        memory.refresh_communities()
        expected = found(memory)
    assert list(notes.iterdir()) == []
    with kgray.open(tmp_path / "there", runtime_backend="ray", runtime_address=ray_session.address) as memory:
        done = memory.refresh_communities()
        assert list(done) == sorted(GROUPS)
        assert found(memory) == expected
    noted = [note.name.partition("-") for note in notes.iterdir()]
    assert sorted(int(size) for *_, size in noted) == [4, 6, 8]
    assert str(os.getpid()) not in {pid for pid, *_ in noted}
