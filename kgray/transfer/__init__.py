"""Memory from elsewhere: a group from one store to another, and what another program has gathered.

copying   a group into a store that never had it, verified row by row
graphiti  a Graphiti database as episodes of triples
"""

from __future__ import annotations

from kgray.transfer.copying import Copied, copy_group, settings_of_target

__all__ = ["Copied", "copy_group", "settings_of_target"]
