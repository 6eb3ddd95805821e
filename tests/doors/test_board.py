"""The Grafana board, compared with the export of a used server; Ray's part is in tests/runtime."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("mcp", reason="needs the extra `mcp`")

from mcp.client import Client
from prometheus_client.parser import text_string_to_metric_families as families

from tests.board import asked
from tests.doors.served import serving


async def test_every_metric_and_label_of_the_board_is_exported_by_the_server(tmp_path):
    with serving(tmp_path / "data") as server:
        client = server.client()
        row = {"text": "I work at Acme.", "speaker": "Alice"}
        client.post("/v1/groups/team/episodes", json=row, headers={"prefer": "wait=600"})
        for route in ("search", "context"):
            client.post(f"/v1/groups/team/{route}", json={"query": "Alice"})
        async with Client(f"{server.url}/mcp/team") as agent:
            await agent.call_tool("search_memory", {"query": "Alice"})
        server.door.metrics.webhooks.labels("delivered")  # exported from the first delivery on
        results: dict[str, set[str]] = {}
        for family in families(client.get("/metrics").text):
            for sample in family.samples:
                results.setdefault(sample.name, set()).update(sample.labels)
    wanted = asked("kgray_")
    assert len(wanted) >= 11
    assert {name for name in wanted if name not in results} == set()
    assert {name: labels - results[name] for name, labels in wanted.items() if labels - results[name]} == {}
    of_server = {name for name in results if not name.endswith(("_created", "_bucket", "_sum", "_count"))}
    assert of_server - wanted.keys() == set(), "exported, and on no panel"
