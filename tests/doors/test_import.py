"""Imports: files of other programs become episodes with facts; exports of kgray yield the same facts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import kgray
from kgray.errors import InputError
from kgray.memory import AsyncMemory

ROWS = [
    {"id": "1", "at": "2026-03-01", "source": "chat", "kind": "triples", "triples": [
        {"source": "Alice", "relation": "WORKS_AT", "target": "Acme"},
        {"source": "Alice", "relation": "LIVES_IN", "target": "Berlin", "valid_at": None}]},
    {"id": "2", "at": "2026-05-01", "source": "chat", "kind": "triples", "triples": [
        {"source": "Alice", "relation": "WORKS_AT", "target": "Beta Labs"},
        {"source": "Acme", "relation": "LOCATED_IN", "target": "Berlin", "invalid_at": "2026-07-01"}]},
]  # fmt: skip
Fact = tuple[str, str, str, str | None, str | None]


async def facts_of(memory: AsyncMemory, group: str) -> set[Fact]:
    """Return the facts as (subject, relation, object, start, end), without their ids."""
    rows = [json.loads(line) for line in await memory.dump(group=group)]
    names = {row["id"]: row["name"] for row in rows if row["type"] == "entity"}
    return {
        (
            names[row["source"]],
            row["relation"],
            names[row["target"]] if row.get("target") else json.dumps(row["value"]["value"]),
            row["valid_at"],
            row["invalid_at"],
        )
        for row in rows
        if row["type"] == "fact"
    }


@pytest.fixture
def memory(tmp_path: Path) -> AsyncMemory:
    return kgray.open_async(tmp_path / "data", create=True)


@pytest.mark.parametrize("form", ["graphrag", "lightrag", "cogx"])
async def test_the_import_of_an_export_yields_the_same_facts(
    memory: AsyncMemory, tmp_path: Path, form: str
) -> None:
    await memory.add_many(ROWS, group="g")
    expected = await facts_of(memory, "g")
    assert len(expected) == 4
    await memory.export(tmp_path / "out", to=form, group="g")

    report = await memory.import_from(tmp_path / "out", form=form, group="h")

    assert await facts_of(memory, "h") == expected
    assert report.ingestion is not None
    assert (report.ingestion.exit_code, report.taken >= 4) == (0, True)
    repeated = await memory.import_from(tmp_path / "out", form=form, group="h")
    assert repeated.ingestion is not None
    assert repeated.ingestion.as_dict()["accepted"] == 0, "it is idempotent"


def written(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


async def test_an_import_from_zep_distinguishes_both_clocks(memory: AsyncMemory, tmp_path: Path) -> None:
    """A record time does not end a fact; a fact without its entity is omitted, with the reason."""
    graph = {
        "episodes": [{"uuid": "e", "content": "Alice works at Acme", "valid_at": "2026-03-01T00:00:00Z"}],
        "nodes": [{"uuid": "a", "name": "Alice"}, {"uuid": "b", "name": "Acme"}],
        "edges": [
            {"uuid": "f", "source_node_uuid": "a", "target_node_uuid": "b", "name": "WORKS_AT",
             "fact": "Alice works at Acme", "valid_at": "2026-01-01T00:00:00Z", "invalid_at": None,
             "expired_at": "2026-04-01T00:00:00Z", "episodes": ["e"]},
            {"uuid": "x", "source_node_uuid": "a", "target_node_uuid": "gone", "name": "KNOWS", "fact": "-"},
        ],
    }  # fmt: skip

    report = await memory.import_from(written(tmp_path / "zep.json", graph), form="zep", group="g")

    start = "2026-01-01T00:00:00.000000Z"
    assert await facts_of(memory, "g") == {("Alice", "WORKS_AT", "Acme", start, None)}
    assert report.reasons == {"facts whose entities are not in the file": 1}


async def test_a_custom_graph_of_lightrag_has_no_dates_and_this_is_reported(
    memory: AsyncMemory, tmp_path: Path
) -> None:
    graph = {
        "chunks": [{"content": "Alice and Acme", "source_id": "c1"}],
        "relationships": [
            {"src_id": "Alice", "tgt_id": "Acme", "description": "works<SEP>there", "source_id": "c1",
             "keywords": "works at, job"},
            {"src_id": "Alice", "tgt_id": "Alice", "description": "-", "keywords": "", "source_id": "c1"},
        ],
    }  # fmt: skip

    report = await memory.import_from(written(tmp_path / "kg.json", graph), form="lightrag", group="g")

    assert await facts_of(memory, "g") == {("Alice", "WORKS_AT", "Acme", None, None)}
    assert report.reasons["facts from a thing to itself"] == 1
    assert report.reasons["facts without dates"] == 2


async def test_memories_of_mem0_are_texts(memory: AsyncMemory, tmp_path: Path) -> None:
    rows = {"results": [
        {"id": "1", "memory": "Alice Nguyen works at Acme.", "created_at": "2026-03-01T00:00:00Z",
         "expiration_date": "2026-04-01", "user_id": "alice"},
        {"id": "2", "memory": " "},
    ]}  # fmt: skip

    report = await memory.import_from(written(tmp_path / "mem0.json", rows), form="mem0", group="g")

    facts = await facts_of(memory, "g")
    assert [(fact[1], fact[4]) for fact in facts] == [("WORKS_AT", None)], "an expiration date ends nothing"
    assert (report.taken, report.omitted, report.reasons) == (1, 1, {"memories without a text": 1})


@pytest.mark.parametrize(
    ("form", "files", "message"),
    [
        ("zep", {"in": '{"edges": [{"uuid": '}, "cannot be read as JSON"),
        ("zep", {"in": "[]"}, "is not a JSON object with lists"),
        ("mem0", {"in": '{"a": 1}'}, "has no list of memories"),
        ("lightrag", {"in": '{"a": 1}'}, "it is no custom_kg"),
        ("cogx", {"in/permissions.json": "{}"}, "hashes of passwords"),
        ("cogx", {"in/manifest.json": '{"cogx_version": "1.0"}'}, "this version of kgray reads 0.x"),
        ("cogx", {"in/facts.jsonl": '{"external_id": "1"'}, "facts.jsonl, line 1, cannot be read"),
        ("cogx", {"in/other.txt": ""}, "has neither manifest.json nor facts.jsonl"),
        ("cogx", {"in": "no archive"}, "cannot be read as a .cogx.tar.gz"),
        ("graphrag", {"in/entities.parquet": "PAR1"}, "cannot be read as Parquet"),
        ("lightrag", {"in/graph_chunk_entity_relation.graphml": "<graphml><no"}, "cannot be read as GraphML"),
        ("nothing", {"in": ""}, "there is no format 'nothing'"),
    ],
)
async def test_a_faulty_file_is_a_one_line_error_and_changes_nothing(
    memory: AsyncMemory, tmp_path: Path, form: str, files: Mapping[str, str], message: str
) -> None:
    await memory.add_many(ROWS, group="g")
    dump_hash = await memory.dump_hash(group="g")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        await memory.import_from(tmp_path / "in", form=form, group="g")
    assert "\n" not in str(caught.value)
    assert await memory.dump_hash(group="g") == dump_hash


async def test_graphrags_nulls_and_columns(memory: AsyncMemory, tmp_path: Path) -> None:
    """Words for "no date" give no date; a suspected claim is omitted; a missing column is named."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def table(name: str, rows: list[dict[str, Any]]) -> None:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")

    table("entities", [{"title": "Alice"}, {"title": "Acme"}, {"title": "Lonely"}])
    pair = {"id": "r", "source": "Alice", "target": "Acme", "description": "knows", "text_unit_ids": ["t"]}
    table("relationships", [pair])
    claim = {"id": "c", "type": "WORKS_AT", "subject_id": "Alice", "object_id": "Acme", "status": "TRUE"}
    claim |= {"start_date": "NONE", "end_date": "nan", "description": "works", "text_unit_id": "t"}
    table(
        "covariates",
        [claim, claim | {"id": "d", "status": "SUSPECTED"}, claim | {"id": "e", "object_id": "NONE"}],
    )
    table("text_units", [{"id": "t", "text": "Alice works at Acme", "document_id": "-"}])

    report = await memory.import_from(tmp_path, form="graphrag", group="g")

    assert await facts_of(memory, "g") == {
        ("Alice", "WORKS_AT", "Acme", None, None), ("Alice", "RELATED_TO", "Acme", None, None)
    }  # fmt: skip
    for reason in ("claims that are only suspected", "claims without an object", "entities in no fact"):
        assert report.reasons[reason] == 1
    table("relationships", [{"id": "r", "source": "Alice"}])
    with pytest.raises(InputError, match="has no column target, description, text_unit_ids"):
        await memory.import_from(tmp_path, form="graphrag", group="g")


