"""A whole Neo4j database as JSON lines that any server version can load: nodes, relationships, indexes.

{"labels": [...], "properties": {...}}            a node; its id is its line's number among nodes, from 0
{"type": ..., "start": id, "end": id, "properties": {...}}
{"index": ..., "kind": ..., "entity": "NODE" | "RELATIONSHIP", "of": label or type, "properties": [...],
 "unique": whether a constraint has the name, "eventually_consistent": of a full-text index}

A property that JSON does not have is {"bytes": base64} or {"datetime": ISO 8601}.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

_NODES = "MATCH (n) RETURN elementId(n) AS id, labels(n) AS labels, properties(n) AS properties"
_EDGES = """
MATCH (a)-[r]->(b)
RETURN type(r) AS type, elementId(a) AS start, elementId(b) AS end, properties(r) AS properties
"""
_INDEXES = """
SHOW INDEXES YIELD name, type, entityType, labelsOrTypes, properties, owningConstraint, options
WHERE type <> 'LOOKUP'
RETURN * ORDER BY name
"""
_TEXT_OPTIONS = "OPTIONS {indexConfig: {`fulltext.eventually_consistent`: true}}"
_CONSISTENCY = "fulltext.eventually_consistent"
_BATCH = 500


def database_dump(driver: Any, *, omit: Iterable[str] = ()) -> bytes:
    """Return the database as compressed JSON lines; `omit`: names of properties to leave out."""
    omitted = frozenset(omit)

    def row(record: Any) -> dict[str, Any]:
        properties = {
            key: _as_json(value) for key, value in record["properties"].items() if key not in omitted
        }
        labels = {"labels": sorted(record["labels"])} if "labels" in record else {}
        return {**record, **labels, "properties": dict(sorted(properties.items()))}

    nodes = [(node.pop("id"), node) for node in map(row, _rows(driver, _NODES))]
    nodes.sort(key=lambda pair: _line(pair[1]))
    ids = {old: new for new, (old, _) in enumerate(nodes)}
    edges = [{**e, "start": ids[e["start"]], "end": ids[e["end"]]} for e in map(row, _rows(driver, _EDGES))]
    edges.sort(key=lambda edge: (edge["type"], edge["start"], edge["end"], _line(edge)))
    indexes = [
        {
            "index": index["name"],
            "kind": index["type"],
            "entity": index["entityType"],
            "of": index["labelsOrTypes"][0],
            "properties": index["properties"],
            "unique": index["owningConstraint"] is not None,
            "eventually_consistent": bool(index["options"]["indexConfig"].get(_CONSISTENCY)),
        }
        for index in _rows(driver, _INDEXES)
    ]
    lines = [*(node for _, node in nodes), *edges, *indexes]
    return gzip.compress("".join(_line(line) + "\n" for line in lines).encode(), mtime=0)


def load(driver: Any, dump: bytes) -> None:
    """Fill an empty database with a dump: its indexes, its nodes, its relationships."""
    lines = [json.loads(line) for line in gzip.decompress(dump).decode().splitlines()]
    for line in lines:
        if "index" in line:
            driver.execute_query(_creating(line))
    driver.execute_query("CALL db.awaitIndexes(600)")
    nodes: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    edges: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number, line in enumerate(line for line in lines if "labels" in line):
        row = {"id": number, "properties": _values(line)}
        nodes[tuple(line["labels"])].append(row)
    for line in lines:
        if "type" in line:
            edges[line["type"]].append({**line, "properties": _values(line)})
    ids: dict[int, str] = {}
    for labels, rows in nodes.items():
        named = "".join(f":`{label}`" for label in labels)
        statement = (
            f"UNWIND $rows AS row CREATE (n{named}) SET n = row.properties RETURN row.id, elementId(n)"
        )
        for part in _parts(rows):
            ids.update((row[0], row[1]) for row in driver.execute_query(statement, rows=part).records)
    for kind, rows in edges.items():
        statement = (
            "UNWIND $rows AS row MATCH (a) WHERE elementId(a) = row.start "
            f"MATCH (b) WHERE elementId(b) = row.end CREATE (a)-[r:`{kind}`]->(b) SET r = row.properties"
        )
        for part in _parts([{**row, "start": ids[row["start"]], "end": ids[row["end"]]} for row in rows]):
            driver.execute_query(statement, rows=part)


def _creating(index: dict[str, Any]) -> str:
    """Return the statement that makes an index, or a constraint that has it."""
    pattern = f"(n:`{index['of']}`)" if index["entity"] == "NODE" else f"()-[n:`{index['of']}`]-()"
    named = ", ".join(f"n.`{name}`" for name in index["properties"])
    if index["unique"]:
        return f"CREATE CONSTRAINT `{index['index']}` IF NOT EXISTS FOR {pattern} REQUIRE ({named}) IS UNIQUE"
    begin = f"CREATE {index['kind']} INDEX `{index['index']}` IF NOT EXISTS FOR {pattern} ON "
    if index["kind"] == "FULLTEXT":
        return f"{begin}EACH [{named}] {_TEXT_OPTIONS if index['eventually_consistent'] else ''}"
    return f"{begin}({named})"


def _rows(driver: Any, query: str) -> list[dict[str, Any]]:
    return [record.data() for record in driver.execute_query(query).records]


def _parts(rows: list[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    return (rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH))


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return {"bytes": base64.b64encode(value).decode()}
    return {"datetime": value.iso_format()} if hasattr(value, "iso_format") else value


def _values(line: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of a line as the driver takes them."""
    from neo4j.time import DateTime

    read = {"bytes": base64.b64decode, "datetime": DateTime.from_iso_format}
    return {
        key: next(read[name](text) for name, text in value.items()) if isinstance(value, dict) else value
        for key, value in line["properties"].items()
    }
