"""Embeddings of a world: hashed spelling, drawn towards the full name where a text is an entity's name."""

from __future__ import annotations

import numpy as np

from kgray.models.hashing import HashingEmbedder
from kgray.ports import Matrix
from tests.world.world import World


class WorldEmbedder:
    """affinity 0: spelling alone · 1: every name of an entity has the vector of its full name."""

    def __init__(self, world: World, *, dimensions: int = 1024, affinity: float = 0.0) -> None:
        """Index the names of entities; a name of several entities keeps its own vector."""
        self._inner = HashingEmbedder(dimensions)
        self._affinity = affinity
        self.dimensions = dimensions
        self.identity = f"world-hashing/{dimensions}/{affinity:g}"
        full: dict[str, set[str]] = {}
        for group in world.groups:
            for entity in world.entities(group):
                for surface in (entity.name, *(s for _, s in entity.aliases)):
                    full.setdefault(surface, set()).add(entity.name)
        self._full = {surface: next(iter(names)) for surface, names in full.items() if len(names) == 1}

    async def embed(self, texts: list[str]) -> Matrix:
        """Return (len(texts), dimensions), rows of unit length."""
        vectors = await self._inner.embed(texts)
        if not self._affinity:
            return vectors
        drawn = await self._inner.embed([self._full.get(text, text) for text in texts])
        mixed = (1 - self._affinity) * vectors.astype(np.float64) + self._affinity * drawn
        unit: Matrix = (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float32)
        return unit
