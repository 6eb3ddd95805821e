"""The production store: a Neo4j database, log and graph, shared by all groups.

store           Neo4jStore, `open_neo4j`
connection      the driver and its transactions; errors: its errors in one line
mapping         where each kind of the record table lies; schema: constraints and indexes that follow from it
setup           they are made and checked
statements      the statements that follow from the mapping; statements_by_hand: all others
values          rows to what statements take, and back
reading         declared reads; nearest, lexical: what search asks
fence           the epoch and the lease of a writer
groups          counters of groups, locked in one order
applying        a batch of changes; batch: folded to rows; row_writer: to the database
appending       what any process appends to the log
clearing        a whole group goes; adoption: one comes from another store
graphiti        a Graphiti database, read
"""

from __future__ import annotations

from kgray.stores.neo4j.store import Neo4jStore, open_neo4j

__all__ = ["Neo4jStore", "open_neo4j"]
