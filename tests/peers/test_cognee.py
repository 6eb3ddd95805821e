"""Cognee itself reads an export, and makes its graph from it without a model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Else an import of cognee makes a folder at home, and reports the use of the program.
os.environ |= {"COGNEE_LOG_FILE": "false", "TELEMETRY_DISABLED": "1"}
pytest.importorskip("cognee", reason="not installed: cognee; run by `make test-interchange`")

from cognee.modules.migration.loader import translate_records
from cognee.modules.migration.sources.cogx_archive import COGXArchiveSource

pytestmark = pytest.mark.parametrize("exported", ["cogx"], indirect=True)


async def test_the_archive_becomes_cognees_graph(exported: Path) -> None:
    source = COGXArchiveSource(exported)
    result = translate_records([record async for record in source.records()], source.mode)

    assert (source.source_system, source.mode, result.skipped_facts) == ("kgray", "preserve", 0)
    assert result.counts == {"document": 1, "episode": 2, "entity": 5, "fact": 6}
    nodes = {node.id: node.name for batch in result.graph_batches for node in batch["nodes"]}
    assert {"Alice", "Acme", "Beta Labs", "Bob", "Berlin"} < set(nodes.values())
    facts = {
        (nodes[source_id], relation, nodes[target_id]): (about.get("valid_at"), about.get("invalid_at"))
        for batch in result.graph_batches
        for source_id, target_id, relation, about in batch["edges"]
    }
    start, change = "2026-03-01T00:00:00+00:00", "2026-05-01T00:00:00+00:00"
    assert len(facts) == 6
    assert facts["Alice", "WORKS_AT", "Acme"] == (start, change)
    assert facts["Alice", "WORKS_AT", "Beta Labs"] == (change, None)
    assert facts["Alice", "KNOWS", "Bob"] == (None, None)
    assert len(result.data_items) == 3
