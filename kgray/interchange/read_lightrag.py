"""Reads LightRAG: its storage folder, or the JSON of `ainsert_custom_kg`.

An edge of LightRAG has neither a direction nor the name of a relation, and no dates. kgray's own export keeps
all three in the attribute `kgray`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from kgray.errors import InputError
from kgray.interchange.importing import Import, Unit, known_moment, text_of, with_facts, without_facts
from kgray.interchange.lines import read_json
from kgray.interchange.read_graphrag import UNNAMED
from kgray.records import clean_relation, make_id

GRAPH = "graph_chunk_entity_relation.graphml"
_JOIN = "<SEP>"
_SPACE = "{http://graphml.graphdrawing.org/xmlns}"


def units(path: Path, importing: Import) -> Iterator[Unit]:
    """Yield the chunks with the facts of their edges. Raises InputError."""
    if path.is_file():
        yield from _custom_units(read_json(path), importing)
        return
    nodes, edges = _graph(path / GRAPH)
    ours = {
        kept["id"]: name for name, row in nodes.items() if "kgray" in row and (kept := _kept(row["kgray"]))
    }
    facts, homes = dict[str, dict[str, Any]](), dict[str, list[str]]()
    for source, target, row in edges:
        chunks = [chunk for chunk in row.get("source_id", "").split(_JOIN) if chunk]
        for id_, fact in _facts(source, target, row, ours, importing):
            facts[id_], homes[id_] = fact, chunks
    status = path / "kv_store_doc_status.json"
    documents = read_json(status) if status.exists() else {}
    yield from with_facts(
        _texts(read_json(path / "kv_store_text_chunks.json"), documents, importing), facts, homes
    )
    importing.omitted["entities in no fact between entities"] += without_facts(nodes, facts)


def _texts(texts: Mapping[str, Any], documents: Mapping[str, Any], importing: Import) -> Iterator[Unit]:
    for id_, chunk in texts.items():
        document = documents.get(text_of(chunk.get("full_doc_id")), {})
        at = known_moment((document.get("metadata") or {}).get("reference_time"))
        if at is None and (at := known_moment(document.get("created_at"))) is not None:
            importing.changed["texts with the time of their insertion into LightRAG"] += 1
        source = text_of(chunk.get("file_path"))[:256]
        yield Unit(id=id_, at=at, text=text_of(chunk.get("content")), source=source)


def _facts(
    source: str, target: str, row: Mapping[str, str], ours: Mapping[str, str], importing: Import
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the facts of an edge: those that kgray wrote, or one in the order of the file."""
    for kept in _kept(row["kgray"]) or () if "kgray" in row else ():
        first = ours.get(kept["source"])
        ends = (source, target) if first in (None, source) else (target, source)
        names = ("relation", "text", "valid_at", "invalid_at")
        yield kept["id"], {"source": ends[0], "target": ends[1], **{name: kept.get(name) for name in names}}
    if "kgray" not in row:
        yield _foreign(source, target, row, importing)


def _foreign(
    source: str, target: str, row: Mapping[str, Any], importing: Import
) -> tuple[str, dict[str, Any]]:
    relation = text_of(row.get("keywords")).replace(_JOIN, ",").partition(",")[0].strip()
    try:
        relation = clean_relation(relation[:64])
    except ValueError:
        relation = UNNAMED
    importing.changed["pairs without a direction: the first end is the subject"] += 1
    importing.changed["relations named by their first keyword"] += relation != UNNAMED
    importing.changed[f"pairs without keywords: {UNNAMED}"] += relation == UNNAMED
    importing.changed["facts without dates"] += 1
    text = " ".join(text_of(row.get("description")).split(_JOIN))
    fact = {"source": source, "relation": relation, "target": target, "text": text, "valid_at": None}
    return make_id("lightrag", source, target), fact


def _custom_units(kg: Any, importing: Import) -> Iterator[Unit]:  # noqa: ANN401 - JSON
    """Yield the chunks of a custom knowledge graph. Of equal pairs LightRAG keeps the last one, kgray all."""
    lists = {name: kg.get(name) or [] for name in ("chunks", "relationships")} if isinstance(kg, dict) else {}
    if not lists.get("relationships") and not lists.get("chunks"):
        raise InputError("the file has neither `chunks` nor `relationships`: it is no custom_kg of LightRAG")
    facts, homes = dict[str, dict[str, Any]](), dict[str, list[str]]()
    for number, row in enumerate(lists["relationships"]):
        if not isinstance(row, dict):
            raise InputError(f"relationships[{number}] is not an object")
        id_, fact = _foreign(text_of(row.get("src_id")), text_of(row.get("tgt_id")), row, importing)
        facts[f"{id_} {number}"], homes[f"{id_} {number}"] = fact, [text_of(row.get("source_id"))]
    texts = {
        text_of(row.get("source_id")): {"content": row.get("content"), "file_path": row.get("file_path")}
        for row in lists["chunks"]
        if isinstance(row, dict)
    }
    yield from with_facts(_texts(texts, {}, importing), facts, homes)


def _kept(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text)
    except ValueError:
        return None


def _graph(path: Path) -> tuple[dict[str, dict[str, str]], list[tuple[str, str, dict[str, str]]]]:
    """Return the nodes by name, and the edges, of a GraphML file, with their attributes by name."""
    keys, nodes, edges = dict[str, str](), dict[str, dict[str, str]](), []
    try:
        for _, element in ET.iterparse(path):  # noqa: S314 - expat bounds the expansion of entities
            match element.tag.removeprefix(_SPACE):
                case "key":
                    keys[element.attrib["id"]] = element.attrib["attr.name"]
                case "node":
                    nodes[element.attrib["id"]] = _data(element, keys)
                    element.clear()
                case "edge":
                    ends = element.attrib["source"], element.attrib["target"]
                    edges.append((*ends, _data(element, keys)))
                    element.clear()
    except FileNotFoundError:
        raise InputError(
            f"{path} is not there: name LightRAG's working folder, or a custom_kg file"
        ) from None
    except (ET.ParseError, KeyError, OSError) as error:
        raise InputError(f"{path} cannot be read as GraphML ({error}): it may be truncated") from None
    return nodes, edges


def _data(element: Iterable[ET.Element], keys: Mapping[str, str]) -> dict[str, str]:
    return {keys[data.attrib["key"]]: data.text or "" for data in element if data.attrib.get("key") in keys}