async def test_tables_of_kgray_restore_an_equal_group(tmp_path: Path) -> None:
    source, target = (
        kgray.open_async(tmp_path / "one", create=True),
        kgray.open_async(tmp_path / "other", create=True),
    )
    await source.add_many(ROWS, group="g")
    await source.export(tmp_path / "out", to="parquet", group="g")
    dry = await target.import_from(tmp_path / "out", form="parquet", group="g", dry_run=True)
    assert not target.store.heads(["g"])["g"].named
    report = await target.import_from(tmp_path / "out", form="parquet", group="g")
    assert (report, report.omitted, report.taken > 10) == (dry, 0, True)
    assert await target.dump_hash(group="g") == await source.dump_hash(group="g")
    repeated = await target.import_from(tmp_path / "out", form="parquet", group="g")
    assert (repeated.taken, repeated.reasons) == (0, {"rows that the store has already": report.taken})
    await target.add_many([ROWS[0] | {"id": "3"}], group="g")
    with pytest.raises(kgray.errors.StoreError, match="has group 'g' already, and not the same"):
        await target.import_from(tmp_path / "out", form="parquet", group="g")
    with pytest.raises(InputError, match="replaces nothing"):
        await target.import_from(tmp_path / "out", form="parquet", group="g", replace=True)
    assert not target.store.heads(["h"])["h"].named
