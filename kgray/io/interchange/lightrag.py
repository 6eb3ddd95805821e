"""The folder of LightRAG 1.5: a document of one chunk for each episode, an undirected edge for each pair.

LightRAG makes the vectors itself, when the folder is rebuilt there. Its edges have neither a direction nor
the name of a relation, and no dates: kgray's own export keeps all three in the attribute `kgray`. The JSON of
`ainsert_custom_kg` is read, too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import canonical, clean_relation, make_id
from kgray.domain.times import SECOND, show
from kgray.errors import InputError
from kgray.io.interchange.files import Graphml, Rows, new_file, sentence, write_json
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
from kgray.io.interchange.lines import read_members, unreadable
from kgray.io.interchange.snapshot import ExportedEpisode, Snapshot
from kgray.models.prompting.tokens import count_tokens

_JOIN = "<SEP>"
_SUMMARY = 100  # characters of a document in the list of documents
_NODE = dict.fromkeys(
    "entity_id entity_type description source_id file_path truncate kgray".split(), "string"
)
_EDGE = dict.fromkeys("keywords description source_id file_path truncate kgray".split(), "string")
_NODE |= {"created_at": "long"}
_EDGE |= {"created_at": "long", "weight": "double"}


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write a folder."""
    rows = {"episode": 0, "entity": 0, "relation": 0}
    with new_file(path / GRAPH) as file:
        graph = Graphml(file, nodes=_NODE, edges=_EDGE, directed=False)
        recorded_at = snapshot.recorded_at // SECOND
        for rows["entity"], entity in enumerate(snapshot.entities(), 1):
            name = snapshot.name_of(entity.id)
            row = _node(name, entity, snapshot.facts_of(entity.id, both=False))
            row |= _sources_of(snapshot, snapshot.episodes_of(entity.id)) | {"created_at": recorded_at}
            graph.add("node", {"id": name}, row)
        for rows["relation"], (pair, facts) in enumerate(_pairs(snapshot), 1):
            edge = _edge(facts) | _sources_of(snapshot, _episodes(facts))
            created = min(fact.created_at for fact in facts) // SECOND
            graph.add(
                "edge", dict(zip(("source", "target"), pair, strict=True)), edge | {"created_at": created}
            )
        graph.close(snapshot.about())
    of_entity = ((snapshot.name_of(e.id), snapshot.episodes_of(e.id)) for e in snapshot.entities())
    of_pair = ((_JOIN.join(pair), _episodes(facts)) for pair, facts in _pairs(snapshot))
    for kind, pairs_of_ids in (("entity", of_entity), ("relation", of_pair)):
        chunks = ((name, _counted("chunk_ids", list(map(_chunk, ids)))) for name, ids in pairs_of_ids)
        write_json(path / f"kv_store_{kind}_chunks.json", chunks)
    rows["episode"] = write_json(path / "kv_store_text_chunks.json", map(_text_chunk, snapshot.episodes()))
    write_json(path / "kv_store_full_docs.json", map(_full_doc, snapshot.episodes()))
    write_json(path / "kv_store_doc_status.json", map(_status, snapshot.episodes()))
    write_json(path / "kv_store_full_entities.json", _entities(snapshot))
    write_json(path / "kv_store_full_relations.json", _relations(snapshot))
    return rows


def _pairs(snapshot: Snapshot) -> Iterator[tuple[list[str], list[Fact]]]:
    """Yield the names of each pair, in their order, and its facts."""
    for ends, facts in snapshot.pairs():
        yield sorted(map(snapshot.name_of, ends)), facts


def _entities(snapshot: Snapshot) -> Iterator[tuple[str, Any]]:
    for exported in snapshot.episodes():
        names = map(snapshot.name_of, snapshot.entities_in(exported.episode.sequence))
        yield exported.episode.id, _counted("entity_names", list(names))


