"""Traps of other programs' readers, which an export avoids: one test for each trap."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import networkx as nx
import pyarrow.parquet as pq
import pytest
import yaml

import kgray
from kgray.io.interchange.formats import FORMATS
from kgray.memory import Memory
from tests.doors.shell import triple, triples_row

WRITTEN = {name: form for name, form in FORMATS.items() if form.writer}
# Two names that XML makes one, and names that LightRAG, YAML and file systems interpret.
FIRST, SECOND = "Mercury\ufffe", "Mercury\uffff"
NAMES = (FIRST, SECOND, '"Quoted"', "42", "a<SEP>b", "index", "../up", "2026")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Export one group in each format; yield the folder."""
    folder = tmp_path_factory.mktemp("traps")
    with kgray.open(folder / "data", create=True, settings={"model_backend": "rules"}) as memory:
        ends = zip(NAMES, (*NAMES[1:], "Alice"), strict=True)
        day = {"valid_at": "2026-05-01T06:00:00", "invalid_at": "2026-05-01T18:00:00"}
        report = memory.add_many([
            triples_row("t1", "2026-01-01", *(triple(first, "KNOWS", second) for first, second in ends)),
            triples_row("t2", "2026-02-01", triple("Alice", "KNOWS", "Bob", valid_at=None)),
            triples_row("t3", "2026-03-01", triple("Bob", "VISITED", "Alice", **day)),
        ])  # fmt: skip
        assert report.exit_code == 0
        memory.communities.refresh(["team"])
        export(memory, folder)
        yield folder


def export(memory: Memory, folder: Path, **options: Any) -> None:
    for to in WRITTEN.keys() - ({"parquet"} if options else set()):
        memory.export(folder / to, to=to, group="team", **options)


