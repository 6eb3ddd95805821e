"""What the tests of the stores share."""

from __future__ import annotations

from tests.graph.stores import group, other, store, stores

__all__ = ["group", "other", "store", "stores"]
