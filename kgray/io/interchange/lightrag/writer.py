"""Writes the folder of LightRAG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import canonical
from kgray.domain.times import SECOND, show
from kgray.io.interchange.files import Graphml, Rows, new_file, sentence, write_json
from kgray.io.interchange.snapshot import ExportedEpisode, Snapshot
from kgray.models.prompting.tokens import count_tokens

GRAPH = "graph_chunk_entity_relation.graphml"
JOIN = "<SEP>"  # between the items of a list
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
    of_pair = ((JOIN.join(pair), _episodes(facts)) for pair, facts in _pairs(snapshot))
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
    return {"source_id": JOIN.join(map(_chunk, episodes)), "file_path": JOIN.join(files), "truncate": ""}


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
