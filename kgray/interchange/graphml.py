"""GraphML: a directed multigraph, an edge for each fact between entities."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from kgray.graph import Entity
from kgray.interchange.files import Graphml, Rows, fact_row, new_file
from kgray.interchange.snapshot import Snapshot

NODE = dict.fromkeys("label name type labels aliases summary values".split(), "string")
_EDGE = dict.fromkeys(
    "label relation text statement valid_at invalid_at created_at expired_at episodes ended_by".split(),
    "string",
) | {"event": "boolean"}


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write one file."""
    values, places = values_of(snapshot), community_places(snapshot)
    depths = sorted({name for of in places.values() for name in of})
    rows = {"entity": 0, "fact": 0, "value": sum(map(len, values.values()))}
    with new_file(path) as file:
        nodes = NODE | dict.fromkeys(depths, "string")
        graph = Graphml(file, nodes=nodes, edges=_EDGE, directed=True)
        for entity in snapshot.entities:
            attributes = node_row(snapshot, entity, values) | places.get(entity.id, {})
            graph.add("node", {"id": entity.id}, attributes)
            rows["entity"] += 1
        for fact in snapshot.facts():
            if fact.target is not None:
                row = fact_row(fact) | {"label": fact.relation}
                place = {"id": fact.id, "source": fact.source, "target": fact.target}
                graph.add("edge", place, {name: row[name] for name in _EDGE})
                rows["fact"] += 1
        graph.close(snapshot.about())
    return rows


def node_row(snapshot: Snapshot, entity: Entity, values: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the attributes of a node; lists are JSON."""
    return {
        "label": snapshot.names[entity.id],
        "name": entity.name,
        "type": entity.labels[0] if entity.labels else None,
        "labels": list(entity.labels) or None,
        "aliases": list(entity.aliases) or None,
        "summary": entity.summary or None,
        "values": values.get(entity.id),
    }


def values_of(snapshot: Snapshot) -> dict[str, list[Any]]:
    """Return entity id -> its facts with a value, which no node can stand for."""
    found = defaultdict[str, list[Any]](list)
    for fact in snapshot.facts():
        if fact.target is None:
            found[fact.source].append(fact_row(fact))
    return found


def community_places(snapshot: Snapshot) -> dict[str, dict[str, str]]:
    """Return entity id -> "community_0" for the coarsest, and so on -> the title of its community."""
    found = defaultdict[str, dict[str, str]](dict)
    for one in snapshot.communities:
        for member in one.members:
            found[member][f"community_{one.depth}"] = one.title
    return found
