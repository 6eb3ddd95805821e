"""What the tests of the stores share."""

from __future__ import annotations

from tests.graph.stores import neo4j_driver, store, stores

__all__ = ["neo4j_driver", "store", "stores"]
