"""The production store: a Neo4j database, log and graph, shared by all groups.

store           Neo4jStore, `open_neo4j`; appends exactly once; copies a group in from another store
connection      the driver, its transactions, and its errors as kgray's, in one line each
mapping         where each kind of the record table lies
schema          constraints and indexes, made and checked; the meta node
statements      the statements that follow from the mapping, declared reads; statements_by_hand: all others
fence           the epoch and the lease of a writer
groups          counters of groups, locked in one order; deletes a whole group
row_writer      writes a batch of rows
graphiti        reads a database that Graphiti wrote
"""

from __future__ import annotations

from kgray.stores.neo4j.store import Neo4jStore, open_neo4j

__all__ = ["Neo4jStore", "open_neo4j"]
