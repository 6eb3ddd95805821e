"""Copies groups between stores, and imports from other programs.

copying   copies a group into a store that never had it, and verifies every row by counts and hashes
graphiti  turns a Graphiti database into episodes of triples
"""

from __future__ import annotations

from kgray.transfer.copying import Copied, copy_group

__all__ = ["Copied", "copy_group"]
