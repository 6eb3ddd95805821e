"""GraphML: a directed multigraph, an edge for each fact between entities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kgray.domain.graph import Entity
from kgray.io.interchange.files import Graphml, Rows, fact_row, new_file
from kgray.io.interchange.snapshot import Snapshot

NODE = dict.fromkeys("label name type labels aliases summary values".split(), "string")
_EDGE = dict.fromkeys(
    "label relation text statement valid_at invalid_at created_at expired_at episodes ended_by".split(),
    "string",
) | {"event": "boolean"}


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write one file."""
    rows = {"entity": 0, "fact": 0, "value": 0}
    with new_file(path) as file:
        nodes = NODE | dict.fromkeys(community_names(snapshot), "string")
        graph = Graphml(file, nodes=nodes, edges=_EDGE, directed=True)
        for entity in snapshot.entities():
            attributes, values = node_row(snapshot, entity)
            graph.add("node", {"id": entity.id}, attributes)
            rows["entity"] += 1
            rows["value"] += values
        for fact in snapshot.facts():
            if fact.target is not None:
                row = fact_row(fact) | {"label": fact.relation}
                place = {"id": fact.id, "source": fact.source, "target": fact.target}
                graph.add("edge", place, {name: row[name] for name in _EDGE})
                rows["fact"] += 1
        graph.close(snapshot.about())
    return rows


def node_row(snapshot: Snapshot, entity: Entity) -> tuple[dict[str, Any], int]:
    """Return the attributes of a node, lists as JSON, and the number of its facts with a value.

    A value is no node.
    """
    values = [fact_row(fact) for fact in snapshot.facts_of(entity.id, both=False) if fact.target is None]
    attributes = {
        "label": snapshot.name_of(entity.id),
        "name": entity.name,
        "type": entity.labels[0] if entity.labels else None,
        "labels": list(entity.labels) or None,
        "aliases": list(entity.aliases) or None,
        "summary": entity.summary or None,
        "values": values or None,
    }
    places = snapshot.places.get(entity.id, ())
    return attributes | {f"community_{c.depth}": c.title for c in places}, len(values)


def community_names(snapshot: Snapshot) -> list[str]:
    """Return the attributes with the communities of a node: "community_0" for the coarsest, and so on."""
    return [f"community_{depth}" for depth in sorted({c.depth for c in snapshot.communities})]
