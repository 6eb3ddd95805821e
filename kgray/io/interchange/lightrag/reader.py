"""Reads the folder of LightRAG, or a custom knowledge graph."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from kgray.domain.records import clean_relation, make_id
from kgray.errors import InputError
from kgray.io.interchange.gathering import Unit
from kgray.io.interchange.importing import (
    REPEATED,
    UNNAMED,
    Import,
    known_moment,
    object_of,
    storable,
    text_of,
)
from kgray.io.interchange.lightrag.writer import GRAPH, JOIN
from kgray.io.interchange.lines import read_members, unreadable

_SPACE = "{http://graphml.graphdrawing.org/xmlns}"


def units(path: Path, importing: Import) -> Iterator[Unit]:
    """Yield the chunks with the facts of their edges. Raises InputError."""
    gathered = importing.gathered
    if path.is_file():
        _gather_custom(path, importing)
        yield from gathered.units()
        return
    for source, target, row in _graph(path / GRAPH):
        if target is None:
            entity = object_of(_json(row.get("kgray", "")))
            gathered.add_name(text_of(entity.get("id")) or source, source)
            continue
        chunks = [chunk for chunk in row.get("source_id", "").split(JOIN) if chunk]
        for id_, fact in _facts(source, target, row, importing):
            importing.omitted[REPEATED] += not gathered.add_fact(id_, fact, chunks)
    if (status := path / "kv_store_doc_status.json").exists():
        for id_, document, _ in read_members(status):
            _check_object(document, status, id_)
            reference_time = object_of(document.get("metadata")).get("reference_time")
            gathered.add_note(id_, known_moment(reference_time), known_moment(document.get("created_at")))
    for id_, chunk, _ in read_members(texts := path / "kv_store_text_chunks.json"):
        _check_object(chunk, texts, id_)
        _gather_text(id_, id_, chunk, importing)
    importing.omitted["entities in no fact between entities"] += gathered.without_facts()
    yield from gathered.units()


def _check_object(row: object, path: Path, key: str) -> None:
    if not isinstance(row, dict):
        raise InputError(f"{path}: {key[:80]} is not an object")


def _gather_text(id_: str, name: str, chunk: Mapping[str, Any], importing: Import) -> None:
    """Add a text. name: its id in edges."""
    at, inserted_at = importing.gathered.note(text_of(chunk.get("full_doc_id"))) or (None, None)
    if at is None and inserted_at is not None:
        at = inserted_at
        importing.changed["texts with the time of their insertion into LightRAG"] += 1
    source = text_of(chunk.get("file_path"))[:256]
    importing.gathered.add_text(Unit(id=id_, at=at, text=text_of(chunk.get("content")), source=source), name)


def _facts(
    source: str, target: str, row: Mapping[str, str], importing: Import
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the facts that kgray wrote into an edge; without them, a fact in the order of its ends."""
    listed = _json(row.get("kgray", ""))
    for fields in filter(object_of, listed if isinstance(listed, list) else ()):
        first = importing.gathered.name(text_of(fields.get("source")))
        ends = (source, target) if first in (None, source) else (target, source)
        names = ("relation", "text", "valid_at", "invalid_at")
        fact = {"source": ends[0], "target": ends[1], **{name: fields.get(name) for name in names}}
        yield text_of(fields.get("id")), fact | {"relation": text_of(fields.get("relation"))}
    if not isinstance(listed, list):
        yield _foreign(source, target, row, importing)


def _foreign(
    source: str, target: str, row: Mapping[str, Any], importing: Import
) -> tuple[str, dict[str, Any]]:
    relation = text_of(row.get("keywords")).replace(JOIN, ",").partition(",")[0].strip()
    try:
        relation = clean_relation(relation[:64])
    except ValueError:
        relation = UNNAMED
    importing.changed["pairs without a direction: the first end is the subject"] += 1
    importing.changed["relations named by their first keyword"] += relation != UNNAMED
    importing.changed[f"pairs without keywords: {UNNAMED}"] += relation == UNNAMED
    importing.changed["facts without dates"] += 1
    text = " ".join(text_of(row.get("description")).split(JOIN))
    fact = {"source": source, "relation": relation, "target": target, "text": text, "valid_at": None}
    return make_id("lightrag", storable(source), storable(target)), fact


def _gather_custom(path: Path, importing: Import) -> None:
    """Add a custom knowledge graph, with all facts of a pair; LightRAG keeps the last fact."""
    counts = Counter[str]()
    for name, row, _ in read_members(path):
        if name not in ("chunks", "relationships") or row == []:
            continue
        _check_object(row, path, f"{name}[{counts[name]}]")
        if name == "relationships":
            id_, fact = _foreign(text_of(row.get("src_id")), text_of(row.get("tgt_id")), row, importing)
            homes = text_of(row.get("source_id")).split(JOIN)
            importing.gathered.add_fact(f"{id_} {counts[name]}", fact, homes)
        else:
            chunk = {"content": row.get("content"), "file_path": row.get("file_path")}
            alias = text_of(row.get("source_id"))  # of several chunks, perhaps
            id_ = make_id("lightrag", storable(alias), storable(text_of(row.get("content"))))
            _gather_text(id_, alias, chunk, importing)
        counts[name] += 1
    if not counts:
        raise InputError(f"{path} has neither `chunks` nor `relationships`: it is no custom_kg of LightRAG")


def _json(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text)
    except ValueError:
        return None


def _graph(path: Path) -> Iterator[tuple[str, str | None, dict[str, str]]]:
    """Yield (name, None, attributes) of each node, (source, target, attributes) of each edge, of GraphML."""
    keys, graph = dict[str, str](), None
    try:
        for event, element in ET.iterparse(path, ("start", "end")):  # noqa: S314 - expat bounds entities
            match event, element.tag.removeprefix(_SPACE):
                case "end", "key":
                    keys[element.attrib["id"]] = element.attrib["attr.name"]
                case "start", "graph":
                    graph = element
                case "end", "node":
                    yield element.attrib["id"], None, _data(element, keys)
                case "end", "edge":
                    yield element.attrib["source"], element.attrib["target"], _data(element, keys)
                case _:
                    continue
            if event == "end" and graph is not None:
                graph.clear()  # the elements so far
    except FileNotFoundError:
        raise InputError(
            f"{path} is not there: name LightRAG's working folder, or a custom_kg file"
        ) from None
    except (ET.ParseError, KeyError, OSError) as error:
        raise unreadable(path, "GraphML", error) from None


def _data(element: Iterable[ET.Element], keys: Mapping[str, str]) -> dict[str, str]:
    return {keys[data.attrib["key"]]: data.text or "" for data in element if data.attrib.get("key") in keys}
