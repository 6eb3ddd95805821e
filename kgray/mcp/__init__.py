"""The memory for agents, by the Model Context Protocol: seven tools on one group."""

from __future__ import annotations
