"""A group's state in memory, which deciding reads: the graph, the names, their vectors.

It is built from the store when first needed, kept current by commits, and dropped when a commit fails or a
correction changes records of any age. A property test checks that a loaded state equals a kept one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kgray import rows
from kgray.derivation.absorb import absorb, refolds
from kgray.derivation.change import Difference, EpisodeChange
from kgray.derivation.group import GroupGraph
from kgray.derivation.statements import Statement
from kgray.derivation.stored import garbage_collected_rarely, records_of
from kgray.ingest.candidates import NameIndex, Nearest
from kgray.kinds import ALL, STATEMENT_VECTORS_OF
from kgray.ports import Store, Vector
from kgray.records import GroupRecords
from kgray.times import Instant

# Measured: loading a generated group of 24,900 statements and 35,577 names took 327 MB of resident memory.
# How that divides between the two is an estimate.
BYTES_A_STATEMENT = 8_000
BYTES_A_NAME = 3_500


class GroupState:
    """One group's graph with the look-ups that resolution needs. Has one owner; not thread-safe."""

    def __init__(
        self, records: GroupRecords, vectors: Iterable[tuple[str, str, Vector]], dimensions: int
    ) -> None:
        """Build everything from the group's live records and its name vectors, in order of insertion."""
        self.group = records.group
        self.graph = GroupGraph.build(records)
        self.names = NameIndex()
        self.nearest = Nearest(dimensions)
        self.last_recorded = records.last_recorded
        self.ontology_settled = False
        self.statement_vectors: dict[str, Vector] = {}
        self._owners: list[tuple[str, str]] = []  # row of `nearest` -> (recorded entity, surface)
        self._rulings = 0  # commits with rulings: each may change which statements are compared
        self._vectors_for: tuple[str, int] = ("relation", 0 if not records.rulings else -1)
        self._index_names()
        self._index_vectors(vectors)

    @classmethod
    def load(cls, store: Store, group: str, dimensions: int) -> GroupState:
        """Read the group from the store."""
        with garbage_collected_rarely():
            return cls(records_of(store, group), name_vectors(store, group), dimensions)

    def size(self) -> int:
        """Return about how many bytes the state takes."""
        return len(self.graph.statements) * BYTES_A_STATEMENT + len(self._owners) * BYTES_A_NAME

    def is_guess(self, entity: str) -> bool:  # noqa: ARG002 - a view's answer depends on it
        """Return False: only a view has guesses."""
        return False

    def near_scored(self, vector: Vector, floor: float, limit: int) -> list[tuple[float, str]]:
        """Return (cosine, shown entity) of at most `limit` near names, nearest first."""
        found = []
        for cosine, row in self.nearest.near(vector, floor, limit):
            recorded, surface = self._owners[row]
            shown, _ = self.graph.fold.shown(recorded, surface, 0)
            note = self.graph.entities.get(shown)
            if note is not None and surface in note.surfaces:
                found.append((cosine, shown))
        return found

    def commit(self, change: EpisodeChange, recorded_at: Instant) -> Difference | None:
        """Apply a decided change; None = it folds stored relation names, so the state must be built anew."""
        if refolds(self.graph, change, recorded_at):
            return None
        difference = absorb(self.graph, change, recorded_at)
        for mention in change.mentions:
            shown, _ = self.graph.fold.shown(mention.entity, mention.surface, mention.sequence)
            self.names.add(shown, mention.surface)
        self._take_vectors(change)
        self._rulings += bool(change.rulings)
        self.ontology_settled = True
        self.last_recorded = recorded_at
        return difference

    def _index_names(self) -> None:
        for note in sorted(self.graph.entities.values(), key=lambda n: (n.born, n.id)):
            for surface in note.surfaces:
                self.names.add(note.id, surface)

    def _index_vectors(self, vectors: Iterable[tuple[str, str, Vector]]) -> None:
        rows: list[Vector] = []
        for owner, surface, vector in vectors:
            self._owners.append((owner, surface))
            rows.append(vector)
            if len(rows) == 4096:
                self.nearest.extend(np.stack(rows))
                rows.clear()
        if rows:
            self.nearest.extend(np.stack(rows))
        self._owned = set(self._owners)

    def _take_vectors(self, change: EpisodeChange) -> None:
        for mention, vector in change.name_vectors:
            # The row of a surface that only retracted mentions had is still there, as in the store.
            owner = (mention.entity, mention.surface)
            if owner not in self._owned:
                self._owners.append(owner)
                self._owned.add(owner)
                self.nearest.add(vector)
        for statement, vector in change.statement_vectors:
            if self._compares(self.graph.statements.get(statement)):
                self.statement_vectors[statement] = vector

    def lacks_vectors(self, judging: str) -> bool:
        """Whether `fetch_vectors` may have something to read: a ruling came since the last call."""
        return self._vectors_for != (judging, self._rulings)

    def fetch_vectors(self, store: Store, judging: str) -> None:
        """Read the missing vectors of the statements that are compared by similarity.

        Those of `depends` relations, or all with pipeline.judging = "statement". Called before deciding,
        never by it; nothing is read twice.
        """
        if not self.lacks_vectors(judging):
            return
        self._vectors_for = (judging, self._rulings)
        missing = [
            s.id
            for s in self.graph.statements.values()
            if s.id not in self.statement_vectors and (judging == "statement" or self._compares(s))
        ]
        if missing:
            found = store.rows(STATEMENT_VECTORS_OF, self.group, missing)
            self.statement_vectors.update((id_, rows.as_vector(kept)) for id_, kept in found)

    def _compares(self, statement: Statement | None) -> bool:
        if statement is None:
            return False
        if self._vectors_for[0] == "statement":
            return True
        return self.graph.relations.traits(statement.relation).cardinality == "depends"


def name_vectors(store: Store, group: str) -> Iterator[tuple[str, str, Vector]]:
    """Yield (recorded entity, surface, vector) of the names that a store keeps, in order of insertion."""
    for entity, surface, _, _, kept in store.rows(ALL["name_vectors"], group):
        yield entity, surface, rows.as_vector(kept)
