"""What deciding works with: an episode, what is known of its group, answers so far, and open questions.

`KnownState` is what deciding reads of a group: a `GroupState` is the true one, kept current by commits, and
equal to one that is loaded from the store; an `AheadState` shows uncommitted episodes too.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from kgray import rows
from kgray.derivation.change import Difference, EpisodeChange
from kgray.derivation.group import GroupGraph
from kgray.derivation.statements import Statement
from kgray.derivation.stored import garbage_not_collected, let_go, records_of
from kgray.ingest.candidates import NameIndex, Nearest
from kgray.ingest.extract import ToldNames
from kgray.kinds import ALL, Row
from kgray.ontology import Ontology
from kgray.ports import Answer, Embedding, Question, Store, Vector
from kgray.records import Episode, Extraction, GroupRecords
from kgray.times import Instant

if TYPE_CHECKING:
    from kgray.ingest.ahead import AheadState

KnownState: TypeAlias = "GroupState | AheadState"
# Measured: loading a generated group of 24,900 statements and 35,577 names took 327 MB of resident memory.
# How that divides between the two is an estimate.
BYTES_A_STATEMENT = 8_000
BYTES_A_NAME = 3_500
_LARGE_BYTES = 16 << 20

# gc.set_threshold: new objects per collection, and collections of one generation per one of the next.
_RARE = (100_000, 50, 1_000)


@contextmanager
def garbage_collected_rarely() -> Iterator[None]:
    """Let Python's cyclic garbage collector run rarely inside the block.

    It would scan the millions of objects of a group of 100,000 facts for every few hundred new ones.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_RARE)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def collect_garbage_rarely() -> None:
    """Do the same from now on, and leave alone what is there: for a worker or writer, 7 % of its time."""
    gc.freeze()
    gc.set_threshold(*_RARE)


@dataclass(slots=True, kw_only=True)
class ReadEpisode:
    """An episode with what its text says; `told`: the same under the run's ontology, once it was tried."""

    episode: Episode
    extraction: Extraction
    told: ToldNames | None = None


@dataclass(slots=True)
class Answers:
    """What an episode's earlier rounds gave: vectors by text, answers by question (R21)."""

    vectors: dict[str, Embedding] = field(default_factory=dict)
    said: dict[Question, Answer] = field(default_factory=dict)


@dataclass(slots=True)
class Questions:
    """What is missing before an episode can be decided: questions, and texts to embed."""

    texts: list[str] = field(default_factory=list)
    open: list[Question] = field(default_factory=list)
    early: bool = False  # on a view: they depend on a guess, and may change with its answer

    def __bool__(self) -> bool:
        return bool(self.texts or self.open)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings that deciding depends on; fixed for a run."""

    ontology: Ontology
    judge: str  # identity of the judge, recorded with its rulings and verdicts
    judging: str = "relation"  # or "statement": every compared pair is asked about


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One episode's input to the steps of deciding.

    extraction  as shaped to the ontology, with the names that the text gives
    others      ordinal of an entity -> those that the text tells to be the same
    asked       collects the open questions
    """

    episode: Episode
    extraction: Extraction
    others: Mapping[int, Sequence[int]]
    state: KnownState
    answers: Answers
    rules: Rules
    asked: Questions

    @property
    def sequence(self) -> int:
        """The episode's place in the group's order."""
        return self.episode.sequence

    def answer(self, question: Question) -> Answer | None:
        """Return the answer to a question; where there is none yet, note it as open and return None."""
        answer = self.answers.said.get(question)
        if answer is None and question not in self.asked.open:
            self.asked.open.append(question)
        return answer


