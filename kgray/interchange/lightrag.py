"""The folder of LightRAG 1.5: a document of one chunk for each episode, an undirected edge for each pair.

LightRAG makes the vectors itself, when the folder is rebuilt there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kgray.graph import Entity, Fact
from kgray.interchange.files import Graphml, Rows, new_file, sentence, write_json
from kgray.interchange.snapshot import ExportedEpisode, Snapshot
from kgray.prompting.tokens import count_tokens
from kgray.records import canonical
from kgray.times import SECOND, show

_JOIN = "<SEP>"
_SHOWN = 100  # characters of a document in the list of documents
_NODE = dict.fromkeys(
    "entity_id entity_type description source_id file_path truncate kgray".split(), "string"
)
_EDGE = dict.fromkeys("keywords description source_id file_path truncate kgray".split(), "string")
_NODE |= {"created_at": "long"}
_EDGE |= {"created_at": "long", "weight": "double"}
_Pair = tuple[str, str]  # ids of entities whose names are in order


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write a folder."""
    names, sources = snapshot.names, dict[str, str]()
    mentioned, sequences = snapshot.mentions(), dict[int, str]()
    for one in snapshot.episodes():
        sources[one.episode.id] = one.episode.source
        sequences[one.episode.sequence] = one.episode.id
    episodes_of = defaultdict[str, list[str]](list)  # entity -> episodes
    for sequence, entities in mentioned.items():
        for id_ in entities if sequence in sequences else ():
            episodes_of[id_].append(sequences[sequence])
    facts, pairs = snapshot.facts_by_entity(both=False), defaultdict[_Pair, list[Fact]](list)
    for fact in (fact for of in facts.values() for fact in of):
        if fact.target is not None and fact.target != fact.source:
            first, second = sorted(fact.ends, key=names.__getitem__)
            pairs[first, second].append(fact)
    in_order = sorted(pairs, key=lambda pair: (names[pair[0]], names[pair[1]]))
    with new_file(path / "graph_chunk_entity_relation.graphml") as file:
        graph = Graphml(file, nodes=_NODE, edges=_EDGE, directed=False)
        made = snapshot.recorded_at // SECOND
        for entity in snapshot.entities:
            row = _node(names[entity.id], entity, facts[entity.id])
            row |= _sources_of(episodes_of[entity.id], sources) | {"created_at": made}
            graph.add("node", {"id": names[entity.id]}, row)
        for pair in in_order:
            row = _edge(pairs[pair]) | _sources_of(_episodes(pairs[pair]), sources)
            created = min(fact.created_at for fact in pairs[pair]) // SECOND
            place = {"source": names[pair[0]], "target": names[pair[1]]}
            graph.add("edge", place, row | {"created_at": created})
        graph.close(snapshot.about())
    of_entity = ((names[one.id], episodes_of[one.id]) for one in snapshot.entities)
    of_pair = ((_JOIN.join(names[end] for end in pair), _episodes(pairs[pair])) for pair in in_order)
    for kind, pairs_of_ids in (("entity", of_entity), ("relation", of_pair)):
        chunks = ((name, _counted("chunk_ids", list(map(_chunk, ids)))) for name, ids in pairs_of_ids)
        write_json(path / f"kv_store_{kind}_chunks.json", chunks)
    _write_documents(snapshot, path, mentioned, pairs)
    return {"episode": len(sources), "entity": len(snapshot.entities), "relation": len(pairs)}


