"""What the tests of the stores share."""

from __future__ import annotations

from tests.graph.stores import store, stores

__all__ = ["store", "stores"]
