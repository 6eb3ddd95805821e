"""The memory for frameworks of agents, an extra each: docs/adapters.md. The shared code is in `turns`."""
