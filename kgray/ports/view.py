"""The port of readers of a group's graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import Episode, Place
from kgray.domain.times import Instant


class GraphView(Protocol):
    """The derived graph of a group, as known at a moment; recorded ids resolve to current rows.

    A current id resolves to itself (a split may have created it); an id that is not current gives no row.
    as_of None = at any time. Facts of an id or a piece of evidence are sorted by (valid_at, id).
    """

    group: str

    def facts_of(self, statements: Sequence[str], as_of: Instant | None) -> list[Fact]:
        """Return the facts at `as_of` of the statements of these recorded ids, in their order, each once."""

    def facts_of_evidence(self, places: Sequence[Place], as_of: Instant | None) -> list[list[Fact]]:
        """Return for each piece of evidence the facts at `as_of` of its statement."""

    def facts_at(self, entities: Sequence[str], as_of: Instant | None, limit: int | None) -> list[Fact]:
        """Return facts whose source or target is among these entities, newest `created_at` first, then by id."""

    def facts(self, ids: Sequence[str]) -> list[Fact]:
        """Return the facts with these ids."""

    def entities(self, recorded: Sequence[str]) -> list[Entity]:
        """Return the current entities of these recorded ids, in their order, each once."""
        entities = (entity for part in self.entities_of(recorded) for entity in part)
        return list({entity.id: entity for entity in entities}.values())

    def entities_named(self, name: str) -> list[Entity]:
        """Return the entities with this name or alias (ignoring case and spacing), oldest first."""

    def entities_of(self, recorded: Sequence[str]) -> list[list[Entity]]:
        """Return for each recorded id its current entities: several after a split, else one or none."""

    def episodes(self, sequences: Sequence[int]) -> list[Episode]:
        """Return the committed, live episodes with these sequences, in this order."""

    def supporters(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Return episode id -> client id."""
