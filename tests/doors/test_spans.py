"""OpenTelemetry spans, with its SDK: their attributes, and that they contain no text."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

pytest.importorskip("opentelemetry.sdk.trace", reason="needs the package opentelemetry-sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import kgray
from kgray.io.intake.drafts import draft_from
from kgray.models.openai_api.client import Client, Endpoint, Rejected, TokensSpent
from tests.doors.chat_server import ChatServer, Say, as_json


@pytest.fixture(scope="module")
def exported():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exported):
    exported.clear()
    return exported


def named(spans, name):
    return [span for span in spans.get_finished_spans() if span.name == name]


def test_stages_searches_and_faults_are_spans_without_texts(spans, tmp_path):
    with kgray.open(tmp_path / "data", create=True) as memory:
        memory.add("I work at Acme.", group="team", speaker="Alice")
        memory.search("Where does Alice work?", group="team")
        memory.context("Where does Alice work?", group="team")
        with pytest.raises(kgray.NotFound):
            memory.search("Alice", group="team", reranker="node_distance", centre="Zanzibar")
    exported_spans = spans.get_finished_spans()

    stages = {"kgray extract", "kgray embed", "kgray decide", "kgray write"}
    assert stages | {"kgray search", "kgray context"} <= {item.name for item in exported_spans}
    (extract,) = named(spans, "kgray extract")
    assert dict(extract.attributes) == {"kgray.sequence": 1}
    assert extract.end_time >= extract.start_time
    faults = [item for item in named(spans, "kgray search") if not item.status.is_ok]
    assert [dict(fault.attributes) for fault in faults] == [{"error.type": "NotFound"}]
    everything = " ".join(item.to_json() for item in exported_spans)
    assert not any(word in everything for word in ("Acme", "Alice", "Zanzibar", "team"))


async def test_the_span_of_a_model_call_has_the_model_and_the_tokens(spans):
    server = ChatServer(
        lambda request: as_json({}) if "ok" in str(request.body) else Say(status=400, raw=b"Zanzibar")
    )
    client = Client(Endpoint(base_url=server.url, name="small"))
    await client.chat({"messages": [{"role": "user", "content": "ok"}]}, TokensSpent())
    with pytest.raises(Rejected):
        await client.chat({"messages": [{"role": "user", "content": "Zanzibar"}]}, TokensSpent())
    server.close()
    good, bad = named(spans, "chat small")

    about = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "small"}
    usage = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 20}
    assert (dict(good.attributes), dict(bad.attributes)) == (
        about | usage,
        about | {"error.type": "Rejected"},
    )
    assert "Zanzibar" not in bad.to_json()


async def test_the_span_of_an_accepting_transaction_is_linked_to_its_requests(spans, tmp_path):
    pytest.importorskip("fastapi", reason="needs the extra `serve`")
    from kgray.server.door import Appends, Metrics

    memory = kgray.open(tmp_path / "data", create=True)
    appends = Appends(memory.store, Metrics())
    running = asyncio.create_task(appends.run())
    with trace.get_tracer("test").start_as_current_span("request") as request:
        draft = draft_from({"text": "I work at Acme.", "group": "team"})
        await appends.accept([draft, draft])
    await appends.close()
    await running
    memory.close()
    (span,) = named(spans, "kgray accept")
    assert (dict(span.attributes), span.parent) == ({"kgray.schema.rows": 2}, None)
    assert [link.context for link in span.links] == [request.get_span_context()]


def test_a_process_without_spans_does_not_load_the_sdk(tmp_path):
    ran = (
        "import sys, kgray\n"
        f"with kgray.open({str(tmp_path / 'data')!r}, create=True) as memory:\n"
        "    memory.add('I work at Acme.', group='team', speaker='Alice')\n"
        "    assert memory.search('Alice', group='team')\n"
        "assert not any('opentelemetry' in name for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", ran], check=True)
