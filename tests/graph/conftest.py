"""Fixtures shared by the tests of the stores."""

from __future__ import annotations

from tests.graph.stores import ask, group, mine, other_group, store, stores

__all__ = ["ask", "group", "mine", "other_group", "store", "stores"]
