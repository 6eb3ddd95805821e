"""Groups from one store to another, and imports from other programs.

copying   a group into a store that never had it, verified row by row
sums      counts and hashes of a group's rows, by which two stores are compared
graphiti  a Graphiti database as episodes of triples
"""

from __future__ import annotations

from kgray.transfer.copying import Copied, copy_group, settings_of_target

__all__ = ["Copied", "copy_group", "settings_of_target"]
