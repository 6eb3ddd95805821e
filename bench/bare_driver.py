"""The rows of a graph on Neo4j, written by its driver alone: a bound for any store on this server.

There is no engine, lease, lock or state of a group. One thread a lane sends an UNWIND statement for each
kind of row in a transaction; the ends of relationships are matched by their unique keys.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import neo4j
from neo4j.time import DateTime

from bench.empty_stores import EmptyStore
from kgray.storage.neo4j.mapping import STORED

Rows = list[dict[str, Any]]
_KEYS = {stored.label: ("group_id", *stored.key) for stored in STORED.values() if not stored.edge}
_NODES = "MATCH (n) WHERE n.group_id STARTS WITH $prefix RETURN elementId(n), labels(n), properties(n)"
_EDGES = (
    "MATCH (s)-[r]->(o) WHERE r.group_id STARTS WITH $prefix "
    "RETURN elementId(s), type(r), properties(r), elementId(o)"
)


@dataclass(slots=True)
class Transaction:
    """The rows of one transaction by statement, nodes first."""

    nodes: defaultdict[str, Rows] = field(default_factory=lambda: defaultdict(list))
    edges: defaultdict[str, Rows] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The transactions of each lane, and the number of rows in them."""

    lanes: list[list[Transaction]]
    count: int


def driver_of(place: EmptyStore) -> neo4j.Driver:
    """Return a driver of the store's server; close it at the end."""
    auth = place.settings["store_user"], place.password
    return neo4j.GraphDatabase.driver(place.settings["store_uri"], auth=auth)


def stored_rows(place: EmptyStore, prefix: str, *, lanes: int, transactions: int) -> StoredRows:
    """Return the rows of the groups with a prefix, in `transactions` of equal size for each lane.

    A group is in one lane, so that no lane waits for rows of another lane.
    """
    with driver_of(place) as driver:
        nodes = driver.execute_query(_NODES, prefix=prefix).records
        edges = driver.execute_query(_EDGES, prefix=prefix).records
    groups = sorted({record[2]["group_id"] for record in nodes})
    lane_of = {group: number % lanes for number, group in enumerate(groups)}
    parts = [[Transaction() for _ in range(transactions)] for _ in range(lanes)]
    by_kind: dict[tuple[int, str], list[tuple[str, list[str], dict[str, Any]]]] = defaultdict(list)
    values = {identity: properties for identity, labels, properties in nodes if "Value" in labels}
    for identity, labels, properties in nodes:
        if identity in values:
            continue  # it has no key, and is created with its fact
        label = next(name for name in labels if name in _KEYS)
        by_kind[lane_of[properties["group_id"]], label].append((identity, labels, properties))
    place_of: dict[str, tuple[int, str, dict[str, Any]]] = {}  # node -> transaction, label, properties
    for (lane, label), rows in by_kind.items():
        for number, (identity, labels, properties) in enumerate(rows):
            at = number * transactions // len(rows)
            place_of[identity] = at, label, properties
            parts[lane][at].nodes[_put_node(label, labels, properties)].append(_plain(properties))
    for start, name, properties, end in edges:
        lane = lane_of[properties["group_id"]]
        first, label, source = place_of[start]
        row = {"row": _plain(properties), "s": _key(label, source)}
        if end in values:
            row["o"] = values[end]
            parts[lane][first].edges[_put_edge(label, name, None, properties)].append(row)
        else:
            second, target, key = place_of[end]
            row["o"] = _key(target, key)
            parts[lane][max(first, second)].edges[_put_edge(label, name, target, properties)].append(row)
    return StoredRows(parts, len(nodes) + len(edges))


def write(place: EmptyStore, rows: StoredRows) -> float:
    """Write the rows; return the seconds."""
    with driver_of(place) as driver, ThreadPoolExecutor(len(rows.lanes)) as pool:
        driver.verify_connectivity()
        start = time.perf_counter()
        list(pool.map(lambda lane: _write_lane(driver, lane), rows.lanes))
        return time.perf_counter() - start


def _write_lane(driver: neo4j.Driver, lane: Iterable[Transaction]) -> None:
    with driver.session() as session:
        for part in lane:
            session.execute_write(_write_part, part)


def _write_part(running: neo4j.ManagedTransaction, part: Transaction) -> None:
    for statement, rows in (*part.nodes.items(), *part.edges.items()):
        running.run(statement, rows=rows).consume()


def _key(label: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: properties[name] for name in _KEYS[label]}


def _matched(variable: str, label: str, row: str) -> str:
    return f"({variable}:{label} {{{', '.join(f'{name}: {row}.{name}' for name in _KEYS[label])}}})"


def _put_node(label: str, labels: Iterable[str], properties: Mapping[str, Any]) -> str:
    further_labels = "".join(f":{name}" for name in sorted(labels) if name != label)
    return (
        f"UNWIND $rows AS row MERGE {_matched('n', label, 'row')} SET n = row{_times('n', 'row', properties)}"
        + (f", n{further_labels}" if further_labels else "")
    )


def _put_edge(source: str, name: str, target: str | None, properties: Mapping[str, Any]) -> str:
    """Return the statement for relationships; without a target, each creates its own value."""
    match = f"UNWIND $rows AS row MATCH {_matched('s', source, 'row.s')} "
    end = ":Value {group_id: row.o.group_id, uuid: row.o.uuid, name: row.o.name}"
    if target is not None:
        match, end = f"{match}MATCH {_matched('o', target, 'row.o')} ", "o"
    return f"{match}CREATE (s)-[r:{name}]->({end}) SET r = row.row{_times('r', 'row.row', properties)}"


def _times(variable: str, row: str, properties: Mapping[str, Any]) -> str:
    # The driver spends 140 us on each datetime; the server converts texts.
    names = sorted(name for name, value in properties.items() if isinstance(value, DateTime))
    return "".join(f", {variable}.{name} = datetime({row}.{name})" for name in names)


def _plain(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties with texts for datetimes."""
    return {
        name: value.iso_format() if isinstance(value, DateTime) else value
        for name, value in properties.items()
    }
