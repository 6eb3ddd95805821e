"""Entities from their mentions: name, aliases, labels, card (R16, R21)."""

from __future__ import annotations

from dataclasses import dataclass, field

from kgray.derivation import names
from kgray.graph import Entity
from kgray.records import Mention, Place


@dataclass(slots=True)
class EntityNote:
    """What a group's state keeps of an entity; mentions are taken in order of place.

    surfaces: surface -> the recorded entity it was first resolved to, oldest first. Where a merge
    folded several recorded entities, a mention of a known surface is recorded with its own one, so
    that undoing the merge gives it back (R16).
    """

    id: str
    born: Place
    name: str = ""
    surfaces: dict[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    card: str = ""

    def take(self, mention: Mention) -> bool:
        """Add the next mention; return whether the entity shows differently after it."""
        fresh = mention.surface not in self.surfaces
        changed = fresh
        if fresh:
            self.surfaces[mention.surface] = mention.entity
            if not self.name:
                self.name = mention.surface
                self.card = card(mention.surface, mention.type, mention.sentence)
            elif names.strictly_expands(mention.surface, self.name):
                self.name = mention.surface
        if mention.type and mention.type not in self.labels:
            self.labels = tuple(sorted((*self.labels, mention.type)))
            changed = True
        return changed

    def shown(self) -> Entity:
        """Return the entity as it shows."""
        aliases = tuple(sorted(s for s in self.surfaces if s != self.name))
        return Entity(id=self.id, name=self.name, aliases=aliases, labels=self.labels, born=self.born)


def card(name: str, label: str, sentence: str) -> str:
    """Return the text by which a model tells an entity from another; it never changes (R21)."""
    kind = f" ({label})" if label else ""
    return f"{name}{kind}: {sentence}" if sentence else f"{name}{kind}"
