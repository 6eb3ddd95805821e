"""The group that the programs of the peers read."""

from __future__ import annotations

from pathlib import Path

import pytest

import kgray

ROWS = [
    {"id": "1", "at": "2026-03-01", "source": "chat", "kind": "triples", "triples": [
        {"source": "Alice", "relation": "WORKS_AT", "target": "Acme"},
        {"source": "Alice", "relation": "KNOWS", "target": "Bob", "valid_at": None},
        {"source": "Bob", "relation": "LIVES_IN", "target": "Berlin"},
        {"source": "Acme", "relation": "LOCATED_IN", "target": "Berlin"},
        {"source": "Alice", "relation": "EARNS", "value": {"value": 50, "unit": "eur"}}]},
    {"id": "2", "at": "2026-05-01", "source": "chat", "kind": "triples", "triples": [
        {"source": "Alice", "relation": "WORKS_AT", "target": "Beta Labs"}]},
]  # fmt: skip


@pytest.fixture
def exported(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an export in the format that the test's parameter names."""
    monkeypatch.chdir(tmp_path)  # GraphRAG writes logs there
    with kgray.open(tmp_path / "data", create=True, settings={"model_backend": "rules"}) as memory:
        assert memory.add_many(ROWS, group="g").exit_code == 0
        memory.communities.refresh(["g"])
        memory.export(tmp_path / "out", to=request.param, group="g")
    return tmp_path / "out"
