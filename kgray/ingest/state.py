"""What deciding reads of a group, in memory: the graph, the names, their vectors.

Built from the store when first needed, kept current by commits, dropped whole when a commit fails
or a correction moves records of any age. Loaded equals kept: a property test holds one against the
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kgray.derivation.absorb import Addition, absorb, compare, refolds
from kgray.derivation.group import GroupGraph
from kgray.derivation.statements import Statement
from kgray.graph import Derived
from kgray.ingest.collecting import rare_collections
from kgray.ingest.lookup import NameIndex
from kgray.ingest.nearest import Nearest
from kgray.ingest.values import Change
from kgray.ports import NamedVector, Store, Vector
from kgray.records import EpisodeHead, GroupRecords, Operation
from kgray.times import Instant

# Together what resident memory grew by when a generated group of 24,900 statements and 35,577 names was
# loaded (327 MB), what loading leaves behind included; the split between the two is an estimate.
BYTES_A_STATEMENT = 8_000
BYTES_A_NAME = 3_500


class GroupState:
    """One group's graph with the look-ups that resolution needs. One owner; not thread-safe."""

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
        self._rulings = 0  # how often rulings came: what is compared may have changed
        self._vectors_for: tuple[str, int] = ("relation", 0 if not records.rulings else -1)
        self._index_names()
        self._index_vectors(vectors)

    @classmethod
    def load(cls, store: Store, group: str, dimensions: int) -> GroupState:
        """Read the group from the store."""
        with rare_collections():
            return cls(store.records(group), store.name_vectors(group), dimensions)

    def size(self) -> int:
        """Return about how many bytes the state takes."""
        return len(self.graph.statements) * BYTES_A_STATEMENT + len(self._owners) * BYTES_A_NAME

    def is_guess(self, entity: str) -> bool:  # noqa: ARG002 - a view's answer depends on it
        """Whether an entity stands for a question that is still open: never, on the true state."""
        return False

    def near_names(self, vector: Vector, floor: float, limit: int) -> list[str]:
        """Return the shown entities one of whose names is near, nearest first, each once."""
        return list(dict.fromkeys(entity for _, entity in self.near_scored(vector, floor, limit)))

    def near_scored(self, vector: Vector, floor: float, limit: int) -> list[tuple[float, str]]:
        """Return (cosine, shown entity) of the names that are near, nearest first."""
        found = []
        for cosine, row in self.nearest.near(vector, floor, limit):
            recorded, surface = self._owners[row]
            shown, _ = self.graph.fold.shown(recorded, surface, 0)
            note = self.graph.entities.get(shown)
            if note is not None and surface in note.surfaces:
                found.append((cosine, shown))
        return found

    def commit(self, change: Change, recorded_at: Instant) -> Derived | None:
        """Take a decided change in; None = it folds stored names, so the state must be built anew."""
        addition = addition_of(change, recorded_at)
        if refolds(self.graph, addition):
            return None
        derived = absorb(self.graph, addition)
        for mention in change.mentions:
            shown, _ = self.graph.fold.shown(mention.entity, mention.surface, mention.sequence)
            self.names.add(shown, mention.surface)
        self._take_vectors(change.vectors)
        self._rulings += bool(change.rulings)
        self.ontology_settled = True
        self.last_recorded = recorded_at
        return derived

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

    def _take_vectors(self, vectors: Sequence[NamedVector]) -> None:
        for named in vectors:
            if named.kind == "name":
                # A surface that only retracted mentions bore has its row still, here as in the store.
                if (named.owner, named.text) not in self._owned:
                    self._owners.append((named.owner, named.text))
                    self._owned.add((named.owner, named.text))
                    self.nearest.add(named.vector)
            elif named.kind == "statement" and self._compares(self.graph.statements.get(named.owner)):
                self.statement_vectors[named.owner] = named.vector

    def lacks_vectors(self, judging: str) -> bool:
        """Whether a ruling came since `fetch_vectors`, so that it may have something to read."""
        return self._vectors_for != (judging, self._rulings)

    def fetch_vectors(self, store: Store, judging: str) -> None:
        """Read the vectors of statements that are compared by likeness, where a ruling made them so.

        Called before deciding, never by it: `depends` relations only, or all with
        pipeline.judging = "statement"; nothing is read twice.
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
            self.statement_vectors.update(store.statement_vectors(self.group, missing))

    def _compares(self, statement: Statement | None) -> bool:
        if statement is None:
            return False
        if self._vectors_for[0] == "statement":
            return True
        return self.graph.relations.traits(statement.relation).cardinality == "depends"


def addition_of(change: Change, recorded_at: Instant) -> Addition:
    """Return the change with its record time."""
    episode = change.episode
    head = EpisodeHead(
        sequence=episode.sequence,
        id=episode.id,
        reference_time=episode.reference_time,
        recorded_at=recorded_at,
    )
    return Addition(
        head=head,
        entity_births=change.entity_births,
        statement_births=change.statement_births,
        mentions=change.mentions,
        evidence=change.evidence,
        rulings=change.rulings,
        verdicts=change.verdicts,
    )


def with_change(records: GroupRecords, change: Change, recorded_at: Instant) -> GroupRecords:
    """Return the records as they will stand once the change is written."""
    addition = addition_of(change, recorded_at)
    return GroupRecords(
        group=records.group,
        heads=[*records.heads, addition.head],
        mentions=[*records.mentions, *change.mentions],
        evidence=[*records.evidence, *change.evidence],
        rulings=[*records.rulings, *change.rulings],
        verdicts=[*records.verdicts, *change.verdicts],
        operations=records.operations,
        recorded={**records.recorded, change.episode.sequence: recorded_at},
        births={**dict((*change.entity_births, *change.statement_births)), **records.births},
        last_recorded=recorded_at,
    )


def with_operation(records: GroupRecords, operation: Operation, recorded_at: Instant) -> GroupRecords:
    """Return the records as they will stand once a merge, split or undo is written."""
    return GroupRecords(
        group=records.group,
        heads=records.heads,
        mentions=records.mentions,
        evidence=records.evidence,
        rulings=records.rulings,
        verdicts=records.verdicts,
        operations=[*records.operations, operation],
        recorded={**records.recorded, operation.sequence: recorded_at},
        births=records.births,
        last_recorded=recorded_at,
    )


def rebuilt(old: GroupGraph, records: GroupRecords) -> Derived:
    """Return what differs between a graph and the one that these records derive."""
    return compare(old, GroupGraph.build(records))


__all__ = ["GroupState", "addition_of", "rebuilt", "with_change", "with_operation"]
