"""The production store: a Neo4j database, log and graph, shared by all groups.

store           Neo4jStore, `open_neo4j`
connection      the driver and its transactions; errors: its errors as kgray's, in one line each
mapping         where each kind of the record table lies; schema: constraints and indexes that follow from it
setup           makes and checks constraints and indexes, and the meta node
statements      the statements that follow from the mapping; statements_by_hand: all others
values          rows to what statements take, and back
reading         declared reads; nearest, lexical: what search asks
fence           the epoch and the lease of a writer
groups          counters of groups, locked in one order
applying        a batch of changes; batch: folded to rows; row_writer: to the database
appending       what any process appends to the log
clearing        deletes a whole group; adoption: copies one in from another store
graphiti        reads a database that Graphiti wrote
"""

from __future__ import annotations

from kgray.stores.neo4j.store import Neo4jStore, open_neo4j

__all__ = ["Neo4jStore", "open_neo4j"]