def rows(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        return list(pq.read_table(file).to_pylist())
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_an_export_names_its_group_its_moments_and_its_program(folder: Path, tmp_path: Path) -> None:
    with kgray.open(folder / "data") as memory:
        export(memory, tmp_path, as_of="2026-02-02", known_at="2100-01-01")
    for to in WRITTEN.keys() - {"jsonl", "parquet"}:
        files = [tmp_path / to] if (tmp_path / to).is_file() else [*(tmp_path / to).rglob("*")]
        texts = b" ".join(file.read_bytes() for file in files if file.is_file()).decode(errors="replace")
        for part in ("team", "2026-02-02T00:00:00.000000Z", "2100-01-01T00:00:00.000000Z"):
            assert part in texts, (to, part)
        assert re.search(rf"kgray\W+{re.escape(version('kgray'))}", texts), to


def test_names_that_are_keys_are_unique(folder: Path) -> None:
    graph = nx.read_graphml(folder / "lightrag" / "graph_chunk_entity_relation.graphml")
    titles = [row["title"] for row in rows(folder / "graphrag" / "entities.parquet")]
    names = [row["name"] for row in rows(folder / "cogx" / "entities.jsonl")]

    for listed in (titles, names, list(graph.nodes)):
        assert len(set(listed)) == len(listed) == len(NAMES) + 2
        assert len([name for name in listed if name.startswith("Mercury\ufffd")]) == 2
    (pair,) = [r for r in rows(folder / "graphrag" / "relationships.parquet") if r["target"] == '"Quoted"']
    assert pair["source"] in titles
    assert pair["source"] != "Mercury\ufffd", "the younger of the two has a suffix"


def test_every_name_is_read_back_from_a_lightrag_folder(folder: Path, tmp_path: Path) -> None:
    with kgray.open(tmp_path / "data", create=True, settings={"model_backend": "rules"}) as memory:
        memory.import_from(folder / "lightrag", form="lightrag", group="g")
        dumped = [json.loads(line) for line in memory.dump(group="g")]
    names = {row["name"] for row in dumped if row["type"] == "entity"}
    assert set(NAMES[2:]) <= names


def test_an_unknown_start_is_none_and_a_missing_end_is_empty(folder: Path) -> None:
    claims = rows(folder / "graphrag" / "covariates.parquet")
    (claim,) = [row for row in claims if (row["subject_id"], row["object_id"]) == ("Alice", "Bob")]
    assert (claim["status"], claim["start_date"], claim["end_date"]) == ("TRUE", "NONE", "")
    (edge,) = [row for row in rows(folder / "cogx" / "facts.jsonl") if row["fact_text"] == "Alice knows Bob"]
    assert (edge["valid_at"], edge["invalid_at"]) == (None, None)
    assert not re.search('start="(None|)"|end="(None|)"', (folder / "gexf").read_text("utf-8"))


def test_graphrag_cites_the_place_of_a_row(folder: Path) -> None:
    for file in (folder / "graphrag").glob("*.parquet"):
        numbers = [row["human_readable_id"] for row in rows(file)]
        assert numbers == list(range(len(numbers))), file.name


def test_each_line_of_cogx_has_a_kind(folder: Path) -> None:
    kinds = {"episodes": "episode", "entities": "entity", "facts": "fact", "documents": "document"}
    for name, kind in kinds.items():
        listed = rows(folder / "cogx" / f"{name}.jsonl")
        assert {row["kind"] for row in listed} == {kind}
        assert len({row["external_id"] for row in listed}) == len(listed)
    assert not (folder / "cogx" / "permissions.json").exists()


def test_pairs_of_lightrag_are_sorted_and_weights_are_at_least_one(folder: Path) -> None:
    pairs = json.loads((folder / "lightrag" / "kv_store_full_relations.json").read_text("utf-8"))
    for row in pairs.values():
        assert row["count"] == len(row["relation_pairs"])
        assert all(pair == sorted(pair) for pair in row["relation_pairs"])
    graph = nx.read_graphml(folder / "lightrag" / "graph_chunk_entity_relation.graphml")
    assert min(weight for *_, weight in graph.edges.data("weight")) >= 1


def test_no_key_of_graphml_is_a_label_for_gephi(folder: Path) -> None:
    """Gephi reads the keys d3 and d7 as labels; a text of digits remains a text."""
    keys = [part.attrib for part in ET.parse(folder / "graphml").getroot() if part.tag.endswith("key")]  # noqa: S314
    assert all(key["id"] == f"{key['for'][0]}_{key['attr.name']}" for key in keys)
    assert len({key["id"] for key in keys}) == len(keys)
    graph = nx.read_graphml(folder / "graphml", force_multigraph=True)
    assert "2026" in {name for _, name in graph.nodes.data("name")}
    assert {type(event) for *_, event in graph.edges.data("event")} == {bool}


def test_gexf_is_of_1_3_and_no_attribute_replaces_an_id(folder: Path) -> None:
    """In networkx a node's attribute `id` replaces its id, and an edge's `type` is lost."""
    root = ET.parse(folder / "gexf").getroot()  # noqa: S314 - ours
    assert root.attrib["version"] == "1.3"
    titles = {
        (attributes.attrib["class"], attribute.attrib["title"])
        for attributes in root.iter("{http://gexf.net/1.3}attributes")
        for attribute in attributes
    }
    assert not titles & {("node", "id"), ("edge", "id"), ("edge", "type"), ("node", "label")}
    text = (folder / "gexf").read_text(encoding="utf-8")
    assert not re.search('startopen|endopen|T[0-9]{2}:[0-9]{2}[^"]*" end=', text)
    spells = [part.attrib for part in root.iter("{http://gexf.net/1.3}spell")]
    assert {"start": "2026-05-01", "end": "2026-05-01"} in spells, "a span inside one day has that day"
    assert all(spell["start"] <= spell["end"] for spell in spells if len(spell) == 2)


def test_pages_of_a_vault_have_safe_names_and_front_matter(folder: Path) -> None:
    """Reserved names, links out of the vault, dates as texts, tags without spaces, sources of footnotes."""
    for file in (folder / "okf").rglob("*.md"):
        text = file.read_text(encoding="utf-8")
        assert re.fullmatch(r"[A-Za-z0-9_.-]+", file.name)
        if file.name == "index.md":
            is_root = file.parent == folder / "okf"
            assert text.startswith('---\nokf_version: "0.2"\n---\n' if is_root else "# ")
            continue
        head, body = text.split("---\n", 2)[1:]
        fields = yaml.safe_load(head)
        assert isinstance(fields["type"], str)
        assert isinstance(fields["generated"]["at"], str), "quoted, else YAML makes a date of it"
        assert all(re.fullmatch(r"(?!\d+$)[\w-]+", tag) for tag in fields.get("tags", ()))
        assert "verified" not in fields
        assert "stale_after" not in fields
        notes = {source["id"] for source in fields.get("sources", ())}
        assert set(re.findall(r"(?<!\\)\[\^(\w+)\]", body)) == notes
        assert not re.search(r"\]\((/|\w+:)", body), "links are relative"
