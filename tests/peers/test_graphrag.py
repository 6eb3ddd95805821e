"""GraphRAG itself loads an export, and answers its queries with a model of fixed replies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("graphrag", reason="not installed: graphrag; run by `make test-interchange`")

from graphrag import api
from graphrag.config.models.graph_rag_config import GraphRagConfig
from graphrag.data_model.data_reader import DataReader
from graphrag.query import indexer_adapters as adapters
from graphrag_llm.completion.completion_factory import register_completion
from graphrag_llm.completion.mock_llm_completion import MockLLMCompletion
from graphrag_llm.embedding.embedding_factory import register_embedding
from graphrag_llm.embedding.mock_llm_embedding import MockLLMEmbedding
from graphrag_llm.types import LLMChoiceChunk, LLMChoiceDelta, LLMCompletionChunk
from graphrag_llm.utils import create_completion_response, create_embedding_response
from graphrag_storage import StorageConfig, create_storage
from graphrag_storage.tables.table_provider_config import TableProviderConfig
from graphrag_storage.tables.table_provider_factory import create_table_provider
from graphrag_vectors import VectorStoreDocument, create_vector_store

pytestmark = pytest.mark.parametrize("exported", ["graphrag"], indirect=True)
POINTS = json.dumps({"points": [{"description": "Alice works at Beta Labs", "score": 90}]})
ANSWER = "Alice works at Beta Labs."
PROMPTS: list[str] = []


class Completion(MockLLMCompletion):
    """Streams the answer, and returns the points of a global search as JSON."""

    async def completion_async(self, /, **kwargs: Any) -> Any:
        messages = kwargs["messages"]
        PROMPTS.append(messages if isinstance(messages, str) else json.dumps(messages, default=str))
        return streamed() if kwargs.get("stream") else create_completion_response(POINTS)


async def streamed() -> AsyncIterator[LLMCompletionChunk]:
    delta = LLMChoiceDelta(content=ANSWER, role="assistant")
    choice = LLMChoiceChunk(index=0, delta=delta, finish_reason="stop")
    yield LLMCompletionChunk(
        id="1", object="chat.completion.chunk", created=0, model="stub", choices=[choice]
    )


class Embedding(MockLLMEmbedding):
    """Gives every text one vector."""

    def embedding(self, /, **kwargs: Any) -> Any:
        return create_embedding_response([1.0, 0.0, 0.0], batch_size=len(kwargs["input"]))


@pytest.fixture
async def tables(exported: Path) -> dict[str, Any]:
    storage = create_storage(StorageConfig(base_dir=str(exported)))
    reader = DataReader(create_table_provider(TableProviderConfig(), storage=storage))
    names = "documents text_units entities relationships communities community_reports covariates"
    return {name: await getattr(reader, name)() for name in names.split()}


@pytest.fixture
def config(tables: dict[str, Any], tmp_path: Path) -> GraphRagConfig:
    """Return the settings of a model of fixed replies, with the vectors that the searches need."""
    register_completion("stub", Completion)
    register_embedding("stub", Embedding)
    model = {"type": "stub", "model_provider": "stub", "model": "stub", "api_key": "-"}
    config = GraphRagConfig(
        completion_models={"default_completion_model": model | {"mock_responses": ["-"]}},
        embedding_models={"default_embedding_model": model | {"mock_responses": [1.0]}},
        vector_store={"type": "lancedb", "db_uri": str(tmp_path / "vectors"), "vector_size": 3},
    )
    for name, table in (
        ("entity_description", "entities"), ("text_unit_text", "text_units"),
        ("community_full_content", "community_reports"),
    ):  # fmt: skip
        store = create_vector_store(config.vector_store, config.vector_store.index_schema[name])
        store.connect()
        store.create_index()
        documents = [VectorStoreDocument(id=id_, vector=[1.0, 0.0, 0.0]) for id_ in tables[table]["id"]]
        store.load_documents(documents)
    PROMPTS.clear()
    return config


def test_every_table_is_read(tables: dict[str, Any]) -> None:
    communities, reports = tables["communities"], tables["community_reports"]
    entities = adapters.read_indexer_entities(tables["entities"], communities, None)
    relationships = adapters.read_indexer_relationships(tables["relationships"])
    claims = adapters.read_indexer_covariates(tables["covariates"])
    units = adapters.read_indexer_text_units(tables["text_units"])

    assert {entity.title for entity in entities} == {"Alice", "Acme", "Bob", "Berlin", "Beta Labs"}
    assert ("Alice", "Beta Labs") in {(r.source, r.target) for r in relationships}
    work = {c.attributes["object_id"]: c.attributes["end_date"] for c in claims if c.subject_id == "Alice"}
    assert work["Acme"].startswith("2026-05-01")
    assert work["50 EUR"] == ""
    assert len(units) == len(tables["documents"]["text_unit_ids"].sum()) == 2
    assert len(adapters.read_indexer_reports(reports, communities, 9)) == len(reports) > 0
    assert adapters.read_indexer_communities(communities, reports)


async def test_global_search_answers(config: GraphRagConfig, tables: dict[str, Any]) -> None:
    names = ("entities", "communities", "community_reports")
    answer, context = await api.global_search(
        config, **{name: tables[name] for name in names}, community_level=None,
        dynamic_community_selection=False, response_type="one line", query="Where does Alice work?",
    )  # fmt: skip

    assert answer == ANSWER
    assert len(context["reports"]) == len(tables["community_reports"])
    assert "Acme" in PROMPTS[0], "the map prompt has the reports"


async def test_local_search_reads_claims_with_their_dates(
    config: GraphRagConfig, tables: dict[str, Any]
) -> None:
    names = ("entities", "communities", "community_reports", "text_units", "relationships", "covariates")
    answer, context = await api.local_search(
        config, **{name: tables[name] for name in names}, community_level=9, response_type="one line",
        query="Where does Alice work?",
    )  # fmt: skip

    assert answer == ANSWER
    assert {"entities", "relationships", "claims", "sources"} <= context.keys()
    assert "Beta Labs" in PROMPTS[0]
    assert "TRUE|2026-03-01T00:00:00.000000Z|2026-05-01T00:00:00.000000Z" in PROMPTS[0]
    assert "|nan|" not in PROMPTS[0]


async def test_basic_search_reads_the_texts(config: GraphRagConfig, tables: dict[str, Any]) -> None:
    answer, context = await api.basic_search(
        config, text_units=tables["text_units"], response_type="one line", query="Where does Alice work?"
    )

    assert answer == ANSWER
    assert len(context["sources"]) == 2
