"""Reads the JSON of Zep and Graphiti: episodes, nodes and edges by the names of their models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgray.errors import InputError
from kgray.io.interchange.gathering import Unit
from kgray.io.interchange.importing import REPEATED, Import, known_moment, text_of, time_text
from kgray.io.interchange.lines import read_members

_LISTS = {
    "episodes": ("episodes", "episodic_nodes"),
    "nodes": ("nodes", "entities", "entity_nodes"),
    "edges": ("edges", "facts", "entity_edges"),
}


def units(path: Path, importing: Import) -> Iterator[Unit]:
    """Yield the episodes, oldest first, then the facts without an episode. Raises InputError.

    `expired_at` is a record time, not the end of a fact: it is kept out of the spans.
    """
    gathered, chosen = importing.gathered, _chosen(path)
    if "edges" not in chosen:
        raise InputError(f"{path} has no list of {', '.join(_LISTS['edges'])}: is it an export of Zep?")
    for row in _rows(path, chosen.get("nodes")):
        gathered.add_name(text_of(row.get("uuid")), text_of(row.get("name")))
    for number, row in enumerate(_rows(path, chosen["edges"])):
        ends = [gathered.name(text_of(row.get(f"{end}_node_uuid"))) for end in ("source", "target")]
        if None in ends:
            importing.omitted["facts whose entities are not in the file"] += 1
            continue
        fact = {
            "source": ends[0], "relation": text_of(row.get("name")), "target": ends[1],
            "text": text_of(row.get("fact")), "valid_at": time_text(row.get("valid_at")),
            "invalid_at": time_text(row.get("invalid_at")),
        }  # fmt: skip
        homes = row.get("episodes") or row.get("episode_uuids") or ()
        if not isinstance(homes, list | tuple):
            raise InputError(f"{path}: {chosen['edges']}[{number}].episodes is not a list")
        id_ = text_of(row.get("uuid")) or f"edge {number}"
        importing.omitted[REPEATED] += not gathered.add_fact(id_, fact, map(text_of, homes))
    for row in _rows(path, chosen.get("episodes")):
        at = row.get("valid_at") or row.get("reference_time") or row.get("created_at")
        gathered.add_text(
            Unit(
                id=text_of(row.get("uuid")),
                at=known_moment(at),
                text=text_of(row.get("content")),
                source=text_of(row.get("source_description"))[:256],
                about={name: text_of(row.get(name)) or None for name in ("name", "source", "created_at")},
            )
        )
    importing.omitted["entities in no fact"] += gathered.without_facts()
    yield from gathered.units()


def _chosen(path: Path) -> dict[str, str]:
    """Return the kind of rows -> the key of its list, the first that has rows. Reads the whole file."""
    filled = set[str]()
    for key, row, is_item in read_members(path):
        if not key:
            raise InputError(f"{path} is not a JSON object with lists of episodes, nodes and edges")
        if any(key in names for names in _LISTS.values()) and (is_item or row != []):
            if not is_item or not isinstance(row, dict):
                raise InputError(f"{path}: {key} is not a list of objects")
            filled.add(key)
    names_of = {kind: next(filter(filled.__contains__, names), None) for kind, names in _LISTS.items()}
    return {kind: name for kind, name in names_of.items() if name is not None}


def _rows(path: Path, key: str | None) -> Iterator[dict[str, Any]]:
    return (row for name, row, is_item in read_members(path) if name == key and is_item) if key else iter(())
