"""The production store: a Neo4j database, log and graph, shared by all groups.

store       Neo4jStore, `open_neo4j`
connection  the driver and its transactions; failing: its errors in one line
schema      labels, constraints, indexes; founding: made, checked, migrated
fence       the epoch and the lease of a writer
groups      counters of groups, locked in one order
appending   acceptance, requests, retries; log: what is pending, answers, failures, counts
writing     a run's writes; collecting: folded to rows; carrying: to the database; erasing: removal
records     a group's records as they are loaded
reading     look-ups; view: the derived graph; nearest, lexical: what search asks
copying     a group out, row by row; adopting: in
rows        values to rows and back
"""

from __future__ import annotations

from kgray.stores.neo4j.store import Neo4jStore, open_neo4j

__all__ = ["Neo4jStore", "open_neo4j"]
