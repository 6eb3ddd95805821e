"""Entities from mentions: name, aliases, labels, card (R16, R21), through merges and splits (R16).

An operation names entities as they showed when it was recorded. A mention keeps the id that it was resolved
to; the entity it shows as follows by applying the operations in force, in order. So undoing one gives its
mentions back, later ones of the same surface included, and no id ever changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kgray.derivation import names
from kgray.errors import InputError
from kgray.graph import Entity
from kgray.records import Mention, Operation, Place
from kgray.times import Instant


@dataclass(slots=True)
class EntityNote:
    """An entity as derived from its mentions, which are taken in order of place.

    surfaces: surface -> the recorded entity it was first resolved to, oldest first. After a merge of
    several recorded entities, a new mention of a known surface is recorded with the surface's own
    entity, so that undoing the merge gives the mention back (R16).
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
    """Return the text that describes an entity to a model; it never changes (R21)."""
    kind = f" ({label})" if label else ""
    return f"{name}{kind}: {sentence}" if sentence else f"{name}{kind}"


class Fold:
    """The merges and splits in force, as a function from recorded entity to shown entity."""

    def __init__(
        self, operations: Sequence[Operation], births: Mapping[str, Place], recorded: Mapping[int, Instant]
    ) -> None:
        """Take all merges, splits and undos, in order."""
        undone = {o.target for o in operations if o.kind == "undo"}
        self._births = births
        self._recorded = recorded
        self._steps = [o for o in operations if o.kind != "undo" and o.sequence not in undone]
        self._returned = {
            o.made: o.entities[0]
            for o in operations
            if o.kind == "split" and o.minted and o.sequence in undone
        }
        self._made_at = {o.made: o.sequence for o in self._steps if o.kind == "split"}
        self._involved = {i for o in operations for i in (*o.entities, o.made) if i}

    @property
    def in_force(self) -> tuple[Operation, ...]:
        """The merges and splits that were not undone, in order."""
        return tuple(self._steps)

    def shown(self, entity: str, surface: str, sequence: int) -> tuple[str, Instant]:
        """Return the entity a mention shows as, and the record time of its last move (0 = none)."""
        if entity not in self._involved:
            return entity, 0
        current, since = entity, 0
        while current in self._returned:
            current = self._returned[current]
        # A mention recorded after the split that made its entity was resolved with earlier steps in force.
        made_at = self._made_at.get(entity, 0)
        settled = made_at if sequence > made_at else 0
        for step in self._steps:
            if step.sequence <= settled or current not in step.entities:
                continue
            if step.kind == "merge":
                target = self.first_born(step.entities)
            elif sequence < step.sequence and names.key(surface) in step.moved:
                # Only earlier mentions move: later ones were resolved with the split in force.
                target = step.made
            else:
                continue
            if target != current:
                current, since = target, self._recorded[step.sequence]
        return current, since

    def first_born(self, entities: Sequence[str]) -> str:
        """Return the id born first: the one that a merged entity shows as."""
        return min(entities, key=lambda i: (self._births[i], i))

    def check_undo(self, target: int) -> Operation:
        """Return the operation with sequence `target`, if it can be undone now.

        Raises InputError where no such operation is in force, or a later one depends on it.
        """
        for step in self._steps:
            if step.sequence == target:
                touched = {*step.entities, step.made}
                break
        else:
            raise InputError(f"{target} is not the sequence of a merge or split in force: nothing to undo.")
        for later in self._steps:
            if later.sequence > target and touched & {*later.entities, later.made}:
                raise InputError(
                    f"{later.kind} {later.sequence} rests on {target}: undo {later.sequence} first."
                )
        return step