def _relations(snapshot: Snapshot) -> Iterator[tuple[str, Any]]:
    for exported in snapshot.episodes():
        facts = snapshot.facts_in(exported.episode.id)
        ends = {tuple(sorted(map(snapshot.name_of, fact.ends))) for fact in facts if len(set(fact.ends)) > 1}
        yield exported.episode.id, _counted("relation_pairs", sorted(map(list, ends)))


def _chunk(episode: str) -> str:
    return f"{episode}-chunk-000"


def _counted(name: str, items: list[Any]) -> dict[str, Any]:
    return {name: items, "count": len(items)}


def _episodes(facts: list[Fact]) -> list[str]:
    return sorted({id_ for fact in facts for id_ in fact.episodes})


def _sources_of(snapshot: Snapshot, episodes: list[str]) -> dict[str, Any]:
    files = sorted({cited.source for cited in map(snapshot.cited, episodes) if cited is not None})
    return {"source_id": _JOIN.join(map(_chunk, episodes)), "file_path": _JOIN.join(files), "truncate": ""}


def _node(name: str, entity: Entity, facts: Iterable[Fact]) -> dict[str, Any]:
    values = [sentence(fact) for fact in facts if fact.target is None]
    aliases = [f"Also called {', '.join(entity.aliases)}."] if entity.aliases else []
    fields = {"id": entity.id, "name": entity.name, "aliases": entity.aliases, "labels": entity.labels}
    return {
        "entity_id": name,
        "entity_type": entity.labels[0] if entity.labels else "UNKNOWN",
        "description": "\n".join([*([entity.summary] if entity.summary else []), *aliases, *values]) or name,
        "kgray": canonical(fields),
    }


def _edge(facts: list[Fact]) -> dict[str, Any]:
    """Return one edge for all facts of a pair. The attribute kgray keeps their directions and spans."""
    relations = dict.fromkeys(fact.relation.lower().replace("_", " ") for fact in facts)
    fields = [
        {"id": f.id, "source": f.source, "relation": f.relation, "valid_at": show(f.valid_at),
         "invalid_at": show(f.invalid_at), "text": f.text}
        for f in facts
    ]  # fmt: skip
    return {
        "description": "\n".join(map(sentence, facts)),
        "keywords": ", ".join(relations),
        "weight": float(max(1, len(_episodes(facts)))),
        "kgray": canonical(fields),
    }


def _text_chunk(exported: ExportedEpisode) -> tuple[str, Any]:
    episode, id_ = exported.episode, _chunk(exported.episode.id)
    return id_, {
        "tokens": count_tokens(exported.spoken_text), "content": exported.spoken_text, "chunk_order_index": 0,
        "full_doc_id": episode.id,
        "file_path": episode.source, "llm_cache_list": [], "_id": id_, **_recorded(exported),
    }  # fmt: skip


def _full_doc(exported: ExportedEpisode) -> tuple[str, Any]:
    episode = exported.episode
    columns = {"content": exported.spoken_text, "file_path": episode.source, "parse_format": "raw"}
    return episode.id, {**columns, "_id": episode.id, **_recorded(exported)}


def _recorded(exported: ExportedEpisode) -> dict[str, int]:
    return dict.fromkeys(("create_time", "update_time"), exported.recorded_at // SECOND)


def _status(exported: ExportedEpisode) -> tuple[str, Any]:
    episode, at = exported.episode, show(exported.recorded_at)
    return episode.id, {
        "status": "processed", "content_summary": exported.spoken_text[:_SUMMARY],
        "content_length": len(exported.spoken_text),
        "created_at": at, "updated_at": at, "file_path": episode.source, "chunks_count": 1,
        "chunks_list": [_chunk(episode.id)],
        "metadata": {"client_id": episode.client_id, "reference_time": show(episode.reference_time)},
    }  # fmt: skip


GRAPH = "graph_chunk_entity_relation.graphml"
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
        chunks = [chunk for chunk in row.get("source_id", "").split(_JOIN) if chunk]
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
            homes = text_of(row.get("source_id")).split(_JOIN)
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
