"""LightRAG itself opens an export as its working folder, and answers with a model of fixed replies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightrag", reason="not installed: lightrag-hku; run by `make test-interchange`")

import numpy as np
from lightrag import LightRAG, QueryParam
from lightrag.kg.shared_storage import finalize_share_data
from lightrag.tools import rebuild_vdb
from lightrag.utils import EmbeddingFunc, Tokenizer

pytestmark = pytest.mark.parametrize("exported", ["lightrag"], indirect=True)
ANSWER = "Alice works at Beta Labs."


class Characters:
    """Makes a token of each character; LightRAG's own tokenizer fetches its data."""

    def encode(self, content: str) -> list[int]:
        return list(map(ord, content))

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


async def model(prompt: str, **kwargs: Any) -> str:
    if "keyword" in prompt.lower() or kwargs.get("keyword_extraction"):
        return json.dumps({"high_level_keywords": ["work"], "low_level_keywords": ["Alice"]})
    return ANSWER


async def embed(texts: list[str], **_: Any) -> Any:
    return np.ones((len(texts), 8), np.float32)


async def test_lightrag_opens_the_folder_and_answers(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(exported.parent)  # LightRAG reads a .env there
    rag = LightRAG(
        working_dir=str(exported), llm_model_func=model, tokenizer=Tokenizer("stub", Characters()),
        embedding_func=EmbeddingFunc(embedding_dim=8, max_token_size=512, func=embed),
    )  # fmt: skip
    statuses = json.loads((exported / "kv_store_doc_status.json").read_text(encoding="utf-8"))
    await rag.initialize_storages()
    try:
        graph, settings = rag.chunk_entity_relation_graph, rag._build_global_config()
        await rebuild_vdb.rebuild_entities_vdb(graph, rag.entities_vdb, settings)
        await rebuild_vdb.rebuild_relationships_vdb(graph, rag.relationships_vdb, settings)
        await rebuild_vdb.rebuild_chunks_vdb(rag.text_chunks, rag.chunks_vdb)
        context = await rag.aquery_data("Where does Alice work?", QueryParam(mode="mix", enable_rerank=False))
        answer = await rag.aquery("Where does Alice work?", QueryParam(mode="mix", enable_rerank=False))
        documents = await rag.doc_status.get_status_counts()
        edge = await graph.get_edge("Alice", "Beta Labs")
        (second,) = [id_ for id_, row in statuses.items() if row["metadata"]["client_id"] == "2"]
        await rag.adelete_by_doc_id(second)
        remains = await graph.has_edge("Alice", "Beta Labs")
    finally:
        await rag.finalize_storages()
        finalize_share_data()

    assert context["status"] == "success"
    names = {row["entity_name"] for row in context["data"]["entities"]}
    assert {"Alice", "Acme", "Beta Labs", "Berlin"} <= names
    pairs = {frozenset((row["src_id"], row["tgt_id"])) for row in context["data"]["relationships"]}
    assert frozenset(("Alice", "Beta Labs")) in pairs
    assert len(context["data"]["chunks"]) == 2
    assert answer == ANSWER
    assert documents["processed"] == 2
    assert edge["description"].endswith("(since 2026-05-01)")
    assert not remains, "a deletion of a document deletes facts of that document alone"
