"""What the tests of the stores share."""

from __future__ import annotations

from tests.graph.stores import ask, group, mine, other, store, stores

__all__ = ["ask", "group", "mine", "other", "store", "stores"]