def _write_documents(
    snapshot: Snapshot, path: Path, mentioned: Mapping[int, list[str]], pairs: Mapping[_Pair, list[Fact]]
) -> None:
    names, by_episode = snapshot.names, defaultdict[str, list[list[str]]](list)
    for pair, facts in pairs.items():
        for id_ in _episodes(facts):
            by_episode[id_].append([names[end] for end in pair])

    def entities() -> Iterator[tuple[str, Any]]:
        for one in snapshot.episodes():
            found = [names[id_] for id_ in mentioned.get(one.episode.sequence, ())]
            yield one.episode.id, _counted("entity_names", found)

    def relations() -> Iterator[tuple[str, Any]]:
        for one in snapshot.episodes():
            yield one.episode.id, _counted("relation_pairs", sorted(by_episode[one.episode.id]))

    write_json(path / "kv_store_text_chunks.json", map(_text_chunk, snapshot.episodes()))
    write_json(path / "kv_store_full_docs.json", map(_full_doc, snapshot.episodes()))
    write_json(path / "kv_store_doc_status.json", map(_status, snapshot.episodes()))
    write_json(path / "kv_store_full_entities.json", entities())
    write_json(path / "kv_store_full_relations.json", relations())


def _chunk(episode: str) -> str:
    return f"{episode}-chunk-000"


def _counted(name: str, found: list[Any]) -> dict[str, Any]:
    return {name: found, "count": len(found)}


def _episodes(facts: list[Fact]) -> list[str]:
    return sorted({id_ for fact in facts for id_ in fact.episodes})


def _sources_of(episodes: list[str], sources: Mapping[str, str]) -> dict[str, Any]:
    files = sorted({sources[id_] for id_ in episodes if id_ in sources})
    return {"source_id": _JOIN.join(map(_chunk, episodes)), "file_path": _JOIN.join(files), "truncate": ""}


def _node(name: str, entity: Entity, facts: list[Fact]) -> dict[str, Any]:
    values = [sentence(fact) for fact in facts if fact.target is None]
    known = [f"Also called {', '.join(entity.aliases)}."] if entity.aliases else []
    kept = {"id": entity.id, "name": entity.name, "aliases": entity.aliases, "labels": entity.labels}
    return {
        "entity_id": name,
        "entity_type": entity.labels[0] if entity.labels else "UNKNOWN",
        "description": "\n".join([*([entity.summary] if entity.summary else []), *known, *values]) or name,
        "kgray": canonical(kept),
    }


def _edge(facts: list[Fact]) -> dict[str, Any]:
    """Return one edge for all facts of a pair. The attribute kgray keeps their directions and spans."""
    relations = dict.fromkeys(fact.relation.lower().replace("_", " ") for fact in facts)
    kept = [
        {"id": f.id, "source": f.source, "relation": f.relation, "valid_at": show(f.valid_at),
         "invalid_at": show(f.invalid_at), "text": f.text}
        for f in facts
    ]  # fmt: skip
    return {
        "description": "\n".join(map(sentence, facts)),
        "keywords": ", ".join(relations),
        "weight": float(max(1, len(_episodes(facts)))),
        "kgray": canonical(kept),
    }


def _text_chunk(one: ExportedEpisode) -> tuple[str, Any]:
    episode, id_ = one.episode, _chunk(one.episode.id)
    return id_, {
        "tokens": count_tokens(one.spoken_text), "content": one.spoken_text, "chunk_order_index": 0,
        "full_doc_id": episode.id,
        "file_path": episode.source, "llm_cache_list": [], "_id": id_, **_recorded(one),
    }  # fmt: skip


def _full_doc(one: ExportedEpisode) -> tuple[str, Any]:
    episode = one.episode
    columns = {"content": one.spoken_text, "file_path": episode.source, "parse_format": "raw"}
    return episode.id, {**columns, "_id": episode.id, **_recorded(one)}


def _recorded(one: ExportedEpisode) -> dict[str, int]:
    return dict.fromkeys(("create_time", "update_time"), one.recorded_at // SECOND)


def _status(one: ExportedEpisode) -> tuple[str, Any]:
    episode, at = one.episode, show(one.recorded_at)
    return episode.id, {
        "status": "processed", "content_summary": one.spoken_text[:_SHOWN],
        "content_length": len(one.spoken_text),
        "created_at": at, "updated_at": at, "file_path": episode.source, "chunks_count": 1,
        "chunks_list": [_chunk(episode.id)],
        "metadata": {"client_id": episode.client_id, "reference_time": show(episode.reference_time)},
    }  # fmt: skip
