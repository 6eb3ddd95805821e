"""The memory for frameworks of agents, an extra each: docs/adapters.md. What they share is in `turns`."""
