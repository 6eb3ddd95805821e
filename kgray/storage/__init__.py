"""Stores: the embedded one (SQLite), and a server's (Neo4j)."""