class GroupState:
    """One group's graph with the look-ups that resolution needs. Has one owner; not thread-safe."""

    def __init__(self, records: GroupRecords, vectors: Iterable[Row], dimensions: int) -> None:
        """Build everything from the group's live records and its rows of `name_vectors`."""
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
        self._index(iter(vectors))

    @classmethod
    def load(cls, store: Store, group: str, dimensions: int) -> GroupState:
        """Read the group from the store."""
        with garbage_not_collected():
            records = records_of(store, group)
            state = cls(records, store.rows(ALL["name_vectors"], group), dimensions)
            let_go(records.heads, records.mentions, records.evidence)
            if state.is_large:
                gc.freeze()  # else the collector looks at all of it at once, and the loop waits
        return state

    def size(self) -> int:
        """Return about how many bytes the state takes."""
        return len(self.graph.statements) * BYTES_A_STATEMENT + len(self._owners) * BYTES_A_NAME

    @property
    def is_large(self) -> bool:
        """Whether freeing it at once, or collecting garbage in it, would keep the loop waiting."""
        return self.size() > _LARGE_BYTES

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
        """Apply a decided change; None = the state must be built anew.

        Where it folds stored relation names, or what stored ends bear on.
        """
        if self.graph.relations.refolded(change.rulings, recorded_at):
            return None
        difference = self.graph.absorb(change, recorded_at)
        if _ends_move(self.graph, change):
            return None
        for mention in change.mentions:
            shown, _ = self.graph.fold.shown(mention.entity, mention.surface, mention.sequence)
            self.names.add(shown, [mention.surface])
        self._take_vectors(change)
        self._rulings += bool(change.rulings)
        self.ontology_settled = True
        self.last_recorded = recorded_at
        return difference

    def _index(self, vectors: Iterator[Row]) -> None:
        for note in sorted(self.graph.entities.values(), key=lambda n: (n.born, n.id)):
            self.names.add(note.id, note.surfaces, new=True)
        while part := list(islice(vectors, 1024)):
            self._owners += map(itemgetter(0, 1), part)
            matrix = rows.as_vector(b"".join([row[-1] for row in part])).reshape(len(part), -1)
            self.nearest.extend(matrix, sort=False)
        self.nearest.sort()
        self._owned = set(self._owners)

    def _take_vectors(self, change: EpisodeChange) -> None:
        for mention, vector in change.name_vectors:
            # The row of a surface that only retracted mentions had is still there, as in the store.
            owner = (mention.entity, mention.surface)
            if owner not in self._owned:
                self._owners.append(owner)
                self._owned.add(owner)
                self.nearest.extend(vector[None])
        for statement, found in change.statement_vectors:
            if self._compares(self.graph.statements.get(statement)):
                self.statement_vectors[statement] = found.vector

    def wanted_vectors(self, judging: str) -> tuple[int, list[str]] | None:
        """Return which statements' vectors are to be read before deciding; None = nothing new to read.

        Of those that are compared by similarity: of `depends` relations, or of all with pipeline.judging =
        "statement". The number tells `take_wanted` as of which ruling; nothing is read twice.
        """
        if self._vectors_for == (judging, self._rulings):
            return None
        graph, traits = self.graph, self.graph.relations.traits
        missing = [
            id_
            for relation, those in graph.by_relation.items()
            if judging == "statement" or traits(relation).cardinality == "depends"
            for id_ in those
            if id_ not in self.statement_vectors
        ]
        return self._rulings, missing

    def take_wanted(self, wanted: tuple[int, list[str]], judging: str, found: Iterable[Row]) -> None:
        """Take the rows of the vectors that `wanted_vectors` asked for."""
        self.statement_vectors.update((row[0], rows.as_vector(row[-1])) for row in found)
        self._vectors_for = (judging, wanted[0])

    def clear(self) -> None:
        """Empty a state that is not used any more."""
        let_go(*vars(self.graph).values(), *vars(self).values(), self.names.postings)

    def _compares(self, statement: Statement | None) -> bool:
        if statement is None or self._vectors_for[0] == "statement":
            return statement is not None
        return self.graph.relations.traits(statement.relation).cardinality == "depends"


def _ends_move(graph: GroupGraph, change: EpisodeChange) -> bool:
    """Whether ends of every variant bear on another variant than before an episode (R13).

    They move to one that began earlier, or is the first that was told of.
    """
    there = (graph.statements[e.statement].key for e in change.evidence if e.statement in graph.statements)
    for key in {key for key in there if key in graph.general}:
        best = min(graph.buckets[key], key=lambda s: graph.statements[s].standing)
        if any(claim.statement != best for claim in graph.general[key]):
            return True
    return False
