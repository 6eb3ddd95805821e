"""The production store: a Neo4j database, log and graph, shared by all groups; begin at `store`."""

from kgray.storage.neo4j.store import Neo4jStore, open_neo4j

__all__ = ["Neo4jStore", "open_neo4j"]
