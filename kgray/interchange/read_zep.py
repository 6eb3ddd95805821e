"""Reads the JSON of Zep and Graphiti: episodes, nodes and edges by the names of their models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgray.errors import InputError
from kgray.interchange.importing import (
    Import,
    Unit,
    known_moment,
    text_of,
    time_text,
    with_facts,
    without_facts,
)
from kgray.interchange.lines import read_json

_LISTS = {
    "episodes": ("episodes", "episodic_nodes"),
    "nodes": ("nodes", "entities", "entity_nodes"),
    "edges": ("edges", "facts", "entity_edges"),
}


def units(path: Path, importing: Import) -> Iterator[Unit]:
    """Yield the episodes, oldest first, then the facts without an episode. Raises InputError.

    `expired_at` is a record time, not the end of a fact: it is kept out of the spans.
    """
    document = read_json(path)
    lists = {kind: _rows(document, names, path) for kind, names in _LISTS.items()}
    if not lists["edges"]:
        raise InputError(f"{path} has no list of {', '.join(_LISTS['edges'])}: is it an export of Zep?")
    names = {text_of(row.get("uuid")): text_of(row.get("name")) for row in lists["nodes"]}
    facts, homes = dict[str, dict[str, Any]](), dict[str, list[str]]()
    for number, row in enumerate(lists["edges"]):
        id_ = text_of(row.get("uuid")) or f"edge {number}"
        ends = [names.get(text_of(row.get(f"{end}_node_uuid"))) for end in ("source", "target")]
        if None in ends:
            importing.omitted["facts whose entities are not in the file"] += 1
            continue
        facts[id_] = {
            "source": ends[0], "relation": text_of(row.get("name")), "target": ends[1],
            "text": text_of(row.get("fact")), "valid_at": time_text(row.get("valid_at")),
            "invalid_at": time_text(row.get("invalid_at")),
        }  # fmt: skip
        homes[id_] = [text_of(uuid) for uuid in row.get("episodes") or row.get("episode_uuids") or ()]
    texts = [
        Unit(
            id=text_of(row.get("uuid")),
            at=known_moment(row.get("valid_at") or row.get("reference_time") or row.get("created_at")),
            text=text_of(row.get("content")),
            source=text_of(row.get("source_description"))[:256],
            about={name: row.get(name) for name in ("name", "source", "created_at")},
        )
        for row in lists["episodes"]
    ]
    yield from with_facts(texts, facts, homes)
    importing.omitted["entities in no fact"] += without_facts(names.values(), facts)


def _rows(document: object, names: tuple[str, ...], path: Path) -> list[dict[str, Any]]:
    if not isinstance(document, dict):
        raise InputError(f"{path} is not a JSON object with lists of episodes, nodes and edges")
    rows: Any = next((document[name] for name in names if document.get(name)), [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: {names[0]} is not a list of objects")
    return rows
